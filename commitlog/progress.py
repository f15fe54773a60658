"""How far a lane has come, seen from its producer: one look, a wait, a callback, an awaitable.

Nothing is kept for a message: an acknowledgement is a position that has passed its end. A synchronous flush is a request in
shared memory (`flush_requested`), which one fdatasync answers for everybody at or below it: RocketMQ's GroupCommitService.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Literal

from commitlog.attachment import Attachment
from commitlog.clock import Clock
from commitlog.errors import CommitLogError, ForkedProducer, PoolUnlinked, StoreNotRunning, StoreStopped, WaitTimeout
from commitlog.lane import FAULT_PATIENCE_NS
from commitlog.record import Host
from commitlog.status import PutMessageStatus
from shm.layout import Lane
from shm.statistics import record_put_time, record_wait

Level = Literal["accepted", "committed", "flushed"]
Callback = Callable[[PutMessageStatus], object]

_WORD_OF: dict[Level, int] = {"accepted": Lane.WROTE, "committed": Lane.COMMITTED, "flushed": Lane.FLUSHED}
_SPIN_NS = 1_000_000
NOTICE_WAIT_MS = 5
_FOREVER_SECONDS = 86_400.0 * 365

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiter:
    callback: Callback | None  # None: it was answered


_Heap = list[tuple[int, int, _Waiter]]
"""What sorts them, a number that tells equals apart, the waiter."""


class _Waiters:
    """Outstanding callbacks, found by the position they wait for and by when they give up, so that none waits for another.

    For one thread at a time; `is_any_reached` for any.
    """

    def __init__(self, words_at: Iterable[int]) -> None:
        self._by_where: dict[int, _Heap] = {at: [] for at in words_at}
        self._by_deadline: _Heap = []
        self._numbers = count()
        self.outstanding = 0

    def add(self, at: int, where: int, deadline: int, callback: Callback) -> None:
        """`at`: index of the word that has to reach `where`; `deadline`: monotonic ns."""
        number, waiter = next(self._numbers), _Waiter(callback)
        heappush(self._by_where[at], (where, number, waiter))
        heappush(self._by_deadline, (deadline, number, waiter))
        self.outstanding += 1

    def take_due(self, words: memoryview, now: int) -> list[tuple[Callback, PutMessageStatus]]:
        """Turns those out whose wait is over, and says how it ended."""
        due: list[tuple[Callback, PutMessageStatus]] = []
        for at, heap in self._by_where.items():
            self._take(heap, words[at], PutMessageStatus.PUT_OK, due)
        self._take(self._by_deadline, now, PutMessageStatus.FLUSH_DISK_TIMEOUT, due)
        return due

    def take_all(self, status: PutMessageStatus) -> list[tuple[Callback, PutMessageStatus]]:
        """Turns everybody out with the same answer."""
        due: list[tuple[Callback, PutMessageStatus]] = []
        for heap in self._by_where.values():
            self._take(heap, math.inf, status, due)
        return due

    def _take(
        self, heap: _Heap, limit: float, status: PutMessageStatus, due: list[tuple[Callback, PutMessageStatus]]
    ) -> None:
        while heap and (heap[0][0] <= limit or heap[0][2].callback is None):
            waiter = heappop(heap)[2]
            if waiter.callback is not None:
                due.append((waiter.callback, status))
                waiter.callback = None  # it stays in the other heap until it is first there
                self.outstanding -= 1

    def is_any_reached(self, words: memoryview) -> bool:
        """Whether somebody's position is reached."""
        return any(heap and words[at] >= heap[0][0] for at, heap in self._by_where.items())


class LaneProgress:
    """The positions of one lane as acknowledgements. Any thread may use it, also after the producer was closed.

    Attributes: `lane`, its number; `store_host`, the host in its message ids; `sync`, whether the store's level is flushed.
    """

    def __init__(self, attachment: Attachment, lane: int, base: int, store_host: Host, clock: Clock) -> None:
        self.lane, self.store_host = lane, store_host
        self.sync = attachment.config.store.flush_disk_type == "SYNC_FLUSH"
        self._attachment, self._clock = attachment, clock
        self._words, self._base = attachment.words, base
        self._word_of = {level: base + word for level, word in _WORD_OF.items()}
        self._timeout_seconds = attachment.config.producer.sync_flush_timeout_ms / 1000
        self._waiters = _Waiters(self._word_of.values())
        self._watching = False
        self._blocked_ns = 0
        self._lock = threading.Lock()

    def reached(self, level: Level, where: int) -> bool:
        """Whether everything below `where` (bytes of the lane's log) has reached the level."""
        return self._words[self._word_of[level]] >= where

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
        words, at = self._words, self._word_of[level]
        if words[at] >= where:
            return PutMessageStatus.PUT_OK
        self._check_process()
        clock = self._clock
        began = clock.monotonic_ns()
        deadline = began + int((self._timeout_seconds if timeout is None else timeout) * 1e9)
        self.request(where)
        while words[at] < where:
            now = clock.monotonic_ns()
            if now - began < _SPIN_NS:
                os.sched_yield()
                continue
            if now >= deadline:
                return PutMessageStatus.FLUSH_DISK_TIMEOUT
            if now - began > FAULT_PATIENCE_NS:
                self.check()
            self.request(where)  # again: another process that leased the lane may have asked for less
            self._attachment.await_notice(NOTICE_WAIT_MS, lambda: words[at] >= where)
        return PutMessageStatus.PUT_OK

    def _check_process(self) -> None:
        if self._attachment.forked:
            raise ForkedProducer(f"lane {self.lane}: its producer belongs to the parent process; wait there")

    def waited_for_buffer(self, nanoseconds: int) -> None:
        """Counts a put that had to wait for a write buffer. Puts that wait for nothing cost no look at the clock."""
        record_wait(self._words, self._base, nanoseconds)
        if self.sync:
            self._blocked_ns += nanoseconds  # its wait for the flush is still to come
        else:
            record_put_time(self._words, self._base, nanoseconds)

    def wait_put(self, where: int) -> PutMessageStatus:
        """Waits for a put of a store with SYNC_FLUSH, and counts how long it took. See Receipt.wait."""
        began = self._clock.monotonic_ns()
        try:
            return self.wait("flushed", where, None)
        finally:
            took = self._clock.monotonic_ns() - began + self._blocked_ns
            self._blocked_ns = 0
            record_put_time(self._words, self._base, took)

    def wait_for_the_last(self, where: int) -> None:
        """For a message that was accepted while the store stops because its pool was removed: there is no next start that
        finds it there. Raises PoolUnlinked where the stages have not written it out either."""
        try:
            if self.wait("committed", where, None) is PutMessageStatus.PUT_OK:
                return
        except CommitLogError as error:
            log.info("lane %d: %s", self.lane, error)
        raise PoolUnlinked(
            f"lane {self.lane}: the memory of the store was removed while it ran (RemoveIPC at logout, or a cleaner "
            f"of /dev/shm), and the store stops: the last message has not come to disk; start it again and send it again"
        )

    def check(self) -> None:
        """Raises the named error of whatever keeps the lane from moving: the disk, or stages that are gone."""
        self._attachment.raise_fault(self._base)
        self._attachment.check_stages()

    def flush(self, timeout: float | None) -> None:
        """See Producer.flush."""
        self._check_process()
        where = self._words[self._base + Lane.WROTE]
        if self.wait("flushed", where, _FOREVER_SECONDS if timeout is None else timeout) is not PutMessageStatus.PUT_OK:
            left = where - self._words[self._base + Lane.FLUSHED]
            raise WaitTimeout(f"lane {self.lane}: {left} bytes are not flushed after {timeout} s; they stay in the log")

    # ---- callbacks -----------------------------------------------------------------------------------------------

    def call_back(self, level: Level, where: int, callback: Callback, timeout: float | None = None) -> None:
        """Calls `callback(status)` once, from a thread of its own, when `where` has reached the level or the time is up."""
        self._check_process()
        seconds = self._timeout_seconds if timeout is None else timeout
        deadline = self._clock.monotonic_ns() + int(seconds * 1e9)
        with self._lock:
            self._waiters.add(self._word_of[level], where, deadline, callback)
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name=f"commitlog-lane-{self.lane}", daemon=True).start()
        if level != "accepted":
            self.request(where)

    def _watch(self) -> None:
        """Answers the waiters that are due; ends when none is left."""
        while True:
            with self._lock:
                due = self._waiters.take_due(self._words, self._clock.monotonic_ns())
                if not due and self._is_abandoned():
                    due = self._waiters.take_all(PutMessageStatus.SERVICE_NOT_AVAILABLE)
                if not due and not self._waiters.outstanding:
                    self._watching = False
                    return
            for callback, status in due:
                _call(callback, status)
            if not due:
                self._attachment.await_notice(NOTICE_WAIT_MS, lambda: self._waiters.is_any_reached(self._words))

    def _is_abandoned(self) -> bool:
        """Whether the stages are gone, so that nobody's position will be reached."""
        try:
            self._attachment.check_stages()
        except (StoreStopped, StoreNotRunning):
            return True
        return False

    async def wait_async(self, level: Level, where: int, timeout: float | None) -> PutMessageStatus:
        """`wait` for asyncio. A failing disk shows as FLUSH_DISK_TIMEOUT, stages that are gone as SERVICE_NOT_AVAILABLE."""
        if self.reached(level, where):
            return PutMessageStatus.PUT_OK
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PutMessageStatus] = loop.create_future()

        def settle(status: PutMessageStatus) -> None:
            if not future.done():
                future.set_result(status)

        self.call_back(level, where, lambda status: loop.call_soon_threadsafe(settle, status), timeout)
        return await future


def _call(callback: Callback, status: PutMessageStatus) -> None:
    """An error in a user's callback is logged with its traceback and stops nobody else's."""
    try:
        callback(status)
    except Exception:
        log.exception("a callback of an acknowledgement failed")
