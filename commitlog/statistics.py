"""What a store, a producer and a reader have done so far, as values: RocketMQ's StoreStatsService.

Everything is read from the control region. So it is there while the stages hang, and for everybody
who may read the store. The counters begin with the pool: a store that was closed and opened again
counts from 0.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace

from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.config import Config
from commitlog.disk.locks import holder_of, is_leased, is_running
from commitlog.disk.replica_mark import load_mark, superseded_by
from commitlog.errors import disk_error, is_refusal
from commitlog.reading.view import StoreView
from commitlog.shm.layout import LANE_ROWS, Header, Lane, Stage
from commitlog.shm.pool import available_buffers
from commitlog.shm.positions import ControlRegion
from commitlog.shm.statistics import PUT_TIME_NAMES, Histogram, RetentionFlag, Throughput, put_times, throughput

FAULT_WORDS = {
    "committer": Lane.COMMITTER_FAULT,
    "flusher": Lane.FLUSHER_FAULT,
    "allocator": Lane.ALLOCATOR_FAULT,
    "dispatcher": Lane.DISPATCHER_FAULT,
    "ha_service": Lane.HA_SERVICE_FAULT,
}
RETENTION_WORDS = {
    RetentionFlag.CLOCK_JUMPED: "the machine's clock has jumped since the start: nothing is deleted for its age",
    RetentionFlag.HELD_BY_READER: "segments that could go are kept for named readers or replicas",
    RetentionFlag.DISK_HIGH: "the disk is over disk_max_used_percent",
    RetentionFlag.DISK_FORCES: "the disk is over disk_clean_forcibly_percent: segments are deleted before their time",
    RetentionFlag.DISK_REFUSES: "the disk is over disk_refuse_percent: no segment is made",
}


@dataclass(frozen=True)
class LaneStatistics:
    """One lane. Positions are bytes of its log."""

    lane: int
    first: int
    wrote: int
    committed: int
    flushed: int
    dispatched: int
    producer: int = 0
    """Its pid; 0 when nobody holds the lane."""
    messages: int = 0
    buffer_waits: int = 0
    """How often its producers had to wait for a free write buffer."""
    buffer_wait_ms: float = 0.0
    """How long they have waited in all."""
    buffer_wait_max_ms: float = 0.0
    """The longest of these waits."""
    buffer_timeouts: int = 0
    direct_segments: int = 0
    available_buffers: int | None = None
    """Free write buffers; None for a lane that has none now."""
    low_water: int = 0
    """How often no buffer was free for long."""
    locked_bytes: int = 0
    commits: int = 0
    syncs: int = 0
    dispatched_records: int = 0
    faults: dict[str, int] | None = None
    """Stage → errno of the fault that keeps it from going on."""
    put_times: dict[str, int] | None = None
    """RocketMQ's distribution: how many puts took how long."""
    flushed_ms_ago: float | None = field(default=None, compare=False)
    """Since its last flush; None where nothing was flushed since the pool was made."""
    replicated: int = 0
    """The position up to which all in-sync replicas have it; 0 in a store without replicas."""
    in_sync: int = 0
    """How many replicas are in sync."""


@dataclass(frozen=True)
class StageStatistics:
    """One stage process.

    `p50_us` and `p99_us` are times of its actions: a commit, a sync, a segment made, records
    placed.
    """

    stage: str
    pid: int
    """0: there is no such process now."""
    rounds: int
    wakeups: int
    actions: int
    bad_frames: int
    restarts: int
    left: int
    """What it left undone at the last stop, in bytes or steps."""
    silent_ms: float
    """Since its last heartbeat."""
    p50_us: float | None
    p99_us: float | None
    started_ms: int = 0
    """When it began to work, wall time; 0 where none of this pool has."""


@dataclass(frozen=True)
class RetentionStatistics:
    """What retention has deleted in this run, and what stands in its way."""

    deleted_segments: int
    deleted_bytes: int
    forced_segments: int
    """How many segments were deleted before their time, because the disk was too full."""
    disk_used_percent: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class StoreStatistics:
    """A whole store. One that was closed properly has positions only, no stages and no counters."""

    path: str
    store_id: str
    running: bool
    closing: bool
    generation: int
    segment_bytes: int
    lanes: tuple[LaneStatistics, ...]
    stages: tuple[StageStatistics, ...] = ()
    throughput: tuple[Throughput, ...] = ()
    retention: RetentionStatistics | None = None
    killed: bool = False
    """Its supervisor is gone and has not stopped it properly. The next start goes on from there."""
    starting: bool = False
    """Its supervisor opens it, and no stage runs yet: it may be recovering what a kill has left."""
    supervisor_silent_ms: float | None = field(default=None, compare=False)
    """Since the supervisor's last heartbeat; None where there is no pool."""
    replica_of: str = ""
    """HOST:PORT of the store that it follows as a replica; empty for a store."""
    replica_behind_ms: int = 0
    """How long ago the replica had all of its store."""
    replica_complete: bool = False
    """Whether the replica may be promoted: it has had all of its store at one moment."""
    replica_waits_for: str = ""
    """What keeps the replica from following, such as room on its disk."""
    superseded_by: str = ""
    """Which replica of the store was promoted, in words: then it does not start again."""

    @property
    def state(self) -> str:
        """The state in one word: running, closing, killed or stopped."""
        if self.running:
            return "closing" if self.closing else "running"
        return "killed" if self.killed else "stopped"


@dataclass(frozen=True)
class ReaderStatistics:
    """How many messages a reader has given out, and how many bytes of each lane it has not read."""

    messages: int
    positions: dict[int, int]
    behind_bytes: dict[int, int]


def store_statistics(view: StoreView, clock: Clock = SYSTEM_CLOCK) -> StoreStatistics:
    """What the store of a view has done until now. Raises DiskError where it can't be looked at."""
    try:
        return _store_statistics(view, clock)
    except OSError as error:
        if not is_refusal(error):
            raise
        raise disk_error(error.errno or errno.EIO, f"{view.path}: looking at the store") from error


def _store_statistics(view: StoreView, clock: Clock) -> StoreStatistics:
    control, now = view.control, clock.monotonic_ns()
    running = is_running(view.directory, control.region.path.parent if control else None)
    mark = load_mark(view.directory)
    return StoreStatistics(
        path=str(view.directory.path),
        store_id=view.store_id,
        running=running,
        closing=bool(control and control.words[Header.CLOSING]),
        generation=view.facts.generation,
        segment_bytes=view.segment_bytes,
        lanes=tuple(_lane(view, number, now) for number in view.lanes()),
        stages=tuple(_stage(view, control, name, now) for name in _stages_of(view)) if control else (),
        throughput=throughput(control.words, now) if control else (),
        retention=_retention(control.words) if control else None,
        killed=not running and not mark and not _stopped_properly(view),
        starting=running and not mark and not _has_opened(view),
        supervisor_silent_ms=max(now - control.words[Header.SUPERVISOR_HEARTBEAT], 0) / 1e6 if control else None,
        replica_of=mark.source if mark else "",
        replica_behind_ms=mark.behind_ms(clock.wall_ms()) if mark else 0,
        replica_complete=mark.complete if mark else False,
        replica_waits_for=mark.waits_for if mark else "",
        superseded_by=superseded_by(view.directory),
    )


def _stages_of(view: StoreView) -> tuple[str, ...]:
    """Names of the stages that the store has in its configuration."""
    return Config.from_json(view.facts.config).stages


def _has_opened(view: StoreView) -> bool:
    """Whether the supervisor that holds the store's lock has opened the pool.

    Until then the pool has the pid of an earlier one. A supervisor that is ending stores 0.
    """
    if view.control is None:
        return False
    words = view.control.words
    pid = words[Header.SUPERVISOR_PID]
    if not pid:
        return bool(words[Header.CLOSING])
    return holder_of(view.directory.lock_file, view.channel) in (str(pid), "?")  # "?": somebody removed the file


def _stopped_properly(view: StoreView) -> bool:
    """Whether the supervisor of a store that does not run has come to its end."""
    if view.control is not None:
        return view.control.words[Header.SUPERVISOR_PID] == 0
    return all(view.limits(number).stopped_properly for number in view.lanes())


def _lane(view: StoreView, number: int, now_ns: int) -> LaneStatistics:
    if view.control is not None and number < LANE_ROWS:
        lane = lane_statistics(view.control, number, now_ns)
        held = is_leased(view.lane_directory(number), view.control.region.path.parent, view.channel)
        return lane if held else replace(lane, producer=0)  # a killed producer has left its pid
    limits = view.limits(number)
    return LaneStatistics(number, limits.first, limits.committed, limits.committed, limits.flushed, limits.dispatched)


def lane_statistics(control: ControlRegion, number: int, now_ns: int) -> LaneStatistics:
    """One lane, from its words.

    Positions are loaded from the last one (`dispatched`) to the first one (`wrote`), so that they
    never seem to cross.
    """
    row = control.row(number)
    dispatched, flushed = row[Lane.DISPATCHED], row[Lane.FLUSHED]
    committed, wrote = row[Lane.COMMITTED], row[Lane.WROTE]
    size, slots = row[Lane.SEGMENT_SIZE], row[Lane.SLOTS]
    has_buffers = row[Lane.BUFFERS] & 1 and slots and size
    return LaneStatistics(
        lane=number,
        first=row[Lane.FIRST],
        wrote=wrote,
        committed=committed,
        flushed=flushed,
        dispatched=dispatched,
        producer=row[Lane.LESSEE_PID],
        messages=row[Lane.MESSAGES],
        buffer_waits=row[Lane.BUFFER_WAITS],
        buffer_wait_ms=row[Lane.BUFFER_WAIT_NS] / 1e6,
        buffer_wait_max_ms=row[Lane.BUFFER_WAIT_NS_MAX] / 1e6,
        buffer_timeouts=row[Lane.BUFFER_TIMEOUTS],
        direct_segments=row[Lane.DIRECT_SEGMENTS],
        available_buffers=max(available_buffers(wrote, flushed, size, slots), 0) if has_buffers else None,
        low_water=row[Lane.LOW_WATER],
        locked_bytes=row[Lane.LOCKED_BYTES],
        commits=row[Lane.COMMITS],
        syncs=row[Lane.SYNCS],
        dispatched_records=row[Lane.DISPATCHED_RECORDS],
        faults={stage: row[word] for stage, word in FAULT_WORDS.items() if row[word]},
        put_times=dict(zip(PUT_TIME_NAMES, put_times(row), strict=True)),
        flushed_ms_ago=max(now_ns - row[Lane.FLUSHED_NS], 0) / 1e6 if row[Lane.FLUSHED_NS] else None,
        replicated=row[Lane.REPLICATED],
        in_sync=row[Lane.IN_SYNC],
    )


def _stage(view: StoreView, control: ControlRegion, name: str, now_ns: int) -> StageStatistics:
    stage = stage_statistics(control, name, now_ns)
    lives = is_running(view.directory, control.region.path.parent, name)
    return stage if lives else replace(stage, pid=0)  # a killed stage has left its pid


def stage_statistics(control: ControlRegion, name: str, now_ns: int) -> StageStatistics:
    """One stage, from its words."""
    row = control.stage_row(name)
    durations = Histogram.load(row, Stage.HISTOGRAM)
    return StageStatistics(
        stage=name,
        pid=row[Stage.PID],
        rounds=row[Stage.ROUNDS],
        wakeups=row[Stage.WAKEUPS],
        actions=row[Stage.ACTIONS],
        bad_frames=row[Stage.BAD_FRAMES],
        restarts=row[Stage.RESTARTS],
        left=row[Stage.LEFT],
        silent_ms=max(now_ns - row[Stage.HEARTBEAT], 0) / 1e6,
        p50_us=durations.percentile(0.5),
        p99_us=durations.percentile(0.99),
        started_ms=row[Stage.STARTED_MS],
    )


def _retention(words: memoryview) -> RetentionStatistics:
    flags = words[Header.RETENTION_FLAGS]
    return RetentionStatistics(
        deleted_segments=words[Header.DELETED_SEGMENTS],
        deleted_bytes=words[Header.DELETED_BYTES],
        forced_segments=words[Header.FORCED_SEGMENTS],
        disk_used_percent=words[Header.DISK_USED_PERMILLE] / 10,
        warnings=tuple(text for flag, text in RETENTION_WORDS.items() if flags & flag),
    )
