"""How far a store may be read, without asking its stages: the limits of every lane.

While there is a pool, the limits are words of its shared memory, whether the stages run or have
died. Without a pool, each lane's `positions` file has the limits. This module repairs nothing and
writes nothing. Readers, Spark and the command line all use it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.consume_queue import queue_directories
from commitlog.disk.epochs import Epoch, epochs_from_json
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.locks import is_running
from commitlog.disk.mapped_file_queue import MappedFileQueue, guess_segment_bytes
from commitlog.disk.store_directory import (
    STORE_FILE,
    LaneDirectory,
    StoreDirectory,
    StoreFacts,
    boot_id,
    checked_path,
)
from commitlog.errors import DamagedFile, StoreNotFound, disk_error, is_refusal
from commitlog.shm.control_region import ControlRegion, counted_entries, first_kept
from commitlog.shm.layout import LANE_ROWS, Lane
from commitlog.shm.memory_order import observe
from commitlog.shm.region import RegionError, private_directory
from commitlog.shm.row_check import is_within_reach
from commitlog.system.clock import SYSTEM_CLOCK

_LOOKS_MOST = 100
_LOOK_AGAIN_SECONDS = 0.001


POSITION_WORDS: dict[str, int] = {"flushed": Lane.FLUSHED, "committed": Lane.COMMITTED, "accepted": Lane.WROTE}
"""How far a log is read → the word of a lane that says how far that is."""


PoolKey = tuple[str, int]
"""The directory of a pool, and the inode of its control region: another pool has others."""


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Positions of one lane (offsets of its log): first ≤ dispatched ≤ flushed ≤ committed.

    Records in [first, dispatched) have entries in the consume queues. Records in [dispatched,
    flushed) may have none yet: a walk from `dispatched`, where a record begins, finds them.
    """

    lane: int
    first: int
    dispatched: int
    flushed: int
    committed: int
    entries: int = -1
    """The sum of the ends of all consume queues, or −1 if it is not known.

    A queue ends behind its last entry below `dispatched`.
    """
    stopped_properly: bool = True
    """False if the store was killed and its pool is gone: the log may go on behind `flushed`."""
    accepted: int = 0
    """How far producers have written into the buffers, where there is a pool."""


class LogView(Protocol):
    """A store as readers see it: a store of ours, or a RocketMQ store root (`open_view`)."""

    path: Path
    channel: FileChannel
    control: ControlRegion | None
    """The positions in shared memory, if there is a pool."""

    @property
    def store_id(self) -> str:
        """The store's random id. A RocketMQ store root has none: ""."""

    @property
    def identity(self) -> tuple[object, ...]:
        """A value that differs once another store, or a restored copy of this one, is at this path.

        A reader compares it with the value of its first look, and begins anew if they differ.
        """

    @property
    def segment_bytes(self) -> int: ...

    @property
    def epoch(self) -> int:
        """The number of the epoch that the store is in: see `disk/epochs.py`."""

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """All epochs of the store, the oldest first."""

    @property
    def live(self) -> bool:
        """Whether there is a pool: positions move, or will move when the stages run again."""

    @property
    def pool(self) -> Path | None:
        """The directory of the pool, if there is one."""

    @property
    def pool_key(self) -> PoolKey | None:
        """What tells the pool from any other one."""

    @property
    def one_log(self) -> bool:
        """Whether all lanes are queue ids of one log of RocketMQ's own: see RocketMQView."""

    @property
    def is_replica(self) -> bool:
        """Whether `commitlog replica` writes to it: its positions move, and it has no pool."""

    @property
    def foreign_owner(self) -> int | None:
        """The user whose store it is, where that is another one: nobody else sees its pool."""

    def refresh(self) -> None:
        """Looks whether the store was stopped or started since."""

    def lanes(self) -> list[int]:
        """Numbers of the lanes that exist, ascending."""

    def lane_directory(self, number: int) -> LaneDirectory:
        """The directory with a lane's log and consume queues."""

    def limits(self, lane: int) -> LaneLimits:
        """The lane's positions now."""

    def kept_of(self, pool: PoolKey, lane: int) -> int | None:
        """Up to where a lane's log is surely as it was in a pool that this view has seen.

        None as long as nobody has started the store since that pool was lost.
        """

    def left_in_memory(self, isolation: str) -> list[int]:
        """Lanes with accepted bytes that can't be read before somebody runs the store."""

    def close(self) -> None: ...


def open_view(path: str | os.PathLike[str], channel: FileChannel = DISK) -> LogView:
    """Opens the store, or the RocketMQ store root, at a path.

    Raises StoreNotFound, StoreDamaged, StoreTooNew, StoreRefused.
    """
    if is_rocketmq_root(path):
        return RocketMQView(path, channel)
    return StoreView(path, channel)


def is_rocketmq_root(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a directory with `commitlog/` in it and no `store.json`."""
    try:
        root = checked_path(path)
        return (root / "commitlog").is_dir() and not (root / STORE_FILE).exists()
    except OSError:  # not ours to look into: StoreView says so
        return False


def attach_control(directory: StoreDirectory, facts: StoreFacts, *, writable: bool = False) -> ControlRegion | None:
    """Opens the control region of the store's pool; None if there is no pool.

    A pool of another store at this path counts as none. If the pool is there but can't be opened
    now (no descriptor, no memory), raises DiskError.
    """
    pool = facts.pool
    if pool is None:
        return None
    try:
        if pool.boot_id != boot_id() or os.stat(pool.directory).st_dev != pool.device:
            return None
        private_directory(Path(pool.directory), create=False)
        control = ControlRegion.attach(Path(pool.directory), writable=writable)
    except (OSError, RegionError) as error:
        if isinstance(error, TimeoutError) and error.errno is None:
            raise  # a signal handler's: the pool may well be there
        if isinstance(error, OSError) and error.errno and is_refusal(error):
            raise disk_error(error.errno, f"{pool.directory}: opening the store's pool") from error
        return None
    if control.belongs_to(facts.id, directory.path, facts.generation):
        return control
    control.close()
    return None


def _place(path: Path) -> tuple[int, int] | None:
    """Device and inode of a store's directory.

    A restored copy has the id of its store, but another inode.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None  # who opens a file of it says why
    return found.st_dev, found.st_ino


_NOT_LOADED = (-1, -1)
"""No stamp of a file."""


class StoreView:
    """A read-only view of a store. `refresh` follows it through stops and starts.

    Raises StoreNotFound, StoreDamaged, StoreTooNew, StoreRefused.
    """

    def __init__(self, path: str | os.PathLike[str], channel: FileChannel = DISK) -> None:
        self.directory = StoreDirectory(path, channel)
        self.path, self.channel = self.directory.path, channel
        self.control: ControlRegion | None = None
        self.pool_key: PoolKey | None = None
        self._known_lanes: set[int] = set()
        """Lanes of a pool whose directories were looked at."""
        self._gone_pools: dict[PoolKey, tuple[int, Mapping[int, int]]] = {}
        """Pools that were seen and are gone: the generation, and how far each lane was flushed."""
        self._load()

    def _load(self) -> None:
        self._known_lanes.clear()
        self._stamp: tuple[int, int] | None = (
            _NOT_LOADED  # if this fails, for want of a descriptor too, the next `refresh` tries it again
        )
        stamp = self.directory.file_stamp()  # None: `load` says what is wrong
        place = None
        while place is None or place != _place(self.path):  # it may be moved meanwhile
            place = _place(self.path)
            self.facts = self.directory.load()
        self.identity: tuple[object, ...] = self.facts.id, place
        control = attach_control(self.directory, self.facts)
        self.pool_key = None if control is None else (str(control.region.path.parent), control.region.inode)
        self.control, self._stamp = control, stamp

    @property
    def store_id(self) -> str:
        return self.facts.id

    @property
    def segment_bytes(self) -> int:
        return self.facts.segment_bytes

    @property
    def epoch(self) -> int:
        return self.facts.epoch

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        return epochs_from_json(self.facts.epochs)

    @property
    def live(self) -> bool:
        return self.control is not None

    @property
    def pool(self) -> Path | None:
        return None if self.control is None else self.control.region.path.parent

    @property
    def one_log(self) -> bool:
        return False

    @property
    def is_replica(self) -> bool:
        return self.directory.replica_file.exists()

    @property
    def foreign_owner(self) -> int | None:
        if self.control is not None:
            return None
        owner = os.stat(self.path).st_uid
        return None if owner == os.geteuid() else owner

    def refresh(self) -> None:
        """Looks whether the store was stopped or started since.

        If nothing has changed, it takes a few microseconds.
        """
        if self.directory.file_stamp() != self._stamp or (self.control and self.control.region.is_unlinked()):
            self._note_gone_pool()
            self.close()
            self._load()

    def _note_gone_pool(self) -> None:
        control = self.control
        if control is not None and self.pool_key is not None:
            self._gone_pools[self.pool_key] = control.generation, control.positions(Lane.FLUSHED)

    def lanes(self) -> list[int]:
        known = {*self.directory.lane_numbers(), *self.facts.lanes}
        if self.control is not None:
            known.update(self.control.lane_table()[:, Lane.FLUSHED].nonzero()[0].tolist())
        return sorted(known)

    def lane_directory(self, number: int) -> LaneDirectory:
        return self.directory.lane_directory(number)

    def limits(self, lane: int) -> LaneLimits:
        """The lane's positions now. Raises DamagedFile for those that no lane can have."""
        control = self.control
        try:
            return self._limits(control, lane)
        except ValueError:
            if control is self.control:
                raise
            return self.limits(lane)  # another thread has met a stop or a start, and unmapped it

    def _limits(self, control: ControlRegion | None, lane: int) -> LaneLimits:
        if control is not None and lane in self._known_lanes:
            return self._live_limits(control, lane)
        found = PositionsFile(self.directory.lane_directory(lane), self.facts.id, self.channel).load()
        if control is not None and lane < LANE_ROWS:  # the directory is not another store's
            self._known_lanes.add(lane)
            return self._live_limits(control, lane)
        known = self.facts.lanes.get(lane, 0)
        if found is None:
            return LaneLimits(lane, 0, 0, known, known, stopped_properly=False)
        flushed = max(found.flushed_where, known)
        return LaneLimits(
            lane, found.first_where, found.dispatched_where, flushed, flushed, found.entries, found.drained
        )

    def kept_of(self, pool: PoolKey, lane: int) -> int | None:
        """Up to where a lane's log is surely as it was in a pool that this view has seen.

        That is what was flushed there. If one start has followed, and still runs, it is what that
        start has found in files, too.
        """
        named = self.facts.pool
        if self.control is None and named is not None and named.directory == pool[0]:
            return None
        generation, flushed = self._gone_pools.get(pool, (0, {}))
        kept = flushed.get(lane, 0)
        is_next = self.control is not None and self.facts.generation <= generation + 1
        return max(kept, self.facts.lanes.get(lane, 0)) if is_next else kept

    def left_in_memory(self, isolation: str) -> list[int]:
        behind = self._behind(isolation)
        return [] if not behind or is_running(self.directory, self.pool) else behind

    def not_flushed(self) -> list[int]:
        """Lanes with accepted bytes that are not flushed."""
        return self._behind("flushed")

    def _behind(self, isolation: str) -> list[int]:
        if self.control is None:
            return []
        table = self.control.lane_table()
        behind: list[int] = (table[:, Lane.WROTE] > table[:, POSITION_WORDS[isolation]]).nonzero()[0].tolist()
        return behind

    def _live_limits(self, control: ControlRegion, lane: int) -> LaneLimits:
        """The positions in shared memory.

        `dispatched` is loaded before `flushed`, `flushed` before `committed`. A start stores the
        positions one after the other. So if they are out of order, they are loaded again for a
        moment.
        """
        row = control.row(lane)
        for _ in range(_LOOKS_MOST):
            dispatched, flushed, committed = (
                observe(row, Lane.DISPATCHED),
                observe(row, Lane.FLUSHED),
                observe(row, Lane.COMMITTED),
            )
            accepted = observe(row, Lane.WROTE)
            entries, first = counted_entries(row, dispatched), first_kept(row)
            in_order = max(dispatched, first, self.facts.lanes.get(lane, 0)) <= flushed <= committed
            if in_order and committed <= accepted and is_within_reach(row, flushed, accepted, self.segment_bytes):
                return LaneLimits(lane, first, dispatched, flushed, committed, entries, accepted=accepted)
            SYSTEM_CLOCK.sleep(_LOOK_AGAIN_SECONDS)
        raise DamagedFile(
            f"lane {lane}: its positions in {control.region.path} are damaged: nothing of it can be read before the store "
            "was started again; `commitlog run` says what to do with the pool"
        )

    def close(self) -> None:
        control, self.control, self.pool_key = self.control, None, None  # a reader may be closed by two threads
        if control is not None:
            control.close()


class RocketMQView:
    """A read-only view of a RocketMQ store root, as far as its consume queues reach.

    Its one log holds the records of all queue ids. Each queue id is a lane here, and the
    `partition` of its messages. All lanes have the limits of the log's files. So only the entries
    say which messages may be read, and the log is never walked. Raises StoreNotFound.
    """

    live, one_log, is_replica, store_id, pool, pool_key = False, True, False, "", None, None
    control: ControlRegion | None = None
    foreign_owner: int | None = None
    epoch, epochs = 0, ()

    def __init__(self, path: str | os.PathLike[str], channel: FileChannel = DISK) -> None:
        self.path, self.channel = checked_path(path), channel
        if not is_rocketmq_root(self.path):
            raise StoreNotFound(f"{self.path}: not a RocketMQ store root: that has commitlog/ and no {STORE_FILE}")
        self.segment_bytes = guess_segment_bytes(self.path / "commitlog", channel) or 1 << 30
        self.refresh()

    def refresh(self) -> None:
        """Lists the segment files anew."""
        self.identity: tuple[object, ...] = "", _place(self.path)
        segments = MappedFileQueue(self.path / "commitlog", self.segment_bytes, self.channel)
        self._first, self._end = segments.first, segments.end
        self._halted = (self.path / "abort").exists()

    def lanes(self) -> list[int]:
        """Queue ids that any topic has, ascending."""
        directories = queue_directories(self.path / "consumequeue", self.channel)
        return sorted({int(path.name) for path in directories if str(int(path.name)) == path.name})

    def kept_of(self, pool: PoolKey, lane: int) -> int | None:
        return None

    def left_in_memory(self, isolation: str) -> list[int]:
        return []

    def lane_directory(self, number: int) -> LaneDirectory:
        """The root as a lane, with the queue id as its number."""
        return LaneDirectory(self.path, number)

    def limits(self, lane: int) -> LaneLimits:
        """The same for all lanes: from the first segment file to the end of the last one."""
        end = self._end
        return LaneLimits(lane, self._first, end, end, end, stopped_properly=not self._halted)

    def close(self) -> None:
        """Nothing is held open."""
