"""How far a lane has come, seen from its producer: by one look, a wait, a callback, an awaitable.

Nothing is kept for a message: it is acknowledged when a position has passed its end. A synchronous
flush is a request in shared memory (`flush_requested`). One fdatasync answers every waiter at or
below its position, as in RocketMQ's GroupCommitService.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NoReturn, TypeVar

from commitlog.appending.attachment import Attachment
from commitlog.appending.lease import FAULT_PATIENCE_NS
from commitlog.clock import Clock, limit_ns
from commitlog.errors import (
    CommitLogError,
    ForkedProducer,
    IllegalArgument,
    NotCopied,
    PoolUnlinked,
    ReplicaNotAvailable,
    ReplicationTimeout,
    WaitTimeout,
)
from commitlog.receipt import Level, Receipt
from commitlog.record.host import Host, message_id
from commitlog.shm.layout import Lane
from commitlog.shm.statistics import record_put_time, record_wait
from commitlog.status import PutMessageStatus

R = TypeVar("R", bound=Receipt)
Callback = Callable[[PutMessageStatus], object]
_Outcome = PutMessageStatus | CommitLogError
_Tell = Callable[[_Outcome], object]
_Due = tuple[_Tell, _Outcome]

_WORD_OF: dict[Level, int] = {
    "accepted": Lane.WROTE,
    "committed": Lane.COMMITTED,
    "flushed": Lane.FLUSHED,
    "replicated": Lane.REPLICATED,
}
_SPIN_NS = 1_000_000
NOTICE_WAIT_MS = 5
_TIDY_ABOVE = 1_000
"""How many waiters that were told may stay in a queue, besides twice the outstanding ones."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiter:
    since: int  # monotonic ns
    tell: _Tell | None  # None: it was told, or was withdrawn


_Heap = list[tuple[float, int, _Waiter]]
"""Entries: the sort key, a number that orders equal keys, the waiter."""


class _Waiters:
    """Outstanding callbacks, sorted by the position they wait for and by when they give up.

    So none of them waits for another. Only one thread may use it at a time, but any thread may call
    `is_any_reached` and `withdraw`.
    """

    def __init__(self, words: Iterable[int]) -> None:
        self._by_where: dict[int, _Heap] = {word: [] for word in words}
        self._by_deadline: _Heap = []
        self._of_faults: deque[_Waiter] = deque()  # waiters that are told of faults, in the order they came
        self._withdrawn: deque[_Waiter] = deque()
        self._numbers = count()
        self.outstanding = 0

    def add(self, word: int, where: int, now: int, limit: float, tell: _Tell, *, of_faults: bool) -> _Waiter:
        """Adds a waiter for the moment when a word of the lane's row reaches `where`.

        `now` is in monotonic ns; `limit` is in ns from then on.
        """
        number, waiter = next(self._numbers), _Waiter(now, tell)
        heappush(self._by_where[word], (where, number, waiter))
        if limit < math.inf:
            heappush(self._by_deadline, (now + limit, number, waiter))
        if of_faults:
            self._of_faults.append(waiter)
        self.outstanding += 1
        return waiter

    def withdraw(self, waiter: _Waiter) -> None:
        """Makes sure that a waiter is not told any more.

        It takes no lock, because the garbage collector may call it anywhere.
        """
        if waiter.tell is not None:
            self._withdrawn.append(waiter)

    def take_due(self, row: memoryview, now: int) -> list[_Due]:
        """Removes the waiters whose wait is over, and returns them with the outcome."""
        due: list[_Due] = []
        while self._withdrawn:
            self._turn_out(self._withdrawn.popleft())
        for word, heap in self._by_where.items():
            self._take(heap, row[word], PutMessageStatus.PUT_OK, due)
        self._take(self._by_deadline, now, PutMessageStatus.FLUSH_DISK_TIMEOUT, due)
        if len(self._of_faults) > self._most:
            self._of_faults = deque(waiter for waiter in self._of_faults if waiter.tell is not None)
        return due

    def take_all(self, error: CommitLogError) -> list[_Due]:
        """Removes all waiters, and returns them with the same error."""
        due: list[_Due] = []
        for heap in self._by_where.values():
            self._take(heap, math.inf, error, due)
        return due

    def take_patient(self, error: CommitLogError, now: int) -> list[_Due]:
        """Removes the waiters that are told of faults and have given this one the time to heal."""
        due: list[_Due] = []
        waiters = self._of_faults
        while waiters and (waiters[0].tell is None or now - waiters[0].since > FAULT_PATIENCE_NS):
            tell = self._turn_out(waiters.popleft())
            if tell is not None:
                due.append((tell, error))
        return due

    def take_unreplicated(self, flushed: int, error: CommitLogError) -> list[_Due]:
        """Removes the waiters for replicas whose message is flushed here."""
        due: list[_Due] = []
        self._take(self._by_where[Lane.REPLICATED], flushed, error, due)
        return due

    def _take(self, heap: _Heap, limit: float, outcome: _Outcome, due: list[_Due]) -> None:
        while heap and (heap[0][0] <= limit or heap[0][2].tell is None):
            tell = self._turn_out(heappop(heap)[2])
            if tell is not None:
                due.append((tell, outcome))
        if len(heap) > self._most:
            heap[:] = [entry for entry in heap if entry[2].tell is not None]
            heapify(heap)

    @property
    def _most(self) -> int:
        """How long a queue may become. A longer one drops the waiters that were told."""
        return 2 * self.outstanding + _TIDY_ABOVE

    def _turn_out(self, waiter: _Waiter) -> _Tell | None:
        """Marks a waiter as told, and returns its `tell`; None where that was done before.

        The waiter stays in the other queues until it is the first there.
        """
        tell, waiter.tell = waiter.tell, None
        if tell is not None:
            self.outstanding -= 1
        return tell

    def is_any_reached(self, row: memoryview) -> bool:
        """Whether any position that a waiter waits for is reached."""
        return any(heap and row[word] >= heap[0][0] for word, heap in self._by_where.items())


class LaneProgress:
    """The positions of one lane as acknowledgements.

    Any thread may use it, also after the producer was closed.

    Attributes: `lane`, its number; `promised`, the level that the store promises for a message when
    its `send` returns.
    """

    def __init__(self, attachment: Attachment, lane: int, store_host: Host, clock: Clock) -> None:
        self.lane, self._store_host = lane, store_host
        config = attachment.config
        self._replication = config.replication
        self.promised: Level = "flushed" if config.store.flush_disk_type == "SYNC_FLUSH" else "accepted"
        if self._replication.enabled and self._replication.role == "SYNC_MASTER":
            self.promised = "replicated"
        self._attachment, self._clock = attachment, clock
        self._row = attachment.control.row(lane)
        self._timeout_seconds = config.producer.sync_flush_timeout_ms / 1000
        self._waiters = _Waiters(_WORD_OF.values())
        self._watching = False
        self._blocked_ns = 0
        self._lock = threading.RLock()  # a signal handler may send, or wait, too

    def message_id(self, where: int) -> str:
        """RocketMQ's id of the message whose record begins at `where`."""
        return message_id(self._store_host, where)

    def refuse_pickle(self) -> NoReturn:
        """Refuses to pickle a receipt: only this process knows how far its message has come."""
        raise NotCopied("a receipt can't be pickled: pass on its topic, partition and offset, and wait here")

    def reached(self, level: Level, where: int) -> bool:
        """Whether everything below `where`, an offset of the lane's log, has reached the level.

        Raises IllegalArgument.
        """
        try:
            reached = self._row[_WORD_OF[level]] >= where
        except (KeyError, TypeError):
            raise _no_level(level) from None
        if level == "replicated" and not self._replication.enabled:
            raise IllegalArgument("the store is not replicated: configure [replication], or wait for 'flushed'")
        return reached

    def status_of(self, where: int) -> PutMessageStatus:
        """PUT_OK when `where` has reached the level that the store promises."""
        return PutMessageStatus.PUT_OK if self.reached(self.promised, where) else self._late(self.promised, where)

    def _late(self, level: Level, where: int) -> PutMessageStatus:
        """The status of a message that has not reached a level in time."""
        if level == "replicated" and self.reached("flushed", where):
            return PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        return PutMessageStatus.FLUSH_DISK_TIMEOUT

    def request(self, where: int) -> None:
        """Asks the stages to flush up to `where` without any rest."""
        row = self._row
        if row[Lane.FLUSH_REQUESTED] < where:
            row[Lane.FLUSH_REQUESTED] = where
            self._attachment.hurry("committer")
            self._attachment.hurry("flusher")

    def wait(self, level: Level, where: int, timeout: float | None) -> PutMessageStatus:
        """See Receipt.wait."""
        limit = limit_ns(timeout)
        if self.reached(level, where):
            return PutMessageStatus.PUT_OK
        self._check_process()
        row, word, clock = self._row, _WORD_OF[level], self._clock
        began = clock.monotonic_ns()
        self.request(where)
        while row[word] < where:
            waited = clock.monotonic_ns() - began
            if waited >= limit:
                late = self._late(level, where) is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
                raise (ReplicationTimeout if late else WaitTimeout)(
                    f"lane {self.lane}: {where - row[word]:,} bytes are not {level} after {limit / 1e9:g} s; they stay in "
                    f"the log and may still become so: wait again, to send them again would double them"
                )
            if waited < _SPIN_NS:
                os.sched_yield()
                continue
            if waited > FAULT_PATIENCE_NS:
                self.check()
            if level == "replicated" and row[Lane.FLUSHED] >= where and row[word] < where and (error := self._alone()):
                raise error
            self.request(where)  # again: another process that leased the lane may have asked for less
            self._attachment.await_notice(NOTICE_WAIT_MS, lambda: row[word] >= where)
        return PutMessageStatus.PUT_OK

    def _alone(self) -> ReplicaNotAvailable | None:
        """The error of a replicated store that has fewer replicas in sync than there have to be."""
        found, wanted = self._row[Lane.IN_SYNC], self._replication.min_in_sync
        if found >= wanted or not self._replication.enabled:
            return None
        return ReplicaNotAvailable(
            f"lane {self.lane}: {found} of {wanted} replicas are in sync (replication.min_in_sync): what was sent is "
            f"flushed here, and a replica that comes back gets it; see `commitlog stat`, do not send it again"
        )

    def _check_process(self) -> None:
        if self._attachment.forked:
            raise ForkedProducer(f"lane {self.lane}: its producer belongs to the parent process; wait there")

    def waited_for_buffer(self, nanoseconds: int) -> None:
        """Counts a put that had to wait for a write buffer.

        A put that does not wait does not look at the clock.
        """
        record_wait(self._row, nanoseconds)
        if self.promised != "accepted":
            self._blocked_ns += nanoseconds  # the put's wait for the flush comes next
        else:
            record_put_time(self._row, nanoseconds)

    def wait_put(self, receipt: R) -> R:
        """Waits for a put of a store with SYNC_FLUSH or SYNC_MASTER, and counts how long that took.

        It waits for `sync_flush_timeout_ms` at most until the put is flushed, and then for
        `slave_timeout_ms` until it is replicated. An error that it raises carries the receipt; see
        Receipt.wait.
        """
        began = self._clock.monotonic_ns()
        try:
            self.wait("flushed", receipt.end, self._timeout_seconds)
            if self.promised == "replicated":
                self.wait("replicated", receipt.end, self._replication.slave_timeout_ms / 1000)
        except CommitLogError as error:
            error.receipt = receipt
            raise
        finally:
            took = self._clock.monotonic_ns() - began
            with self._lock:  # threads that share a producer wait side by side
                took, self._blocked_ns = took + self._blocked_ns, 0
                record_put_time(self._row, took)
        return receipt

    def wait_for_the_last(self, where: int) -> None:
        """Waits until a message is committed that was accepted after the pool was removed.

        The store stops then, and no next start finds the message in the pool. Raises PoolUnlinked
        where the stages have not written the message to the log either.
        """
        try:
            self.wait("committed", where, self._timeout_seconds)
        except CommitLogError as error:
            log.info("lane %d: %s", self.lane, error)
            raise PoolUnlinked(
                f"lane {self.lane}: the memory of the store was removed while it ran (RemoveIPC at logout, or a cleaner of "
                f"/dev/shm), and the store stops: the last message has not come to disk; start it again and send it again"
            ) from error

    def check(self) -> None:
        """Raises the error that keeps the lane from moving.

        Either the disk refuses, or the stages are gone.
        """
        self._attachment.raise_fault(self._row)
        self._attachment.check_stages()

    def flush(self, level: Level, timeout: float | None) -> None:
        """See Producer.flush."""
        self._check_process()
        self.wait(level, self._row[Lane.WROTE], timeout)

    # ---- callbacks ------------------------------------------------------------------------------

    def call_back(self, level: Level, where: int, callback: Callback, timeout: float | None = None) -> None:
        """See Receipt.add_callback."""
        if not callable(callback):
            raise IllegalArgument(f"a callback is called with a PutMessageStatus, and {callback!r:.80} can't be called")

        def tell(outcome: _Outcome) -> None:
            late = outcome is PutMessageStatus.FLUSH_DISK_TIMEOUT
            status = outcome.status if isinstance(outcome, CommitLogError) else outcome
            callback(self._late(level, where) if late else status)

        self._enlist(level, where, limit_ns(timeout), tell, of_faults=False)

    def _enlist(self, level: Level, where: int, limit: float, tell: _Tell, *, of_faults: bool) -> _Waiter:
        """Has a thread of its own call `tell`, once, when `where` has reached the level.

        It also calls `tell` when the limit (ns) is over.
        """
        self.reached(level, where)  # raises where the level does not exist
        self._check_process()
        now = self._clock.monotonic_ns()
        with self._lock:
            waiter = self._waiters.add(_WORD_OF[level], where, now, limit, tell, of_faults=of_faults)
            if not self._watching:
                threading.Thread(target=self._watch, name=f"commitlog-lane-{self.lane}", daemon=True).start()
                self._watching = True
        if level != "accepted":
            self.request(where)
        return waiter

    def _watch(self) -> None:
        """Tells the waiters that are due, until none is left."""
        while True:
            with self._lock:
                now = self._clock.monotonic_ns()
                due = self._waiters.take_due(self._row, now) or self._take_refused(now)
                if not due and not self._waiters.outstanding:
                    self._watching = False
                    return
            for tell, outcome in due:
                _tell(tell, outcome)
            if not due:
                self._attachment.await_notice(NOTICE_WAIT_MS, lambda: self._waiters.is_any_reached(self._row))

    def _take_refused(self, now: int) -> list[_Due]:
        """Removes the waiters that a failure ends.

        When the stages are gone, these are all waiters, because no position is reached any more.
        When the disk refuses, these are the waiters that are told of faults.
        """
        try:
            self._attachment.check_stages()
        except CommitLogError as error:
            return self._waiters.take_all(error)
        alone = self._alone()
        if alone and (due := self._waiters.take_unreplicated(self._row[Lane.FLUSHED], alone)):
            return due
        try:
            self._attachment.raise_fault(self._row)
        except CommitLogError as error:
            return self._waiters.take_patient(error, now)
        return []

    async def wait_async(self, level: Level, where: int) -> PutMessageStatus:
        """Waits as `wait` does, in asyncio and without a limit. Raises what `wait` raises.

        A cancelled wait leaves nothing behind.
        """
        if self.reached(level, where):
            return PutMessageStatus.PUT_OK
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[PutMessageStatus] = loop.create_future()

        def settle(outcome: _Outcome) -> None:
            if future.done():
                return
            if isinstance(outcome, CommitLogError):
                future.set_exception(type(outcome)(*outcome.args))  # a copy: each raise adds to a traceback
            else:
                future.set_result(outcome)

        def tell(outcome: _Outcome) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, outcome)

        waiter = self._enlist(level, where, math.inf, tell, of_faults=True)
        try:
            return await future
        finally:
            self._waiters.withdraw(waiter)


def _no_level(level: object) -> IllegalArgument:
    hint = f"; a limit in seconds is timeout={level!r}" if isinstance(level, int | float) else ""
    return IllegalArgument(f"a level is 'accepted', 'committed', 'flushed' or 'replicated', not {level!r:.80}{hint}")


def _tell(tell: _Tell, outcome: _Outcome) -> None:
    """Calls a user's callback. An error in it is logged, and stops no other callback."""
    try:
        tell(outcome)
    except Exception:
        log.exception("a callback of an acknowledgement failed")
