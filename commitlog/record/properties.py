"""Properties and tags: the parts of a record that are text, besides its topic.

Properties are one UTF-8 string on disk, `name 0x01 value 0x02` repeated (RocketMQ's
MessageDecoder). The names with a meaning in RocketMQ are those of its MessageConst.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import NoneType

import numpy as np

from commitlog.errors import IllegalProperty, PropertiesTooLarge
from commitlog.native import core
from commitlog.record.record_layout import CRC_PROPERTY_BYTES, PROPERTIES_BYTES_MAX, Buffer

NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR = "\x01", "\x02"
RESERVED_NAMES = frozenset(
    # MessageConst.STRING_HASH_SET, other names that RocketMQ reads or writes, and BYTES_KEY_NAME
    {
        "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP",
        "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG",
        "MQ2_FLAG", "RECONSUME_TIME", "MSG_REGION", "TRACE_ON", "UNIQ_KEY", "EXTEND_UNIQ_INFO",
        "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "INNER_NUM", "INNER_BASE", "DUP_INFO",
        "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRAN_PREPARED_QUEUE_OFFSET", "__transactionId__",
        "TRANSACTION_CHECK_TIMES", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL",
        "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "POP_CK", "POP_CK_OFFSET",
        "1ST_POP_TIME", "__SHARDINGKEY", "__STARTDELIVERTIME", "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "__BORNHOST",
        "BORN_TIMESTAMP", "__CRC32#", "__KEY_BASE64",
    }
)  # fmt: skip
RESERVED_PREFIX = "__RMQ."
BYTES_KEY_NAME = "__KEY_BASE64"
"""The property of our own that has a key which RocketMQ's KEYS can't have (BytesKey)."""


def own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The user's own properties, without those that have one of RocketMQ's names."""
    return {
        name: value
        for name, value in properties.items()
        if name not in RESERVED_NAMES and not name.startswith(RESERVED_PREFIX)
    }


def _check_pair(name: object, value: object, what: str) -> None:
    if what == "key" and not isinstance(value, str):
        ways = {"bytes": "decode it, as in key.decode()", "memoryview": "decode it, as in bytes(key).decode()"}
        kind = "bytes" if isinstance(value, bytes | bytearray) else type(value).__name__
        raise IllegalProperty(f"a key is text, not {type(value).__name__}: {ways.get(kind, 'use str()')}")
    if not isinstance(name, str) or not isinstance(value, str):
        kinds = f"{type(name).__name__} and {type(value).__name__}"
        raise IllegalProperty(f"{what}: name and value are both str, not {kinds}; use str() or .decode()")
    if not name or not value:
        raise IllegalProperty(f"{what}: readers drop an empty name or value; leave it out")
    if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
        raise IllegalProperty(f"{what}: 0x01 and 0x02 end names and values in a record and can't be part of one")


class BytesKey(str):
    """A key of any bytes, as base64, for keys that are not UTF-8 or that have 0x01 or 0x02.

    `data` has the bytes. A producer that is given one stores the same key again.
    """

    __slots__ = ()

    @classmethod
    def of(cls, key: bytes) -> BytesKey:
        return cls(b64encode(key).decode())

    @property
    def data(self) -> bytes:
        try:
            return b64decode(self, validate=True)
        except ValueError as error:
            raise IllegalProperty(f"key {self[:80]!r} is not base64: {error}; make one with BytesKey.of()") from None

    @classmethod
    def among(cls, properties: Mapping[str, str]) -> BytesKey | None:
        """The key that the properties of a record have as base64. Other text is none."""
        key = cls(properties.get(BYTES_KEY_NAME, ""))
        try:
            return key if key.data else None
        except IllegalProperty:  # somebody else has written it
            return None


def encode_properties(
    keys: str | None,
    tags: str | None,
    properties: Mapping[str, str] | None,
    wait: bool = True,
    *,
    append_crc: bool = True,
) -> bytes:
    """The property string: the key, TAGS, WAIT=false unless `wait`, then the user's properties.

    Each property ends with 0x02. Raises IllegalProperty for a property that can't be stored, as an
    empty one, or has one of RocketMQ's own names, and PropertiesTooLarge above 32,767 bytes
    (including the CRC, if `append_crc` is set).
    """
    text = ""
    if keys is not None:
        _check_pair("KEYS", keys, "key")
        text = f"{BYTES_KEY_NAME if isinstance(keys, BytesKey) else 'KEYS'}\x01{keys}\x02"
    if tags is not None:
        _check_pair("TAGS", tags, "tags")
        text += f"TAGS\x01{tags}\x02"
    if not wait:
        text += "WAIT\x01false\x02"
    if properties:
        try:
            pairs = properties.items()
        except AttributeError:
            raise IllegalProperty(
                f"headers are a mapping of str to str, not {type(properties).__name__}; make one with dict()"
            ) from None
        for name, value in pairs:
            what = f"header {name!r}"
            _check_pair(name, value, what)
            if name in RESERVED_NAMES or name.startswith(RESERVED_PREFIX):
                raise IllegalProperty(f"{what} is a name of RocketMQ's own; choose another, as my-{name}")
            text += f"{name}\x01{value}\x02"
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise IllegalProperty(f"a key, tags or a header can't be written as UTF-8: {error}") from None
    most = PROPERTIES_BYTES_MAX - (CRC_PROPERTY_BYTES if append_crc else 0)
    if len(encoded) > most:
        raise PropertiesTooLarge(
            f"PROPERTIES_SIZE_EXCEEDED: key, tags and headers of {len(encoded):,} bytes; at most {most:,} fit into "
            f"a record"
        )
    return encoded


def encode_keyed_properties(
    keys: Sequence[str | None],
    tags: str | None,
    properties: Mapping[str, str] | None,
    wait: bool = True,
    *,
    append_crc: bool = True,
) -> list[bytes]:
    """The property strings of many messages that differ in their keys only.

    Raises what `encode_properties` raises, for the first key that can't be stored.
    """
    same = encode_properties(None, tags, properties, wait, append_crc=append_crc)
    most = PROPERTIES_BYTES_MAX - (CRC_PROPERTY_BYTES if append_crc else 0)
    if core is not None and type(keys) is list and (encoded := core.keyed_properties(keys, same, most)) is not None:
        return encoded
    try:
        text = "".join(filter(None, keys))
        if "" not in keys and {*map(type, keys)} <= {str, NoneType} and "\x01" not in text and "\x02" not in text:
            made = [f"KEYS\x01{key}\x02".encode() + same if key else same for key in keys]
            if max(map(len, made), default=0) <= most:
                return made
    except (TypeError, UnicodeEncodeError):
        pass
    made = []
    for number, key in enumerate(keys):
        try:
            made.append(encode_properties(key, tags, properties, wait, append_crc=append_crc))
        except (IllegalProperty, PropertiesTooLarge) as error:
            raise type(error)(f"key {number} of the batch: {error}") from None
    return made


def decode_properties(data: Buffer) -> dict[str, str]:
    """Names and values as RocketMQ's parser sees them, in their order.

    It accepts a missing last separator. It drops pairs whose name or value is empty or missing. If
    two pairs have the same name, it keeps the last one. It puts U+FFFD in place of bytes that are
    not UTF-8. Nothing is an error here.
    """
    found: dict[str, str] = {}
    for pair in str(data, "utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            found[name] = value
    return found


@lru_cache(maxsize=4096)
def _java_hash(text: str) -> int:
    """Java's String.hashCode, a signed number of 32 bits.

    It is the sum of unit[i] * 31^(n-1-i) over the UTF-16 units, wrapping at 32 bits.
    """
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").astype(np.uint32)
    powers = np.full(len(units), 31, np.uint32)
    powers[-1] = 1
    weights = np.multiply.accumulate(powers[::-1], dtype=np.uint32)[::-1]
    return int(np.sum(units * weights, dtype=np.uint32).astype(np.int32))


def tags_code(tags: str | None) -> int:
    """The consume queue's tags code: Java's hashCode of the tags, or 0 for None and empty tags."""
    return _java_hash(tags) if tags else 0
