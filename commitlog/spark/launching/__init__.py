"""A Spark session that finds Java and Python, and starts quickly. Private; `commitlog.spark.session` is the door."""
