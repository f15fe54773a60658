"""The life of a stage: started, woken, drained, stopped. RocketMQ's ServiceThread, as a process.

A stage is a process that holds its stage lock, binds its bell, and then turns rounds: it waits for
a wakeup or for the end of its interval, and works on every lane. It leaves when its owner closes
its standard input (the owner's death closes it too), or on SIGTERM. Before it leaves it drains, for
at most ten rounds without progress, and reports what is left. A line on its standard input tells it
to read its configuration again.

**No lost wakeup.** A producer that finds the stage awake does not ring. Its look at the sleep word
may overtake its own store of `wrote`. So it may miss the sleep, and the stage the record. The stage
prevents this: it announces its sleep, looks at the positions, waits a millisecond (stores arrive in
far less), looks again, and only then sleeps for long.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
from abc import ABC, abstractmethod
from pathlib import Path
from types import FrameType

import numpy as np
import numpy.typing as npt

from commitlog.appending.wakeups import WakeupReceiver, WakeupSender, new_context, wake_readers
from commitlog.config import Config
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import is_running, poll, present_holder_of, stage_at, try_file, write_holder
from commitlog.disk.store_directory import StoreDirectory, store_moved
from commitlog.errors import StageFailed, StoreNotFound, is_refusal
from commitlog.native import core, description
from commitlog.reading.view import attach_control
from commitlog.shm.counters import record_duration
from commitlog.shm.layout import COUNTER_MAX, STAGE_ROW_WORDS, Header, Lane, Stage
from commitlog.shm.memory_order import observe, publish
from commitlog.stages.sound_lanes import SoundLanes
from commitlog.stages.store_channel import StoreChannel
from commitlog.system.clock import SYSTEM_CLOCK, Clock

DRAIN_ROUNDS = 10
_DRAIN_ROUND_MS = 200
_SETTLE_MS = 1
_SPIN_NS = 1_000_000
"""How long a stage looks on for work that somebody waits for, after it has found some."""
_SERVE_NS = 5_000_000
"""How long the lanes that wait for a flush may keep a stage from the other lanes."""
_HURRY_NS = 20_000_000
"""For how long after a wait for a flush the rests after work stay short."""
_FOLLOWED_NS = 2_000_000_000
"""For how long the rests stay short after somebody has said that he follows the log."""
_UNRESTED_STEP_NS = 500_000
"""While somebody follows the log, one step in this time needs no rest."""
_BURST_NS = 2_000_000
"""After a while without steps, as many as fit into this time come without a rest."""
_SMALL_STEP_BYTES = 1 << 16
_LARGE_STEP_BYTES = 1 << 20
_STDIN = 0

log = logging.getLogger(__name__)


class BaseStage(ABC):
    """Base of the stages: its life, its waits and its words. A subclass does the work.

    A subclass sets three class attributes. `watched` has the lane words whose change means work for
    the stage. `reach` is the lane word that says how far the stage has done its part of a
    synchronous flush; it is None if the stage has no part in one. `fault_word` is the lane word for
    the errno of its fault.

    Attributes: `lanes` is the live table of the rows of all possible lanes, in words. `sound` says
    which of them the stage works on. `stage_row` has the words of this stage. `pool` is the pool's
    directory. `rests` says how often the stage has rested since its last sleep.
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
        count = max([self.config.store.max_lanes, *(lane + 1 for lane in self.directory.lane_numbers())])
        self.lanes: npt.NDArray[np.uint64] = control.lane_table()[:count]
        self.sound = SoundLanes(control, self.lanes, self.fault_word, self.facts.segment_bytes)
        self.pool = Path(self.facts.pool.directory)
        self._pool_lock_fd = self._take_pool_lock()
        self.stage_row = control.stage_row(self.name)
        self.context = new_context()
        self._bell = WakeupReceiver(self.context, self.pool, self.name)
        self.stopping = False
        self._spin_until = self._hurry_until = self._followed_until = self._unrested_until = 0
        self.rests = 0
        self._served: list[int] = []
        self._reload_wanted = False
        self._rung = False  # frames wait in the bell; they are taken out after the round that they asked for
        self._requested = self.lanes[:, Lane.FLUSH_REQUESTED]
        self._reached = None if self.reach is None else self.lanes[:, self.reach]
        self._not_before: dict[int, int] = {}  # lane → when its failed step is tried again (monotonic ns)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poller = select.poll()  # zmq.Poller asks the system twice
        for fd in (self._bell.fd, _STDIN, self._wake_read):
            self._poller.register(fd, select.POLLIN)

    @staticmethod
    def _channel_at(path: Path) -> FileChannel:
        """The disk as this stage sees it. Raises StoreNotFound, OSError."""
        try:
            return StoreChannel(path)
        except OSError as error:
            if is_refusal(error):
                raise
            raise StoreNotFound(f"{path}: {error.strerror}; start the store, not a single stage") from error

    def _take_lock(self) -> int:
        """Takes the stage's own lock, so that there is only one process of this stage.

        It waits for the lock as long as a start may take, because an orphan may hold it. An orphan
        is a stage that was launched just before its supervisor was killed. It may take the lock so
        late that the next start has released the lock for this stage. This stage waits until the
        orphan has drained. Raises StageFailed.
        """
        wait_ms = Config.from_json(self.directory.load().config).supervisor.start_wait_ms
        until = self.clock.monotonic_ns() + wait_ms * 1_000_000
        path = self.directory.stage_lock_file(self.name)
        fd = poll(lambda: try_file(path, self.channel), until, self.clock)
        if fd is None:
            holder = present_holder_of(path, self.channel)
            raise StageFailed(f"{self.directory.path}: a {self.name} is running already (pid {holder})")
        write_holder(fd, self.channel)
        return fd

    def _take_pool_lock(self) -> int:
        """Takes the stage's lock in the pool, too, because somebody may have removed the lock file.

        See commitlog/disk/locks.py. Raises StageFailed.
        """
        fd = self.channel.open(self.control.region.path, write=True)
        if not self.channel.try_lock(fd, stage_at(self.name)):
            self.channel.close(fd)
            raise StageFailed(
                f"{self.directory.path}: a {self.name} is running already; its lock file was removed: stop the store first"
            )
        return fd

    # ---- what a stage is ------------------------------------------------------------------------

    @abstractmethod
    def work(self) -> int:
        """Works one round over all lanes. Returns how much moved: bytes, or 1 for a step.

        After a large step the stage does not rest.
        """

    @abstractmethod
    def left(self) -> int:
        """Returns how much this stage must still do before it may leave: bytes, or steps."""

    def waiting_lanes(self) -> list[int]:
        """Lanes where somebody waits for a synchronous flush and this stage's part is not done.

        A lane whose last step failed is not among them before it may be tried again.
        """
        if self._reached is None:
            return []
        lanes: list[int] = ((self._requested > self._reached) & self.sound.mask).nonzero()[0].tolist()
        if not self._not_before or not lanes:
            return lanes
        now = self.clock.monotonic_ns()
        return [lane for lane in lanes if self._not_before.get(lane, 0) <= now]

    def rest_ms(self, now: int) -> int:
        """How long the stage rests after a small step. `now` is in monotonic ns."""
        return self.linger_ms

    def is_awaited(self, lane: int) -> bool:
        """Whether this stage can now do its part of a synchronous flush of a lane."""
        return False

    def advance(self, lane: int, now: int) -> int:
        """Does one step of one lane. Returns how many bytes moved. `now` is in monotonic ns."""
        return 0

    def on_reload(self) -> None:
        """Takes over the knobs that a reload may change. A subclass's constructor calls it, too."""

    def on_start(self) -> None:
        """Called before the first round."""

    def on_wait_end(self) -> None:
        """Is called after each wait, with or without work, for a stage's house-keeping.

        RocketMQ's onWaitEnd.
        """

    def on_stop(self) -> None:
        """Is called after the last round, to give descriptors and mappings back."""

    def bell_of(self, stage: str) -> WakeupSender:
        """The sender that wakes another stage."""
        return WakeupSender(self.context, self.pool, stage, self.control.stage_row(stage))

    # ---- its life -------------------------------------------------------------------------------

    def run(self) -> None:
        """Turns rounds until it is told to stop, then drains and leaves. Raises StoreMoved."""
        row = self.stage_row
        for word in range(STAGE_ROW_WORDS):
            if row[word] > COUNTER_MAX and word != Stage.RESTARTS:  # that one is the supervisor's
                row[word] = 0  # garbage, which may have ended the process before this one
        row[Stage.WAKES_READERS] = int(core is not None and self.reach is not None)
        row[Stage.PID] = os.getpid()
        row[Stage.STARTED_MS] = self.clock.wall_ms()
        publish(row, Stage.SLEEP, (observe(row, Stage.SLEEP) + 2) & ~1)  # awake, whatever a killed stage left
        self.beat()
        self.on_start()
        log.info(
            "%s started, pid %d, generation %d, core: %s", self.name, os.getpid(), self.control.generation, description
        )
        while not self.stopping:
            seen = self.news()
            moved = self._round()
            if not moved:
                self.wait_for_running(self.interval_ms, seen)
                if self._rung:
                    moved = self._round()  # before the house-keeping: somebody waits
            if moved:
                if self.linger_ms and moved < _LARGE_STEP_BYTES:
                    self._linger()
                else:
                    self._poll(0)  # so an order to stop is seen however busy the stage is
            self.beat()
            self._check_place()
            if self._reload_wanted:
                self._reload()
            self.on_wait_end()
        publish(row, Stage.SLEEP, observe(row, Stage.SLEEP) + 2)  # a producer looks up, and learns of the closing
        self._drain()
        self._check_place()
        self.on_stop()
        self.let_go()

    def _reload(self) -> None:
        """Takes the configuration that the supervisor has put into `store.json`."""
        self._reload_wanted = False
        self.config = Config.from_json(self.directory.load().config)
        self.on_reload()
        log.info("the configuration is reloaded")

    def _round(self) -> int:
        """Works, and only then takes the frames out of the bell.

        A stage that comes out of sleep has cold caches, and somebody waits for its work, so the
        work comes first. The frames are taken out before the stage can wait. If a frame came for
        newer work, `news` shows that work by then.
        """
        moved = self.work()
        if self._rung:
            drained = self._bell.drain()
            self._rung = drained.more
            self.stage_row[Stage.BAD_FRAMES] += drained.bad
            if drained.is_followed:
                self._followed_until = self.clock.monotonic_ns() + _FOLLOWED_NS
        return moved

    def is_followed(self, now: int) -> bool:
        """Whether somebody follows the log, so that each message is awaited.

        `now` is in monotonic ns.
        """
        return now < self._followed_until

    def news(self) -> int:
        """Returns the sum of all watched words, which only grow."""
        return int(self.lanes[:, self.watched].sum())

    def wait_for_running(self, interval_ms: int, seen: int) -> None:
        """Sleeps until a wakeup, the end of the interval, or the stop.

        `seen` is the number that `news` returned before the last round. If `news` returns another
        number now, this returns at once. Work that the last round saw and could not do (a segment
        is missing, the disk is full) does not change `news`, so a blocked stage sleeps too.
        """
        row = self.stage_row
        self.rests = 0
        if self._rung or self._serve_waiting_lanes():
            return
        publish(row, Stage.SLEEP, observe(row, Stage.SLEEP) + 1)  # odd: asleep, ring me
        try:
            if self.news() != seen or self._poll(_SETTLE_MS) or self.news() != seen:
                return
            if self._poll(max(interval_ms - _SETTLE_MS, 0)):
                row[Stage.WAKEUPS] += 1
        finally:
            publish(row, Stage.SLEEP, observe(row, Stage.SLEEP) + 1)
            if self._rung or self.news() != seen:  # also if there is too little for a step
                wake_readers(row)

    def _serve_waiting_lanes(self) -> bool:
        """Serves the lanes that wait for a synchronous flush at once. True when something moved.

        A wakeup takes as long as a whole step does, so the stage looks at these lanes again and
        again and does not sleep. After a small step it looks for a moment longer, because a caller
        that waits for each message comes back at once. After five milliseconds the other lanes get
        their turn.

        A stage that finds nothing to do yields: three processes do so, and there may be only two
        cores.
        """
        clock = self.clock.monotonic_ns
        now = clock()
        end = now + _SERVE_NS
        if lanes := self.waiting_lanes():
            self._served, self._spin_until, self._hurry_until = lanes, now + _SPIN_NS, now + _HURRY_NS
        moved = False
        while now < self._spin_until and now < end:
            for lane in self._served:
                if self.is_awaited(lane) and (step := self.advance(lane, now)):
                    moved = True
                    lanes = self.waiting_lanes()
                    self._spin_until = clock() + _SPIN_NS if lanes or step < _SMALL_STEP_BYTES else 0
                    self._served = lanes or self._served
                    break
            else:
                os.sched_yield()
            now = clock()
        if moved:
            self._poll(0)
        return moved

    def _linger(self) -> None:
        """Rests after work, so that a busy pipeline makes few large steps.

        It does not rest while somebody waits for a flush.
        """
        row = self.stage_row
        row[Stage.LINGERING] = 1
        now = self.clock.monotonic_ns()
        waits = now < self._spin_until or bool(self.waiting_lanes())
        woken = not waits and self._poll(self._rest_now_ms(now))
        row[Stage.LINGERING] = 0
        self.rests += 1
        if (waits or woken) and not self._serve_waiting_lanes():
            self._poll(0)  # so an order to stop is seen however long somebody waits

    def _rest_now_ms(self, now: int) -> int:
        """How long this rest takes, in ms, by who waits. `now` is in monotonic ns.

        Each message is awaited while somebody follows, so a stage rests only if its steps are many.
        """
        if self.is_followed(now):
            self._unrested_until = max(self._unrested_until, now - _BURST_NS) + _UNRESTED_STEP_NS
            if self._unrested_until <= now:
                return 0
        elif now >= self._hurry_until:
            return self.rest_ms(now)
        return min(self.linger_ms, 1)

    def _poll(self, milliseconds: int) -> bool:
        """Waits for a wakeup or an order to stop or to reload. True when one of them came.

        It does not wait while frames are left in the bell, because the bell's descriptor does not
        show them.
        """
        ready = self._poller.poll(0 if self._rung else milliseconds)
        for fd, _ in ready:
            if fd == self._bell.fd:
                self._rung = True
            elif not os.read(fd, 4096):
                self.stopping = True
                self._poller.unregister(fd)
            elif fd == _STDIN:
                self._reload_wanted = True
        return bool(ready) or self._rung

    def give_sign(self) -> None:
        """Stores the heartbeat, by which the supervisor tells a hung stage from an idle one.

        A round that has many slow steps gives a sign at each of them.
        """
        self.stage_row[Stage.HEARTBEAT] = self.clock.monotonic_ns()

    def beat(self) -> None:
        """Gives a sign, and counts a round."""
        self.give_sign()
        self.stage_row[Stage.ROUNDS] += 1

    def set_fault(self, lane: int, code: int) -> bool:
        """Publishes the fault that stops this stage in a lane. Returns whether it is a new one.

        `code` is an errno, or 0 for nothing. The fault of a lane that is set aside stays.
        """
        row = self.control.row(lane)
        if row[self.fault_word] == code or not self.sound.mask[lane]:
            return False
        row[self.fault_word] = code
        level = logging.WARNING if code else logging.INFO
        log.log(level, "lane %d: fault %s", lane, errno.errorcode.get(code, "healed"))
        return True

    def count_action(self, nanoseconds: int) -> None:
        """Counts one action (a commit, a sync, …) and how long it took. Readers wake up."""
        publish(self.stage_row, Stage.ACTIONS, observe(self.stage_row, Stage.ACTIONS) + 1)
        wake_readers(self.stage_row)
        record_duration(self.stage_row, Stage.HISTOGRAM, nanoseconds)

    def _drain(self) -> None:
        """Works until nothing is left, or until ten rounds have moved nothing.

        A supervisor kills a stage that is late. An orphan has none, so it ends its drain itself
        when the time of a stop is over.
        """
        if self._is_orphan():
            self.words[Header.CLOSING] = 1  # nobody else is left to tell the producers, which might never pause
        deadline = self.clock.monotonic_ns() + self.config.supervisor.stop_timeout_ms * 1_000_000
        idle_rounds = 0
        while self.left() and idle_rounds < DRAIN_ROUNDS:
            self._check_place()
            seen = self.news()
            if not self._round():
                idle_rounds += not self._rung  # while frames are left, it does not wait
                self.wait_for_running(_DRAIN_ROUND_MS, seen)
            self.beat()
            if self.clock.monotonic_ns() > deadline and self._is_orphan():
                break
        left = self.left()
        self.stage_row[Stage.LEFT] = left
        if left:
            log.warning(
                "%s leaves, %s bytes left: they stay in the pool, and the next start goes on with it", self.name, left
            )
        else:
            log.info("%s drained", self.name)

    def _check_place(self) -> None:
        """Raises StoreMoved if another directory, or none, is at the store's path.

        The stage leaves at once then, as if it were killed. The pool has all bytes that are not
        flushed, and the next start of the store goes on with it.
        """
        if not self.control.is_at(self.directory.path):
            self.let_go()
            raise store_moved(self.directory.path, self.pool)

    def _is_orphan(self) -> bool:
        """Whether the supervisor is dead: it holds the store's lock for its whole life."""
        return not is_running(self.directory, self.pool)

    def let_go(self) -> None:
        self.stage_row[Stage.PID] = 0
        publish(self.stage_row, Stage.SLEEP, observe(self.stage_row, Stage.SLEEP) + 2)
        self._bell.close()
        self.context.destroy(linger=0)
        os.close(self._wake_read)
        os.close(self._wake_write)
        del self.lanes, self._requested, self._reached
        self.channel.close(self._pool_lock_fd)
        self.channel.close(self._lock_fd)

    def request_stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Makes the stage stop, as if the owner had closed its standard input. Handles SIGTERM."""
        self.stopping = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"s")
