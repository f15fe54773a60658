"""The client's side of a served store: what Spark, `read_arrow` and the command line ask by URL.

Private. PyArrow's Flight client is imported when a connection is made and not before: gRPC does not
survive a fork, and Spark forks its workers from a process that has imported this package.
"""
