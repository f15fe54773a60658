"""A message as readers get it."""

from __future__ import annotations

from dataclasses import dataclass

from commitlog.record.record import Record


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `partition` is its lane, `offset` its queue offset in topic and lane; timestamps
    are ms since 1970.

    `value` is the body as it was sent. `properties` are the user's own and RocketMQ's others,
    without KEYS and TAGS.
    """

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes
    tags: str | None
    properties: dict[str, str]
    timestamp: int
    born_timestamp: int
    physical_offset: int
    message_id: str

    @classmethod
    def of(cls, record: Record) -> Message:
        """Unpacks compressed bodies. Raises MissingCodec, CorruptRecord."""
        from commitlog.record.body import plain_body
        from commitlog.record.layout import CRC_PROPERTY_START

        properties = record.properties
        properties.pop(CRC_PROPERTY_START[:-1].decode(), None)
        return cls(
            topic=record.topic,
            partition=record.queue_id,
            offset=record.queue_offset,
            key=properties.pop("KEYS", None),
            value=plain_body(record),
            tags=properties.pop("TAGS", None),
            properties=properties,
            timestamp=record.store_timestamp,
            born_timestamp=record.born_timestamp,
            physical_offset=record.physical_offset,
            message_id=record.message_id,
        )
