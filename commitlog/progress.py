"""How far a lane has come, seen from its producer: one look, a wait, a callback, an awaitable.

Nothing is kept for a message: an acknowledgement is a position that has passed its end. A synchronous flush is a request in
shared memory (`flush_requested`), which one fdatasync answers for everybody at or below it: RocketMQ's GroupCommitService.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from commitlog.attachment import Attachment
from commitlog.clock import Clock
from commitlog.errors import ForkedProducer, StoreNotRunning, StoreStopped, WaitTimeout
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


@dataclass(frozen=True, slots=True)
class _Waiter:
    where: int
    at: int  # index of the word that has to reach it
    deadline: int  # monotonic ns
    callback: Callback


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
        self._waiters: deque[_Waiter] = deque()
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

    def _request(self, where: int) -> None:
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
        self._request(where)
        while words[at] < where:
            now = clock.monotonic_ns()
            if now - began < _SPIN_NS:
                os.sched_yield()
                continue
            if now >= deadline:
                return PutMessageStatus.FLUSH_DISK_TIMEOUT
            if now - began > FAULT_PATIENCE_NS:
                self.check()
            self._request(where)  # again: another process that leased the lane may have asked for less
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
        waiter = _Waiter(where, self._word_of[level], deadline, callback)
        with self._lock:
            self._waiters.append(waiter)
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name=f"commitlog-lane-{self.lane}", daemon=True).start()
        if level != "accepted":
            self._request(where)

    def _watch(self) -> None:
        """Turns the waiters that are due out, oldest first; ends when none is left."""
        while True:
            while self._waiters and (status := self._verdict(self._waiters[0])) is not None:
                _call(self._waiters.popleft().callback, status)
            with self._lock:
                if not self._waiters:
                    self._watching = False
                    return
            self._attachment.await_notice(NOTICE_WAIT_MS, self._oldest_is_done)

    def _oldest_is_done(self) -> bool:
        oldest = self._waiters[0]
        return bool(self._words[oldest.at] >= oldest.where)

    def _verdict(self, waiter: _Waiter) -> PutMessageStatus | None:
        """How a wait has ended; None while it goes on."""
        if self._words[waiter.at] >= waiter.where:
            return PutMessageStatus.PUT_OK
        if self._clock.monotonic_ns() >= waiter.deadline:
            return PutMessageStatus.FLUSH_DISK_TIMEOUT
        try:
            self._attachment.check_stages()
        except (StoreStopped, StoreNotRunning):
            return PutMessageStatus.SERVICE_NOT_AVAILABLE
        return None

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
