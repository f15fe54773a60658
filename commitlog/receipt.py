"""What `send` returns: where the message is, and how to wait for more than *accepted*."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol

from commitlog.status import PutMessageStatus

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Level = Literal["accepted", "committed", "flushed"]


class Progress(Protocol):
    """How far the lane of a receipt has come (`commitlog.appending.progress.LaneProgress`); `where`
    is a position, in bytes.
    """

    lane: int

    def message_id(self, where: int) -> str: ...
    def reached(self, level: Level, where: int) -> bool: ...
    def status_of(self, where: int) -> PutMessageStatus: ...
    def wait(self, level: Level, where: int, timeout: float | None) -> PutMessageStatus: ...
    def wait_async(self, level: Level, where: int) -> Coroutine[Any, Any, PutMessageStatus]: ...
    def call_back(
        self, level: Level, where: int, callback: Callable[[PutMessageStatus], object], timeout: float | None
    ) -> None: ...


def _field(index: int) -> Any:
    return property(itemgetter(index))


class Receipt(tuple[Any, ...]):
    """An accepted message. `await receipt` waits until it is flushed, as `wait` does.

    Attributes: `topic`; `offset`, its queue offset (its number in topic and lane);
    `physical_offset`, bytes of the lane's log; `end`, where its record ends. It stays valid after
    the producer is closed.

    A tuple (progress, topic, offset, physical offset, end) underneath: one is made for every
    message, and Python has no cheaper object.
    """

    __slots__ = ()

    _progress: Progress = _field(0)
    topic: str = _field(1)
    offset: int = _field(2)
    physical_offset: int = _field(3)
    end: int = _field(4)

    @property
    def lane(self) -> int:
        """The lane, which is RocketMQ's queue id and Spark's partition."""
        return self._progress.lane

    @property
    def message_id(self) -> str:
        """RocketMQ's message id: store host and physical offset in hex, unique in the store."""
        return self._progress.message_id(self.physical_offset)

    def done(self, level: Level = "flushed") -> bool:
        """Whether the message has reached the level; a look at one word of shared memory."""
        return self[0].reached(level, self[4])  # type: ignore[no-any-return]  # looked at often: no properties

    def wait(self, level: Level = "flushed", timeout: float | None = None) -> PutMessageStatus:
        """Waits until the message has reached the level, at most `timeout` seconds; None: as long
        as it takes.

        Returns PUT_OK or raises: WaitTimeout (`error.status` is FLUSH_DISK_TIMEOUT: the message is
        in the log and may still become flushed, so sending it again would double it), DiskFull,
        DiskInputOutput, … while the disk refuses, StoreStopped or StoreNotRunning when nobody is
        left to flush it, IllegalArgument.
        """
        return self._progress.wait(level, self.end, timeout)

    def add_callback(
        self, callback: Callable[[PutMessageStatus], object], level: Level = "flushed", timeout: float | None = None
    ) -> None:
        """Calls `callback(status)` once, from another thread: PUT_OK, FLUSH_DISK_TIMEOUT after
        `timeout` seconds (None: never), or SERVICE_NOT_AVAILABLE when the stages are gone. While
        the disk refuses it goes on waiting.

        Thousands may be outstanding; each costs a place in a queue. Raises IllegalArgument,
        ForkedProducer.
        """
        self._progress.call_back(level, self.end, callback, timeout)

    def __await__(self) -> Generator[Any, None, PutMessageStatus]:
        """What `wait()` returns and raises, for asyncio; `asyncio.timeout` limits it."""
        return self._progress.wait_async("flushed", self.end).__await__()

    @property
    def status(self) -> PutMessageStatus:
        """PUT_OK once the message is as safe as the store's `flush_disk_type` promises, else
        FLUSH_DISK_TIMEOUT.
        """
        return self._progress.status_of(self.end)

    def __repr__(self) -> str:
        place = f"lane={self.lane}, offset={self.offset}, physical_offset={self.physical_offset}"
        return f"Receipt(topic={self.topic!r}, {place})"


class BatchReceipt(Receipt):
    """An accepted batch: a receipt of its last message that knows all of them. `offset` and
    `physical_offset` are the first's; `physical_offsets` has everybody's, int64."""

    __slots__ = ()

    physical_offsets: npt.NDArray[np.int64] = _field(5)

    def __len__(self) -> int:
        """How many messages; their queue offsets are `offset` and those after it."""
        return len(self.physical_offsets)
