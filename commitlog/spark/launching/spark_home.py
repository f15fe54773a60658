"""Where the Spark is that a session starts."""

from __future__ import annotations

from pathlib import Path


def spark_home() -> Path:
    """The home of the Spark that a session starts: SPARK_HOME, or PySpark's own."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())
