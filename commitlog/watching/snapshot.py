"""A store at one moment: all that `health`, `metrics`, `top` and `ui` show.

Everything comes from shared memory and from files, so a store whose stages hang is seen as well as
one that runs. A `StoreWatch` keeps the store open between two snapshots. The difference of two
snapshots gives rates.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.reading.named_readers import ReaderState, reader_states
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from commitlog.shm.layout import STAGES, Lane, Stage
from commitlog.shm.statistics import Histogram
from commitlog.statistics import LaneStatistics, StoreStatistics, store_statistics


@dataclass(frozen=True)
class TopicCount:
    """The messages of a topic in one lane: offsets from `first` on, and below `end`."""

    topic: str
    lane: int
    first: int
    end: int

    @property
    def messages(self) -> int:
        """How many there are to read."""
        return self.end - self.first


@dataclass(frozen=True)
class Space:
    """Room where the store is. All in bytes; shared memory is None for a store without a pool."""

    disk_used: int
    disk_free: int
    """What this user may still use."""
    shared_memory_used: int | None = None
    shared_memory_free: int | None = None
    pool: int | None = None
    """What the pool takes of the shared memory."""


@dataclass(frozen=True)
class ProcessUsage:
    """What a process has used: CPU in seconds so far, and its memory in bytes now.

    Memory that it shares with others, such as the pool, does not count.
    """

    cpu_seconds: float
    resident_bytes: int


@dataclass(frozen=True)
class StoreSnapshot:
    """The store at one moment. `taken_ns` is CLOCK_MONOTONIC, `time_ms` the wall clock."""

    taken_ns: int
    time_ms: int
    statistics: StoreStatistics
    topics: tuple[TopicCount, ...]
    readers: tuple[ReaderState, ...]
    space: Space
    durations: Mapping[str, Histogram]
    """Stage → how long its actions have taken; empty for a store without a pool."""
    blocked_ms: Mapping[int, float]
    """Lane → for how long its producer has been waiting for a buffer. Only lanes that wait."""
    usage: Mapping[str, ProcessUsage]
    """Stage → its process. Only those that run, and only where psutil is installed."""

    def seconds_since(self, earlier: StoreSnapshot) -> float:
        """The time between two snapshots; never zero, so that one may divide by it."""
        return max((self.taken_ns - earlier.taken_ns) / 1e9, 1e-9)

    def lane(self, number: int) -> LaneStatistics | None:
        """One lane, or None if the store does not have it."""
        return next((lane for lane in self.statistics.lanes if lane.lane == number), None)


class StoreWatch:
    """Takes snapshots of a store, and follows it through stops and starts.

    Use it as a context manager, or call `close`. Raises StoreNotFound, StoreDamaged, StoreTooNew,
    StoreRefused.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Clock = SYSTEM_CLOCK) -> None:
        self.view, self.clock = StoreView(path), clock
        self._index = TopicIndex(self.view)

    def snapshot(self) -> StoreSnapshot:
        """The store now. Raises the errors of the constructor, DamagedFile."""
        self._index.refresh()  # looks at the store first
        control, now = self.view.control, self.clock.monotonic_ns()
        statistics = store_statistics(self.view, self.clock)
        return StoreSnapshot(
            taken_ns=now,
            time_ms=self.clock.wall_ms(),
            statistics=statistics,
            topics=self._topics(),
            readers=tuple(reader_states(self._index, self.clock)),
            space=self._space(),
            durations={name: Histogram.load(control.stage_row(name), Stage.HISTOGRAM) for name in STAGES}
            if control
            else {},
            blocked_ms=self._blocked(statistics, now),
            usage=_usage({stage.stage: stage.pid for stage in statistics.stages if stage.pid}),
        )

    def _topics(self) -> tuple[TopicCount, ...]:
        return tuple(
            TopicCount(topic, lane, known.first, known.end)
            for topic in self._index.topics()
            for lane, known in sorted(self._index.ranges(topic).items())
        )

    def _space(self) -> Space:
        channel = self.view.channel
        disk = channel.space(self.view.path)
        if self.view.control is None:
            return Space(*disk)
        pool = self.view.control.region.path.parent
        return Space(*disk, *channel.space(pool), bytes_in(pool))

    def _blocked(self, statistics: StoreStatistics, now: int) -> dict[int, float]:
        control = self.view.control
        if control is None:
            return {}
        since = {lane.lane: control.row(lane.lane)[Lane.BLOCKED] for lane in statistics.lanes if lane.producer}
        return {lane: max(now - at, 0) / 1e6 for lane, at in since.items() if at}

    def close(self) -> None:
        """Closes what the watch has open."""
        self.view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def bytes_in(pool: os.PathLike[str]) -> int:
    """What the files of a pool take. A file counts as it was when it was looked at."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(pool) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # removed meanwhile
                total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def _usage(pids: Mapping[str, int]) -> dict[str, ProcessUsage]:
    """Stage → what its process has used. A process that is gone by now is left out."""
    try:
        import psutil
    except ImportError:  # it comes with the extra `tools`
        return {}
    found = {}
    for stage, pid in pids.items():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
            found[stage] = ProcessUsage(times.user + times.system, memory.rss - memory.shared)
    return found
