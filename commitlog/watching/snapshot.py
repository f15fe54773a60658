"""A store at one moment: all that `health`, `metrics`, `top` and `ui` show.

Everything comes from shared memory and from files, so a store whose stages hang is seen as well as
one that runs. A `StoreWatch` keeps the store open between two snapshots. The difference of two
snapshots gives rates.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from commitlog.client.statistics import LaneStatistics, StoreStatistics, is_lost, store_statistics
from commitlog.config import Config
from commitlog.disk.backup_note import backup_note
from commitlog.disk.forwarder_files import ForwarderStatistics, forwarders
from commitlog.disk.quarantine import corruption_notes
from commitlog.disk.replica_files import ReplicaState, known_replicas
from commitlog.disk.replication_troubles import ReplicationTroubles, replication_troubles
from commitlog.disk.server_files import ServerStatistics, running_servers
from commitlog.disk.trim_marks import TrimMarks
from commitlog.errors import CommitLogError
from commitlog.inspecting.state_files import refused_by_checksum
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.reader_states import ReaderState, reader_states
from commitlog.reading.view import StoreView
from commitlog.record.record_layout import (
    HOST_V6_MORE,
    I32,
    I64,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    SysFlag,
    size_and_magic,
)
from commitlog.shm.counters import Histogram
from commitlog.shm.layout import Lane, Stage, segment_start
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from commitlog.reading.topic_index import TopicIndex

_REST = 50
"""A look at all small files is followed by so many times its length without one."""
_HEAD_BYTES = STORE_TIMESTAMP_AT + HOST_V6_MORE + I64.size
"""The bytes of a record up to and with its store timestamp."""


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
    """How many bytes this user may still use."""
    shared_memory_used: int | None = None
    shared_memory_free: int | None = None
    pool: int | None = None
    """How many bytes of shared memory the pool takes."""
    shared_memory: str = "/dev/shm"
    """Where the shared memory is mounted."""


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
    unflushed_ms: Mapping[int, float]
    """Lane → for how long its oldest committed message has been waiting to be flushed."""
    undispatched_ms: Mapping[int, float]
    """Lane → for how long its oldest flushed message has been waiting to be dispatched."""
    damaged_ranges: Mapping[int, int]
    """Lane → how many damaged ranges of its log its quarantine has noted. Only lanes with any."""
    lost_lanes: tuple[int, ...]
    """Lanes that had messages, and whose files are gone."""
    usage: Mapping[str, ProcessUsage]
    """Stage → its process. Only those that run, and only where psutil is installed."""
    ahead_ms: Mapping[int, float] = field(default_factory=dict)
    """Lane → how much later than now its newest message is stored. Only such lanes."""
    servers: tuple[ServerStatistics, ...] = ()
    """The servers of `commitlog serve` that have the store, and what their clients have used."""
    replicas: tuple[ReplicaState, ...] = ()
    """The replicas that there are or were, and how far each has come."""
    troubles: ReplicationTroubles = field(default_factory=ReplicationTroubles)
    """What keeps replicas from coming, or a small file from them."""
    forwarders: tuple[ForwarderStatistics, ...] = ()
    """The forwarders of the store, also those that have ended."""
    backed_up_ms: int | None = None
    """The wall time of the last good backup; None where no backup is known."""
    index_damage: str = ""
    """Why there are no topics and readers here: what tells of them is damaged. Else empty."""
    damaged_files: tuple[str, ...] = ()
    """What is wrong with other small files: schemas, and the ends of topics."""
    foreign_owner: int | None = None
    """The user whose store it is, where that is another one: its stages can't be seen then."""
    config: Config = field(default_factory=Config)
    """The configuration of the last start, with what was reloaded since."""

    def seconds_since(self, earlier: StoreSnapshot) -> float:
        """The time between two snapshots; never zero, so that one may divide by it."""
        return max((self.taken_ns - earlier.taken_ns) / 1e9, 1e-9)

    def lane(self, number: int) -> LaneStatistics | None:
        """One lane, or None if the store does not have it."""
        return next((lane for lane in self.statistics.lanes if lane.lane == number), None)


class StoreWatch:
    """Takes snapshots of a store, and follows it through stops and starts.

    With `only_health` a snapshot has no topics and no usage. It costs half where the store has no
    named readers. Use it as a context manager, or call `close`. Raises StoreNotFound, StoreDamaged,
    StoreTooNew, StoreRefused.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Clock = SYSTEM_CLOCK, *, only_health: bool = False) -> None:
        self.view, self.clock, self._only_health = StoreView(path), clock, only_health
        self._index: TopicIndex | None = None
        self._damaged_files: tuple[str, ...] = ()
        self._files_again_ns = LONG_AGO_NS

    def snapshot(self) -> StoreSnapshot:
        """The store now. Raises the errors of the constructor."""
        self.view.refresh()
        topics, readers, index_damage = self._look_at_index()
        control, now = self.view.control, self.clock.monotonic_ns()
        statistics = store_statistics(self.view, self.clock)
        return StoreSnapshot(
            taken_ns=now,
            time_ms=self.clock.wall_ms(),
            statistics=statistics,
            topics=topics,
            readers=readers,
            space=self._space(),
            durations={
                one.stage: Histogram.load(control.stage_row(one.stage), Stage.HISTOGRAM) for one in statistics.stages
            }
            if control
            else {},
            blocked_ms=self._blocked(statistics, now),
            unflushed_ms=self._unflushed(statistics),
            undispatched_ms=self._undispatched(statistics),
            damaged_ranges=self._damaged(statistics),
            lost_lanes=tuple(
                lane.lane for lane in statistics.lanes if is_lost(self.view, lane.lane, lane.first, lane.flushed)
            ),
            usage={} if self._only_health else _usage({one.stage: one.pid for one in statistics.stages if one.pid}),
            ahead_ms=self._ahead(statistics),
            servers=() if self._only_health else tuple(running_servers(self.view.directory)),
            replicas=tuple(known_replicas(self.view.directory)),
            troubles=replication_troubles(self.view.directory),
            forwarders=tuple(forwarders(self.view.directory)),
            backed_up_ms=note.ended_ms if (note := backup_note(self.view.directory)) else None,
            index_damage=index_damage,
            damaged_files=self._look_at_files(),
            foreign_owner=self.view.foreign_owner,
            config=Config.from_json(self.view.facts.config),
        )

    def _look_at_files(self) -> tuple[str, ...]:
        """What is wrong with schemas and ends. Many take long, so the last look may count."""
        now = self.clock.monotonic_ns()
        if now >= self._files_again_ns:
            self._damaged_files = tuple(refused_by_checksum(self.view.directory))
            self._files_again_ns = now + _REST * (self.clock.monotonic_ns() - now)
        return self._damaged_files

    def _look_at_index(self) -> tuple[tuple[TopicCount, ...], tuple[ReaderState, ...], str]:
        """Topics, readers, and why neither can be told: stages and producers go on without them."""
        try:
            index = self._refreshed_index()
            if index is None:
                for lane in self.view.directory.lane_numbers():
                    TrimMarks(self.view.lane_directory(lane), self.view.channel).refresh("")
                return (), (), ""
            topics = () if self._only_health else _topics(index)
            return topics, tuple(reader_states(index, self.clock)), ""
        except (CommitLogError, OSError) as error:
            self._index = None
            return (), (), str(error)

    def _refreshed_index(self) -> TopicIndex | None:
        """What may be read; None where nobody asks, because it takes long to import and to make."""
        if self._only_health and not NamedReaders(self.view.directory).names():
            return None
        from commitlog.reading.topic_index import TopicIndex

        self._index = self._index or TopicIndex(self.view)
        self._index.refresh()
        return self._index

    def _space(self) -> Space:
        channel = self.view.channel
        disk = channel.space(self.view.path)
        if self.view.control is None:
            return Space(*disk)
        pool = self.view.control.region.path.parent
        return Space(*disk, *channel.space(pool), bytes_in(pool), str(pool.parent))

    def _blocked(self, statistics: StoreStatistics, now: int) -> dict[int, float]:
        control = self.view.control
        if control is None:
            return {}
        since = {lane.lane: control.row(lane.lane)[Lane.BLOCKED] for lane in statistics.lanes if lane.producer}
        return {lane: max(now - at, 0) / 1e6 for lane, at in since.items() if at}

    def _unflushed(self, statistics: StoreStatistics) -> dict[int, float]:
        """Returns for each lane how long its oldest committed message waits for a flush.

        The time since the last flush is the upper limit. It is the result if a commit has ended
        inside a record.
        """
        waits = {}
        for lane in statistics.lanes:
            if lane.committed > lane.flushed:
                limits = self._age_ms(lane.lane, lane.flushed), lane.flushed_ms_ago
                waits[lane.lane] = min((limit for limit in limits if limit is not None), default=0.0)
        return waits

    def _undispatched(self, statistics: StoreStatistics) -> dict[int, float]:
        behind = [lane for lane in statistics.lanes if lane.flushed > lane.dispatched]
        ages = {lane.lane: self._age_ms(lane.lane, lane.dispatched) for lane in behind}
        return {lane: age for lane, age in ages.items() if age is not None}

    def _ahead(self, statistics: StoreStatistics) -> dict[int, float]:
        control, now = self.view.control, self.clock.wall_ms()
        if control is None:
            return {}
        newest = {lane.lane: control.row(lane.lane)[Lane.DISPATCHED_TIMESTAMP] for lane in statistics.lanes}
        return {lane: float(stored_ms - now) for lane, stored_ms in newest.items() if stored_ms > now}

    def _age_ms(self, lane: int, where: int) -> float | None:
        """The age of the message at a log offset; None where no record begins there."""
        stored_ms = store_timestamp_at(self.view, lane, where)
        return None if stored_ms is None else float(max(self.clock.wall_ms() - stored_ms, 0))

    def _damaged(self, statistics: StoreStatistics) -> dict[int, int]:
        """Counts each lane's noted damage. Damage in deleted parts of the log does not count."""
        view = self.view
        found = {
            lane.lane: sum(at >= lane.first for at, _ in corruption_notes(view.lane_directory(lane.lane), view.channel))
            for lane in statistics.lanes
        }
        return {lane: count for lane, count in found.items() if count}

    def close(self) -> None:
        """Closes what the watch has open."""
        self.view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def store_timestamp_at(view: StoreView, lane: int, where: int) -> int | None:
    """When the record at a log offset was stored (ms); None where the file has no record there."""
    start = segment_start(where, view.segment_bytes)
    try:
        with view.channel.opened(view.lane_directory(lane).segment_path(start)) as fd:
            head = view.channel.pread(fd, _HEAD_BYTES, where - start)
    except OSError:  # deleted meanwhile
        return None
    if len(head) < _HEAD_BYTES or I64.unpack_from(head, PHYSICAL_OFFSET_AT)[0] != where:
        return None
    if size_and_magic(head)[1] not in (MAGIC_V1, MAGIC_V2):
        return None
    is_v6 = I32.unpack_from(head, SYS_FLAG_AT)[0] & SysFlag.BORN_HOST_V6
    return int(I64.unpack_from(head, STORE_TIMESTAMP_AT + (HOST_V6_MORE if is_v6 else 0))[0])


def _topics(index: TopicIndex) -> tuple[TopicCount, ...]:
    return tuple(
        TopicCount(topic, lane, known.first, known.end)
        for topic in index.topics()
        for lane, known in sorted(index.ranges(topic).items())
    )


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
