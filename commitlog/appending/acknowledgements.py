"""Tells a producer how far its lane has come: by a look, a wait, a callback, an awaitable.

Nothing is kept for a message: it is acknowledged when a position has passed its end. A synchronous
flush is a request in shared memory (`flush_requested`). One fdatasync answers every waiter at or
below its position, as in RocketMQ's GroupCommitService.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import NoReturn, TypeVar

from commitlog.appending.attachment import Attachment
from commitlog.appending.callbacks import Outcome, Tell, Teller, Waiter, Waiters, check_callback, told
from commitlog.appending.lease import FAULT_PATIENCE_NS
from commitlog.errors import (
    CommitLogError,
    ForkedProducer,
    IllegalArgument,
    MessagesLost,
    NotCopied,
    PoolUnlinked,
    ReplicaNotAvailable,
    ReplicationTimeout,
    WaitTimeout,
)
from commitlog.receipt import Level, Receipt
from commitlog.record.host import Host, message_id
from commitlog.shm.counters import record_put_time, record_wait
from commitlog.shm.layout import Lane
from commitlog.shm.memory_order import observe, publish
from commitlog.status import PutMessageStatus
from commitlog.system.clock import Clock, limit_ns

R = TypeVar("R", bound=Receipt)
Callback = Callable[[PutMessageStatus], object]

_WORD_OF: dict[Level, int] = {
    "accepted": Lane.WROTE,
    "committed": Lane.COMMITTED,
    "flushed": Lane.FLUSHED,
    "replicated": Lane.REPLICATED,
}
_SPIN_NS = 1_000_000
NOTICE_WAIT_MS = 5

log = logging.getLogger(__name__)


class LaneProgress:
    """The positions of one lane as acknowledgements.

    Any thread may use the object, even after the producer was closed.

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
        self._losses = observe(self._row, Lane.LOSSES)
        self._timeout_seconds = config.producer.sync_flush_timeout_ms / 1000
        self._blocked_ns = 0
        self._lock = threading.RLock()  # a signal handler may send, or wait, too
        self._waiters = Waiters(_WORD_OF.values())
        self._teller = Teller(self._waiters, self._lock, clock, f"commitlog-lane-{lane}")

    def message_id(self, where: int) -> str:
        """RocketMQ's id of the message whose record begins at `where`."""
        return message_id(self._store_host.encode(), where)

    def refuse_pickle(self) -> NoReturn:
        """Refuses to pickle a receipt: only this process knows how far its message has come."""
        raise NotCopied("a receipt can't be pickled: pass on its topic, partition and offset, and wait here")

    def reached(self, level: Level, where: int) -> bool:
        """Whether everything below `where`, an offset of the lane's log, has reached the level.

        Raises IllegalArgument.
        """
        try:
            reached = observe(self._row, _WORD_OF[level]) >= where
        except (KeyError, TypeError):
            raise _no_level(level) from None
        if level == "replicated" and not self._replication.enabled:
            raise IllegalArgument("the store is not replicated: configure [replication], or wait for 'flushed'")
        return reached and not self._is_lost(where)

    def _is_lost(self, where: int) -> bool:
        """Whether a later start of the store found that the message may be lost.

        Another message may be at its place by now.
        """
        return where > self._lost_behind()

    def _lost_behind(self) -> float:
        """The log offset behind which messages of this producer may be lost; infinity if none.

        Shared memory has the place of the last loss only. After several losses the offset is −1:
        any message may be lost.
        """
        losses = observe(self._row, Lane.LOSSES) - self._losses
        if not losses:
            return math.inf
        return self._row[Lane.LOST_BEHIND] if losses == 1 else -1

    def _loss(self) -> MessagesLost:
        return MessagesLost(
            f"lane {self.lane}: a start of the store found that it has lost messages that it had accepted; this may be one "
            f"of them: look whether it is in the log before you send it again"
        )

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
        if observe(row, Lane.FLUSH_REQUESTED) < where and not self._is_lost(where):
            publish(row, Lane.FLUSH_REQUESTED, where)
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
        while not self.reached(level, where):
            if self._is_lost(where):
                raise self._loss()
            waited = clock.monotonic_ns() - began
            if waited >= limit:
                late = self._late(level, where) is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
                why = self._attachment.why_late(began, "")
                raise (ReplicationTimeout if late else WaitTimeout)(
                    f"lane {self.lane}: {where - observe(row, word):,} bytes are not {level} after {limit / 1e9:g} s"
                    f"{why and f', {why}'}; they stay in the log and may still become so: wait again, to send them again "
                    f"would double them"
                )
            if waited < _SPIN_NS:
                os.sched_yield()
                continue
            if waited > FAULT_PATIENCE_NS:
                self.check()
            if (
                level == "replicated"
                and observe(row, Lane.FLUSHED) >= where
                and observe(row, word) < where
                and (error := self._alone())
            ):
                raise error
            self.request(where)  # again: another process that leased the lane may have asked for less
            self._attachment.await_notice(NOTICE_WAIT_MS, partial(self.reached, level, where))
        return PutMessageStatus.PUT_OK

    def _alone(self) -> ReplicaNotAvailable | None:
        """Makes the error of a store with fewer replicas in sync than `min_in_sync`."""
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
        try:
            began = self._clock.monotonic_ns()
            try:
                self.wait("flushed", receipt.end, self._timeout_seconds)
                if self.promised == "replicated":
                    self.wait("replicated", receipt.end, self._replication.slave_timeout_ms / 1000)
            finally:
                took = self._clock.monotonic_ns() - began
                with self._lock:  # threads that share a producer wait side by side
                    took, self._blocked_ns = took + self._blocked_ns, 0
                    record_put_time(self._row, took)
        except BaseException as error:  # also where Python has no memory, and at Ctrl-C
            error.receipt = receipt  # type: ignore[attr-defined]
            raise
        return receipt

    def wait_for_the_last(self, where: int) -> None:
        """Waits until the message that ends at `where` is committed, after the pool was removed.

        The store stops in this case, and the next start does not find the message in the pool.
        Raises PoolUnlinked if the stages have not written the message to the log either.
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
        self.wait(level, observe(self._row, Lane.WROTE), timeout)

    # ---- callbacks ------------------------------------------------------------------------------

    def call_back(self, level: Level, where: int, callback: Callback, timeout: float | None = None) -> None:
        """See Receipt.add_callback."""
        check_callback(callback)
        tell = partial(self._tell, callback, level, where)
        self._enlist(level, where, limit_ns(timeout), tell, of_faults=False)

    def _tell(self, callback: Callback, level: Level, where: int, outcome: Outcome) -> None:
        late = outcome is PutMessageStatus.FLUSH_DISK_TIMEOUT
        status = outcome.status if isinstance(outcome, CommitLogError) else outcome
        callback(self._late(level, where) if late else status)

    def _enlist(self, level: Level, where: int, limit: float, tell: Tell, *, of_faults: bool) -> Waiter:
        """Has a thread call `tell` once, when `where` has reached the level or after the limit."""
        self.reached(level, where)  # raises where the level does not exist
        self._check_process()
        if level != "accepted":
            self.request(where)  # the stages work while a thread starts
        now = self._clock.monotonic_ns()
        with self._lock:
            waiter = self._waiters.add(_WORD_OF[level], where, now, limit, tell, of_faults=of_faults)
            self._teller.serve(waiter, self._take_due, self._await_any)
        return waiter

    def _take_due(self) -> bool:
        now = self._clock.monotonic_ns()
        reached = self._positions()  # before it is asked what is lost
        return self._take_lost() or self._waiters.take_due(reached, now) or self._take_refused(now)

    def _await_any(self) -> None:
        self._attachment.await_notice(NOTICE_WAIT_MS, self._is_any_reached)

    def _is_any_reached(self) -> bool:
        return self._waiters.is_any_reached(self._positions())

    def _positions(self) -> dict[int, int]:
        return {word: observe(self._row, word) for word in _WORD_OF.values()}

    def _take_lost(self) -> bool:
        """Makes the waiters due whose messages may be lost."""
        where = self._lost_behind()
        return where < math.inf and self._waiters.take_behind(where, self._loss())

    def _take_refused(self, now: int) -> bool:
        """Makes the waiters due whose wait a failure ends.

        If the stages are gone, these are all waiters, because no position moves any more. If the
        disk refuses, these are the waiters that want to be told of faults.
        """
        try:
            self._attachment.check_stages()
        except CommitLogError as error:
            return self._waiters.take_all(error)
        alone = self._alone()
        if alone and self._waiters.take_reached(Lane.REPLICATED, observe(self._row, Lane.FLUSHED), alone):
            return True
        try:
            self._attachment.raise_fault(self._row)
        except CommitLogError as error:
            return self._waiters.take_patient(error, now - FAULT_PATIENCE_NS)
        return False

    async def wait_async(self, level: Level, where: int) -> PutMessageStatus:
        """Waits as `wait` does, in asyncio and without a limit. Raises what `wait` raises.

        A cancelled wait leaves nothing behind.
        """
        if self.reached(level, where):
            return PutMessageStatus.PUT_OK
        return await told(
            lambda tell: self._enlist(level, where, math.inf, tell, of_faults=True), self._waiters.withdraw
        )


def _no_level(level: object) -> IllegalArgument:
    hint = f"; a limit in seconds is timeout={level!r}" if isinstance(level, int | float) else ""
    return IllegalArgument(f"a level is 'accepted', 'committed', 'flushed' or 'replicated', not {level!r:.80}{hint}")
