"""The life of a stage: started, woken, drained, stopped. RocketMQ's ServiceThread, as a process.

A stage is a process that holds its stage lock, binds its bell, and then turns rounds: wait for a
wakeup or for the interval, work on every lane. It leaves when its owner closes its standard input
(or dies, which closes it too) or on SIGTERM: it drains, for at most ten rounds, and says what is
left.

**No lost wakeup.** A producer that finds the stage awake does not ring. On x86 its look at the
sleep word may overtake its own store of `wrote`, so both could miss each other. The sleeper pays:
it announces its sleep, looks at the positions, waits a millisecond (store buffers drain in far
less), looks again, and only then sleeps for long.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import FrameType

import numpy as np
import numpy.typing as npt
import zmq

from commitlog.appending.wire import WakeupReceiver, WakeupSender
from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.config import Config
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import is_running, stage_at
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, StageFailed, StoreNotFound, store_moved
from commitlog.reading.view import attach_control
from commitlog.shm.layout import STAGES, Header, Lane, Stage
from commitlog.shm.statistics import record_duration
from commitlog.stages.store_channel import StoreChannel
from commitlog.stages.supervising.log_files import log_to_own_output

DRAIN_ROUNDS = 10
_DRAIN_ROUND_MS = 200
_SETTLE_MS = 1
_LOCK_POLL_SECONDS = 0.02
_LOOK_NS, _SERVE_NS, _HURRY_NS = 1_000_000, 5_000_000, 20_000_000
_SMALL_STEP_BYTES = 1 << 16
_LARGE_STEP_BYTES = 1 << 20
_STDIN = 0

log = logging.getLogger(__name__)


class ServiceThread(ABC):
    """Base of the stages. `lanes` is the live table of lane rows, shape (128, 128), words.

    A subclass says `watched` (the lane words whose change is news to it), `work` (one round over
    all lanes) and `left` (what is still to do, for the drain). `reach` is the lane word up to which
    it has done its part of a synchronous flush; None: it has no part in one.
    """

    name: str
    fault_word: int
    watched: tuple[int, ...]
    reach: int | None = None
    interval_ms: int
    linger_ms: int

    def __init__(self, path: Path, channel: FileChannel | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.channel, self.clock = channel or self._channel_at(path), clock
        self.directory = StoreDirectory(path, self.channel)
        self._lock_fd = self._take_lock()
        self.facts = self.directory.load()
        self.config = Config.from_json(self.facts.config)
        control = attach_control(self.directory, self.facts, writable=True)
        if control is None or self.facts.pool is None:
            raise StageFailed(
                f"{path}: the {self.name} finds no pool of this store; start the store, not a single stage"
            )
        self.control, self.words = control, control.words
        self.lanes: npt.NDArray[np.uint64] = control.lane_table()
        self.pool = Path(self.facts.pool.directory)
        self._pool_lock_fd = self._take_pool_lock()
        self.base = control.stage_base(self.name)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._bell = WakeupReceiver(self.context, self.pool, self.name)
        self.stopping = False
        self._look_until = self._hurry_until = 0
        self._served: list[int] = []
        self._rung = False  # frames wait in the bell; they are taken out after the round that they asked for
        self._requested = self.lanes[:, Lane.FLUSH_REQUESTED]
        self._reached = None if self.reach is None else self.lanes[:, self.reach]
        self._not_before: dict[int, int] = {}  # lane → monotonic ns at which what has failed is tried again
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poller = zmq.Poller()
        for source in (self._bell.socket, _STDIN, self._wake_read):
            self._poller.register(source, zmq.POLLIN)

    @staticmethod
    def _channel_at(path: Path) -> FileChannel:
        """Raises StoreNotFound."""
        try:
            return StoreChannel(path)
        except OSError as error:
            raise StoreNotFound(f"{path}: {error.strerror}; start the store, not a single stage") from error

    def _take_lock(self) -> int:
        """The stage's own lock decides that there is one of it, not a signal that was sent to
        another.

        A stage that was launched just before its supervisor was killed may be so late that the next
        start has let the lock go for its own: that one waits until the orphan has drained.
        """
        wait_ms = Config.from_json(self.directory.load().config).supervisor.start_wait_ms
        until = self.clock.monotonic_ns() + wait_ms * 1_000_000
        path = self.directory.stage_lock_file(self.name)
        while True:
            fd = self.channel.open(path, write=True, create=True)
            if self.channel.try_lock(fd) and self.channel.is_at(fd, path):
                break
            holder = self.channel.pread(fd, 32, 0).decode(errors="replace").strip()
            self.channel.close(fd)
            if self.clock.monotonic_ns() >= until:
                raise StageFailed(f"{self.directory.path}: a {self.name} is running already (pid {holder})")
            self.clock.sleep(_LOCK_POLL_SECONDS)
        self.channel.truncate(fd, 0)
        self.channel.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def _take_pool_lock(self) -> int:
        """Its other place, which nobody removes together with the file (commitlog/disk/locks.py)."""
        fd = self.channel.open(self.control.region.path, write=True)
        if not self.channel.try_lock(fd, stage_at(self.name)):
            self.channel.close(fd)
            raise StageFailed(f"{self.directory.path}: a {self.name} is running already, and its lock file was removed")
        return fd

    # ---- what a stage is ------------------------------------------------------------------------

    @abstractmethod
    def work(self) -> int:
        """One round over all lanes. Returns how much moved (bytes, or just 1): after a large step
        it is no time to rest.
        """

    @abstractmethod
    def left(self) -> int:
        """How much (bytes, or steps) this stage has still to do before it may leave."""

    def waiting_lanes(self) -> list[int]:
        """Lanes of which somebody waits for a synchronous flush to which this stage has still to do
        its part.
        """
        if self._reached is None:
            return []
        now = self.clock.monotonic_ns()
        lanes: list[int] = np.flatnonzero(self._requested > self._reached).tolist()
        return [lane for lane in lanes if self._not_before.get(lane, 0) <= now]

    def is_awaited(self, lane: int) -> bool:
        """Whether a synchronous flush of a lane waits for this stage now."""
        return False

    def attend(self, lane: int, now: int) -> int:
        """One step of one lane; how many bytes moved."""
        return 0

    def on_start(self) -> None:
        """Before the first round."""

    def on_wait_end(self) -> None:
        """After each wait, also without work (RocketMQ's onWaitEnd): a stage's house-keeping."""

    def on_stop(self) -> None:
        """After the last round: descriptors and mappings are given back."""

    def bell_of(self, stage: str) -> WakeupSender:
        """The sender that wakes another stage."""
        return WakeupSender(self.context, self.pool, stage, self.words, self.control.stage_base(stage))

    # ---- its life -------------------------------------------------------------------------------

    def run(self) -> None:
        """Turns rounds until told to stop, drains, leaves."""
        words, base = self.words, self.base
        words[base + Stage.PID] = os.getpid()
        words[base + Stage.STARTED_MS] = self.clock.wall_ms()
        words[base + Stage.SLEEP] = (words[base + Stage.SLEEP] + 2) & ~1  # whatever a killed one left: awake
        self.beat()
        self.on_start()
        log.info("%s started, pid %d, generation %d", self.name, os.getpid(), self.control.generation)
        seen: int | None = None  # what the news were before a round that found nothing to do
        while not self.stopping:
            moved = self._round()
            if moved:
                seen = None
                if self.linger_ms and moved < _LARGE_STEP_BYTES:
                    self._linger()
                else:
                    self._poll(0)  # an order to stop comes through in any rush
            elif seen is None:
                seen = self.news()
                continue
            else:
                self.wait_for_running(self.interval_ms, seen)
                seen = None if self._rung else self.news()
            self.beat()
            self._check_place()
            self.on_wait_end()
        words[base + Stage.SLEEP] += 2  # a producer that sends on looks up, and learns that the store is closing
        self._drain()
        self._check_place()
        self.on_stop()
        self._close()

    def _round(self) -> int:
        """`work`, then the frames that rang for it: who comes out of sleep has cold caches, and
        somebody waits for the work.

        Before anything that may wait: a frame that is taken out here and came for more is seen as
        news by then.
        """
        moved = self.work()
        if self._rung:
            self._rung = False
            self.words[self.base + Stage.BAD_FRAMES] += self._bell.drain()[1]
        return moved

    def news(self) -> int:
        """A number that changes when any watched word does: the words only grow, so their sum
        tells.
        """
        return int(self.lanes[:, self.watched].sum())

    def wait_for_running(self, interval_ms: int, seen: int) -> None:
        """Sleeps until a wakeup, the interval's end, or the stop.

        `seen` is what `news` said before the last round: returns at once when there is more since.
        What the round saw and could not do (a segment is missing, the disk is full) is no news, so
        a blocked stage sleeps too.
        """
        sleep_at = self.base + Stage.SLEEP
        words = self.words
        if self._serve_waiters():
            return
        words[sleep_at] += 1  # odd: asleep, ring me
        try:
            if self.news() != seen or self._poll(_SETTLE_MS) or self.news() != seen:
                return
            if self._poll(max(interval_ms - _SETTLE_MS, 0)):
                words[self.base + Stage.WAKEUPS] += 1
        finally:
            words[sleep_at] += 1

    def _serve_waiters(self) -> bool:
        """While this stage has a part to do in a synchronous flush, looks at its lanes and serves
        them at once: a wakeup takes as long as a whole step does. So it looks a moment longer after
        a small step: who waits for each message comes back at once. True when something moved.
        Others get their turn after five milliseconds.

        Whoever finds nothing to do yields: three processes do so, and there may be two cores only.
        """
        clock = self.clock.monotonic_ns
        now = clock()
        end = now + _SERVE_NS
        if lanes := self.waiting_lanes():
            self._served, self._look_until, self._hurry_until = lanes, now + _LOOK_NS, now + _HURRY_NS
        moved = False
        while now < self._look_until and now < end:
            for lane in self._served:
                if self.is_awaited(lane) and (step := self.attend(lane, now)):
                    moved = True
                    lanes = self.waiting_lanes()
                    self._look_until = clock() + _LOOK_NS if lanes or step < _SMALL_STEP_BYTES else 0
                    self._served = lanes or self._served
                    break
            else:
                os.sched_yield()
            now = clock()
        if moved:
            self._poll(0)
        return moved

    def _linger(self) -> None:
        """Rests after work, so that a busy pipeline makes few large steps; not while somebody waits
        for a flush.
        """
        if self._serve_waiters():
            return
        lingering_at = self.base + Stage.LINGERING
        self.words[lingering_at] = 1
        linger_ms = min(self.linger_ms, 1) if self.clock.monotonic_ns() < self._hurry_until else self.linger_ms
        woken = self._poll(0 if self.waiting_lanes() else linger_ms)  # polls always: an order to stop comes through
        self.words[lingering_at] = 0
        if woken:
            self._serve_waiters()

    def _poll(self, milliseconds: int) -> bool:
        """Waits for a wakeup or an order to stop; True when there was one."""
        events = dict(self._poller.poll(milliseconds))
        if not events:
            return False
        if self._bell.socket in events:
            self._rung = True
        if self._wake_read in events:
            os.read(self._wake_read, 4096)
        if _STDIN in events and not os.read(_STDIN, 4096):
            self.stopping = True
            self._poller.unregister(_STDIN)
        return True

    def beat(self) -> None:
        """The heartbeat by which the supervisor tells a hung stage from an idle one."""
        self.words[self.base + Stage.HEARTBEAT] = self.clock.monotonic_ns()
        self.words[self.base + Stage.ROUNDS] += 1

    def set_fault(self, lane: int, code: int) -> bool:
        """Tells who waits for the lane what this stage suffers from (an errno; 0: nothing). True
        when that is new.
        """
        at = self.control.lane_base(lane) + self.fault_word
        if self.words[at] == code:
            return False
        self.words[at] = code
        level = logging.WARNING if code else logging.INFO
        log.log(level, "lane %d: fault %s", lane, errno.errorcode.get(code, "healed"))
        return True

    def acted(self, nanoseconds: int) -> None:
        """Counts one action (a commit, a sync, …) and how long it took."""
        self.words[self.base + Stage.ACTIONS] += 1
        record_duration(self.words, self.base + Stage.HISTOGRAM, nanoseconds)

    def _drain(self) -> None:
        """Works on until nothing is left, for ten rounds that move nothing at most.

        An orphan, which nobody would kill for being late, takes no longer than a stop may take.
        """
        if self._is_orphan():
            self.words[Header.CLOSING] = 1  # nobody else is left to tell producers, who might never pause
        deadline = self.clock.monotonic_ns() + self.config.supervisor.stop_timeout_ms * 1_000_000
        idle_rounds = 0
        while self.left() and idle_rounds < DRAIN_ROUNDS:
            self._check_place()
            seen = self.news()
            if not self._round():
                idle_rounds += 1
                self.wait_for_running(_DRAIN_ROUND_MS, seen)
            self.beat()
            if self.clock.monotonic_ns() > deadline and self._is_orphan():
                break
        left = self.left()
        self.words[self.base + Stage.LEFT] = left
        if left:
            log.warning(
                "%s leaves, %s bytes left: they stay in the pool, and the next start goes on with it", self.name, left
            )
        else:
            log.info("%s drained", self.name)

    def _check_place(self) -> None:
        """Leaves at once, as if it were killed, where the store's path leads to another directory,
        or to none: the pool has all that is not flushed, and the next start of the store goes on
        with it. Raises StoreMoved."""
        if not self.control.is_at(self.directory.path):
            self._close()
            raise store_moved(self.directory.path, self.pool)

    def _is_orphan(self) -> bool:
        """Whether the supervisor is dead: it holds the store's lock for its whole life."""
        return not is_running(self.directory, self.pool)

    def _close(self) -> None:
        self.words[self.base + Stage.PID] = 0
        self.words[self.base + Stage.SLEEP] += 2
        self._bell.close()
        self.context.destroy(linger=0)
        os.close(self._wake_read)
        os.close(self._wake_write)
        del self.lanes, self._requested, self._reached
        self.channel.close(self._pool_lock_fd)
        self.channel.close(self._lock_fd)

    def request_stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """SIGTERM: as if the owner had closed standard input."""
        self.stopping = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"s")


def main(service: type[ServiceThread]) -> None:
    """Entry of a stage process: `python -P -m stages.<name> STORE`. Its output goes to the store's
    log of the stage.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert service.name in STAGES
    log_to_own_output(StoreDirectory(sys.argv[1]).logs_directory / f"{service.name}.log")
    try:
        stage = service(Path(sys.argv[1]))
        signal.signal(signal.SIGTERM, stage.request_stop)
        stage.run()
    except CommitLogError as error:
        log.error("%s: %s", type(error).__name__, error)
        sys.exit(1)
