"""Connects a process to a running store: to its control region, wakeups, notices and faults."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable

from commitlog.appending.lease import Lease, has_lost_files, is_damaged, try_lease
from commitlog.appending.sockets import Sockets
from commitlog.appending.wakeups import FLUSHED_NOTICES, REPLICATED_NOTICES, WakeupSender
from commitlog.config import Config
from commitlog.disk.descriptors import check_free, occupy_standard_descriptors
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.locks import holder_of, is_leased, is_pool_held, is_running
from commitlog.disk.replica_mark import check_runnable
from commitlog.disk.store_directory import StoreDirectory, store_killed, store_moved
from commitlog.errors import (
    NoFreeLane,
    NotEnoughSharedMemory,
    StoreNotRunning,
    StoreStopped,
    disk_error,
    refusal,
)
from commitlog.reading.view import attach_control
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import LANE_ROWS, Header, Lane, Stage
from commitlog.shm.region import RegionError
from commitlog.shm.write_buffers import free_bytes
from commitlog.system.clock import Clock
from commitlog.text.lines import for_shell, to_enlarge

_NEEDED_DESCRIPTORS = 24
"""How many descriptors a producer needs: for locks, mappings, sockets, and files that it reads."""
_SUPERVISOR_SILENT_NS = 5_000_000_000
_STAGE_SILENT_NS = 1_000_000_000
"""A stage counts as hanging if it gives no sign for this time although work waits for it."""
_LEASE_POLL_SECONDS = 0.01
_NAMED_HOLDERS = 8
"""How many processes the error NoFreeLane names."""
_POLL_SECONDS = 0.001
_FAULT_WORDS = (
    (Lane.COMMITTER_FAULT, "committing"),
    (Lane.FLUSHER_FAULT, "syncing"),
    (Lane.ALLOCATOR_FAULT, "making the next segment"),
)


log = logging.getLogger(__name__)


class Attachment:
    """A producer's connection to its store.

    Raises StoreNotFound, StoreNotRunning, StoreRefused, StoreSuperseded, NotEnoughDescriptors,
    DiskError.

    Attributes: `control` and its `words`; `sleep_at`, the index of the committer's sleep word.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Clock, channel: FileChannel = DISK) -> None:
        self._process = os.getpid()  # first: a signal handler that forks may come at any line
        self.directory = StoreDirectory(path, channel)
        self.channel, self.clock = channel, clock
        check_free(_NEEDED_DESCRIPTORS, f"{self.directory.path}: a producer")
        try:
            occupy_standard_descriptors()
            self.facts = self.directory.load()
            self.directory.check_owner()
            check_runnable(self.directory)
            self.config = Config.from_json(self.facts.config)
            self.control = control = self._attach()
        except OSError as error:
            raise refusal(error, self.directory.path, "making a producer") from error
        self.words = control.words
        self.pool = control.region.path.parent
        self.sleep_at = control.stage_row_at("committer") + Stage.SLEEP
        replicated = (REPLICATED_NOTICES,) if self.config.replication.enabled else ()
        self._sockets = Sockets(self.pool, control, (FLUSHED_NOTICES, *replicated))
        # Strong references: a context waits for ever for sockets that end as garbage together with
        # it.
        weakref.finalize(self, self._sockets.close).atexit = False
        self._may_listen, self._listener = True, 0  # false while a thread waits for notices; that thread
        self._lane: int | None = None

    def _attach(self) -> ControlRegion:
        """Opens the control region of the running store.

        Raises StoreNotRunning, DiskError, OSError.
        """
        control = attach_control(self.directory, self.facts, writable=True)
        if control is not None:
            with contextlib.ExitStack() as undo:
                undo.callback(control.close)
                if is_running(self.directory, control.region.path.parent):
                    undo.pop_all()
                    return control
        raise StoreNotRunning(
            f"{self.directory.path}: its stages are not running: start them with `commitlog run "
            f"{for_shell(self.directory.path)}`, or use commitlog.Store.open(path)"
        )

    def lease(self) -> Lease:
        """Leases the first free lane, and prepares it for appending.

        Raises NoFreeLane, StoreStopped, StoreNotRunning, DiskError.
        """
        try:
            lease = self._await_lease()
        except OSError as error:
            self.check_open()  # a stop removes the pool
            raise disk_error(error.errno or errno.EIO, f"{self.directory.path}: leasing a lane") from error
        except RegionError as error:  # another file is in the place of a lane's buffers
            raise disk_error(errno.ENOENT, f"{self.directory.path}: leasing a lane: {error}") from error
        self._lane = lease.lane
        return lease

    def _await_lease(self) -> Lease:
        config = self.config
        deadline = self.clock.monotonic_ns() + config.producer.lane_wait_ms * 1_000_000
        lane_bytes = self.facts.segment_bytes * self._slots
        while (lease := self._try_lease(lane_bytes)) is None:
            self.check_open()
            if self.clock.monotonic_ns() > deadline:
                raise NoFreeLane(self._why_no_lane(lane_bytes))
            self.clock.sleep(_LEASE_POLL_SECONDS)
        return lease

    def _why_no_lane(self, lane_bytes: int) -> str:
        """The text of NoFreeLane: who holds how many lanes, and the way out. Raises OSError."""
        most, free = self.config.store.max_lanes, free_bytes(self.pool)
        directories = map(self.directory.lane_directory, self.directory.lane_numbers())
        held = [directory.number for directory in directories if is_leased(directory, self.pool, self.channel)]
        pids = Counter(self.control.row(lane)[Lane.LESSEE_PID] or "?" for lane in held).most_common()
        by = ", ".join(f"{count} by pid {pid}" for pid, count in pids[:_NAMED_HOLDERS])
        text = f"{self.directory.path}: no lane is free: {len(held)} of {most} (store.max_lanes) are held"
        text += f", {by}{', …' if len(pids) > _NAMED_HOLDERS else ''}" if by else ""
        if len(held) >= most:
            more = f", or start the store again with [store] max_lanes = {min(2 * most, LANE_ROWS)}"
            text += f": close a producer{more if most < LANE_ROWS else ''}"
        elif free < lane_bytes:
            text += (
                f"; a further one takes {lane_bytes:,} bytes of shared memory, of which {free:,} are left: close a "
                f"producer, or {to_enlarge(self.pool.parent)}"
            )
        return text + self._stopped_lanes()

    def _stopped_lanes(self) -> str:
        """Names the lanes that are damaged or have lost files, and the way out, for an error."""
        rows = [(lane, self.control.row(lane)) for lane in range(self.config.store.max_lanes)]
        damaged = [lane for lane, row in rows if is_damaged(row)]
        robbed = [lane for lane, row in rows if has_lost_files(row)]
        text = f"; lanes {damaged} are damaged by a failed sync, a new start of the store heals them" if damaged else ""
        return text + (
            f"; of lanes {robbed} segments were removed: put them back, start the store again" if robbed else ""
        )

    @property
    def _slots(self) -> int:
        return self.config.store.buffers_per_lane if self.config.store.write_path == "pool" else 0

    def _try_lease(self, lane_bytes: int) -> Lease | None:
        limit = self.config.store.max_lanes
        lease = try_lease(self.directory, self.control, self.channel, limit, lane_bytes)
        if lease is None:
            return None
        try:
            self.check_open()  # again: a stop that began before the lock was taken has not seen this lock
            lease.prepare(self.pool, self.facts, self._slots)
            self.wake("allocator")
            self.wake("committer")
            lease.wait_drained(self.clock, self.raise_fault)
            lease.clear_unpublished()
        except NotEnoughSharedMemory:  # another producer was quicker
            lease.release()
            return None
        except BaseException:
            lease.release()
            raise
        return lease

    # ---- what the stages say --------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        return self.words[Header.CLOSING] != 0

    def _is_abandoned(self) -> bool:
        """Whether the supervisor is gone. False if nobody can tell.

        If another store is at this path now, or this store was started again with another pool, the
        lock at the path belongs to another supervisor.
        """
        try:
            if is_pool_held(self.pool, self.channel):
                return False
            if self.control.region.is_unlinked():  # then a start makes another pool, and nobody comes back to this one
                holder = holder_of(self.directory.lock_file, self.channel)
                if holder not in ("?", str(self.words[Header.SUPERVISOR_PID])):
                    return True
            return not (self.control.is_at(self.directory.path) and is_running(self.directory, self.pool))
        except OSError as error:
            log.info("%s: its lock can't be looked at: %s", self.directory.path, error)
            return False

    def check_open(self) -> None:
        """Raises StoreStopped if the store is closed; StoreMoved if its move is the reason."""
        path = self.directory.path
        if self.closing:
            self._check_place()
            if self.words[Header.SUPERVISOR_PID] and self._is_abandoned():
                raise StoreStopped(self._killed())
            raise StoreStopped(f"{path} was closed; start it again and make a new producer")

    def check_stages(self) -> None:
        """Checks that the stages run. Raises StoreStopped, StoreNotRunning."""
        silent = self.clock.monotonic_ns() - self.words[Header.SUPERVISOR_HEARTBEAT]
        if (self.closing or silent > _SUPERVISOR_SILENT_NS) and self._is_abandoned():
            self.check_open()
            raise StoreNotRunning(self._killed())

    def _killed(self) -> str:
        """The text of the error of a store that was killed."""
        path = self.directory.path
        return (
            f"{path}: {store_killed(path)}. What was accepted is in shared memory until then; make a new producer then"
        )

    def _check_place(self) -> None:
        """Checks that the store is still at its path. Raises StoreMoved."""
        if not self.control.is_at(self.directory.path):
            raise store_moved(self.directory.path, self.pool)

    def raise_fault(self, row: memoryview) -> None:
        """Raises the error that keeps a lane from moving, if there is one.

        `row` has the lane's words.
        """
        for word, doing in _FAULT_WORDS:
            code = row[word]
            if code:
                self._check_place()  # where the path leads elsewhere, the stages find no file
                raise disk_error(code, f"{self.directory.path}: {doing} fails")

    def why_late(self, since_ns: int, otherwise: str) -> str:
        """Says, as a part of an error's text, why stages have not answered a request.

        If a stage has given no sign since the request (monotonic ns), the text names the stage.
        Otherwise the text is `otherwise`.
        """
        now = self.clock.monotonic_ns()
        for stage in ("committer", "flusher", "allocator"):
            row = self.control.stage_row(stage)
            beat = row[Stage.HEARTBEAT]
            if beat < since_ns and now - beat >= _STAGE_SILENT_NS:
                pid = row[Stage.PID]
                if not pid:
                    return f"the {stage} does not run (see logs/{stage}.log of the store)"
                return (
                    f"the {stage} (pid {pid}) has given no sign for {(now - beat) / 1e9:.0f} s: it hangs, often in a slow "
                    f"disk (see logs/{stage}.log of the store), and is replaced after supervisor.hung_after_ms"
                )
        return otherwise

    # ---- sockets --------------------------------------------------------------------------------

    def wake(self, stage: str) -> None:
        """Wakes a stage that sleeps. In a closing store, stages look for work by themselves."""
        self._sockets.call(stage, WakeupSender.wake)

    def hurry(self, stage: str) -> None:
        """Wakes a stage, even from its rest after work."""
        self._sockets.call(stage, WakeupSender.hurry)

    def await_notice(self, milliseconds: int, done: Callable[[], bool]) -> None:
        """Sleeps until the flusher publishes a notice about this lane, for `milliseconds` at most.

        It first tells the flusher that somebody listens. Then it calls `done`, and does not sleep
        if that returns true. If another thread waits for notices already, or the producer closes,
        it just sleeps a little.
        """
        if self._lane is None:  # before it takes what `close_sockets` waits for
            self.clock.sleep(min(milliseconds, 1) / 1000)
            return
        free = False
        try:
            free, self._may_listen = self._may_listen, False  # no call in between: no interrupt comes here
            lane = self._lane
            notices = self._sockets.notices(lane) if free and lane is not None else None
            if lane is None or notices is None:  # closed; or the socket can't be had
                self.clock.sleep(min(milliseconds, 1) / 1000)
                return
            self._listener = threading.get_ident()
            row = self.control.row(lane)
            try:
                row[Lane.LISTENING] = 1
                if not done():
                    notices.wait(milliseconds)
            finally:
                row[Lane.LISTENING] = 0
        finally:
            if free:
                self._may_listen = True

    def close_sockets(self) -> None:
        """Closes the sockets. The control region stays mapped: a receipt may still look at it."""
        if self.forked:
            return
        self._lane = None
        while not self._may_listen and self._listener != threading.get_ident():  # a handler may interrupt its own wait
            self.clock.sleep(_POLL_SECONDS)
        self._sockets.close()

    def close(self) -> None:
        self.close_sockets()
        self.control.close()

    @property
    def forked(self) -> bool:
        """Whether this is the copy in a forked child, which leaves everything to its parent."""
        return self._process != os.getpid()
