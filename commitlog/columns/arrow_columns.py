"""Decodes records of a mapped segment into an Arrow RecordBatch, with no Python loop over records.

The native core looks at each record once (table.py). Without it, a field of many records is
gathered by one copy of numpy's (byte_ranges.py). Bytes of varying length are gathered by one `take`
(arrays.py). Only the columns that were asked for are built. Before that, every record is checked
against its place: magic, size, queue id, queue offset, physical offset, topic and all lengths.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from commitlog.columns import arrays
from commitlog.columns.arrays import Spans
from commitlog.columns.mapped_segments import Segment
from commitlog.columns.property_pairs import CRC_WORD, Pairs, parse_pairs
from commitlog.columns.unpacked_size import UNPACKED_BYTES_MAX, TooMuchUnpacked
from commitlog.errors import CorruptRecord
from commitlog.native import core
from commitlog.reading.queue_bounds import NamedQueue
from commitlog.record.body_compression import plain_body
from commitlog.record.byte_ranges import Ints, evenly, stride_of
from commitlog.record.host import message_id
from commitlog.record.properties import BYTES_KEY_NAME
from commitlog.record.record import decode
from commitlog.record.record_layout import (
    BODY_LENGTH_BYTES,
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_NAME,
    HEAD_V4,
    HEAD_V4_BYTES,
    HOST_V6_MORE,
    HOSTS_V6,
    I64,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    TAIL_BYTES_MIN,
    TOTAL_SIZE_AT,
    V1_TOPIC_BYTES_MAX,
    V1_TOPIC_LENGTH_BYTES,
    SysFlag,
    host_bytes,
)
from commitlog.record.table import RecordGatherer

BATCH_ROWS_MAX = 75_000
BATCH_BYTES_MAX = 16 << 20
"""A batch is cut before it passes one of these limits, but it has at least one row.

A batch costs Spark about a millisecond, and memory for its bytes.
"""
TIMESTAMP = pa.timestamp("us", "UTC")
COLUMN_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    "tags": pa.string(),
    "bornTimestamp": TIMESTAMP,
    "properties": pa.map_(pa.string(), pa.string()),
    "physicalOffset": pa.int64(),
    "messageId": pa.string(),
    "size": pa.int32(),
    "sysFlag": pa.int32(),
}
"""All columns that messages have. The first seven are those of Spark's Kafka source."""
KAFKA_COLUMNS = tuple(COLUMN_TYPES)[:7]

LOG_APPEND_TIME_TYPE = 1
"""The value of timestampType for Kafka's LogAppendTime: the time of the store."""

_MS_MOST = (2**63 - 1) // 1000
"""The highest time in milliseconds that fits into 64 bits when it is turned into microseconds."""

_BLOCK_ROWS = 4_000
"""A block of this size stays in a core's cache while its fields are compared one by one."""
_ALIKE = ((TOTAL_SIZE_AT, "i8"), (QUEUE_ID_AT, "i4"), (SYS_FLAG_AT, "i4"))
"""TOTALSIZE with MAGIC, QUEUEID, SYSFLAG: the fields that say how a record is laid out."""

_MESSAGE_ID = np.dtype([(name, HEAD_V4[name]) for name in ("store_host", "physical_offset")])
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


@dataclass(frozen=True)
class Places:
    """Where records are in a segment.

    `at` (bytes from the segment's start) and `size` (bytes) have one value for each record.
    `offset` is the queue offset of the first record.
    """

    at: Ints
    size: Ints
    offset: int

    def cut(self, start: int, end: int) -> Places:
        return Places(self.at[start:end], self.size[start:end], self.offset + start)


def cut(places: Places, most_bytes: int) -> Iterator[Places]:
    """The records in pieces of at most 75,000 rows and `most_bytes`, but at least one row each."""
    total = np.cumsum(places.size)
    start, count = 0, len(places.at)
    while start < count:
        before = int(total[start - 1]) if start else 0
        end = int(np.searchsorted(total, before + most_bytes, side="right"))
        end = max(min(end, start + BATCH_ROWS_MAX), start + 1)
        yield places.cut(start, end)
        start = end


@lru_cache(maxsize=64)
def usual_tail(topic: bytes) -> tuple[np.dtype[np.void], dict[str, int]]:
    """The layout of a V1 record from its body's end to its first property's name.

    Returns the dtype, and the values that some of its fields must have. Topic and its length are
    read as a few numbers, because numpy compares numbers many times faster than strings.
    """
    text = bytes([len(topic) & 0xFF]) + topic
    fields: list[tuple[str, str]] = []
    expected = {}
    for width in (8, 4, 2, 1):
        while len(text) >= width:
            name = f"topic {len(fields)}"
            fields.append((name, f"<u{width}"))
            expected[name] = int.from_bytes(text[:width], "little")
            text = text[width:]
    fields += [("properties_bytes", ">i2"), ("name", ">i8")]
    return np.dtype(fields), expected


def words_of(start: int, end: int) -> Iterator[tuple[int, str]]:
    """Covers the bytes [start, end), at least four, with numbers: place and type of each.

    The numbers may overlap.
    """
    width = 8 if end - start >= 8 else 4
    for at in (*range(start, end - width, width), end - width):
        yield at, f"i{width}"


class Decoder:
    """The checked records of one batch. Parts that several columns need are made once."""

    sys_flag: npt.NDArray[np.signedinteger]
    body: Spans
    properties: Spans

    def __init__(self, segment: Segment, queue: NamedQueue, places: Places) -> None:
        self.segment, self.queue, self.places = segment, queue, places
        self.topic = queue.topic.encode()
        self.count = len(places.at)
        self._has_no_pairs = False  # so far nothing is known; `pairs` looks closer
        self._check_bounds()
        if self._are_like_the_first() or (core is not None and self._are_all_good()):
            return
        self.sys_flag = self.heads["sys_flag"].astype(np.int32)
        self._check_heads()
        self._find_body()
        self._check_tails()

    # ---- finding and checking -------------------------------------------------------------------

    def _fail(self, wrong: npt.NDArray[np.bool_], reason: str) -> None:
        """Raises CorruptRecord for the first record for which `wrong` holds, if there is one."""
        if wrong.any():
            index = int(np.argmax(wrong))
            offset = self.segment.start + int(self.places.at[index])
            row = f"topic {self.queue.topic}, lane {self.queue.lane}, offset {self.places.offset + index}"
            raise CorruptRecord(f"{row}: {reason}", offset, str(self.segment.path))

    def _check_bounds(self) -> None:
        at, size = self.places.at, self.places.size
        outside = (at < 0) | (size < HEAD_V4_BYTES) | (at + size > self.segment.size)
        self._fail(outside, "the record is not in its segment")
        self._fail(np.concatenate((at[1:] < (at + size)[:-1], [False])), "the next record lies within this one")
        self.segment.read_ahead(at, at + size)

    def _are_like_the_first(self) -> bool:
        """Whether all records have the size and layout of the first one.

        The first one is checked alone, and the others are compared with its bytes in place. This
        takes half the time of gathering them. If it returns False, the other checks find out what
        is different.
        """
        places, u8 = self.places, self.segment.u8
        stride = stride_of(places.at)
        if not stride or not self.queue.offset_is_stored or (places.size != places.size[0]).any():
            return False
        first = Decoder(self.segment, self.queue, places.cut(0, 1))
        start = int(places.at[0])
        found = (first.body.start, first.body.end, first.properties.start)
        body_at, body_end, properties_at = (int(where[0]) - start for where in found)
        # if the first has no pairs, the name of the CRC property is compared too
        named = properties_at + (len(CRC_PROPERTY_NAME) if first._has_no_pairs else 0)
        words = [*_ALIKE, (body_at - BODY_LENGTH_BYTES, "i4"), *words_of(body_end, named)]
        wanted = [(where, kind, evenly(u8, kind, start + where, 1, 1)[0]) for where, kind in words]
        expected = {
            QUEUE_OFFSET_AT: np.arange(places.offset, places.offset + self.count),
            PHYSICAL_OFFSET_AT: places.at + self.segment.start,
        }
        for begin in range(0, self.count, _BLOCK_ROWS):
            count, at = min(_BLOCK_ROWS, self.count - begin), start + begin * stride
            for where, kind, word in wanted:
                if (evenly(u8, kind, at + where, stride, count) != word).any():
                    return False
            for where, numbers in expected.items():
                if (evenly(u8, ">i8", at + where, stride, count) != numbers[begin : begin + count]).any():
                    return False
        self.heads = evenly(u8, HEAD_V4, start, stride, self.count)
        self.sys_flag = np.full(self.count, first.sys_flag[0])
        self.body = Spans(places.at + body_at, places.at + body_end)
        self.properties = Spans(places.at + properties_at, places.at + places.size)
        self._has_no_pairs = first._has_no_pairs
        return True

    def _are_all_good(self) -> bool:
        """Whether the native core finds that all records are good and belong here.

        If it returns False, the other checks find out what is different.
        """
        places, queue = self.places, self.queue
        lane = queue.lane if queue.offset_is_stored else None
        gatherer = RecordGatherer(self.segment.map, self.segment.start, lane, check_crc=False, require_crc=False)
        table = gatherer.tabulate(places.at, places.size)
        if len(table) < self.count:
            return False
        if queue.offset_is_stored:
            expected = np.arange(places.offset, places.offset + self.count)
            if table.topics != [queue.topic] or (table.queue_offsets != expected).any():
                return False
        self.sys_flag, self.store_timestamps = table.sys_flags, table.store_timestamps
        self.body = Spans(table.body_positions, table.body_positions + table.body_sizes)
        self.properties = Spans(table.properties_positions, table.properties_positions + table.properties_sizes)
        self._has_no_pairs = bool((table.properties_sizes == CRC_PROPERTY_BYTES * table.has_crc).all())
        return True

    @cached_property
    def heads(self) -> npt.NDArray[Any]:
        """The records' heads as HEAD_V4.

        Fields behind an IPv6 host are wrong, because they lie elsewhere.
        """
        return self.segment.gather_as(HEAD_V4, self.places.at)

    @cached_property
    def has_ipv6(self) -> bool:
        return bool((self.sys_flag & HOSTS_V6).any())

    @cached_property
    def stored_at(self) -> Ints:
        """The places of the records' store timestamps in the segment."""
        born_more = HOST_V6_MORE * ((self.sys_flag & SysFlag.BORN_HOST_V6) != 0)
        stored_at: Ints = self.places.at + STORE_TIMESTAMP_AT + born_more
        return stored_at

    @cached_property
    def store_timestamps(self) -> npt.NDArray[Any]:
        return self.segment.gather(">i8", self.stored_at) if self.has_ipv6 else self.heads["store_timestamp"]

    def _check_heads(self) -> None:
        heads, places = self.heads, self.places
        magic = heads["magic"]
        self._is_v2 = magic == MAGIC_V2
        self._fail(~self._is_v2 & (magic != MAGIC_V1), "no record begins here")
        self._fail(heads["total_size"] != places.size, "the size in the record is not the one in the consume queue")
        self._fail(heads["physical_offset"] != places.at + self.segment.start, "a record of another place")
        if self.queue.offset_is_stored:
            self._fail(heads["queue_id"] != self.queue.lane, "a record of another lane")
            expected = np.arange(places.offset, places.offset + self.count)
            self._fail(heads["queue_offset"] != expected, "a record with another queue offset")

    def _find_body(self) -> None:
        at = self.places.at
        if self.has_ipv6:
            stored_more = HOST_V6_MORE * ((self.sys_flag & SysFlag.STORE_HOST_V6) != 0)
            after = self.stored_at + (HEAD_V4_BYTES - STORE_TIMESTAMP_AT) + stored_more
            self._fail(after > at + self.places.size, "the record is too short for its addresses")
            body_bytes = self.segment.gather(">i4", after - BODY_LENGTH_BYTES).astype(np.int64)
        else:
            after = at + HEAD_V4_BYTES
            body_bytes = self.heads["body_bytes"].astype(np.int64)
        self.body = Spans(after, after + body_bytes)
        ends = at + self.places.size
        too_long = self.body.end + TAIL_BYTES_MIN + self._is_v2 > ends
        self._fail((body_bytes < 0) | too_long, "the body is longer than its record")

    def _check_tails(self) -> None:
        if not self._tails_are_usual():
            self._check_each_tail()

    def _tails_are_usual(self) -> bool:
        """Looks at topic, properties' length and first property's name of V1 records by one gather.

        False if anything is different. Then `_check_each_tail` finds out what.
        """
        at, topic = self.body.end, self.topic
        kind, expected = usual_tail(topic)
        is_other = not self.queue.offset_is_stored or len(topic) > V1_TOPIC_BYTES_MAX or bool(self._is_v2.any())
        if is_other or int(at[-1]) + kind.itemsize > self.segment.size:
            return False
        tails = self.segment.gather_as(kind, at)
        ends = self.places.at + self.places.size
        properties_at = at + len(topic) + TAIL_BYTES_MIN
        if any((tails[name] != word).any() for name, word in expected.items()):
            return False
        if (tails["properties_bytes"] != ends - properties_at).any():
            return False
        self.properties = Spans(properties_at, ends)
        lengths = tails["properties_bytes"]
        self._has_no_pairs = bool(((tails["name"] == CRC_WORD) & (lengths == CRC_PROPERTY_BYTES)).all())
        return True

    def _check_each_tail(self) -> None:
        ends = self.places.at + self.places.size
        topic_at = self.body.end + V1_TOPIC_LENGTH_BYTES + self._is_v2
        topic_bytes = self.segment.u8[topic_at - 1].astype(np.int64)  # in V2 the low byte
        if self._is_v2.any():
            topic_bytes += np.where(self._is_v2, self.segment.u8[topic_at - 2].astype(np.int64) << 8, 0)
        properties_at = topic_at + topic_bytes + PROPERTIES_LENGTH_BYTES
        self._fail(properties_at > ends, "the topic is longer than its record")
        length = self.segment.gather(">i2", properties_at - PROPERTIES_LENGTH_BYTES)
        self._fail(length != ends - properties_at, "the properties are not as long as the record says")
        if self.queue.offset_is_stored:
            self._fail(topic_bytes != len(self.topic), "a record of another topic")
            names = self.segment.gather(f"S{len(self.topic)}", topic_at)
            self._fail(names != self.topic, "a record of another topic")
        self.properties = Spans(properties_at, ends)

    # ---- columns --------------------------------------------------------------------------------

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """All columns of the schema, whose names and types are among those of schema.py."""
        columns = [_BUILDERS[field.name](self, field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    @cached_property
    def pairs(self) -> Pairs | None:
        """All properties, or None if no record has any besides the appended CRC."""
        if self._has_no_pairs:
            return None
        spans = self.properties
        lengths = spans.end - spans.start
        if not ((lengths == 0) | (lengths == CRC_PROPERTY_BYTES)).all():
            return parse_pairs(self.segment, spans.start, spans.end)
        where = spans.start[lengths == CRC_PROPERTY_BYTES]
        if len(where) and not (self.segment.gather(">i8", where) == CRC_WORD).all():
            return parse_pairs(self.segment, spans.start, spans.end)
        return None

    def property_values(self, name: bytes, kind: pa.DataType) -> pa.Array:
        if self.pairs is None:
            return arrays.nulls(kind, self.count)
        spans, which = self.pairs.value_by_row(name)
        return arrays.take_spans(pa.py_buffer(self.pairs.data), spans, kind, which)

    def keys(self, kind: pa.DataType) -> pa.Array:
        """The keys as bytes. A key that the record has in base64 is decoded."""
        keys = self.property_values(b"KEYS", kind)
        coded = self.property_values(BYTES_KEY_NAME.encode(), kind)
        if coded.null_count == self.count:
            return keys
        found: list[bytes | None] = keys.to_pylist()
        for row, text in enumerate(coded.to_pylist()):
            if text is not None:
                with suppress(ValueError):  # somebody else has written it: no key
                    found[row] = b64decode(text, validate=True)
        return arrays.binaries(found)

    def pair_lists(self, kind: pa.DataType, *, headers: bool) -> pa.Array:
        pairs = self.pairs or Pairs.none(self.count)
        if headers:
            pairs = pairs.select(~pairs.reserved())
            key_kind, value_kind = kind.value_type.field(0).type, kind.value_type.field(1).type
        else:
            key_kind, value_kind = kind.key_type, kind.item_type
        data = pa.py_buffer(pairs.data)
        keys = arrays.take_spans(data, Spans(pairs.name_at, pairs.name_end), key_kind)
        values = arrays.take_spans(data, Spans(pairs.name_end + 1, pairs.value_end), value_kind)
        return arrays.lists(kind, pairs.counts(), [keys, values], empty_is_null=headers)

    def values(self, kind: pa.DataType) -> pa.Array:
        """The bodies as they were sent. Raises TooMuchUnpacked."""
        if not (self.sys_flag & SysFlag.COMPRESSED).any():
            return arrays.take_spans(self.segment.buffer, self.body, kind)
        unpacked: list[bytes] = []
        taken = 0
        for at, size in zip(self.places.at.tolist(), self.places.size.tolist(), strict=True):
            record = decode(
                self.segment.map, at, limit=at + size, physical_offset=self.segment.start + at, check_crc=False
            )
            unpacked.append(plain_body(record))
            taken += len(unpacked[-1])
            if taken > UNPACKED_BYTES_MAX and self.count > 1:
                raise TooMuchUnpacked
        return arrays.binaries(unpacked)

    def timestamps(self, ms: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
        inside = np.clip(ms.astype(np.int64), -_MS_MOST, _MS_MOST)  # a client may have sent any number
        return arrays.fixed(inside * 1000, kind)

    def message_ids(self, kind: pa.DataType) -> pa.Array:
        if self.has_ipv6:
            return self._message_ids_ipv6()
        ids = np.empty(self.count, _MESSAGE_ID)
        ids["store_host"], ids["physical_offset"] = self.heads["store_host"], self.heads["physical_offset"]
        raw = ids.view(np.uint8).reshape(self.count, -1)
        return arrays.fixed_strings(_HEX[np.stack((raw >> 4, raw & 15), axis=2).reshape(self.count, -1)], kind)

    def _message_ids_ipv6(self) -> pa.Array:
        found = []
        rows = zip(self.stored_at.tolist(), self.sys_flag.tolist(), self.heads["physical_offset"].tolist(), strict=True)
        for stored_at, sys_flag, physical_offset in rows:
            at, size = stored_at + I64.size, host_bytes(sys_flag)["store_host"]
            found.append(message_id(self.segment.map[at : at + size], physical_offset).encode())
        return pa.Array.from_buffers(pa.string(), self.count, arrays.binaries(found).buffers())

    def numbers(self, values: npt.NDArray[Any], dtype: type[np.generic], kind: pa.DataType) -> pa.Array:
        return arrays.fixed(np.ascontiguousarray(values.astype(dtype)), kind)

    def constant(self, value: int, kind: pa.DataType) -> pa.Array:
        return arrays.fixed(np.full(self.count, value, np.int32), kind)

    def offsets(self, kind: pa.DataType) -> pa.Array:
        return arrays.fixed(np.arange(self.places.offset, self.places.offset + self.count, dtype=np.int64), kind)


_BUILDERS: dict[str, Callable[[Decoder, pa.DataType], pa.Array]] = {
    "key": Decoder.keys,
    "value": Decoder.values,
    "topic": lambda rows, kind: arrays.constant_strings(rows.topic, rows.count),
    "partition": lambda rows, kind: rows.constant(rows.queue.lane, kind),
    "offset": Decoder.offsets,
    "timestamp": lambda rows, kind: rows.timestamps(rows.store_timestamps, kind),
    "timestampType": lambda rows, kind: rows.constant(LOG_APPEND_TIME_TYPE, kind),
    "headers": lambda rows, kind: rows.pair_lists(kind, headers=True),
    "tags": lambda rows, kind: rows.property_values(b"TAGS", kind),
    "bornTimestamp": lambda rows, kind: rows.timestamps(rows.heads["born_timestamp"], kind),
    "properties": lambda rows, kind: rows.pair_lists(kind, headers=False),
    "physicalOffset": lambda rows, kind: rows.numbers(rows.heads["physical_offset"], np.int64, kind),
    "messageId": Decoder.message_ids,
    "size": lambda rows, kind: rows.numbers(rows.places.size, np.int32, kind),
    "sysFlag": lambda rows, kind: rows.numbers(rows.sys_flag, np.int32, kind),
}
