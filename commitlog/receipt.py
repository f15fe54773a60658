"""The receipt that `send` returns: it says where the message is, and waits until it is safer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Protocol, SupportsIndex

from commitlog.status import PutMessageStatus

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    class _Values:
        """The base of a receipt, as type checkers see it: an object that is made of its values."""

        def __init__(self, values: tuple[Any, ...]) -> None: ...
else:
    _Values = tuple

Level = Literal["accepted", "committed", "flushed", "replicated"]
"""How safe a message is. README says what each level survives."""


class Progress(Protocol):
    """Tells a receipt how far its lane has come. `where` is a position, in bytes of the lane's log.

    The only implementation is `commitlog.appending.acknowledgements.LaneProgress`.
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
    def refuse_pickle(self) -> NoReturn: ...


class _Fields(NamedTuple):
    """The values of a receipt, in order. A named tuple's descriptors run no Python code."""

    progress: Progress
    topic: str
    offset: int
    physical_offset: int
    end: int
    physical_offsets: npt.NDArray[np.int64]


def _field(name: str) -> Any:
    return vars(_Fields)[name]


def _refuse(self: object, *_: object) -> NoReturn:
    raise TypeError(f"a {type(self).__name__} is not a sequence: it has attributes (topic, partition, offset, …)")


def _absent(self: object) -> NoReturn:
    raise AttributeError(f"a {type(self).__name__} has no such attribute")


class Receipt(_Values):
    """The receipt of an accepted message: it knows where the message is, and how far it has come.

    `await receipt` waits until the message is flushed, as `wait` does. A receipt stays valid after
    its producer is closed. It can't be pickled, because only the producer's process can ask how far
    the message has come.

    - `topic`
    - `partition`: the lane that has the message
    - `offset`: the number of the message in its topic and lane
    - `physical_offset`: where its record begins, in bytes of the lane's log
    - `end`: where its record ends

    Inside, a receipt is a tuple: `send` makes a receipt for every message, and Python makes no
    other object faster. The other operations of a tuple are switched off.
    """

    __slots__ = ()

    _progress: Progress = _field("progress")
    topic: str = _field("topic")
    offset: int = _field("offset")
    physical_offset: int = _field("physical_offset")
    end: int = _field("end")

    @property
    def partition(self) -> int:
        """The number of the lane: Spark's partition, RocketMQ's queue id."""
        return self._progress.lane

    @property
    def message_id(self) -> str:
        """RocketMQ's message id: store host and physical offset in hex."""
        return self._progress.message_id(self.physical_offset)

    def done(self, level: Level = "flushed") -> bool:
        """Says whether the message has reached the level. This only reads words of shared memory.

        Raises IllegalArgument for a level that does not exist.
        """
        return self._progress.reached(level, self.end)

    def wait(self, level: Level = "flushed", timeout: float | None = None) -> PutMessageStatus:
        """Waits until the message has reached the level, and returns PUT_OK.

        It waits at most `timeout` seconds; None waits as long as it takes. Whatever it raises, the
        message is in the log, unless it is MessagesLost.

        Raises:
        - WaitTimeout: the time is over. The message may still become flushed, so sending it again
          would double it. `error.status` is FLUSH_DISK_TIMEOUT.
        - ReplicationTimeout: the same, of a message that is flushed and not yet replicated.
          `error.status` is FLUSH_SLAVE_TIMEOUT.
        - ReplicaNotAvailable: it is flushed, and too few replicas are in sync.
        - DiskError (DiskFull, DiskInputOutput, …): the disk refuses.
        - StoreStopped, StoreNotRunning: no stage is left that could flush it.
        - MessagesLost, a StoreStopped: a later start of the store found that messages are lost.
          This may be one of them.
        - IllegalArgument: there is no such level here, or the timeout is not a time.
        """
        return self._progress.wait(level, self.end, timeout)

    def add_callback(
        self, callback: Callable[[PutMessageStatus], object], level: Level = "flushed", timeout: float | None = None
    ) -> None:
        """Calls `callback(status)` when the message has reached the level.

        The callback is called once, from another thread. The status is PUT_OK, or
        FLUSH_DISK_TIMEOUT after `timeout` seconds (None: never), or SERVICE_NOT_AVAILABLE if the
        stages are gone. For a message that is flushed and not replicated it is FLUSH_SLAVE_TIMEOUT,
        or SLAVE_NOT_AVAILABLE while too few replicas are in sync. While the disk refuses, the
        callback waits on. Thousands of callbacks may wait at a time; each costs a place in a queue.

        Raises IllegalArgument, NotEnoughThreads, and ForkedProducer in a forked child.
        """
        self._progress.call_back(level, self.end, callback, timeout)

    def __await__(self) -> Generator[Any, None, PutMessageStatus]:
        """Returns and raises what `wait()` does, for asyncio; `asyncio.timeout` limits it."""
        return self.wait_async().__await__()

    def wait_async(self, level: Level = "flushed") -> Coroutine[Any, Any, PutMessageStatus]:
        """Returns and raises what `wait(level)` does, for asyncio."""
        return self._progress.wait_async(level, self.end)

    @property
    def status(self) -> PutMessageStatus:
        """PUT_OK once the message is as safe as the store promises.

        The knobs `flush_disk_type` and `replication.role` are the promise. Until then the status is
        FLUSH_DISK_TIMEOUT, or FLUSH_SLAVE_TIMEOUT if the message is flushed.
        """
        return self._progress.status_of(self.end)

    def __repr__(self) -> str:
        place = f"partition={self.partition}, offset={self.offset}, physical_offset={self.physical_offset}"
        return f"{type(self).__name__}(topic={self.topic!r}, {place})"

    # ---- a receipt is itself, and no tuple ------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return True

    def __copy__(self) -> Receipt:
        return self

    def __deepcopy__(self, _memo: object) -> Receipt:
        return self

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        self._progress.refuse_pickle()

    if not TYPE_CHECKING:
        __len__ = __getitem__ = __iter__ = __reversed__ = __contains__ = _refuse
        __add__ = __radd__ = __mul__ = __rmul__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
        count = index = property(_absent)


class BatchReceipt(Receipt):
    """The receipt of an accepted batch. It waits for the last message, and knows the places of all.

    - `offset`, `physical_offset`: those of the first message; offsets count on from there
    - `physical_offsets`: where each record begins, int64
    - `len(receipt)`: how many messages
    """

    __slots__ = ()

    physical_offsets: npt.NDArray[np.int64] = _field("physical_offsets")

    def __len__(self) -> int:
        return len(self.physical_offsets)
