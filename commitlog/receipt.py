"""What `send` returns: where the message is, and how to wait for more than *accepted*."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from commitlog.record import message_id
from commitlog.status import PutMessageStatus

if TYPE_CHECKING:
    from commitlog.producer import Producer
    from commitlog.record_table import Ints

Level = Literal["accepted", "committed", "flushed"]


class Receipt:
    """An accepted message.

    Attributes: `topic`; `offset`, its queue offset (its number in topic and lane); `physical_offset`, bytes of the
    lane's log; `end`, where its record ends. It stays valid after the producer is closed.
    """

    __slots__ = ("_producer", "end", "offset", "physical_offset", "topic")

    def __init__(self, producer: Producer, topic: str, offset: int, physical_offset: int, end: int) -> None:
        self._producer = producer
        self.topic = topic
        self.offset = offset
        self.physical_offset = physical_offset
        self.end = end

    @property
    def lane(self) -> int:
        """The lane, which is RocketMQ's queue id and Spark's partition."""
        return self._producer.lane

    @property
    def message_id(self) -> str:
        """RocketMQ's message id: store host and physical offset in hex, unique in the store."""
        return message_id(self._producer.store_host, self.physical_offset)

    def done(self, level: Level = "flushed") -> bool:
        """Whether the message has reached the level; a look at one word of shared memory."""
        return self._producer.reached(level, self.end)

    def wait(self, level: Level = "flushed", timeout: float | None = None) -> PutMessageStatus:
        """Waits until the message has reached the level, at most `timeout` seconds (default: sync_flush_timeout_ms).

        Returns PUT_OK, or FLUSH_DISK_TIMEOUT: the message is in the log and may still become flushed, so sending it
        again would double it. Raises DiskFull, DiskInputOutput, … while the disk refuses, StoreStopped after a stop.
        """
        return self._producer.wait_for(level, self.end, timeout)

    @property
    def status(self) -> PutMessageStatus:
        """PUT_OK once the message is as safe as the store's `flush_disk_type` promises, else FLUSH_DISK_TIMEOUT."""
        return self._producer.status_of(self.end)

    def __repr__(self) -> str:
        place = f"lane={self.lane}, offset={self.offset}, physical_offset={self.physical_offset}"
        return f"Receipt(topic={self.topic!r}, {place})"


class BatchReceipt(Receipt):
    """An accepted batch: a receipt of its last message, with those of all. `offset` and `physical_offset` are the first's."""

    __slots__ = ("physical_offsets",)

    def __init__(
        self, producer: Producer, topic: str, offset: int, physical_offset: int, end: int, physical_offsets: Ints
    ) -> None:
        super().__init__(producer, topic, offset, physical_offset, end)
        self.physical_offsets = physical_offsets

    def __len__(self) -> int:
        """How many messages; their queue offsets are `offset` and those after it."""
        return len(self.physical_offsets)
