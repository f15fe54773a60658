"""The counters and positions of stores, producers and readers: RocketMQ's StoreStatsService.

Everything is read from the control region. So it can be read while the stages hang, and by
everybody who may read the store. The counters begin with the pool: a store that was closed and
opened again counts from 0.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace

from commitlog.config import Config
from commitlog.disk.locks import holder_of, is_leased, is_running
from commitlog.disk.processes import has_open
from commitlog.disk.replica_mark import load_mark, superseded_by
from commitlog.errors import disk_error, is_refusal
from commitlog.reading.view import StoreView
from commitlog.shm.control_region import ControlRegion, first_kept
from commitlog.shm.counters import PUT_TIME_NAMES, Histogram, RetentionFlag, Throughput, put_times, throughput
from commitlog.shm.layout import LANE_ROWS, Header, Lane, Stage
from commitlog.shm.memory_order import observe
from commitlog.shm.write_buffers import available_buffers
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.text.notebook import ShownByFields, html_table

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
    RetentionFlag.NOT_DELETED: "old segments can't be deleted",
}


@dataclass(frozen=True, repr=False)
class LaneStatistics(ShownByFields):
    """The statistics of one lane. Positions are in bytes of the lane's log."""

    _IN_REPR = ("lane", "messages", "wrote", "committed", "flushed")

    lane: int
    first: int
    wrote: int
    committed: int
    flushed: int
    dispatched: int
    producer: int = 0
    """The pid of the lane's producer; 0 if nobody holds the lane."""
    messages: int = 0
    buffer_waits: int = 0
    """How often the lane's producers had to wait for a free write buffer."""
    buffer_wait_ms: float = 0.0
    """How long the producers have waited for buffers in all."""
    buffer_wait_max_ms: float = 0.0
    """The longest of these waits."""
    buffer_timeouts: int = 0
    direct_segments: int = 0
    available_buffers: int | None = None
    """Free write buffers; None for a lane that has none now."""
    low_water: int = 0
    """How often a lane was without a free buffer for some time."""
    locked_bytes: int = 0
    commits: int = 0
    syncs: int = 0
    dispatched_records: int = 0
    faults: dict[str, int] | None = None
    """Stage → errno of the fault that keeps it from going on."""
    put_times: dict[str, int] | None = None
    """RocketMQ's distribution: how many puts took how long."""
    flushed_ms_ago: float | None = field(default=None, compare=False)
    """The time since the lane's last flush; None if nothing was flushed since the pool was made."""
    replicated: int = 0
    """The position up to which all in-sync replicas have the log; 0 in a store without replicas."""
    in_sync: int = 0
    """How many replicas are in sync."""


@dataclass(frozen=True, repr=False)
class StageStatistics(ShownByFields):
    """The statistics of one stage process. `p50_us` and `p99_us` are the durations of its actions.

    An action is a commit, a sync, a segment that is made, or records that are placed.
    """

    _IN_REPR = ("stage", "pid", "actions", "p99_us")

    stage: str
    pid: int
    """The pid of the stage's process; 0 if there is no such process now."""
    rounds: int
    wakeups: int
    actions: int
    bad_frames: int
    restarts: int
    left: int
    """How much work the stage left undone at the last stop, in bytes or steps."""
    silent_ms: float
    """The time since the stage's last heartbeat."""
    p50_us: float | None
    p99_us: float | None
    started_ms: int = 0
    """When the stage's process began to work (wall time); 0 if none has worked in this pool."""


@dataclass(frozen=True, repr=False)
class RetentionStatistics(ShownByFields):
    """How much retention has deleted in this run, and what prevents it from deleting more."""

    _IN_REPR = ("deleted_segments", "deleted_bytes", "disk_used_percent")

    deleted_segments: int
    deleted_bytes: int
    forced_segments: int
    """How many segments were deleted before their time, because the disk was too full."""
    disk_used_percent: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class StoreStatistics:
    """The statistics of a store. A properly closed store has only positions, no counters."""

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
    """Whether the supervisor is gone without a proper stop. The next start takes over what is left.
    """
    starting: bool = False
    """Whether the supervisor is opening the store and no stage runs yet. It may be in a recovery.
    """
    supervisor_silent_ms: float | None = field(default=None, compare=False)
    """The time since the supervisor's last heartbeat; None if there is no pool."""
    replica_of: str = ""
    """HOST:PORT of the store that this replica follows; empty if this is not a replica."""
    replica_behind_ms: int = 0
    """How long ago the replica last had everything that its store had."""
    replica_complete: bool = False
    """Whether the replica may be promoted: at one moment it had everything that its store had."""
    replica_waits_for: str = ""
    """What keeps the replica from following, such as room on its disk."""
    backup: bool = False
    """Whether this is a backup that was never started. A start makes it a store of its own."""
    superseded_by: str = ""
    """Which replica of the store was promoted, in words. This store does not start again then."""

    @property
    def state(self) -> str:
        """The state in one word: running, closing, killed or stopped."""
        if self.running:
            return "closing" if self.closing else "running"
        return "killed" if self.killed else "stopped"

    def __repr__(self) -> str:
        counts = f"lanes={len(self.lanes)}, messages={sum(lane.messages for lane in self.lanes)}"
        return f"StoreStatistics({self.path!r}, state={self.state!r}, {counts}, …)"

    def _repr_html_(self) -> str:
        """The store with its lanes and stages, as `commitlog stat` has them."""
        rates = [
            (f"messages/s in {rate.window_seconds} s", f"{rate.messages_per_second:,.0f}") for rate in self.throughput
        ]
        lanes = [
            (
                one.lane,
                one.producer or None,
                one.messages,
                one.wrote - one.first,
                one.wrote - one.flushed,
                one.faults or None,
            )
            for one in self.lanes
        ]
        stages = [(one.stage, one.pid or None, one.actions, one.p50_us, one.p99_us) for one in self.stages]
        return "".join(
            (
                html_table(f"Store {self.path}: {self.state}", rates),
                html_table(
                    "Lanes", lanes, ("lane", "producer", "messages", "bytes kept", "bytes not flushed", "faults")
                ),
                html_table("Stages", stages, ("stage", "pid", "actions", "p50 µs", "p99 µs")) if stages else "",
            )
        )


@dataclass(frozen=True, repr=False)
class ReaderStatistics(ShownByFields):
    """How many messages a reader has given out, and how many bytes of each lane it has not read."""

    _IN_REPR = ("messages", "behind_bytes")

    messages: int
    positions: dict[int, int]
    behind_bytes: dict[int, int]


def store_statistics(view: StoreView, clock: Clock = SYSTEM_CLOCK) -> StoreStatistics:
    """Reads the statistics of a view's store. Raises DiskError if the store can't be looked at."""
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
        killed=not running and not mark and not view.facts.is_backup and not _stopped_properly(view),
        starting=running and not mark and view.foreign_owner is None and not _has_opened(view),
        supervisor_silent_ms=max(now - control.words[Header.SUPERVISOR_HEARTBEAT], 0) / 1e6 if control else None,
        replica_of=mark.source if mark else "",
        replica_behind_ms=mark.behind_ms(clock.wall_ms()) if mark else 0,
        replica_complete=mark.complete if mark else False,
        replica_waits_for=mark.waits_for if mark else "",
        backup=view.facts.is_backup and not mark,
        superseded_by=superseded_by(view.directory),
    )


def _stages_of(view: StoreView) -> tuple[str, ...]:
    """Returns the names of the stages that the store has by its configuration."""
    return Config.from_json(view.facts.config).stages


def _has_opened(view: StoreView) -> bool:
    """Whether the supervisor that holds the store's lock has opened the pool.

    Before that, the pool has the pid of an earlier supervisor. A supervisor that ends stores 0.
    The lock file may have any text in it, or be gone: then that process may still have it open.
    """
    if view.control is None:
        return False
    words = view.control.words
    pid = words[Header.SUPERVISOR_PID]
    if not pid:
        return bool(words[Header.CLOSING])
    lock_file = view.directory.lock_file
    return holder_of(lock_file, view.channel) in (str(pid), "?") or has_open(pid, lock_file)


def _stopped_properly(view: StoreView) -> bool:
    """Whether a store that does not run was stopped properly: its supervisor came to its end."""
    if view.control is not None:
        return view.control.words[Header.SUPERVISOR_PID] == 0
    limits = [view.limits(number) for number in view.lanes()]
    return all(lane.stopped_properly or is_lost(view, lane.lane, lane.first, lane.flushed) for lane in limits)


def is_lost(view: StoreView, lane: int, first: int, flushed: int) -> bool:
    """Whether a lane that had messages has no segment file: somebody has removed it, or its log."""
    commitlog = view.lane_directory(lane).commitlog
    return first < flushed and not (commitlog.is_dir() and view.channel.list(commitlog))


def _lane(view: StoreView, number: int, now_ns: int) -> LaneStatistics:
    if view.control is not None and number < LANE_ROWS:
        lane = lane_statistics(view.control, number, now_ns)
        held = is_leased(view.lane_directory(number), view.control.region.path.parent, view.channel)
        return lane if held else replace(lane, producer=0)  # a killed producer has left its pid
    limits = view.limits(number)
    return LaneStatistics(number, limits.first, limits.committed, limits.committed, limits.flushed, limits.dispatched)


def lane_statistics(control: ControlRegion, number: int, now_ns: int) -> LaneStatistics:
    """Reads the statistics of one lane from its words.

    Positions are loaded from the last one (`dispatched`) to the first one (`wrote`), so that they
    never seem to cross.
    """
    row = control.row(number)
    dispatched, flushed = observe(row, Lane.DISPATCHED), observe(row, Lane.FLUSHED)
    committed, wrote = observe(row, Lane.COMMITTED), observe(row, Lane.WROTE)
    size, slots = row[Lane.SEGMENT_SIZE], row[Lane.SLOTS]
    has_buffers = observe(row, Lane.BUFFERS) & 1 and slots and size
    return LaneStatistics(
        lane=number,
        first=first_kept(row),
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
        replicated=observe(row, Lane.REPLICATED),
        in_sync=row[Lane.IN_SYNC],
    )


def _stage(view: StoreView, control: ControlRegion, name: str, now_ns: int) -> StageStatistics:
    stage = stage_statistics(control, name, now_ns)
    lives = is_running(view.directory, control.region.path.parent, name)
    return stage if lives else replace(stage, pid=0)  # a killed stage has left its pid


def stage_statistics(control: ControlRegion, name: str, now_ns: int) -> StageStatistics:
    """Reads the statistics of one stage from its words."""
    row = control.stage_row(name)
    durations = Histogram.load(row, Stage.HISTOGRAM)
    return StageStatistics(
        stage=name,
        pid=row[Stage.PID],
        rounds=row[Stage.ROUNDS],
        wakeups=row[Stage.WAKEUPS],
        actions=observe(row, Stage.ACTIONS),
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
