"""What `send` returns: where the message is, and how to wait for more than *accepted*."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from commitlog.progress import LaneProgress, Level
from commitlog.record import message_id
from commitlog.status import PutMessageStatus

if TYPE_CHECKING:
    from commitlog.record_table import Ints


class Receipt:
    """An accepted message. `await receipt` waits until it is flushed.

    Attributes: `topic`; `offset`, its queue offset (its number in topic and lane); `physical_offset`, bytes of the
    lane's log; `end`, where its record ends. It stays valid after the producer is closed.
    """

    __slots__ = ("_progress", "end", "offset", "physical_offset", "topic")

    def __init__(self, progress: LaneProgress, topic: str, offset: int, physical_offset: int, end: int) -> None:
        self._progress = progress
        self.topic = topic
        self.offset = offset
        self.physical_offset = physical_offset
        self.end = end

    @property
    def lane(self) -> int:
        """The lane, which is RocketMQ's queue id and Spark's partition."""
        return self._progress.lane

    @property
    def message_id(self) -> str:
        """RocketMQ's message id: store host and physical offset in hex, unique in the store."""
        return message_id(self._progress.store_host, self.physical_offset)

    def done(self, level: Level = "flushed") -> bool:
        """Whether the message has reached the level; a look at one word of shared memory."""
        return self._progress.reached(level, self.end)

    def wait(self, level: Level = "flushed", timeout: float | None = None) -> PutMessageStatus:
        """Waits until the message has reached the level, at most `timeout` seconds (default: sync_flush_timeout_ms).

        Returns PUT_OK, or FLUSH_DISK_TIMEOUT: the message is in the log and may still become flushed, so sending it
        again would double it. Raises DiskFull, DiskInputOutput, … while the disk refuses, StoreStopped or
        StoreNotRunning when nobody is left to flush it.
        """
        return self._progress.wait(level, self.end, timeout)

    def add_callback(
        self, callback: Callable[[PutMessageStatus], object], level: Level = "flushed", timeout: float | None = None
    ) -> None:
        """Calls `callback(status)` once, from another thread: PUT_OK, FLUSH_DISK_TIMEOUT, or SERVICE_NOT_AVAILABLE when
        the stages are gone. Thousands may be outstanding; each costs a place in a queue."""
        self._progress.call_back(level, self.end, callback, timeout)

    def __await__(self) -> Generator[Any, None, PutMessageStatus]:
        return self._progress.wait_async("flushed", self.end, None).__await__()

    @property
    def status(self) -> PutMessageStatus:
        """PUT_OK once the message is as safe as the store's `flush_disk_type` promises, else FLUSH_DISK_TIMEOUT."""
        return self._progress.status_of(self.end)

    def __repr__(self) -> str:
        place = f"lane={self.lane}, offset={self.offset}, physical_offset={self.physical_offset}"
        return f"Receipt(topic={self.topic!r}, {place})"


class BatchReceipt(Receipt):
    """An accepted batch: a receipt of its last message that knows all of them. `offset` and `physical_offset` are the
    first's; `physical_offsets` has everybody's, int64."""

    __slots__ = ("physical_offsets",)

    def __init__(
        self, progress: LaneProgress, topic: str, offset: int, physical_offset: int, end: int, physical_offsets: Ints
    ) -> None:
        super().__init__(progress, topic, offset, physical_offset, end)
        self.physical_offsets = physical_offsets

    def __len__(self) -> int:
        """How many messages; their queue offsets are `offset` and those after it."""
        return len(self.physical_offsets)
