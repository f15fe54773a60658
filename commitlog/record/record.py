"""One record: RocketMQ's message format, V1 and V2, byte for byte. All numbers are big-endian.

    0       4       8       12      16      20              28              36      40              48
    ┌───────┬───────┬───────┬───────┬───────┬───────────────┬───────────────┬───────┬───────────────┬─ ─
    │TOTAL  │MAGIC  │BODY   │QUEUE  │FLAG   │QUEUEOFFSET    │PHYSICALOFFSET │SYSFLAG│BORNTIMESTAMP  │
    │SIZE   │       │CRC    │ID     │       │               │               │       │               │
    └───────┴───────┴───────┴───────┴───────┴───────────────┴───────────────┴───────┴───────────────┴─ ─
    48         48+B            56+B        56+B+S    60+B+S             68+B+S    72+B+S
    ┌──────────┬───────────────┬───────────┬─────────┬──────────────────┬─────────┬─ ─ ─
    │BORNHOST B│STORETIMESTAMP │STOREHOST S│RECONSUME│PREPARED_TX_OFFSET│BODYLEN n│BODY
    └──────────┴───────────────┴───────────┴─────────┴──────────────────┴─────────┴─ ─ ─
    72+B+S+n
    ┌───────────────────┬─ ─ ─ ─┬──────────┬─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┬─────────┬──────┬──────────┬────┐
    │TOPICLEN, 1 or 2: t│TOPIC  │PROPSLEN p│PROPS: name 01 value 02 │__CRC32# │ 0x01 │10 digits │0x02│
    └───────────────────┴─ ─ ─ ─┴──────────┴─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┴─────────┴──────┴──────────┴────┘

    field               type    offset    remarks
    TOTALSIZE           i32     0         itself included: 75+B+S+n+t+p, in V2 one more
    MAGIC               u32     4         V1 0xDAA320A7, V2 0xDAA320AB; BLANK 0xCBD43194
    BODYCRC             i32     8         zlib's CRC-32 & 0x7FFFFFFF of the stored body, 0 for none
    QUEUEID             i32     12        here: the lane
    FLAG                i32     16        the user's
    QUEUEOFFSET         i64     20        0 for PREPARED and ROLLBACK
    PHYSICALOFFSET      i64     28        where the record is in its log
    SYSFLAG             i32     36        see SysFlag
    BORNTIMESTAMP       i64     40        ms
    BORNHOST            B       48        B = 8 (IPv4 address, i32 port) or 20 (IPv6 address, i32 port)
    STORETIMESTAMP      i64     48+B      ms
    STOREHOST           S       56+B      S = 8 or 20
    RECONSUMETIMES      i32     56+B+S
    PREPARED_TX_OFFSET  i64     60+B+S
    BODYLEN, BODY       i32, n  68+B+S
    TOPICLEN, TOPIC     i8, t   72+B+S+n  UTF-8; V2 has an i16, for topics above 127 bytes
    PROPSLEN, PROPS     i16, p            `name 0x01 value 0x02` ... (properties.py)

The whole-record CRC (RocketMQ's `enabledAppendPropCRC`) is the last property, 20 bytes: `__CRC32#`
0x01, ten decimal digits with the least significant first, 0x02. It covers everything before itself.

A segment ends in BLANK: i32 of the bytes remaining, u32 magic; what follows up to the end means
nothing.

The layout is that of RocketMQ's MessageExtEncoder, the reading that of its MessageDecoder. V1 or V2
is chosen by the topic's *bytes*; RocketMQ counts characters, and its logs become unreadable where
the two differ too much.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from zlib_ng import zlib_ng

from commitlog.errors import CorruptRecord, IllegalTopic, MessageTooLarge, PropertiesTooLarge, RecordError
from commitlog.record.body import plain_body
from commitlog.record.host import Host, message_id
from commitlog.record.properties import (
    CRC_PROPERTY_BYTES,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
    check_topic,
    decode_properties,
    encode_properties,
    tags_code,
)

__all__ = [
    "BLANK_BYTES",
    "CRC_PROPERTY_BYTES",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "Host",
    "Record",
    "RecordEncoder",
    "SysFlag",
    "Transaction",
    "check_topic",
    "decode",
    "decode_properties",
    "encode_blank",
    "encode_properties",
    "message_id",
    "plain_body",
    "tags_code",
    "transaction_of",
]

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
BLANK_BYTES = 8
CRC_MASK = 0x7FFFFFFF
FIXED_BYTES = 75
"""TOTALSIZE of a V1 record with empty body, topic and properties, its two hosts not counted."""
RECORD_BYTES_MIN = FIXED_BYTES + 8 + 8 + 1
"""The smallest record there can be: V1, IPv4, a topic of one byte."""
V1_TOPIC_BYTES_MAX = 127

CRC_PROPERTY_START = b"__CRC32#\x01"
Buffer = bytes | bytearray | memoryview | mmap.mmap
"""What bytes are read from; a memoryview must be of plain bytes."""

crc32 = zlib_ng.crc32
_blank = struct.Struct(">iI")
_head = struct.Struct(">iIiiiqqiq")  # up to and with BORNTIMESTAMP
_i16 = struct.Struct(">h")
_pack_i16 = _i16.pack
_i32 = struct.Struct(">i")
_i64 = struct.Struct(">q")
_mid = struct.Struct(">iqi")  # RECONSUMETIMES, PREPARED_TX_OFFSET, BODYLEN
assert (_head.size, _mid.size) == (48, 16)
assert _head.size + _i64.size + _mid.size + 1 + _i16.size == FIXED_BYTES


class SysFlag:
    """The bits of SYSFLAG (RocketMQ's MessageSysFlag)."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_KIND = 0x700


class Transaction(IntEnum):
    """The transaction bits of SYSFLAG. PREPARED and ROLLBACK: queue offset 0, no consume queue
    entry.
    """

    NOT = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


def transaction_of(sys_flag: int) -> Transaction:
    """The transaction type that a SYSFLAG holds."""
    return Transaction(sys_flag & SysFlag.TRANSACTION)


def encode_blank(remaining: int) -> bytes:
    """The 8 bytes that end a segment of which `remaining` bytes are left (≥ 8)."""
    return _blank.pack(remaining, MAGIC_BLANK)


@lru_cache(maxsize=1)
def crc_digits() -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The CRC property in three pieces: its name and the low three digits, by crc % 1,000; the next
    three, by crc // 1,000 % 1,000; the last four and 0x02, by crc // 1,000,000.

    Look-ups cost less than formatting and reversing ten digits, as long as the tables stay in a
    core's own cache beside the messages that pass through it.
    """
    digits = [(b"%03d" % number)[::-1] for number in range(1_000)]
    high = [(b"%04d" % number)[::-1] + b"\x02" for number in range(CRC_MASK // 1_000_000 + 1)]
    return [CRC_PROPERTY_START + three for three in digits], digits, high


class RecordEncoder:
    """Encodes the records of one lane; everything that stays the same from record to record is
    bound once.

    Records are encoded in their final form: nothing is patched later. Topic and properties of the
    last record are remembered with the bytes they became: a producer that repeats them pays for a
    comparison only.
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
        self._queue = struct.pack(">ii", queue_id, 0)
        self.host_flags = (SysFlag.BORN_HOST_V6 if len(self._born) == 20 else 0) | (
            SysFlag.STORE_HOST_V6 if len(self._store) == 20 else 0
        )
        self._sys_flag = _i32.pack(self.host_flags)
        self.head_bytes = FIXED_BYTES - 3 + len(self._born) + len(self._store)  # up to where BODY is
        # "s" is the cheapest code there is: what does not change goes in as bytes
        born, store = f"{len(self._born)}s", f"{len(self._store)}s"
        self._pack = struct.Struct(f">i4si8sqq4sq{born}q{store}12xi").pack
        self._pack_rare = struct.Struct(f">i4siiiqqiq{born}q{store}iqi").pack
        self._low, self._middle, self._high = crc_digits() if append_crc else ([], [], [])
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
        length = bytes((len(topic),)) if version_1 else _i16.pack(len(topic))
        self._magic = (MAGIC_V1 if version_1 else MAGIC_V2).to_bytes(4, "big")
        self._topic_part = length + topic
        fixed = FIXED_BYTES - 1 + len(self._born) + len(self._store)
        self._topic_overhead = fixed + len(self._topic_part) + self._crc_bytes
        self._topic = topic

    def _learn(self, topic: bytes, properties: bytes) -> None:
        self._properties = None  # an exception in between leaves nothing remembered, not a mixture
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

    def size(self, topic: bytes, body: bytes | memoryview, properties: bytes) -> int:
        """TOTALSIZE in bytes, the CRC property included. Raises IllegalTopic, PropertiesTooLarge."""
        if properties != self._properties or topic != self._topic:
            self._learn(topic, properties)
        return self._overhead + len(body)

    def tails(self, topic: bytes, properties: Sequence[bytes]) -> list[bytes]:
        """TOPICLEN to PROPS, without the CRC property, of records of one topic. Raises
        IllegalTopic.

        The properties are such as `encode_properties` makes: none is too long, and each ends with
        its separator.
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
        """The whole record. Timestamps in ms, offsets as in the table above; the host bits of
        `sys_flag` and the queue offset 0 of PREPARED and ROLLBACK are set here.

        Topic and properties are taken as they are: check_topic and encode_properties make good
        ones. Properties without their last separator get one where the CRC property follows, as in
        RocketMQ. Raises IllegalTopic, PropertiesTooLarge, MessageTooLarge (beyond 31 bits),
        RecordError (a number beyond its field).
        """
        if properties != self._properties or topic != self._topic:
            self._learn(topic, properties)
        length = len(body)
        try:
            if flag or sys_flag or reconsume_times or prepared_transaction_offset:
                sys_flag = sys_flag & ~0x30 | self.host_flags
                if sys_flag & 0x4:  # PREPARED 0x4 and ROLLBACK 0xC are not in a queue
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
    """A decoded record: every stored field, as it is stored. What follows from them are its
    properties.
    """

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
        return message_id(self.store_host, self.physical_offset)

    @property
    def transaction(self) -> Transaction:
        return transaction_of(self.sys_flag)

    @property
    def has_crc(self) -> bool:
        """Whether the record ends with the whole-record CRC."""
        return stored_crc(self.raw_properties) is not None


def stored_crc(properties: Buffer) -> bytes | None:
    """The ten digits of the CRC property that ends the property string, None if there is none."""
    last = bytes(properties[-CRC_PROPERTY_BYTES:])
    if len(last) == CRC_PROPERTY_BYTES and last.startswith(CRC_PROPERTY_START) and last.endswith(b"\x02"):
        return last[9:19]
    return None


def reversed_digits(crc: int) -> bytes:
    """Ten decimal digits, the least significant first."""
    return (b"%010d" % crc)[::-1]


def topic_fault(topic: bytes) -> str | None:
    """Why these bytes can't be a stored topic; None if they can.

    RocketMQ's store takes more than its brokers do (any UTF-8), so only what could not be a
    directory is refused: what comes from a disk must never lead out of the consume queues.
    """
    if not topic or len(topic) > TOPIC_BYTES_MAX:
        return f"topic of {len(topic)} bytes"
    if b"/" in topic or b"\0" in topic or topic in (b".", b".."):
        return f"topic {topic!r} is no name"
    try:
        topic.decode()
    except UnicodeDecodeError:
        return "topic is no UTF-8"
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
    """The record at `position` (bytes) of a buffer, none of it beyond `limit` (default: the
    buffer's end).

    Every length is checked before it is used. `physical_offset` and `queue_id`, where given, are
    what the record's place demands. `check_crc` verifies the whole-record CRC, or the body's where
    there is none; `require_crc` takes a record without one for torn, right where a log was always
    written with it. Raises CorruptRecord with reason and offset.
    """
    place = position if physical_offset is None else physical_offset
    end = len(buffer) if limit is None else min(limit, len(buffer))
    with memoryview(buffer) as view:
        try:
            return _decode(view, position, end, physical_offset, queue_id, check_crc, require_crc)
        except _Fault as fault:
            reason: str = fault.args[0]
    # raised out here, so that no traceback keeps a view of a mapping that its owner wants to close
    raise CorruptRecord(reason, place)


class _Fault(Exception):
    """Why bytes are no record; the caller knows the offset."""


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
    total, magic, body_crc, queue, flag, queue_offset, offset, sys_flag, born_time = _head.unpack_from(view, start)
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
    born_bytes = 20 if sys_flag & SysFlag.BORN_HOST_V6 else 8
    store_bytes = 20 if sys_flag & SysFlag.STORE_HOST_V6 else 8
    fixed = FIXED_BYTES + born_bytes + store_bytes + (magic == MAGIC_V2)
    if total < fixed:
        raise _Fault(f"size {total} is less than the {fixed} bytes of its fixed fields")
    at = start + 48 + born_bytes
    (store_time,) = _i64.unpack_from(view, at)
    at += 8 + store_bytes
    reconsume_times, prepared_offset, body_bytes = _mid.unpack_from(view, at)
    hosts = Host(*_host(view, start + 48, born_bytes)), Host(*_host(view, at - store_bytes, store_bytes))
    at += 16
    if not 0 <= body_bytes <= total - fixed:
        raise _Fault(f"body of {body_bytes:,} bytes in a record of {total:,}")
    body = bytes(view[at : at + body_bytes])
    topic, properties = _decode_tail(view, at + body_bytes, end, magic)
    if check_crc and not _record_crc_holds(view[start:end], properties, require_crc):
        if crc32(body) & CRC_MASK != body_crc:
            raise _Fault("the body's CRC does not match")
        if stored_crc(properties) is not None:
            raise _Fault("the whole-record CRC does not match")
    return Record(
        total, magic, body_crc, queue, flag, queue_offset, offset, sys_flag, born_time, hosts[0], store_time,
        hosts[1], reconsume_times, prepared_offset, body, topic, properties,
    )  # fmt: skip


def _host(view: memoryview, at: int, length: int) -> tuple[bytes, int]:
    return bytes(view[at : at + length - 4]), _i32.unpack_from(view, at + length - 4)[0]


def _decode_tail(view: memoryview, at: int, end: int, magic: int) -> tuple[str, bytes]:
    """Topic and properties; `at` is where TOPICLEN is, and `end` is at least a length of each kind
    away.
    """
    if magic == MAGIC_V1:
        topic_bytes = view[at] if view[at] <= V1_TOPIC_BYTES_MAX else view[at] - 256
        at += 1
    else:
        (topic_bytes,) = _i16.unpack_from(view, at)
        at += 2
    if not 0 < topic_bytes <= end - at - 2:
        raise _Fault(f"topic of {topic_bytes} bytes with {end - at - 2} left")
    topic = bytes(view[at : at + topic_bytes])
    fault = topic_fault(topic)
    if fault:
        raise _Fault(fault)
    at += topic_bytes
    (properties_bytes,) = _i16.unpack_from(view, at)
    at += 2
    if properties_bytes != end - at:
        raise _Fault(f"properties of {properties_bytes} bytes where {end - at} are left")
    return topic.decode(), bytes(view[at:end])


def _record_crc_holds(record: memoryview, properties: bytes, required: bool) -> bool:
    """Whether a record has the whole-record CRC, and it holds: then the body's, which it covers,
    does so too.
    """
    digits = stored_crc(properties)
    if digits is None:
        if required:
            raise _Fault("the whole-record CRC is missing")
        return False
    return reversed_digits(crc32(record[:-CRC_PROPERTY_BYTES]) & CRC_MASK) == digits
