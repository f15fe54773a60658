"""Reads a topic as an Arrow stream, without Spark: for pandas, Polars, DuckDB and PyArrow."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from commitlog.columns.read_plan import ReadOptions
from commitlog.planning.address import OF_READ_ARROW, Credentials, address_of
from commitlog.reading.starting_point import parse_starts
from commitlog.remote.topic_reading import WantedRange, open_topic

if TYPE_CHECKING:
    import pyarrow as pa


def read_arrow(
    path: str | os.PathLike[str],
    topic: str,
    *,
    start: str | int | datetime | Mapping[str, Mapping[int, int]] = "earliest",
    end: str | int | datetime | Mapping[str, Mapping[int, int]] = "latest",
    columns: Collection[str] | None = None,
    metadata: bool = False,
    values: Literal["bytes", "columns"] | None = None,
    isolation: Literal["flushed", "committed"] = "flushed",
    fail_on_data_loss: bool = True,
    ignore_corrupt: bool = False,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    cert_file: str | os.PathLike[str] | None = None,
    key_file: str | os.PathLike[str] | None = None,
) -> pa.RecordBatchReader:
    """Reads the messages of a topic as batches of columns. A batch is read when it is asked for.

    A topic with a schema has the schema's columns; `metadata` adds `_topic`, `_partition`,
    `_offset`, `_row`, `_timestamp` and `_key`. A topic without a schema has the columns of Spark's
    Kafka source: key, value, topic, partition, offset, timestamp, timestampType. With
    `values="bytes"` a topic with a schema has these columns too. `columns` names the wanted columns
    in their order; only these are decoded.

        table = commitlog.read_arrow("data/events", "orders").read_all()
        frame = polars.from_arrow(commitlog.read_arrow("data/events", "orders"))

    The range of messages is fixed when this function returns: from `start` up to `end`, without
    `end` itself. Each of the two is "earliest", "latest", "last 100", "10 minutes ago", an ISO
    time, one offset for every partition, or offsets of single partitions, as for a Reader. The path
    may be a RocketMQ store root. Partitions come one after the other.

    The path may also be the URL of a store that `commitlog serve` serves:

        commitlog.read_arrow("commitlog+tls://host:4433/events", "orders", token_file="token")

    - `token`, or `token_file`, which holds nothing else: the text that `commitlog token add` has
      printed.
    - `ca_file`: the authorities that the server's certificate is checked with, in PEM format.
      Without it, the authorities that come with gRPC count.
    - `cert_file`, `key_file`: the client's own certificate and its key, in PEM format.

    Raises StoreNotFound, UnknownTopic, NoSchema, BadStart, OffsetOutOfRange, IllegalArgument (there
    is no such column), MissingPackage. Reading the batches raises CorruptRecord or DamagedFile,
    after the good rows of all other partitions, and DataLoss if retention has deleted messages of
    the range. With a URL, both the call and the reading also raise ServerUnavailable, AccessDenied,
    CertificateRefused, ServerError.
    """
    credentials = Credentials.of(token, token_file, ca_file, cert_file, key_file)
    place = address_of(path, credentials, OF_READ_ARROW) or path
    options = ReadOptions(isolation, fail_on_data_loss, ignore_corrupt, reader="read_arrow")
    return open_topic(
        place, WantedRange(topic, parse_starts(start), parse_starts(end), options, columns, metadata, values)
    )
