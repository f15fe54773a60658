"""Lets Spark find the format `commitlog` with no registration: it looks for a module
`pyspark_<format>`.

Spark imports all of these modules when a session looks for any Python source, and takes one that
fails for one that is not there. So nothing is needed here but PySpark: what is missing or wrong is
said by name when the format is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]

with contextlib.suppress(Exception):  # raised again, and heard, where a source is made
    from commitlog.spark.launching.daemon import improve_this_worker

    improve_this_worker()


class DefaultSource(DataSource):
    """Stands for CommitLogDataSource until Spark makes one."""

    def __new__(cls, options: MutableMapping[str, str]) -> Any:
        from commitlog.spark.source import CommitLogDataSource

        return CommitLogDataSource(options)

    @classmethod
    def name(cls) -> str:
        return "commitlog"
