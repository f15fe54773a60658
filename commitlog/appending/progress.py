"""How far a lane has come, seen from its producer: one look, a wait, a callback, an awaitable.

Nothing is kept for a message: an acknowledgement is a position that has passed its end. A
synchronous flush is a request in shared memory (`flush_requested`), which one fdatasync answers for
everybody at or below it: RocketMQ's GroupCommitService.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeVar

from commitlog.appending.attachment import Attachment
from commitlog.appending.lane import FAULT_PATIENCE_NS
from commitlog.clock import Clock, limit_ns
from commitlog.errors import CommitLogError, ForkedProducer, IllegalArgument, PoolUnlinked, WaitTimeout
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

_WORD_OF: dict[Level, int] = {"accepted": Lane.WROTE, "committed": Lane.COMMITTED, "flushed": Lane.FLUSHED}
_SPIN_NS = 1_000_000
NOTICE_WAIT_MS = 5
_TIDY_ABOVE = 1_000
"""So many waiters that are told already may stay in a queue, besides as many as are outstanding."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiter:
    since: int  # monotonic ns
    tell: _Tell | None  # None: it was told, or asks no more


_Heap = list[tuple[float, int, _Waiter]]
"""What sorts them, a number that tells equals apart, the waiter."""


class _Waiters:
    """Outstanding callbacks, found by the position they wait for and by when they give up, so that
    none waits for another.

    For one thread at a time; `is_any_reached` and `withdraw` for any.
    """

    def __init__(self, words_at: Iterable[int]) -> None:
        self._by_where: dict[int, _Heap] = {at: [] for at in words_at}
        self._by_deadline: _Heap = []
        self._of_faults: deque[_Waiter] = deque()  # those that want to hear of them, in the order they came
        self._withdrawn: deque[_Waiter] = deque()
        self._numbers = count()
        self.outstanding = 0

    def add(self, at: int, where: int, now: int, limit: float, tell: _Tell, *, of_faults: bool) -> _Waiter:
        """`at`: index of the word that has to reach `where`; `limit`: ns from `now`, which is
        monotonic.
        """
        number, waiter = next(self._numbers), _Waiter(now, tell)
        heappush(self._by_where[at], (where, number, waiter))
        if limit < math.inf:
            heappush(self._by_deadline, (now + limit, number, waiter))
        if of_faults:
            self._of_faults.append(waiter)
        self.outstanding += 1
        return waiter

    def withdraw(self, waiter: _Waiter) -> None:
        """It is not told any more. Takes no lock: the garbage collector may do it at any place."""
        if waiter.tell is not None:
            self._withdrawn.append(waiter)

    def take_due(self, words: memoryview, now: int) -> list[_Due]:
        """Turns those out whose wait is over, and says how it ended."""
        due: list[_Due] = []
        while self._withdrawn:
            self._turn_out(self._withdrawn.popleft())
        for at, heap in self._by_where.items():
            self._take(heap, words[at], PutMessageStatus.PUT_OK, due)
        self._take(self._by_deadline, now, PutMessageStatus.FLUSH_DISK_TIMEOUT, due)
        if len(self._of_faults) > self._most:
            self._of_faults = deque(waiter for waiter in self._of_faults if waiter.tell is not None)
        return due

    def take_all(self, error: CommitLogError) -> list[_Due]:
        """Turns everybody out with the same error."""
        due: list[_Due] = []
        for heap in self._by_where.values():
            self._take(heap, math.inf, error, due)
        return due

    def take_patient(self, error: CommitLogError, now: int) -> list[_Due]:
        """Turns those out who want to hear of a fault and have given it the time to heal."""
        due: list[_Due] = []
        waiters = self._of_faults
        while waiters and (waiters[0].tell is None or now - waiters[0].since > FAULT_PATIENCE_NS):
            tell = self._turn_out(waiters.popleft())
            if tell is not None:
                due.append((tell, error))
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
        """A queue that is longer is rid of those that were told."""
        return 2 * self.outstanding + _TIDY_ABOVE

    def _turn_out(self, waiter: _Waiter) -> _Tell | None:
        """Whom to tell; None where that was done. It stays in the other queues until it is first
        there.
        """
        tell, waiter.tell = waiter.tell, None
        if tell is not None:
            self.outstanding -= 1
        return tell

    def is_any_reached(self, words: memoryview) -> bool:
        """Whether somebody's position is reached."""
        return any(heap and words[at] >= heap[0][0] for at, heap in self._by_where.items())


class LaneProgress:
    """The positions of one lane as acknowledgements. Any thread may use it, also after the producer
    was closed.

    Attributes: `lane`, its number; `sync`, whether the store's level is flushed.
    """

    def __init__(self, attachment: Attachment, lane: int, base: int, store_host: Host, clock: Clock) -> None:
        self.lane, self._store_host = lane, store_host
        self.sync = attachment.config.store.flush_disk_type == "SYNC_FLUSH"
        self._attachment, self._clock = attachment, clock
        self._words, self._base = attachment.words, base
        self._word_of = {level: base + word for level, word in _WORD_OF.items()}
        self._timeout_seconds = attachment.config.producer.sync_flush_timeout_ms / 1000
        self._waiters = _Waiters(self._word_of.values())
        self._watching = False
        self._blocked_ns = 0
        self._lock = threading.RLock()  # a signal handler may send, or wait, too

    def message_id(self, where: int) -> str:
        """RocketMQ's id of the message whose record begins at `where`."""
        return message_id(self._store_host, where)

    def reached(self, level: Level, where: int) -> bool:
        """Whether everything below `where` (bytes of the lane's log) has reached the level. Raises
        IllegalArgument.
        """
        try:
            return self._words[self._word_of[level]] >= where
        except (KeyError, TypeError):
            raise _no_level(level) from None

    def status_of(self, where: int) -> PutMessageStatus:
        """PUT_OK when `where` has reached the store's own level, else FLUSH_DISK_TIMEOUT."""
        reached = self.reached("flushed" if self.sync else "accepted", where)
        return PutMessageStatus.PUT_OK if reached else PutMessageStatus.FLUSH_DISK_TIMEOUT

    def request(self, where: int) -> None:
        """Asks for `where` to be flushed without any linger; asked once for many."""
        at = self._base + Lane.FLUSH_REQUESTED
        if self._words[at] < where:
            self._words[at] = where
            self._attachment.hurry("committer")
            self._attachment.hurry("flusher")

    def wait(self, level: Level, where: int, timeout: float | None) -> PutMessageStatus:
        """See Receipt.wait."""
        limit = limit_ns(timeout)
        if self.reached(level, where):
            return PutMessageStatus.PUT_OK
        self._check_process()
        words, at, clock = self._words, self._word_of[level], self._clock
        began = clock.monotonic_ns()
        self.request(where)
        while words[at] < where:
            waited = clock.monotonic_ns() - began
            if waited >= limit:
                raise WaitTimeout(
                    f"lane {self.lane}: {where - words[at]:,} bytes are not {level} after {limit / 1e9:g} s; they stay in "
                    f"the log and may still become so: wait again, to send them again would double them"
                )
            if waited < _SPIN_NS:
                os.sched_yield()
                continue
            if waited > FAULT_PATIENCE_NS:
                self.check()
            self.request(where)  # again: another process that leased the lane may have asked for less
            self._attachment.await_notice(NOTICE_WAIT_MS, lambda: words[at] >= where)
        return PutMessageStatus.PUT_OK

    def _check_process(self) -> None:
        if self._attachment.forked:
            raise ForkedProducer(f"lane {self.lane}: its producer belongs to the parent process; wait there")

    def waited_for_buffer(self, nanoseconds: int) -> None:
        """Counts a put that had to wait for a write buffer. Puts that wait for nothing cost no look
        at the clock.
        """
        record_wait(self._words, self._base, nanoseconds)
        if self.sync:
            self._blocked_ns += nanoseconds  # its wait for the flush is still to come
        else:
            record_put_time(self._words, self._base, nanoseconds)

    def wait_put(self, receipt: R) -> R:
        """Waits for a put of a store with SYNC_FLUSH, as long as `sync_flush_timeout_ms`, and
        counts how long it took.

        What it raises carries the receipt. See Receipt.wait.
        """
        began = self._clock.monotonic_ns()
        try:
            self.wait("flushed", receipt.end, self._timeout_seconds)
        except CommitLogError as error:
            error.receipt = receipt
            raise
        finally:
            took = self._clock.monotonic_ns() - began
            with self._lock:  # threads that share a producer wait side by side
                took, self._blocked_ns = took + self._blocked_ns, 0
                record_put_time(self._words, self._base, took)
        return receipt

    def wait_for_the_last(self, where: int) -> None:
        """For a message that was accepted while the store stops because its pool was removed: there
        is no next start that finds it there. Raises PoolUnlinked where the stages have not written
        it out either."""
        try:
            self.wait("committed", where, self._timeout_seconds)
        except CommitLogError as error:
            log.info("lane %d: %s", self.lane, error)
            raise PoolUnlinked(
                f"lane {self.lane}: the memory of the store was removed while it ran (RemoveIPC at logout, or a cleaner of "
                f"/dev/shm), and the store stops: the last message has not come to disk; start it again and send it again"
            ) from error

    def check(self) -> None:
        """Raises the named error of whatever keeps the lane from moving: the disk, or stages that
        are gone.
        """
        self._attachment.raise_fault(self._base)
        self._attachment.check_stages()

    def flush(self, timeout: float | None) -> None:
        """See Producer.flush."""
        self._check_process()
        self.wait("flushed", self._words[self._base + Lane.WROTE], timeout)

    # ---- callbacks ------------------------------------------------------------------------------

    def call_back(self, level: Level, where: int, callback: Callback, timeout: float | None = None) -> None:
        """See Receipt.add_callback."""
        if not callable(callback):
            raise IllegalArgument(f"a callback is called with a PutMessageStatus, and {callback!r:.80} can't be called")

        def tell(outcome: _Outcome) -> None:
            callback(outcome.status if isinstance(outcome, CommitLogError) else outcome)

        self._enlist(level, where, limit_ns(timeout), tell, of_faults=False)

    def _enlist(self, level: Level, where: int, limit: float, tell: _Tell, *, of_faults: bool) -> _Waiter:
        """Has a thread of its own tell, once, when `where` has reached the level or the limit (ns)
        is over.
        """
        self.reached(level, where)  # raises where there is no such level
        self._check_process()
        now = self._clock.monotonic_ns()
        with self._lock:
            waiter = self._waiters.add(self._word_of[level], where, now, limit, tell, of_faults=of_faults)
            if not self._watching:
                threading.Thread(target=self._watch, name=f"commitlog-lane-{self.lane}", daemon=True).start()
                self._watching = True
        if level != "accepted":
            self.request(where)
        return waiter

    def _watch(self) -> None:
        """Answers the waiters that are due; ends when none is left."""
        while True:
            with self._lock:
                now = self._clock.monotonic_ns()
                due = self._waiters.take_due(self._words, now) or self._refused(now)
                if not due and not self._waiters.outstanding:
                    self._watching = False
                    return
            for tell, outcome in due:
                _tell(tell, outcome)
            if not due:
                self._attachment.await_notice(NOTICE_WAIT_MS, lambda: self._waiters.is_any_reached(self._words))

    def _refused(self, now: int) -> list[_Due]:
        """Everybody when the stages are gone, so that nobody's position will be reached; when the
        disk refuses, who asked to be told."""
        try:
            self._attachment.check_stages()
        except CommitLogError as error:
            return self._waiters.take_all(error)
        try:
            self._attachment.raise_fault(self._base)
        except CommitLogError as error:
            return self._waiters.take_patient(error, now)
        return []

    async def wait_async(self, level: Level, where: int) -> PutMessageStatus:
        """`wait` for asyncio, with its errors and without a limit. A cancelled one leaves nothing
        behind.
        """
        if self.reached(level, where):
            return PutMessageStatus.PUT_OK
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PutMessageStatus] = loop.create_future()

        def settle(outcome: _Outcome) -> None:
            if future.done():
                return
            if isinstance(outcome, CommitLogError):
                future.set_exception(type(outcome)(*outcome.args))  # one for each: a traceback grows where it is raised
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
    return IllegalArgument(f"a level is 'accepted', 'committed' or 'flushed', not {level!r:.80}{hint}")


def _tell(tell: _Tell, outcome: _Outcome) -> None:
    """An error in a user's callback is logged with its traceback and stops nobody else's."""
    try:
        tell(outcome)
    except Exception:
        log.exception("a callback of an acknowledgement failed")
