"""Spark's source without a session, for tests that go through all doors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from commitlog.spark.source import CommitLogDataSource


def needs_spark() -> None:
    """Skips the test where PySpark is missing, as it is in the root of scripts/test-arm."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")


def spark_source(options: dict[str, str]) -> CommitLogDataSource:
    needs_spark()
    from commitlog.spark.source import CommitLogDataSource

    return CommitLogDataSource(options)
