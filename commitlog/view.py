"""How far a store may be read, without asking its stages: the limits of every lane.

While a pool is there the words in shared memory say it, whoever runs or has died; without one each lane's `positions`
file does. Reading never repairs and never writes. Readers, Spark and the command line all look through this door.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from commitlog.checkpoint import PositionsFile
from commitlog.file_channel import DISK, FileChannel
from commitlog.store_directory import PoolPlace, StoreDirectory, StoreFacts, boot_id
from shm.layout import LANE_ROWS, Lane
from shm.positions import ControlRegion
from shm.region import RegionError, private_directory


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Positions of one lane, bytes of its log: first ≤ dispatched ≤ flushed ≤ committed.

    Records in [first, dispatched) are in the consume queues; those in [dispatched, flushed) may or may not be yet, and
    are found by walking from `dispatched`, which is a record's start.
    """

    lane: int
    first: int
    dispatched: int
    flushed: int
    committed: int


def attach_control(directory: StoreDirectory, facts: StoreFacts, *, writable: bool = False) -> ControlRegion | None:
    """The control region of the store's pool; None where there is none that belongs to it and may be opened."""
    pool = facts.pool
    if pool is None or not _same_place(pool):
        return None
    try:
        private_directory(Path(pool.directory), create=False)
        control = ControlRegion.attach(Path(pool.directory), writable=writable)
    except (OSError, RegionError):
        return None
    if control.belongs_to(facts.id, directory.path, facts.generation):
        return control
    control.close()
    return None


def _same_place(pool: PoolPlace) -> bool:
    try:
        return pool.boot_id == boot_id() and os.stat(pool.directory).st_dev == pool.device
    except OSError:
        return False


class StoreView:
    """A read-only look at a store; `refresh` follows it through stops and starts.

    Raises StoreNotFound, StoreDamaged, StoreTooNew, StoreRefused.
    """

    def __init__(self, path: str | os.PathLike[str], channel: FileChannel = DISK) -> None:
        self.directory = StoreDirectory(path, channel)
        self.channel = channel
        self.control: ControlRegion | None = None
        self._load()

    def _load(self) -> None:
        self._stamp = self._file_stamp()
        self.facts = self.directory.load()
        self.control = attach_control(self.directory, self.facts)

    def _file_stamp(self) -> tuple[int, int]:
        try:
            facts = os.stat(self.directory.file)
        except OSError:  # `load` says what is wrong with it
            return (0, 0)
        return facts.st_ino, facts.st_mtime_ns

    @property
    def store_id(self) -> str:
        return self.facts.id

    @property
    def segment_bytes(self) -> int:
        return self.facts.segment_bytes

    @property
    def live(self) -> bool:
        """Whether a pool is there: positions move, or will as soon as the stages run again."""
        return self.control is not None

    def refresh(self) -> None:
        """Looks whether the store was stopped or started since. A few microseconds when it was not."""
        if self._file_stamp() != self._stamp or (self.control and self.control.region.is_unlinked()):
            self.close()
            self._load()

    def lanes(self) -> list[int]:
        """Numbers of the lanes that exist, ascending."""
        return self.directory.lane_numbers()

    def limits(self, lane: int) -> LaneLimits:
        """The lane's positions now. `dispatched` is loaded before `flushed`, `flushed` before `committed`."""
        if self.control is not None and lane < LANE_ROWS:
            words, base = self.control.words, self.control.lane_base(lane)
            dispatched = words[base + Lane.DISPATCHED]
            flushed = words[base + Lane.FLUSHED]
            committed = words[base + Lane.COMMITTED]
            return LaneLimits(lane, words[base + Lane.FIRST], dispatched, flushed, committed)
        positions = PositionsFile(self.directory.lane(lane).positions_file, self.channel).load()
        if positions is None:
            return LaneLimits(lane, 0, 0, 0, 0)
        flushed = positions.flushed_where
        return LaneLimits(lane, positions.first_where, positions.dispatched_where, flushed, flushed)

    def close(self) -> None:
        if self.control is not None:
            self.control.close()
            self.control = None
