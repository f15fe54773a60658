"""The class of the messages that readers give out, and how they are made of records.

The native core has a class of its own, which makes key, tags, headers, properties and id when they
are asked for. The dataclass here is its specification, runs where the core is missing, and gives it
its methods: to compare, to print, to copy and to pickle.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from commitlog.native import core
from commitlog.record.host import message_id
from commitlog.record.properties import BYTES_KEY_NAME, RESERVED_NAMES, BytesKey, decode_properties, own_properties
from commitlog.record.record import Record
from commitlog.record.record_layout import CRC_PROPERTY_START, IPV4_BYTES, PORT_BYTES, STORE_HOST_AT, Buffer
from commitlog.text.notebook import html_table, shortened

if TYPE_CHECKING:
    from commitlog.record.table import RecordTable

_CRC_NAME = CRC_PROPERTY_START[:-1].decode()
_REPR_MOST = 200
"""Longer values are cut in a message's repr."""
_STORE_HOST = STORE_HOST_AT, STORE_HOST_AT + IPV4_BYTES + PORT_BYTES


@dataclass(frozen=True, slots=True)
class Message:
    """One message. A field that was an argument of `send` has the argument's name.

    Timestamps are in ms since 1970. `properties` has all properties of RocketMQ's record, by
    RocketMQ's names, and so the headers too.
    """

    topic: str
    partition: int
    """The lane that has the message; RocketMQ's queue id."""
    offset: int
    """The number of the message in its topic and partition; RocketMQ's queue offset."""
    key: str | None
    """The message's key.

    A key that is not text is a BytesKey: text in base64, whose `data` has the bytes.
    """
    value: bytes
    headers: dict[str, str]
    tags: str | None
    timestamp: int
    """When the message was accepted. No message of a lane is older than the one before it."""
    born_timestamp: int
    """When the message was made, as its sender says."""
    physical_offset: int
    """Where the message's record begins, in bytes of the lane's log."""
    message_id: str
    properties: dict[str, str] = field(repr=False)

    def to_json(self) -> str:
        """Returns the message as one JSON object, as `commitlog cat --format json` writes it.

        It has topic, partition, offset, timestamp, key, tags, headers, message_id and value. A key
        or a value that is not UTF-8 is in `key_base64` or `value_base64` in place of it.
        """
        return as_json(self).decode()

    def __reduce__(self) -> tuple[type[Message], tuple[Any, ...]]:
        return Message, tuple(getattr(self, each.name) for each in fields(self))

    def __repr__(self) -> str:
        shown = ((each.name, getattr(self, each.name)) for each in fields(self) if each.repr)
        return f"Message({', '.join(f'{name}={shortened(value, _REPR_MOST)}' for name, value in shown)})"

    def _repr_html_(self) -> str:
        return html_table("Message", [(each.name, getattr(self, each.name)) for each in fields(self) if each.repr])


if not TYPE_CHECKING and core is not None:

    def _class_of_the_core(specification: type) -> type:
        """The native core's class of messages, with the methods of the dataclass."""
        made = core.message_class(RESERVED_NAMES, BYTES_KEY_NAME, BytesKey.among)
        own = vars(made)
        for name, value in vars(specification).items():
            if name in _METHODS or (name.startswith("__dataclass") and name not in own):
                setattr(made, name, value)
        made.__doc__ = specification.__doc__
        return made

    _METHODS = (
        *("__eq__", "__hash__", "__match_args__", "__reduce__", "__replace__", "__repr__"),
        *("_repr_html_", "to_json"),
    )
    Message = _class_of_the_core(Message)


def as_json(message: Message) -> bytes:
    """What `Message.to_json` returns, in UTF-8."""
    import orjson

    fields_of = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "key_base64" if isinstance(message.key, BytesKey) else "key": message.key,
        "tags": message.tags,
        "headers": message.headers,
        "message_id": message.message_id,
    }
    try:
        fields_of["value"] = message.value.decode("utf-8")
    except UnicodeDecodeError:
        fields_of["value_base64"] = b64encode(message.value).decode()
    return orjson.dumps(fields_of)


def message_of(record: Record) -> Message:
    """Makes a message of a record. Unpacks a compressed value.

    Raises MissingCodec, CorruptRecord.
    """
    from commitlog.record.body_compression import plain_body

    properties = record.properties
    properties.pop(_CRC_NAME, None)
    return Message(
        topic=record.topic,
        partition=record.queue_id,
        offset=record.queue_offset,
        key=properties.get("KEYS") or BytesKey.among(properties),
        value=plain_body(record),
        headers=own_properties(properties),
        tags=properties.get("TAGS"),
        timestamp=record.store_timestamp,
        born_timestamp=record.born_timestamp,
        physical_offset=record.physical_offset,
        message_id=record.message_id,
        properties=properties,
    )


def messages_of(table: RecordTable, buffer: Buffer) -> list[Message]:
    """Makes the messages of a table whose records were checked, as `message_of` makes each of them.

    The records must have plain values and IPv4 hosts. `buffer` has the bytes of the table's
    records; the messages have copies of them.
    """
    return (messages_in_python if core is None else _messages_natively)(table, buffer)


def _messages_natively(table: RecordTable, buffer: Buffer) -> list[Message]:
    columns = (
        table.positions, table.topic_index, table.queue_ids, table.queue_offsets, table.body_positions,
        table.body_sizes, table.properties_positions, table.properties_sizes, table.store_timestamps,
    )  # fmt: skip
    return core.messages(buffer, columns, table.born_timestamps, table.topics)


def messages_in_python(table: RecordTable, buffer: Buffer) -> list[Message]:
    """The same as `messages_of`, without the native core."""
    begin, end = _STORE_HOST
    columns = (
        table.topic_index, table.queue_ids, table.queue_offsets, table.body_positions, table.body_sizes,
        table.properties_positions, table.properties_sizes, table.store_timestamps, table.born_timestamps,
        table.positions,
    )  # fmt: skip
    made = []
    for topic, lane, offset, body, body_bytes, names, names_bytes, stored, born, at in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        properties = decode_properties(buffer[names : names + names_bytes])
        properties.pop(_CRC_NAME, None)
        physical_offset = table.buffer_start + at
        message = Message(
            table.topics[topic],
            lane,
            offset,
            properties.get("KEYS") or (BytesKey.among(properties) if BYTES_KEY_NAME in properties else None),
            bytes(buffer[body : body + body_bytes]),
            own_properties(properties),
            properties.get("TAGS"),
            stored,
            born,
            physical_offset,
            message_id(bytes(buffer[at + begin : at + end]), physical_offset),
            properties,
        )
        made.append(message)
    return made
