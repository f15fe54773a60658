"""Reads a topic as an Arrow stream, without Spark: for pandas, Polars, DuckDB and PyArrow."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa


def read_arrow(
    path: str | os.PathLike[str],
    topic: str,
    *,
    start: str | int | Mapping[str, Mapping[int, int]] = "earliest",
    end: str | int | Mapping[str, Mapping[int, int]] = "latest",
    columns: Collection[str] | None = None,
    metadata: bool = False,
    values: Literal["bytes", "columns"] | None = None,
    isolation: Literal["flushed", "committed"] = "flushed",
    fail_on_data_loss: bool = True,
    ignore_corrupt: bool = False,
) -> pa.RecordBatchReader:
    """The messages of a topic as batches of columns, which are read as they are asked for.

    A topic with a schema has the schema's columns; `metadata` adds `_topic`, `_partition`,
    `_offset`, `_row`, `_timestamp` and `_key`. Another topic has the columns of Spark's Kafka
    source: key, value, topic, partition, offset, timestamp, timestampType; a typed one has them
    with `values="bytes"`. `columns` chooses some, in its order; only these are decoded.

        table = commitlog.read_arrow("data/events", "orders").read_all()
        frame = polars.from_arrow(commitlog.read_arrow("data/events", "orders"))

    What is read is fixed when this returns: from `start` up to `end`, which is not included. Both
    are "earliest", "latest", "last 100", "10 minutes ago", an ISO time, an offset for every
    partition, or offsets of single ones; a Reader has the same. The path may be a RocketMQ store
    root. Partitions come one after the other.

    Raises StoreNotFound, UnknownTopic, NoSchema, BadStart, OffsetOutOfRange, IllegalArgument (there
    is no such column), MissingPackage. Reading the batches raises CorruptRecord, DamagedFile, and
    DataLoss where retention was quicker.
    """
    from commitlog.columns.topic_reading import open_topic
    from commitlog.reading.starting_point import parse_starts

    return open_topic(
        path,
        topic,
        parse_starts(start),
        parse_starts(end),
        columns=columns,
        metadata=metadata,
        values=values,
        isolation=isolation,
        fail_on_data_loss=fail_on_data_loss,
        ignore_corrupt=ignore_corrupt,
    )
