"""Spark's source without a session, for tests that go through all doors.

Where PySpark is missing, as it is in the root of scripts/test-arm, they are skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.builders.hand_made import HandMadeStore

if TYPE_CHECKING:
    from commitlog.spark.source import CommitLogDataSource, StreamReader


def needs_spark() -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")


def spark_source(options: dict[str, str]) -> CommitLogDataSource:
    needs_spark()
    from commitlog.spark.source import CommitLogDataSource

    return CommitLogDataSource(options)


def spark_stream(store: HandMadeStore, **options: object) -> StreamReader:
    needs_spark()
    from tests.spark.test_stream_reader import reader

    return reader(store, **options)


def run_stream(of: StreamReader, start: Any, *limit: Any) -> tuple[list[tuple[int, int, bytes]], Any]:
    """All batches until there is nothing new, and where that is."""
    from tests.spark.test_stream_reader import run

    return run(of, start, *limit)
