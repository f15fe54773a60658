"""What a store, a producer and a reader have done so far, as plain values: RocketMQ's
StoreStatsService.

All of it is read from the control region, so it is there while the stages hang, and for whoever may
read the store. Counters of a run begin with its pool: a store that was closed and opened again
counts from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.disk.locks import is_leased, is_running
from commitlog.reading.view import StoreView
from commitlog.shm.layout import LANE_ROWS, STAGES, Header, Lane, Stage
from commitlog.shm.pool import available_buffers
from commitlog.shm.positions import ControlRegion
from commitlog.shm.statistics import PUT_TIME_NAMES, Histogram, RetentionFlag, Throughput, put_times, throughput

FAULT_WORDS = {
    "committer": Lane.COMMITTER_FAULT,
    "flusher": Lane.FLUSHER_FAULT,
    "allocator": Lane.ALLOCATOR_FAULT,
    "dispatcher": Lane.DISPATCHER_FAULT,
}
RETENTION_WORDS = {
    RetentionFlag.CLOCK_JUMPED: "the machine's clock has jumped since the start: nothing is deleted for its age",
    RetentionFlag.HELD_BY_READER: "segments that could go are kept for registered readers",
    RetentionFlag.DISK_HIGH: "the disk is over disk_max_used_percent",
    RetentionFlag.DISK_FORCES: "the disk is over disk_clean_forcibly_percent: segments are deleted before their time",
    RetentionFlag.DISK_REFUSES: "the disk is over disk_refuse_percent: no segment is made",
}


@dataclass(frozen=True)
class LaneStatistics:
    """One lane. Positions are bytes of its log; `producer` is a pid, 0 when nobody holds the lane."""

    lane: int
    first: int
    wrote: int
    committed: int
    flushed: int
    dispatched: int
    producer: int = 0
    messages: int = 0
    buffer_waits: int = 0
    """How often its producers had to wait for a free write buffer; then for how long in all and at
    most.
    """
    buffer_wait_ms: float = 0.0
    buffer_wait_max_ms: float = 0.0
    buffer_timeouts: int = 0
    direct_segments: int = 0
    available_buffers: int | None = None
    """Free write buffers; None for a lane that has none now."""
    low_water: int = 0
    """How often none was free for long."""
    locked_bytes: int = 0
    commits: int = 0
    syncs: int = 0
    dispatched_records: int = 0
    faults: dict[str, int] | None = None
    """Stage → errno of what keeps it from going on."""
    put_times: dict[str, int] | None = None
    """RocketMQ's distribution: how many puts took how long."""


@dataclass(frozen=True)
class StageStatistics:
    """One stage process; `pid` 0: there is none now. Times are those of its actions (a commit, a
    sync, a segment made, records placed)."""

    stage: str
    pid: int
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


@dataclass(frozen=True)
class RetentionStatistics:
    """What retention has deleted in this run. `forced`: before their time, for the disk's sake."""

    deleted_segments: int
    deleted_bytes: int
    forced_segments: int
    disk_used_percent: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class StoreStatistics:
    """A whole store. Without a pool (closed properly) there are positions, and neither stages nor
    counters.

    `killed`: its supervisor is gone and has not stopped it properly; the next start goes on with
    what is there.
    """

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

    @property
    def state(self) -> str:
        """In one word: running, closing, killed or stopped."""
        if self.running:
            return "closing" if self.closing else "running"
        return "killed" if self.killed else "stopped"


@dataclass(frozen=True)
class ReaderStatistics:
    """What a reader has given out, and how many bytes of each lane's log lie before it."""

    messages: int
    positions: dict[int, int]
    behind_bytes: dict[int, int]


def store_statistics(view: StoreView, clock: Clock = SYSTEM_CLOCK) -> StoreStatistics:
    """Everything about the store that `view` looks at, now."""
    control, now = view.control, clock.monotonic_ns()
    running = is_running(view.directory, control.region.path.parent if control else None)
    return StoreStatistics(
        path=str(view.directory.path),
        store_id=view.store_id,
        running=running,
        closing=bool(control and control.words[Header.CLOSING]),
        generation=view.facts.generation,
        segment_bytes=view.segment_bytes,
        lanes=tuple(_lane(view, number) for number in view.lanes()),
        stages=tuple(_stage(view, control, name, now) for name in STAGES) if control else (),
        throughput=throughput(control.words, now) if control else (),
        retention=_retention(control.words) if control else None,
        killed=not running and not _stopped_properly(view),
    )


def _stopped_properly(view: StoreView) -> bool:
    """Of a store that does not run: whether its supervisor came to its end."""
    if view.control is not None:
        return view.control.words[Header.SUPERVISOR_PID] == 0
    return all(view.limits(number).stopped_properly for number in view.lanes())


def _lane(view: StoreView, number: int) -> LaneStatistics:
    if view.control is not None and number < LANE_ROWS:
        lane = lane_statistics(view.control, number)
        held = is_leased(view.lane(number), view.control.region.path.parent, view.channel)
        return lane if held else replace(lane, producer=0)  # a producer that was killed has left its pid
    limits = view.limits(number)
    return LaneStatistics(number, limits.first, limits.committed, limits.committed, limits.flushed, limits.dispatched)


def lane_statistics(control: ControlRegion, number: int) -> LaneStatistics:
    """One lane, from its words. Positions are loaded from the last to the first, so that they never
    seem to cross.
    """
    words, base = control.words, control.lane_base(number)
    dispatched, flushed = words[base + Lane.DISPATCHED], words[base + Lane.FLUSHED]
    committed, wrote = words[base + Lane.COMMITTED], words[base + Lane.WROTE]
    size, slots = words[base + Lane.SEGMENT_SIZE], words[base + Lane.SLOTS]
    has_buffers = words[base + Lane.BUFFERS] & 1 and slots and size
    return LaneStatistics(
        lane=number,
        first=words[base + Lane.FIRST],
        wrote=wrote,
        committed=committed,
        flushed=flushed,
        dispatched=dispatched,
        producer=words[base + Lane.LESSEE_PID],
        messages=words[base + Lane.MESSAGES],
        buffer_waits=words[base + Lane.BUFFER_WAITS],
        buffer_wait_ms=words[base + Lane.BUFFER_WAIT_NS] / 1e6,
        buffer_wait_max_ms=words[base + Lane.BUFFER_WAIT_NS_MAX] / 1e6,
        buffer_timeouts=words[base + Lane.BUFFER_TIMEOUTS],
        direct_segments=words[base + Lane.DIRECT_SEGMENTS],
        available_buffers=max(available_buffers(wrote, flushed, size, slots), 0) if has_buffers else None,
        low_water=words[base + Lane.LOW_WATER],
        locked_bytes=words[base + Lane.LOCKED_BYTES],
        commits=words[base + Lane.COMMITS],
        syncs=words[base + Lane.SYNCS],
        dispatched_records=words[base + Lane.DISPATCHED_RECORDS],
        faults={stage: words[base + word] for stage, word in FAULT_WORDS.items() if words[base + word]},
        put_times=dict(zip(PUT_TIME_NAMES, put_times(words, base), strict=True)),
    )


def _stage(view: StoreView, control: ControlRegion, name: str, now_ns: int) -> StageStatistics:
    stage = stage_statistics(control, name, now_ns)
    lives = is_running(view.directory, control.region.path.parent, name)
    return stage if lives else replace(stage, pid=0)  # one that was killed has left its pid


def stage_statistics(control: ControlRegion, name: str, now_ns: int) -> StageStatistics:
    """One stage, from its words."""
    words, base = control.words, control.stage_base(name)
    durations = Histogram.load(words, base + Stage.HISTOGRAM)
    return StageStatistics(
        stage=name,
        pid=words[base + Stage.PID],
        rounds=words[base + Stage.ROUNDS],
        wakeups=words[base + Stage.WAKEUPS],
        actions=words[base + Stage.ACTIONS],
        bad_frames=words[base + Stage.BAD_FRAMES],
        restarts=words[base + Stage.RESTARTS],
        left=words[base + Stage.LEFT],
        silent_ms=max(now_ns - words[base + Stage.HEARTBEAT], 0) / 1e6,
        p50_us=durations.percentile(0.5),
        p99_us=durations.percentile(0.99),
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
