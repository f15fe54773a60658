"""A Spark session that finds Java and Python, and starts quickly.

Private: users call `commitlog.spark.session`.
"""
