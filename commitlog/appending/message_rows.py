"""Appends the rows of Arrow batches as messages, for Spark's sink and for a server's clients.

The columns are those of the Kafka sink: value, key, topic, headers; and tags, if they are asked
for. Other columns are ignored. Rows keep their order, also those of several topics. If all rows of
a batch are of one topic, and none has headers or tags, they go through `send_batch`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from commitlog.disk.writable_topic import check_writable_name
from commitlog.errors import (
    CommitLogError,
    IllegalProperty,
    IllegalTopic,
    MessageTooLarge,
    PropertiesTooLarge,
    RecordError,
    TopicNotWritable,
)
from commitlog.receipt import Receipt
from commitlog.record.byte_ranges import Ints
from commitlog.record.properties import BytesKey, encode_properties
from commitlog.record.record_layout import PROPERTIES_BYTES_MAX

_RECORD_BYTES_MAX = 512  # more than a record takes besides its value, with the longest topic but no key and headers
_UTF8_BYTES_MAX = 4  # of one character
_SHOWN_CHARACTERS = 80
PART_ROWS, PART_HEADERS = 1 << 16, 1 << 16
"""So much becomes objects of Python at a time: they take many times the memory of Arrow's."""
_HEADERS_MAX = PROPERTIES_BYTES_MAX // 4
"""No message has more headers: each takes a name, a value and two separators."""


class Sender(Protocol):
    """The part of a producer that is needed here."""

    @property
    def message_bytes_max(self) -> int: ...

    def send(
        self, topic: str, value: bytes, *, key: str | None, headers: Mapping[str, str] | None, tags: str | None
    ) -> Receipt: ...

    def send_batch(self, topic: str, values: Any, *, keys: Sequence[str | None] | None) -> Receipt: ...


def _anything(_topics: Iterable[str]) -> None:
    """Lets all topics pass."""


class MessageRows:
    """Appends the rows of Arrow batches to one producer.

    `topic` is the topic of all rows; if it is None, the column `topic` has it. `check` is called
    with the topics of a batch, or of each part of a large one, before any of its rows is sent.
    `sent` counts the accepted rows, and `receipt` is the receipt of the last one. Raises
    RecordError, which names the column and the value.
    """

    def __init__(
        self,
        producer: Sender,
        topic: str | None = None,
        *,
        headers: bool = True,
        tags: bool = False,
        check: Callable[[Iterable[str]], None] = _anything,
    ) -> None:
        self._producer, self._topic, self._check = producer, topic, check
        self._has_headers, self._has_tags = headers, tags
        self.sent = 0
        self.receipt: Receipt | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Appends all rows.

        An error's `rows_sent` says how many rows of all batches are in the log.
        """
        try:
            for part in _parts(batch, batch.schema.get_field_index("headers") if self._has_headers else -1):
                self._append(part)
        except CommitLogError as error:
            error.rows_sent = self.sent
            raise

    def _append(self, batch: pa.RecordBatch) -> None:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        values = as_binary(columns["value"])
        if values.null_count:
            raise RecordError("column value: null can't be stored; leave such rows out: .where('value IS NOT NULL')")
        keys = _keys(columns.get("key"))
        headers = _headers(columns.get("headers")) if self._has_headers else None
        tags = _tags(columns.get("tags")) if self._has_tags else None
        try:
            names, which = self._topics(columns)
            if which is None and headers is None and tags is None:
                self._send_values(names[0], values, keys)
            else:
                topics = repeat(names[0]) if which is None else map(names.__getitem__, which.tolist())
                self._send_rows(topics, values, keys, headers, tags)
        except MessageTooLarge as error:
            raise MessageTooLarge(f"column value: {error}") from None

    def _topics(self, columns: Mapping[str, pa.Array]) -> tuple[list[str], Ints | None]:
        """The topics of a batch, and the number of each row's topic (None: all have the first)."""
        if self._topic is not None:
            self._check((self._topic,))
            return [self._topic], None
        column = as_binary(columns["topic"])
        if column.null_count:
            raise IllegalTopic("column topic: null is not a topic; give option topic, which all rows then get")
        encoded = column.dictionary_encode()
        names = [name.decode(errors="replace") for name in encoded.dictionary.to_pylist()]
        for name in names:
            try:
                check_writable_name(name)
            except TopicNotWritable as error:
                raise type(error)(f"column topic: {error}") from None
        self._check(names)
        return names, None if len(names) == 1 else np.asarray(encoded.indices, np.int64)

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
                self.receipt = self._producer.send_batch(topic, values.slice(start, end - start), keys=part)
            except (IllegalProperty, PropertiesTooLarge):
                _refuse_key(part or [])
                raise
            self.sent += end - start
            start = end

    def _send_rows(
        self,
        topics: Iterable[str],
        values: pa.Array,
        keys: list[str | None] | None,
        headers: list[dict[str, str] | None] | None,
        tags: list[str | None] | None,
    ) -> None:
        nothing = repeat(None)
        rows = zip(topics, values.to_pylist(), keys or nothing, headers or nothing, tags or nothing, strict=False)
        send = self._producer.send
        for topic, value, key, pairs, tag in rows:
            try:
                self.receipt = send(topic, value, key=key, headers=pairs, tags=tag)
            except (IllegalProperty, PropertiesTooLarge) as error:
                raise type(error)(f"{_culprit(key, pairs, tag)}: {error}") from None
            self.sent += 1


def _parts(batch: pa.RecordBatch, headers: int) -> Iterator[pa.RecordBatch]:
    """The batch in parts that have only so many rows and headers each, but one row at least.

    `headers` is the place of that column, or -1.
    """
    if headers < 0 and batch.num_rows <= PART_ROWS:
        if batch.num_rows:
            yield batch
        return
    ends = np.zeros(batch.num_rows + 1, np.int32) if headers < 0 else np.asarray(batch.column(headers).offsets)
    start = 0
    while start < batch.num_rows:
        last = int(np.searchsorted(ends, ends[start] + PART_HEADERS, side="right")) - 1
        end = max(min(start + PART_ROWS, last), start + 1)
        yield batch.slice(start, end - start)
        start = end


def as_binary(column: pa.Array) -> pa.Array:
    """The string column as binary, over the same memory. Spark's strings may not be UTF-8."""
    if pa.types.is_large_string(column.type):
        return column.view(pa.large_binary())
    return column.view(pa.binary()) if pa.types.is_string(column.type) else column


def _sizes(values: pa.Array) -> Ints:
    """Bytes of each value of a binary array without nulls."""
    kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    offsets = np.frombuffer(values.buffers()[1], kind)[values.offset : values.offset + len(values) + 1]
    return np.diff(offsets).astype(np.int64)


def _keys(column: pa.Array | None) -> list[str | None] | None:
    """The keys as text, or None if no row has a key. A key that is not text becomes a BytesKey."""
    if column is None or column.null_count == len(column):
        return None
    return [None if key is None else _key(key) for key in as_binary(column).to_pylist()]


def _key(data: bytes) -> str:
    if not (b"\x01" in data or b"\x02" in data):
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode() or _text(data, "key")
    return BytesKey.of(data)


def _headers(column: pa.Array | None) -> list[dict[str, str] | None] | None:
    """The headers of each row, in their order, or None if no row has any."""
    if column is None or column.null_count == len(column):
        return None
    offsets = np.asarray(column.offsets)
    if (most := int(np.diff(offsets).max())) > _HEADERS_MAX:
        raise PropertiesTooLarge(f"column headers: {most:,} headers of one message; at most {_HEADERS_MAX:,} fit")
    structs = column.values.slice(offsets[0], offsets[-1] - offsets[0])  # those of this part of a batch
    names, values = (as_binary(child).to_pylist() for child in structs.flatten())
    bounds = (offsets - offsets[0]).tolist()
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


def _tags(column: pa.Array | None) -> list[str | None] | None:
    if column is None or column.null_count == len(column):
        return None
    return [None if tags is None else _text(tags, "tags") for tags in as_binary(column).to_pylist()]


def _text(data: bytes, column: str) -> str:
    """The text of a header, a key or tags, which RocketMQ's properties hold as text.

    An empty text is refused, because readers do not keep it.
    """
    if not data:
        raise IllegalProperty(f"column {column}: b'': readers drop an empty name or value; use null or leave it out")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise IllegalProperty(
            f"column {column}: {_shown(data)} is not UTF-8, which it must be; use hex() or base64()"
        ) from None


def _refuse_key(keys: list[str | None]) -> None:
    """Raises an error that names the first key that can't be stored."""
    for key in keys:
        try:
            encode_properties(key, None, None)
        except (IllegalProperty, PropertiesTooLarge) as error:
            raise type(error)(f"column key: {_shown(key)}: {error}") from None


def _culprit(key: str | None, pairs: Mapping[str, str] | None, tags: str | None) -> str:
    """Names the column that can't be stored, with its value."""
    for column, value in (("key", key), ("tags", tags)):
        try:
            encode_properties(key if column == "key" else None, tags if column == "tags" else None, None)
        except RecordError:
            return f"column {column}: {_shown(value)}"
    return f"column headers: {_shown(pairs)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
