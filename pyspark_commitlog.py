"""Lets Spark find the format `commitlog` without registration, as a module `pyspark_<format>`.

Spark imports all modules of such names when a session looks for any Python source. If an import
fails, Spark behaves as if the module did not exist. So this module needs nothing but PySpark. If
anything else is missing or wrong, an error names it when the format is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]

with contextlib.suppress(Exception):  # it is raised again, and seen, when a source is made
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
