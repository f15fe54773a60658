"""One record in RocketMQ's message format: encoded once in its final form, and decoded with checks.

The layout's fields, offsets and widths are in record_layout.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from commitlog.errors import CorruptRecord, IllegalTopic, MessageTooLarge, PropertiesTooLarge, RecordError
from commitlog.record.crc import CRC_MASK, crc32, crc_property_parts, digits_of, stored_digits
from commitlog.record.host import Host, message_id
from commitlog.record.properties import decode_properties, tags_code
from commitlog.record.record_layout import (
    BLANK,
    CRC_PROPERTY_BYTES,
    HEAD_BYTES,
    HOST_V6_BYTES,
    HOSTS_V6,
    I8,
    I16,
    I32,
    LEAD_BYTES,
    LEAD_STRUCT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_LENGTH_BYTES,
    RECORD_BYTES_MIN,
    REST_STRUCTS,
    TAIL_BYTES_MIN,
    V1_TOPIC_BYTES_MAX,
    V1_TOPIC_LENGTH_BYTES,
    V2_TOPIC_LENGTH_BYTES,
    Buffer,
    SysFlag,
    Transaction,
    head_struct,
    transaction_of,
)
from commitlog.record.topic_names import TOPIC_BYTES_MAX

_pack_i16 = I16.pack


def encode_blank(remaining: int) -> bytes:
    """The 8 bytes that end a segment of which `remaining` bytes are left (≥ 8)."""
    return BLANK.pack(remaining, MAGIC_BLANK)


class RecordEncoder:
    """Encodes the records of one lane.

    Everything that stays the same from record to record is packed once. A record is encoded in its
    final form, and nothing in it is changed later. The encoder remembers topic and properties of
    the last record with the bytes that they became, so repeating them costs a comparison only.
    """

    __slots__ = (
        "_born",
        "_crc_bytes",
        "_high",
        "_low",
        "_magic",
        "_middle",
        "_overhead",
        "_pack",
        "_pack_rare",
        "_properties",
        "_properties_most",
        "_queue",
        "_store",
        "_sys_flag",
        "_tail",
        "_topic",
        "_topic_overhead",
        "_topic_part",
        "append_crc",
        "head_bytes",
        "host_flags",
        "queue_id",
    )

    def __init__(self, queue_id: int, born_host: Host, store_host: Host, append_crc: bool = True) -> None:
        self.queue_id, self.append_crc = queue_id, append_crc
        self._born, self._store = born_host.encode(), store_host.encode()
        self._queue = I32.pack(queue_id) + I32.pack(0)
        self.host_flags = (SysFlag.BORN_HOST_V6 if len(self._born) == HOST_V6_BYTES else 0) | (
            SysFlag.STORE_HOST_V6 if len(self._store) == HOST_V6_BYTES else 0
        )
        self._sys_flag = I32.pack(self.host_flags)
        self.head_bytes = HEAD_BYTES[self.host_flags]
        # bytes are the cheapest items of a struct, so what does not change is packed once
        self._pack = head_struct(
            self.host_flags,
            raw=("magic", "queue_id", "flag", "sys_flag"),
            zero=("reconsume_times", "prepared_transaction_offset"),
        ).pack
        self._pack_rare = head_struct(self.host_flags, raw=("magic",)).pack
        self._low, self._middle, self._high = crc_property_parts() if append_crc else ([], [], [])
        self._crc_bytes = CRC_PROPERTY_BYTES if append_crc else 0
        self._properties_most = PROPERTIES_BYTES_MAX - self._crc_bytes
        self._topic: bytes | None = None
        self._topic_part, self._topic_overhead, self._magic = b"", 0, b""
        self._properties: bytes | None = None  # of the last record, whose tail and overhead these are:
        self._tail, self._overhead = b"", 0

    def _learn_topic(self, topic: bytes) -> None:
        if not 0 < len(topic) <= TOPIC_BYTES_MAX:
            raise IllegalTopic(f"topic of {len(topic)} bytes; 1 to {TOPIC_BYTES_MAX} are allowed")
        version_1 = len(topic) <= V1_TOPIC_BYTES_MAX
        width = V1_TOPIC_LENGTH_BYTES if version_1 else V2_TOPIC_LENGTH_BYTES
        self._magic = (MAGIC_V1 if version_1 else MAGIC_V2).to_bytes(4, "big")
        self._topic_part = len(topic).to_bytes(width, "big") + topic
        self._topic_overhead = self.head_bytes + len(self._topic_part) + PROPERTIES_LENGTH_BYTES + self._crc_bytes
        self._topic = topic

    def _learn(self, topic: bytes, properties: bytes) -> None:
        self._properties = None  # so an exception in between leaves nothing, and not a mixture
        if topic != self._topic:
            self._learn_topic(topic)
        stored = properties
        if stored and stored[-1] != 2 and self._crc_bytes:
            stored += b"\x02"
        length = len(stored)
        if length > self._properties_most:
            raise PropertiesTooLarge(f"properties of {length:,} bytes; at most {self._properties_most:,} fit")
        self._tail = self._topic_part + _pack_i16(length + self._crc_bytes) + stored
        self._overhead = self._topic_overhead + length
        self._properties = properties

    def template(self, topic: bytes) -> tuple[bytes, bytes, bool]:
        """What all records of a topic have in common, for the native core.

        It is the head of an empty record, the bytes of TOPICLEN and TOPIC, and whether records end
        with the CRC property. Raises IllegalTopic.
        """
        head = self.encode(topic, b"", b"", 0, 0, 0, 0)[: self.head_bytes]
        return head, self._topic_part, self.append_crc

    def size(self, topic: bytes, body: bytes | memoryview, properties: bytes) -> int:
        """TOTALSIZE in bytes, with the CRC property. Raises IllegalTopic, PropertiesTooLarge."""
        if properties != self._properties or topic != self._topic:
            self._learn(topic, properties)
        return self._overhead + len(body)

    def tails(self, topic: bytes, properties: Sequence[bytes]) -> list[bytes]:
        """The bytes from TOPICLEN to PROPS of records of one topic, without the CRC property.

        `encode_properties` must have made the properties, so that none is too long and each ends
        with its separator. Raises IllegalTopic.
        """
        self._learn(topic, b"")
        part, crc_bytes = self._topic_part, self._crc_bytes
        return [part + _pack_i16(len(own) + crc_bytes) + own for own in properties]

    def encode(
        self,
        topic: bytes,
        body: bytes,
        properties: bytes,
        queue_offset: int,
        physical_offset: int,
        born_timestamp: int,
        store_timestamp: int,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> bytes:
        """The whole record. Timestamps are ms, offsets are those of record_layout.py's table.

        The encoder sets the host bits of `sys_flag`, and the queue offset 0 of PREPARED and
        ROLLBACK. It takes topic and properties as they are; check_topic and encode_properties make
        good ones. If the CRC property follows, properties without their last separator get one, as
        in RocketMQ. Raises IllegalTopic, PropertiesTooLarge, MessageTooLarge (beyond 31 bits),
        RecordError (a number beyond its field).
        """
        if properties != self._properties or topic != self._topic:
            self._learn(topic, properties)
        length = len(body)
        try:
            if flag or sys_flag or reconsume_times or prepared_transaction_offset:
                sys_flag = sys_flag & ~HOSTS_V6 | self.host_flags
                if sys_flag & Transaction.PREPARED:  # also ROLLBACK, which has this bit too: neither is in a queue
                    queue_offset = 0
                head = self._pack_rare(
                    self._overhead + length, self._magic, crc32(body) & CRC_MASK, self.queue_id, flag,
                    queue_offset, physical_offset, sys_flag, born_timestamp, self._born, store_timestamp,
                    self._store, reconsume_times, prepared_transaction_offset, length,
                )  # fmt: skip
            else:
                head = self._pack(
                    self._overhead + length, self._magic, crc32(body) & CRC_MASK, self._queue,
                    queue_offset, physical_offset, self._sys_flag, born_timestamp, self._born,
                    store_timestamp, self._store, length,
                )  # fmt: skip
        except struct.error as error:
            if self._overhead + length > 0x7FFFFFFF:
                raise MessageTooLarge(f"a body of {length:,} bytes: a record ends at 2 GiB") from None
            raise RecordError(f"a number does not fit its field of the record: {error}") from None
        if not self.append_crc:
            return head + body + self._tail
        record = head + body + self._tail
        crc = crc32(record) & CRC_MASK
        digits = self._low[crc % 1_000], self._middle[crc // 1_000 % 1_000], self._high[crc // 1_000_000]
        return b"".join((record, *digits))


@dataclass(frozen=True, slots=True)
class Record:
    """A decoded record: every field as it is stored, and properties computed from the fields."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    raw_properties: bytes

    @property
    def properties(self) -> dict[str, str]:
        """Names and values, decoded anew at each use."""
        return decode_properties(self.raw_properties)

    @property
    def tags_code(self) -> int:
        """The tags code that the consume queue holds for this record."""
        return tags_code(self.properties.get("TAGS"))

    @property
    def message_id(self) -> str:
        return message_id(self.store_host.encode(), self.physical_offset)

    @property
    def transaction(self) -> Transaction:
        return transaction_of(self.sys_flag)

    @property
    def has_crc(self) -> bool:
        """Whether the record ends with the whole-record CRC."""
        return stored_digits(self.raw_properties) is not None


def topic_fault(topic: bytes) -> str | None:
    """Why these bytes can't be a stored topic, or None if they can.

    RocketMQ's store accepts any UTF-8, which is more than its brokers accept. So only names are
    refused that a directory can't have: a topic from a disk must never lead out of the consume
    queues.
    """
    if not topic or len(topic) > TOPIC_BYTES_MAX:
        return f"topic of {len(topic)} bytes"
    if b"/" in topic or b"\0" in topic or topic in (b".", b".."):
        return f"topic {topic!r} is not a name"
    try:
        topic.decode()
    except UnicodeDecodeError:
        return "topic is not UTF-8"
    return None


def decode(
    buffer: Buffer,
    position: int = 0,
    *,
    limit: int | None = None,
    physical_offset: int | None = None,
    queue_id: int | None = None,
    check_crc: bool = True,
    require_crc: bool = False,
) -> Record:
    """The record at `position` (bytes) of a buffer.

    No part of it may be beyond `limit` (default: the buffer's end). Every length is checked before
    it is used. If `physical_offset` and `queue_id` are given, the record must have them.
    `check_crc` verifies the whole-record CRC, or the body's if there is none. `require_crc` takes a
    record without a whole-record CRC for torn. That is right for a log that was always written with
    it. Raises CorruptRecord with reason and offset.
    """
    place = position if physical_offset is None else physical_offset
    end = len(buffer) if limit is None else min(limit, len(buffer))
    with memoryview(buffer) as view:
        try:
            return _decode(view, position, end, physical_offset, queue_id, check_crc, require_crc)
        except _Fault as fault:
            reason: str = fault.args[0]
    # raised here, so that no traceback keeps a view of a mapping that its owner wants to close
    raise CorruptRecord(reason, place)


class _Fault(Exception):
    """The reason why bytes are not a record. The caller adds the offset."""


def _decode(
    view: memoryview,
    start: int,
    end: int,
    physical_offset: int | None,
    queue_id: int | None,
    check_crc: bool,
    require_crc: bool,
) -> Record:
    if start < 0 or end - start < RECORD_BYTES_MIN:
        raise _Fault(f"{max(end - start, 0)} bytes are too few for a record")
    total, magic, body_crc, queue, flag, queue_offset, offset, sys_flag, born_time = LEAD_STRUCT.unpack_from(
        view, start
    )
    if magic == MAGIC_BLANK:
        raise _Fault("BLANK: the segment ends here")
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise _Fault(f"magic {magic:#010x} is none of a record")
    if not RECORD_BYTES_MIN <= total <= end - start:
        raise _Fault(f"size {total:,} with {end - start:,} bytes left")
    if physical_offset is not None and offset != physical_offset:
        raise _Fault(f"physical offset {offset} belongs to another place")
    if queue_id is not None and queue != queue_id:
        raise _Fault(f"queue id {queue}, not {queue_id}")
    end = start + total
    hosts = sys_flag & HOSTS_V6
    fixed = HEAD_BYTES[hosts] + TAIL_BYTES_MIN + (magic == MAGIC_V2)
    if total < fixed:
        raise _Fault(f"size {total} is less than the {fixed} bytes of its fixed fields")
    rest = REST_STRUCTS[hosts].unpack_from(view, start + LEAD_BYTES)
    born_host, store_time, store_host, reconsume_times, prepared_offset, body_bytes = rest
    if not 0 <= body_bytes <= total - fixed:
        raise _Fault(f"body of {body_bytes:,} bytes in a record of {total:,}")
    at = start + HEAD_BYTES[hosts]
    body = bytes(view[at : at + body_bytes])
    topic, properties = _decode_tail(view, at + body_bytes, end, magic)
    if check_crc and not _record_crc_holds(view[start:end], properties, require_crc):
        if crc32(body) & CRC_MASK != body_crc:
            raise _Fault("the body's CRC does not match")
        if stored_digits(properties) is not None:
            raise _Fault("the whole-record CRC does not match")
    return Record(
        total, magic, body_crc, queue, flag, queue_offset, offset, sys_flag, born_time, Host.decode(born_host),
        store_time, Host.decode(store_host), reconsume_times, prepared_offset, body, topic, properties,
    )  # fmt: skip


def _decode_tail(view: memoryview, at: int, end: int, magic: int) -> tuple[str, bytes]:
    """Topic and properties. TOPICLEN is at `at`, and both lengths fit before `end`."""
    length = I8 if magic == MAGIC_V1 else I16
    (topic_bytes,) = length.unpack_from(view, at)
    at += length.size
    room = end - at - PROPERTIES_LENGTH_BYTES
    if not 0 < topic_bytes <= room:
        raise _Fault(f"topic of {topic_bytes} bytes with {room} left")
    topic = bytes(view[at : at + topic_bytes])
    fault = topic_fault(topic)
    if fault:
        raise _Fault(fault)
    at += topic_bytes
    (properties_bytes,) = I16.unpack_from(view, at)
    at += PROPERTIES_LENGTH_BYTES
    if properties_bytes != end - at:
        raise _Fault(f"properties of {properties_bytes} bytes where {end - at} are left")
    return topic.decode(), bytes(view[at:end])


def _record_crc_holds(record: memoryview, properties: bytes, required: bool) -> bool:
    """Whether a record has the whole-record CRC and it holds.

    It covers the body's CRC, which then holds too. No record ends in a zero: if one does, its CRC
    was lost with the end of its properties.
    """
    digits = stored_digits(properties)
    if digits is None:
        if required or properties[-1:] == b"\0":
            raise _Fault("the whole-record CRC is missing")
        return False
    return digits_of(crc32(record[:-CRC_PROPERTY_BYTES]) & CRC_MASK) == digits
