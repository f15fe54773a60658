"""Where each field of a record is, in RocketMQ's message format, V1 and V2.

All numbers are big-endian. This module declares the fields once (`_HEAD`), and derives every
offset, width, struct and dtype from that declaration. All other modules import them by name.

  0       4       8       12      16      20              28              36      40              48
  ┌───────┬───────┬───────┬───────┬───────┬───────────────┬───────────────┬───────┬───────────────┬─
  │TOTAL  │MAGIC  │BODY   │QUEUE  │FLAG   │QUEUEOFFSET    │PHYSICALOFFSET │SYSFLAG│BORNTIMESTAMP  │
  │SIZE   │       │CRC    │ID     │       │               │               │       │               │
  └───────┴───────┴───────┴───────┴───────┴───────────────┴───────────────┴───────┴───────────────┴─
  48         48+B            56+B        56+B+S    60+B+S             68+B+S    72+B+S
  ┌──────────┬───────────────┬───────────┬─────────┬──────────────────┬─────────┬─ ─ ─
  │BORNHOST B│STORETIMESTAMP │STOREHOST S│RECONSUME│PREPARED_TX_OFFSET│BODYLEN n│BODY
  └──────────┴───────────────┴───────────┴─────────┴──────────────────┴─────────┴─ ─ ─
  72+B+S+n
  ┌───────────────────┬─ ─ ─ ─┬──────────┬─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┬─────────┬──────┬──────────┬────┐
  │TOPICLEN, 1 or 2: t│TOPIC  │PROPSLEN p│PROPS: name 01 value 02 │__CRC32# │ 0x01 │10 digits │0x02│
  └───────────────────┴─ ─ ─ ─┴──────────┴─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┴─────────┴──────┴──────────┴────┘

    field               type    offset    remarks
    TOTALSIZE           i32     0         counts itself too: 75+B+S+n+t+p, in V2 one more
    MAGIC               u32     4         V1 0xDAA320A7, V2 0xDAA320AB; BLANK 0xCBD43194
    BODYCRC             i32     8         zlib's CRC-32 & 0x7FFFFFFF of the stored body, 0 for none
    QUEUEID             i32     12        here: the lane
    FLAG                i32     16        the user's
    QUEUEOFFSET         i64     20        0 for PREPARED and ROLLBACK
    PHYSICALOFFSET      i64     28        where the record is in its log
    SYSFLAG             i32     36        see SysFlag
    BORNTIMESTAMP       i64     40        ms
    BORNHOST            host    48        address, i32 port: B = 8 with IPv4, 20 with IPv6
    STORETIMESTAMP      i64     48+B      ms
    STOREHOST           host    56+B      S = 8 or 20
    RECONSUMETIMES      i32     56+B+S
    PREPARED_TX_OFFSET  i64     60+B+S
    BODYLEN, BODY       i32, n  68+B+S
    TOPICLEN, TOPIC     i8, t   72+B+S+n  UTF-8; V2 has an i16, for topics above 127 bytes
    PROPSLEN, PROPS     i16, p            `name 0x01 value 0x02` ... (properties.py)

The whole-record CRC is RocketMQ's `enabledAppendPropCRC`. It is the last property and has 20 bytes:
`__CRC32#`, 0x01, ten decimal digits with the least significant first, 0x02. It covers everything
before itself.

A segment ends in BLANK: an i32 with the number of bytes that remain, and the u32 magic. The bytes
between them and the end of the segment mean nothing.

The fields are those of RocketMQ's MessageExtEncoder, and they are read as its MessageDecoder reads
them. The topic's length in *bytes* decides between V1 and V2. RocketMQ counts characters there, and
its logs become unreadable where the two numbers differ too much.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection
from enum import IntEnum
from functools import cache
from itertools import groupby

import numpy as np

Buffer = bytes | bytearray | memoryview | mmap.mmap
"""What bytes are read from and written from. A memoryview must be of plain bytes."""

# ---- the head: every field before the body ---------------------------------------------------

_HEAD = (
    ("total_size", "i32"),
    ("magic", "u32"),
    ("body_crc", "i32"),
    ("queue_id", "i32"),
    ("flag", "i32"),
    ("queue_offset", "i64"),
    ("physical_offset", "i64"),
    ("sys_flag", "i32"),
    ("born_timestamp", "i64"),
    ("born_host", "host"),
    ("store_timestamp", "i64"),
    ("store_host", "host"),
    ("reconsume_times", "i32"),
    ("prepared_transaction_offset", "i64"),
    ("body_bytes", "i32"),
)
_STRUCT_CODES = {"i32": "i", "u32": "I", "i64": "q"}
_DTYPES = {"i32": ">i4", "u32": ">u4", "i64": ">i8"}

PORT_BYTES = 4
IPV4_BYTES, IPV6_BYTES = 4, 16
HOST_V4_BYTES = IPV4_BYTES + PORT_BYTES
HOST_V6_BYTES = IPV6_BYTES + PORT_BYTES
HOST_V6_MORE = HOST_V6_BYTES - HOST_V4_BYTES
"""An IPv6 host takes this many bytes more than an IPv4 host; every field after it moves by them."""


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


HOSTS_V6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
"""The bits of SYSFLAG that say how long the two hosts are. They decide the layout of a head."""


class Transaction(IntEnum):
    """The transaction bits of SYSFLAG.

    A record that is PREPARED or ROLLBACK has the queue offset 0 and no consume queue entry.
    """

    NOT = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


def transaction_of(sys_flag: int) -> Transaction:
    """The transaction type that a SYSFLAG holds."""
    return Transaction(sys_flag & SysFlag.TRANSACTION)


def host_bytes(sys_flag: int) -> dict[str, int]:
    """How many bytes the fields `born_host` and `store_host` have in a record with this SYSFLAG."""
    return {
        "born_host": HOST_V6_BYTES if sys_flag & SysFlag.BORN_HOST_V6 else HOST_V4_BYTES,
        "store_host": HOST_V6_BYTES if sys_flag & SysFlag.STORE_HOST_V6 else HOST_V4_BYTES,
    }


def _fields(start: str, stop: str | None) -> list[tuple[str, str]]:
    """Names and types of the head's fields from `start` up to `stop`, without `stop` itself."""
    names = [name for name, _ in _HEAD]
    return list(_HEAD[names.index(start) : None if stop is None else names.index(stop)])


def head_struct(
    sys_flag: int,
    *,
    start: str = "total_size",
    stop: str | None = None,
    raw: Collection[str] = (),
    zero: Collection[str] = (),
) -> struct.Struct:
    """A struct of the head's fields from `start` up to `stop` (default: up to the body).

    The host bits of `sys_flag` say how long the hosts are. Encoders save time with fields that they
    pack once: neighbouring fields of `raw` are one item of bytes, and neighbouring fields of `zero`
    are zero bytes that no item stands for. A host is always bytes.
    """
    hosts, items = host_bytes(sys_flag), []
    for name, kind in _fields(start, stop):
        code = "x" if name in zero else "s" if name in raw or kind == "host" else _STRUCT_CODES[kind]
        width = hosts[name] if kind == "host" else np.dtype(_DTYPES[kind]).itemsize
        joins = name if name not in raw and name not in zero else ""  # a field of its own joins no neighbour
        items.append((code, joins, width))
    form = ">"
    for (code, _), neighbours in groupby(items, lambda item: item[:2]):
        form += f"{sum(width for _, _, width in neighbours)}{code}" if code in "sx" else code
    return struct.Struct(form)


@cache
def head_dtype(sys_flag: int, *, stop: str | None = None) -> np.dtype[np.void]:
    """The head's fields as a dtype of numpy, up to the field `stop` (default: up to the body)."""
    hosts = host_bytes(sys_flag)
    return np.dtype(
        [(name, f"V{hosts[name]}" if kind == "host" else _DTYPES[kind]) for name, kind in _fields("total_size", stop)]
    )


HEAD_V4: np.dtype[np.void] = head_dtype(0)
"""The head of a record with two IPv4 hosts."""
HEAD_V4_BYTES = HEAD_V4.itemsize
LEAD: np.dtype[np.void] = head_dtype(0, stop="born_host")
"""The fields before the first host: they are at the same places in all records."""
LEAD_BYTES = LEAD.itemsize
LEAD_STRUCT = head_struct(0, stop="born_host")
REST_STRUCTS = {hosts: head_struct(hosts, start="born_host") for hosts in range(0, HOSTS_V6 + 1, SysFlag.BORN_HOST_V6)}
"""The fields from the first host on, by the host bits of SYSFLAG."""
HEAD_BYTES = {hosts: LEAD_BYTES + rest.size for hosts, rest in REST_STRUCTS.items()}
"""The bytes before the body, by the host bits of SYSFLAG."""


def _at(name: str) -> int:
    """The offset of a field in a record with two IPv4 hosts."""
    assert HEAD_V4.fields is not None
    return int(HEAD_V4.fields[name][1])


TOTAL_SIZE_AT, MAGIC_AT, QUEUE_ID_AT = _at("total_size"), _at("magic"), _at("queue_id")
QUEUE_OFFSET_AT, PHYSICAL_OFFSET_AT, SYS_FLAG_AT = _at("queue_offset"), _at("physical_offset"), _at("sys_flag")
RECOGNISABLE_BYTES = SYS_FLAG_AT
"""The bytes up to and with PHYSICALOFFSET: they are enough to tell a record from other bytes."""
STORE_TIMESTAMP_AT = _at("store_timestamp")
"""The store timestamp's offset where the born host is IPv4.

HOST_V6_MORE is added for an IPv6 host.
"""
STORE_HOST_AT = _at("store_host")
"""The store host's offset where both hosts are IPv4."""
BODY_LENGTH_BYTES = HEAD_V4_BYTES - _at("body_bytes")
I8, I16, I32, I64 = (struct.Struct(f">{code}") for code in "bhiq")

# ---- the tail: topic and properties -----------------------------------------------------------

V1_TOPIC_BYTES_MAX = 127
"""TOPICLEN of V1 is a signed 8-bit number."""
V1_TOPIC_LENGTH_BYTES, V2_TOPIC_LENGTH_BYTES = 1, 2
PROPERTIES_LENGTH_BYTES = I16.size
PROPERTIES_BYTES_MAX = 32767
"""PROPSLEN is a signed 16-bit number."""
TAIL_BYTES_MIN = V1_TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH_BYTES
"""What follows the body of a V1 record with empty topic and properties. V2 has one byte more."""
RECORD_BYTES_MIN = HEAD_V4_BYTES + TAIL_BYTES_MIN + 1
"""The smallest record there can be: V1, IPv4, a topic of one byte."""

# ---- magics and BLANK --------------------------------------------------------------------------

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
BLANK = head_struct(0, stop="body_crc")
"""The bytes that remain in the segment, and the magic.

A record begins with these two fields too.
"""
BLANK_BYTES = BLANK.size
size_and_magic = BLANK.unpack_from
"""TOTALSIZE and MAGIC at a position of a buffer."""

# ---- the whole-record CRC ----------------------------------------------------------------------

CRC_PROPERTY_NAME = b"__CRC32#"
CRC_PROPERTY_START = CRC_PROPERTY_NAME + b"\x01"
CRC_PROPERTY_END = b"\x02"
CRC_DIGITS = 10
CRC_PROPERTY: np.dtype[np.void] = np.dtype(
    [("start", f"S{len(CRC_PROPERTY_START)}"), ("low", "S5"), ("high", "S5"), ("end", "u1")]
)
"""The CRC property, with its digits in halves.

The half with the least significant digits comes first.
"""
CRC_PROPERTY_BYTES = CRC_PROPERTY.itemsize


def _check_layout() -> None:
    """Checks that all forms agree, and that they give the offsets of the table above."""
    assert LEAD_STRUCT.size == LEAD_BYTES == 48
    assert HEAD_V4_BYTES == 88
    assert HEAD_BYTES == {0x00: 88, 0x10: 100, 0x20: 100, 0x30: 112}
    for hosts, size in HEAD_BYTES.items():
        assert head_struct(hosts).size == head_dtype(hosts).itemsize == size
    assert (MAGIC_AT, QUEUE_OFFSET_AT, PHYSICAL_OFFSET_AT, SYS_FLAG_AT, STORE_TIMESTAMP_AT) == (4, 20, 28, 36, 56)
    assert BLANK_BYTES == 8
    assert CRC_PROPERTY_BYTES == len(CRC_PROPERTY_START) + CRC_DIGITS + len(CRC_PROPERTY_END) == 20


_check_layout()
