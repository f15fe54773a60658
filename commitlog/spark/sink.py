"""The Spark sink: each task leases a lane of the running store and appends its rows.

A task is done when its rows are flushed. Rows are written at least once: if a task fails or its
worker is killed, what it has appended stays in the log, and the retry appends all of its rows
again.

The columns are those of the Kafka sink: value, key, topic, headers. Other columns are ignored. Only
`partition` is refused, unless the option ignorePartition is set, because a lane belongs to its
producer and nobody can choose it.

Rows come as Arrow batches. If no row of a batch has headers, the values and keys of each topic go
through `send_batch`. Otherwise the rows are sent one by one, in their order.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from commitlog.clock import SYSTEM_CLOCK
from commitlog.columns.arrays import fixed
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import (
    IllegalProperty,
    IllegalTopic,
    MessageTooLarge,
    NoFreeLane,
    OptionError,
    PropertiesTooLarge,
    RecordError,
    StoreNotFound,
    StoreNotRunning,
)
from commitlog.planning.address import Address
from commitlog.planning.options import (
    QUERY_OPTIONS,
    SINK_SPELLING,
    boolean,
    check_names,
    duration_ms,
    store_of,
    topic_name,
)
from commitlog.record.byte_ranges import Ints
from commitlog.record.properties import BytesKey, check_topic, encode_properties
from commitlog.spark.columns import HEADERS_TYPE
from commitlog.spark.launching.daemon import improve_this_worker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from commitlog.producer import Producer

improve_this_worker()


_TYPES = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "headers": (HEADERS_TYPE.simpleString(),),
    "partition": ("int",),
}
_RECORD_BYTES_MAX = 512  # more than a record takes besides its value, with the longest topic but no key and headers
_UTF8_BYTES_MAX = 4  # of one character
_SHOWN_CHARACTERS = 80
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
    """Reads the options. Raises OptionError for a bad value or a name that a sink does not have."""
    check_names(options, SINK_SPELLING | QUERY_OPTIONS)
    values = {SINK_SPELLING[name.lower()]: value for name, value in options.items() if name.lower() in SINK_SPELLING}
    path, address = store_of(values)
    return SinkOptions(
        path=path,
        address=address,
        topic=topic_name("topic", values["topic"]) if "topic" in values else None,
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
    """What batch and stream have in common.

    It is pickled into every task, so nothing is opened before the task's first row.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        StoreDirectory(options.path).load()  # says that there is no store before a task begins
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes the rows of one task. Returns when they are flushed; always gives its lane back.

        Raises RecordError for a row that can't be stored, NoFreeLane, StoreNotFound,
        StoreNotRunning, StoreStopped, NoBufferAvailable, DiskError.
        """
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is not None:
            with _lease(self.options) as producer:
                rows = _Rows(producer, self.options)
                rows.append(first)
                for batch in batches:
                    rows.append(batch)
                producer.flush()
        return WriterCommitMessage()


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


def _lease(options: SinkOptions) -> Producer:
    """Waits for a lane, in rounds of the store's own `producer.lane_wait_ms`.

    It imports ZeroMQ, which readers do not need.
    """
    from commitlog.spark.task_producer import TaskProducer

    deadline = SYSTEM_CLOCK.monotonic_ns() + options.max_lane_wait_ms * 1_000_000
    while True:
        try:
            return TaskProducer(options.path)
        except (StoreNotFound, StoreNotRunning) as error:
            raise type(error)(
                f"on {socket.gethostname()}: {error}. A task appends through shared memory, so the stages must run on the "
                f"machine of its executor"
            ) from None
        except NoFreeLane as error:
            if SYSTEM_CLOCK.monotonic_ns() >= deadline:
                raise NoFreeLane(
                    f"option maxLaneWait: no lane within {options.max_lane_wait_ms / 1000:g} s: {error}. Or write from "
                    f"fewer tasks: .coalesce(n)"
                ) from None
        SYSTEM_CLOCK.sleep(_LEASE_PAUSE_SECONDS)


class _Rows:
    """Appends the rows of Arrow batches to one producer.

    Raises RecordError, which names the column and the value.
    """

    def __init__(self, producer: Producer, options: SinkOptions) -> None:
        self._producer, self._options = producer, options

    def append(self, batch: pa.RecordBatch) -> None:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        values = _as_binary(columns["value"])
        if values.null_count:
            raise RecordError("column value: null can't be stored; leave such rows out: .where('value IS NOT NULL')")
        if not self._options.ignore_partition:
            _refuse_partition(columns.get("partition"))
        keys = _keys(columns.get("key"))
        headers = _headers(columns.get("headers")) if self._options.headers else None
        try:
            if headers is None:
                for topic, rows in self._by_topic(columns):
                    own = keys if keys is None or rows is None else [keys[row] for row in rows.to_pylist()]
                    self._send_values(topic, values if rows is None else values.take(rows), own)
            else:
                self._send_rows(columns, values, keys, headers)
        except MessageTooLarge as error:
            raise MessageTooLarge(f"column value: {error}") from None

    def _topics(self, columns: Mapping[str, pa.Array]) -> tuple[list[str], Ints | None]:
        """The topics of a batch, and which one each row has (None: all have the first)."""
        if self._options.topic is not None:
            return [self._options.topic], None
        column = _as_binary(columns["topic"])
        if column.null_count:
            raise IllegalTopic("column topic: null is not a topic; give option topic, which all rows then get")
        encoded = column.dictionary_encode()
        names = [name.decode(errors="replace") for name in encoded.dictionary.to_pylist()]
        for name in names:
            try:
                check_topic(name)
            except IllegalTopic as error:
                raise IllegalTopic(f"column topic: {error}") from None
        return names, None if len(names) == 1 else np.asarray(encoded.indices, np.int64)

    def _by_topic(self, columns: Mapping[str, pa.Array]) -> Iterator[tuple[str, pa.Array | None]]:
        """Each topic with its rows in their order (None: all rows)."""
        names, which = self._topics(columns)
        if which is None:
            yield names[0], None
            return
        order = np.argsort(which, kind="stable")
        bounds = np.searchsorted(which[order], np.arange(len(names) + 1))
        for name, (start, end) in zip(names, pairwise(bounds.tolist()), strict=True):
            yield name, fixed(order[start:end], pa.int64())

    def _send_values(self, topic: str, values: pa.Array, keys: list[str | None] | None) -> None:
        """Sends the values in batches, each of which fits into a segment with room to spare."""
        most = self._producer.message_bytes_max
        sizes = _sizes(values) + _RECORD_BYTES_MAX
        if keys is not None:
            sizes += np.fromiter((_UTF8_BYTES_MAX * len(key) if key else 0 for key in keys), np.int64, len(keys))
        total = np.cumsum(sizes)
        start, count = 0, len(values)
        while start < count:
            before = int(total[start - 1]) if start else 0
            end = max(int(np.searchsorted(total, before + most, side="right")), start + 1)
            part = None if keys is None else keys[start:end]
            try:
                self._producer.send_batch(topic, values.slice(start, end - start), keys=part)
            except (IllegalProperty, PropertiesTooLarge):
                _refuse_key(part or [])
                raise
            start = end

    def _send_rows(
        self, columns: Mapping[str, pa.Array], values: pa.Array, keys: list[str | None] | None, headers: list[Any]
    ) -> None:
        names, which = self._topics(columns)
        topics = repeat(names[0]) if which is None else map(names.__getitem__, which.tolist())
        rows = zip(topics, values.to_pylist(), keys or repeat(None), headers, strict=False)
        send = self._producer.send
        for topic, value, key, pairs in rows:
            try:
                send(topic, value, key=key, headers=pairs)
            except (IllegalProperty, PropertiesTooLarge) as error:
                raise type(error)(f"{_culprit(key, pairs)}: {error}") from None


def _as_binary(column: pa.Array) -> pa.Array:
    """The string column as binary, over the same memory. Spark's strings may not be UTF-8."""
    if pa.types.is_large_string(column.type):
        return column.view(pa.large_binary())
    return column.view(pa.binary()) if pa.types.is_string(column.type) else column


def _sizes(values: pa.Array) -> Ints:
    """Bytes of each value of a binary array without nulls."""
    kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    offsets = np.frombuffer(values.buffers()[1], kind)[values.offset : values.offset + len(values) + 1]
    return np.diff(offsets).astype(np.int64)


def _refuse_partition(column: pa.Array | None) -> None:
    if column is None or column.null_count == len(column):
        return
    number = next(number for number in column.to_pylist() if number is not None)
    raise RecordError(
        f"column partition: {number} can't be asked for, a task appends to the lane that it leases; set option "
        f"ignorePartition to true, or .drop('partition')"
    )


def _keys(column: pa.Array | None) -> list[str | None] | None:
    """The keys as text, or None if no row has a key. One that is no text is a BytesKey."""
    if column is None or column.null_count == len(column):
        return None
    return [None if key is None else _key(key) for key in _as_binary(column).to_pylist()]


def _key(data: bytes) -> str:
    if not (b"\x01" in data or b"\x02" in data):
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode() or _text(data, "key")
    return BytesKey.of(data)


def _headers(column: pa.Array | None) -> list[dict[str, str] | None] | None:
    """The headers of each row, in their order, or None if no row has any."""
    if column is None or column.null_count == len(column):
        return None
    structs = column.values
    names, values = (_as_binary(child).to_pylist() for child in structs.flatten())
    bounds = column.offsets.to_pylist()
    found: list[dict[str, str] | None] = []
    for start, end in pairwise(bounds):
        pairs = {}
        for name, value in zip(names[start:end], values[start:end], strict=True):
            if name is None or value is None:
                raise IllegalProperty(f"column headers: {_shown((name, value))}: null can't be stored, leave it out")
            text = _text(name, "headers")
            if text in pairs:
                raise IllegalProperty(f"column headers: {_shown(text)} is there twice; a message has each name once")
            pairs[text] = _text(value, "headers")
        found.append(pairs or None)
    return found


def _text(data: bytes, column: str) -> str:
    """The text of a header, or of a key, which RocketMQ's properties hold as text.

    An empty text is refused, because readers do not keep it.
    """
    if not data:
        raise IllegalProperty(f"column {column}: b'': readers drop an empty name or value; use null or leave it out")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise IllegalProperty(
            f"column {column}: {_shown(data)} is not UTF-8, which headers must be; use hex() or base64()"
        ) from None


def _refuse_key(keys: list[str | None]) -> None:
    """Raises an error that names the first key that can't be stored."""
    for key in keys:
        try:
            encode_properties(key, None, None)
        except (IllegalProperty, PropertiesTooLarge) as error:
            raise type(error)(f"column key: {_shown(key)}: {error}") from None


def _culprit(key: str | None, pairs: Mapping[str, str] | None) -> str:
    """Names the one of the two columns that can't be stored, with its value."""
    try:
        encode_properties(key, None, None)
    except RecordError:
        return f"column key: {_shown(key)}"
    return f"column headers: {_shown(pairs)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
