"""The reader of a stream that Spark drives, driven without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from commitlog.spark.source import CommitLogDataSource, StreamReader
from tests.served import place_of

Offset = dict[str, Any]


@contextmanager
def stream(
    path: Path, *, fails: bool = True, topic: str = "orders", lanes: dict[str, list[int]] | None = None
) -> Iterator[StreamReader]:
    """A reader of the topics from their beginning, maybe only of some lanes."""
    chosen = {"subscribe": topic} if lanes is None else {"assign": json.dumps(lanes)}
    options = chosen | {
        "path": place_of(path),
        "startingoffsets": "earliest",
        "columns": "value",
        "failondataloss": str(fails).lower(),
    }
    source = CommitLogDataSource(options)
    reader = source.streamReader(source.schema())
    try:
        yield reader
    finally:
        reader.stop()


def end_of(reader: StreamReader, start: Offset) -> Offset:
    return reader.latestOffset(start, ReadAllAvailable())


def rows(reader: StreamReader, start: Offset, end: Offset) -> list[bytes]:
    """What a batch gives."""
    return values(reader, reader.partitions(start, end))


def values(reader: StreamReader, tasks: Sequence[InputPartition]) -> list[bytes]:
    """What planned tasks give."""
    batches = (batch for task in tasks for batch in reader.read(task))
    return [row["value"] for batch in batches for row in batch.to_pylist()]
