"""Lets Spark find the format `commitlog` with no registration: it looks for a module `pyspark_<format>`."""

from commitlog.spark.source import CommitLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
