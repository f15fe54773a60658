"""The class of the messages that readers give out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commitlog.record.host import message_id
from commitlog.record.properties import BYTES_KEY_NAME, BytesKey, decode_properties, own_properties
from commitlog.record.record import Record
from commitlog.record.record_layout import CRC_PROPERTY_START, IPV4_BYTES, PORT_BYTES, STORE_HOST_AT, Buffer

if TYPE_CHECKING:
    from commitlog.record.table import RecordTable

_CRC_NAME = CRC_PROPERTY_START[:-1].decode()
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

    @classmethod
    def of(cls, record: Record) -> Message:
        """Makes a message of a record. Unpacks a compressed value.

        Raises MissingCodec, CorruptRecord.
        """
        from commitlog.record.body_compression import plain_body

        properties = record.properties
        properties.pop(_CRC_NAME, None)
        return cls(
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

    @classmethod
    def of_table(cls, table: RecordTable, buffer: Buffer) -> Iterator[Message]:
        """Makes the messages of a table whose records were checked, as `of` makes each of them.

        The records must have plain values and IPv4 hosts. It takes a quarter of the time.
        """
        begin, end = _STORE_HOST
        columns = (
            table.topic_index, table.queue_ids, table.queue_offsets, table.body_positions, table.body_sizes,
            table.properties_positions, table.properties_sizes, table.store_timestamps, table.born_timestamps,
            table.positions,
        )  # fmt: skip
        for topic, lane, offset, body, body_bytes, names, names_bytes, stored, born, at in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            properties = decode_properties(buffer[names : names + names_bytes])
            properties.pop(_CRC_NAME, None)
            physical_offset = table.buffer_start + at
            yield cls(
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
