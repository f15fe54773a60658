"""A message as readers get it."""

from __future__ import annotations

from dataclasses import dataclass, field

from commitlog.record.properties import own_properties
from commitlog.record.record import Record


@dataclass(frozen=True, slots=True)
class Message:
    """One message. What was given to `send` has the same name here.

    Each timestamp is in ms since 1970. `properties` has the headers too: it is all that RocketMQ's
    record has, by RocketMQ's names.
    """

    topic: str
    partition: int
    """The lane that has the message; RocketMQ's queue id."""
    offset: int
    """The number of the message in its topic and partition; RocketMQ's queue offset."""
    key: str | None
    value: bytes
    headers: dict[str, str]
    tags: str | None
    timestamp: int
    """When it was accepted; no message of a lane is older than the one before it."""
    born_timestamp: int
    """When it was made, as its sender says."""
    physical_offset: int
    """Where its record begins, in bytes of the lane's log."""
    message_id: str
    properties: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, record: Record) -> Message:
        """Unpacks a compressed value. Raises MissingCodec, CorruptRecord."""
        from commitlog.record.body_compression import plain_body
        from commitlog.record.layout import CRC_PROPERTY_START

        properties = record.properties
        properties.pop(CRC_PROPERTY_START[:-1].decode(), None)
        return cls(
            topic=record.topic,
            partition=record.queue_id,
            offset=record.queue_offset,
            key=properties.get("KEYS"),
            value=plain_body(record),
            headers=own_properties(properties),
            tags=properties.get("TAGS"),
            timestamp=record.store_timestamp,
            born_timestamp=record.born_timestamp,
            physical_offset=record.physical_offset,
            message_id=record.message_id,
            properties=properties,
        )
