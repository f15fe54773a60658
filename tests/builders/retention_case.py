"""A store without processes for retention to work on, and a disk that is as full as a test says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commitlog.config import RetentionConfig
from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import LaneDirectory
from commitlog.shm.layout import Lane
from commitlog.stages.allocating.retention import Retention
from tests.builders.idle_store import IdleStore
from tests.builders.made_lane import MadeLane
from tests.fake_clock import SetClock

SEGMENT = 1 << 12
HOUR = 3600
FIRST_MS = 1_000_000
"""Store timestamp of the first record that MadeLane writes; each has the next millisecond."""


class Disk(FileChannel):
    """A disk of 1,000 segments' size that is as full as it is told.

    It keeps a diary of the names that are removed, and of the directories that are synced.
    """

    def __init__(self) -> None:
        self.percent = 10.0
        self.diary: list[str] = []
        self.synced: list[Path] = []

    def sync_directory(self, path: str | Path) -> None:
        self.synced.append(Path(path))
        super().sync_directory(path)

    def space(self, path: str | Path) -> tuple[int, int]:
        total = 1000 * SEGMENT
        used = int(total * self.percent / 100)
        return used, total - used

    def unlink(self, path: str | Path) -> None:
        self.diary.append("/".join(Path(path).parts[-3:]))
        self.percent -= 0.1
        super().unlink(path)


class RetentionCase:
    """A store with lanes 0 and 3 of 14 segments each, flushed and indexed.

    They were written from FIRST_MS on.
    """

    def __init__(self, store: IdleStore, disk: Disk) -> None:
        self.store, self.disk, self.clock = store, disk, SetClock()
        self.clock.wall = FIRST_MS
        self.lanes = {}
        for number in (0, 3):
            lane = self.lanes[number] = MadeLane(LaneDirectory(store.directory.lane_directory(number).path, number))
            for count in range(240):
                lane.append("old" if count < 130 else "new", bytes(count % 64) + b"x" * 40)
            end, size = lane.end, lane.segment_bytes
            store.set(number, WROTE=end, COMMITTED=end, FLUSHED=end, DISPATCHED=end, DISPATCH_SYNCED=end)
            store.set(number, ALLOCATED=(end // size + 1) * size)

    def retention(self, **knobs: Any) -> Retention:
        config = RetentionConfig(**knobs)
        return Retention(
            self.store.directory, self.store.facts, config, self.store.control, lambda _: False, self.clock
        )

    def record_positions(self) -> None:
        """What the flusher does each second."""
        for number in self.lanes:
            lane_directory = self.store.directory.lane_directory(number)
            words = (Lane.FLUSHED, Lane.DISPATCH_SYNCED, Lane.FIRST)
            flushed, dispatched, first = (self.store.get(number, word) for word in words)
            positions = Positions(1, flushed, dispatched, first, FIRST_MS, False)
            PositionsFile(lane_directory, "", DISK).store(positions)
            self.store.set(number, FIRST_RECORDED=first)

    def turn(self, retention: Retention) -> None:
        """All that the allocator and the flusher do until nothing more goes."""
        while retention.retire():
            pass
        self.record_positions()
        retention.unlink_retired()

    def header(self, word: int) -> int:
        return self.store.control.words[word]

    def newest(self, lane: int, segment: int) -> int:
        """Store timestamp of the last record that begins in a segment."""
        starts = [start // SEGMENT for start, _ in self.lanes[lane].places]
        return FIRST_MS + max(number for number, at in enumerate(starts) if at == segment)

    def last(self, lane: int) -> int:
        return (self.lanes[lane].end - 1) // SEGMENT

    def kept(self, lane: int) -> list[int]:
        return [start // SEGMENT for start in self.store.segments(lane)]


def at_age(case: RetentionCase, milliseconds_over: int) -> None:
    case.clock.pass_seconds(72 * HOUR)
    case.clock.pass_seconds(milliseconds_over / 1000)
