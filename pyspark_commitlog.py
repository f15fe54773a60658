"""Lets Spark find the format `commitlog` with no registration: it looks for a module `pyspark_<format>`.

Spark imports all of these modules when a session looks for any Python source, and takes one that fails for one that is not
there. So nothing is imported here but PySpark: what is missing is said by name when the format is used.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource

from commitlog.spark.daemon import end_quietly_if_planning

__all__ = ["DefaultSource"]

end_quietly_if_planning()


class DefaultSource(DataSource):
    """Stands for CommitLogDataSource until Spark makes one."""

    def __new__(cls, options: MutableMapping[str, str]) -> Any:
        from commitlog.spark.source import CommitLogDataSource

        return CommitLogDataSource(options)

    @classmethod
    def name(cls) -> str:
        return "commitlog"
