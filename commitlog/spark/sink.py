"""The Spark sink: each task leases a lane of the running store and appends its rows.

A task is done when its rows are flushed, and in a store with SYNC_MASTER replicated. Rows are
written at least once: if a task fails or its worker is killed, the rows that it has appended stay
in the log, and the retry appends all rows of the task again.

The columns are those of the Kafka sink: value, key, topic, headers. Other columns are ignored. Only
`partition` is refused, unless the option ignorePartition is set, because a lane belongs to its
producer and nobody can choose it.

If the store is given by URL, its server leases the lane, and appends the rows that a task sends in
one stream.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from commitlog.appending.message_rows import MessageRows
from commitlog.disk.store_directory import StoreDirectory
from commitlog.disk.writable_topic import WritableTopic
from commitlog.errors import NoFreeLane, OptionError, RecordError, StoreNotFound, StoreNotRunning
from commitlog.planning.address import Address
from commitlog.planning.option_names import QUERY_OPTIONS, SINK_SPELLING, check_names
from commitlog.planning.option_values import boolean, duration_ms, writable_name
from commitlog.planning.options import store_of
from commitlog.spark.columns import HEADERS_TYPE
from commitlog.spark.launching.daemon import improve_this_worker
from commitlog.spark.task_reading import with_files_found
from commitlog.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

improve_this_worker()


_TYPES = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "headers": (HEADERS_TYPE.simpleString(),),
    "partition": ("int",),
}
_LEASE_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write. If `topic` is None, the column names the topic."""

    path: str
    address: Address | None
    topic: str | None
    headers: bool
    ignore_partition: bool
    max_lane_wait_ms: int


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Reads the options.

    Raises OptionError for a bad value or a name that a sink does not have, and TopicNotWritable.
    """
    check_names(options, SINK_SPELLING | QUERY_OPTIONS)
    values = {SINK_SPELLING[name.lower()]: value for name, value in options.items() if name.lower() in SINK_SPELLING}
    path, address = store_of(values)
    return SinkOptions(
        path=path,
        address=address,
        topic=writable_name("topic", values["topic"]) if "topic" in values else None,
        headers=boolean(values, "includeHeaders", True),
        ignore_partition=boolean(values, "ignorePartition", False),
        max_lane_wait_ms=duration_ms(values, "maxLaneWait", "1m"),
    )


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Checks the columns of the rows.

    Raises OptionError for a column that is missing, is named twice or has another type.
    """
    names = list(schema.names)
    for name, allowed in _TYPES.items():
        if names.count(name) > 1:
            raise OptionError(f"column {name} is there twice; select each once")
        kind = schema[name].dataType.simpleString() if name in names else None
        if kind is not None and kind not in allowed and not (name == "headers" and not options.headers):
            raise OptionError(f"column {name} is {kind}; it must be {' or '.join(allowed)}: CAST it")
    if "value" not in names:
        raise OptionError(f"column value is missing; the DataFrame has {', '.join(names) or 'no columns'}")
    if options.topic is None and "topic" not in names:
        raise OptionError("option topic is missing, and so is a column topic; give one of them")


class _Writer:
    """The common part of the writers of a batch and of a stream.

    It is pickled into every task, so nothing is opened before the task's first row.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        _check_store(options)  # before a task begins
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes the rows of one task; always gives its lane back.

        Returns when they are flushed, and in a store with SYNC_MASTER replicated. Raises
        RecordError for a row that can't be stored, NoFreeLane, StoreNotFound, StoreNotRunning,
        StoreStopped, NoBufferAvailable, DiskError, ReplicaNotAvailable, ReplicationTimeout.
        """
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is not None:
            with contextlib.closing(_with_lane(self.options, first.schema)) as rows:
                for batch in chain((first,), batches):
                    if not self.options.ignore_partition:
                        _refuse_partition(batch)
                    rows.append(batch)
                rows.finish()
        return WriterCommitMessage()


class TopicWriter:
    """Writes rows as they come (commitlog/spark/rows_to_python.py).

    It is pickled into a process of each task.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        _check_store(options)
        self.options = options
        self._rows: _PathRows | _UrlRows | None = None

    def __call__(self, batch: pa.RecordBatch) -> None:
        """Appends the rows. Raises what `_Writer.write` does."""
        if not self.options.ignore_partition:
            _refuse_partition(batch)
        if self._rows is None:
            self._rows = _with_lane(self.options, batch.schema)
        self._rows.append(batch)

    def flush(self) -> None:
        """Returns when all rows are as safe as `_Writer.write` leaves them.

        Gives the lane back: a stop waits for it.
        """
        if self._rows is not None:
            self._rows.finish()
            self.close()

    def close(self) -> None:
        """Gives the lane back."""
        if self._rows is not None:
            rows, self._rows = self._rows, None
            rows.close()


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("commitlog").mode("append")`."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream.format("commitlog")`.

    With output mode complete, it appends the whole result each time, as Kafka's sink does.
    """


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Checks everything and makes the writer of a batch. Raises OptionError."""
    if overwrite:
        raise OptionError("mode overwrite: a log is only appended to; nothing was deleted. Use .mode('append')")
    return BatchWriter(parse_sink_options(options), schema)


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    """Checks everything and makes the writer of a stream. Raises OptionError."""
    return StreamWriter(parse_sink_options(options), schema)


def _check_store(options: SinkOptions) -> None:
    """Raises StoreNotFound, TopicNotWritable.

    For a URL it raises also AccessDenied and the errors of a call to a server.
    """
    if options.address is None:
        directory = StoreDirectory(options.path)
        directory.load()
        if options.topic is not None:
            WritableTopic.of(directory, options.topic)
        return
    from commitlog.remote.append_stream import check_append
    from commitlog.remote.flight_connection import connection_of

    address = with_files_found(options.address)
    check_append(connection_of(address), address, options.topic)


def _with_lane(options: SinkOptions, schema: pa.Schema) -> _PathRows | _UrlRows:
    """Waits for a lane, in rounds of the store's own `producer.lane_wait_ms`."""
    deadline = SYSTEM_CLOCK.monotonic_ns() + options.max_lane_wait_ms * 1_000_000
    while True:
        try:
            return _PathRows(options) if options.address is None else _UrlRows(options, options.address, schema)
        except NoFreeLane as error:
            if SYSTEM_CLOCK.monotonic_ns() >= deadline:
                raise NoFreeLane(
                    f"option maxLaneWait: no lane within {options.max_lane_wait_ms / 1000:g} s: {error}. Or write from "
                    f"fewer tasks: .coalesce(n)"
                ) from None
        SYSTEM_CLOCK.sleep(_LEASE_PAUSE_SECONDS)


class _PathRows:
    """The rows of a task, on their way to a store of this machine."""

    def __init__(self, options: SinkOptions) -> None:
        from commitlog.client.stream_producer import StreamProducer

        try:
            self._producer = StreamProducer(options.path)
        except (StoreNotFound, StoreNotRunning) as error:
            raise type(error)(
                f"on {socket.gethostname()}: {error}. A task appends through shared memory, so the stages must run on the "
                f"machine of its executor"
            ) from None
        self.append = MessageRows(self._producer, options.topic, headers=options.headers).append
        self.finish = self._producer.finish
        self.close = self._producer.close


class _UrlRows:
    """The rows of a task, on their way to a served store."""

    def __init__(self, options: SinkOptions, address: Address, schema: pa.Schema) -> None:
        from commitlog.remote import requests
        from commitlog.remote.append_stream import AppendStream
        from commitlog.remote.flight_connection import connection_of

        address = with_files_found(address)
        wanted = ("value", "key", "topic", "headers")
        left_out = {"headers" if not options.headers else "", "topic" if options.topic is not None else ""}
        self._columns = [name for name in wanted if name in schema.names and name not in left_out]
        sent = self._sent(schema.empty_table()).schema
        request = requests.Append(address.store, options.topic)
        self._stream = AppendStream(connection_of(address), address, request, sent, patient=True)
        self.finish = self._stream.finish
        self.close = self._stream.close

    def append(self, batch: pa.RecordBatch) -> None:
        self._stream.append(self._sent(batch))

    def _sent(self, rows: Any) -> Any:
        """The columns that the server wants, strings as bytes: Spark's may not be UTF-8."""
        columns = rows.select(self._columns)
        kinds = [_as_bytes(field.type) for field in columns.schema]
        return columns.cast(pa.schema(zip(columns.schema.names, kinds, strict=True)))


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(pa.struct({"key": pa.binary(), "value": pa.binary()}))
    return pa.large_binary() if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else pa.binary()


def _refuse_partition(batch: pa.RecordBatch) -> None:
    column = batch.column("partition") if "partition" in batch.schema.names else None
    if column is None or column.null_count == len(column):
        return
    number = next(number for number in column.to_pylist() if number is not None)
    raise RecordError(
        f"column partition: {number} can't be asked for, a task appends to the lane that it leases; set option "
        f"ignorePartition to true, or .drop('partition')"
    )
