"""Every knob, as frozen dataclasses: its default, its unit in its name, and what is allowed.

`commitlog config` prints the file that documents them one by one, with RocketMQ's names
(`configs/default.toml`). `config_file.py` reads such files through pydantic. Nothing here imports
pydantic, because stages and producers get the checked values from `store.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from commitlog.shm.layout import ALL_STAGES, STAGES

MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES = 1 << 16, 1 << 30
AUTO_SEGMENT_BYTES_MAX = 1 << 26


@dataclass(frozen=True, slots=True)
class Interval:
    """The whole numbers that a knob may be, from `ge` to `le`, both included."""

    ge: int
    le: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Tells pydantic the bounds. It is pydantic's hook for annotations of other packages."""
        return {**handler(source), "ge": self.ge, "le": self.le}


Milliseconds = Annotated[int, Interval(ge=0, le=86_400_000)]
Pages = Annotated[int, Interval(ge=0, le=65_536)]
Percent = Annotated[int, Interval(ge=1, le=100)]


class _Checked:
    """Makes pydantic strict: it converts no value, and refuses a key that it does not know."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class StoreConfig(_Checked):
    """`[store]`. The segment size is used once, when the store is made."""

    segment_bytes: Annotated[int, Interval(ge=0, le=MAX_SEGMENT_BYTES)] = 0
    buffers_per_lane: Annotated[int, Interval(ge=3, le=8)] = 3
    max_lanes: Annotated[int, Interval(ge=1, le=128)] = 16
    write_path: Literal["pool", "direct"] = "pool"
    flush_disk_type: Literal["ASYNC_FLUSH", "SYNC_FLUSH"] = "ASYNC_FLUSH"
    record_crc: bool = True
    lock_memory: bool = True


@dataclass(frozen=True)
class ProducerConfig(_Checked):
    """`[producer]`."""

    buffer_wait_ms: Milliseconds = 5_000
    when_no_buffer: Literal["wait", "write_direct"] = "wait"
    lane_wait_ms: Milliseconds = 1_000
    segment_wait_ms: Milliseconds = 5_000
    sync_flush_timeout_ms: Milliseconds = 5_000


@dataclass(frozen=True)
class CommitterConfig(_Checked):
    """`[committer]`, RocketMQ's CommitRealTimeService."""

    interval_ms: Annotated[int, Interval(ge=1, le=60_000)] = 200
    least_pages: Pages = 0
    thorough_interval_ms: Milliseconds = 200
    linger_ms: Milliseconds = 12
    slice_bytes: Annotated[int, Interval(ge=4_096, le=MAX_SEGMENT_BYTES)] = 1 << 22


@dataclass(frozen=True)
class FlusherConfig(_Checked):
    """`[flusher]`, RocketMQ's FlushRealTimeService and GroupCommitService."""

    interval_ms: Annotated[int, Interval(ge=1, le=60_000)] = 500
    timed: bool = False
    least_pages: Pages = 0
    thorough_interval_ms: Milliseconds = 10_000
    linger_ms: Milliseconds = 12
    positions_interval_ms: Annotated[int, Interval(ge=10, le=600_000)] = 1_000
    retry_ms: Annotated[int, Interval(ge=1, le=60_000)] = 100


@dataclass(frozen=True)
class AllocatorConfig(_Checked):
    """`[allocator]`, RocketMQ's AllocateMappedFileService."""

    interval_ms: Annotated[int, Interval(ge=1, le=60_000)] = 1_000
    segments_ahead: Annotated[int, Interval(ge=1, le=8)] = 2
    lane_idle_ms: Milliseconds = 2_000
    low_water_ms: Milliseconds = 1_000


@dataclass(frozen=True)
class RetentionConfig(_Checked):
    """`[retention]`, RocketMQ's CleanCommitLogService and CleanConsumeQueueService.

    The allocator carries it out.
    """

    reserved_hours: Annotated[int, Interval(ge=0, le=1_000_000)] = 72
    max_bytes: Annotated[int, Interval(ge=0, le=1 << 60)] = 0
    delete_when: str = ""
    disk_max_used_percent: Percent = 75
    disk_clean_forcibly_percent: Percent = 85
    disk_refuse_percent: Percent = 90
    disk_enough_bytes: Annotated[int, Interval(ge=0, le=1 << 60)] = 4 << 30
    interval_ms: Annotated[int, Interval(ge=10, le=3_600_000)] = 10_000
    delete_batch_max: Annotated[int, Interval(ge=1, le=10_000)] = 10

    @property
    def delete_hours(self) -> frozenset[int]:
        """Hours of the day in which segments are deleted for their age."""
        return frozenset(map(int, self.delete_when.split(";"))) if self.delete_when else frozenset(range(24))


@dataclass(frozen=True)
class DispatcherConfig(_Checked):
    """`[dispatcher]`, RocketMQ's ReputMessageService."""

    interval_ms: Annotated[int, Interval(ge=1, le=60_000)] = 1_000
    linger_ms: Milliseconds = 250
    queue_file_entries: Annotated[int, Interval(ge=1_000, le=100_000_000)] = 300_000


@dataclass(frozen=True)
class SupervisorConfig(_Checked):
    """`[supervisor]`."""

    start_wait_ms: Milliseconds = 5_000
    stop_timeout_ms: Milliseconds = 30_000
    hung_after_ms: Annotated[int, Interval(ge=1_000, le=600_000)] = 30_000
    restarts_max: Annotated[int, Interval(ge=1, le=1_000_000)] = 20
    restarts_window_ms: Annotated[int, Interval(ge=1_000, le=3_600_000)] = 60_000


@dataclass(frozen=True)
class ReplicationConfig(_Checked):
    """`[replication]`, RocketMQ's HAService. It runs where there is an address to listen at."""

    role: Literal["ASYNC_MASTER", "SYNC_MASTER"] = "ASYNC_MASTER"
    listen: str = ""
    certificate: str = ""
    key: str = ""
    authority: str = ""
    peers: str = ""
    slave_listen: str = ""
    slaves: str = ""
    allow_plain: bool = False
    slaves_count: bool = False
    min_in_sync: Annotated[int, Interval(ge=1, le=16)] = 1
    slave_timeout_ms: Milliseconds = 3_000
    fall_behind_max_bytes: Annotated[int, Interval(ge=1, le=1 << 60)] = 256 << 20
    heartbeat_ms: Annotated[int, Interval(ge=10, le=3_600_000)] = 5_000
    housekeeping_ms: Annotated[int, Interval(ge=100, le=3_600_000)] = 20_000
    transfer_second_bytes: Annotated[int, Interval(ge=0, le=1 << 40)] = 0
    keep_bytes: Annotated[int, Interval(ge=0, le=1 << 60)] = 1 << 30

    @property
    def enabled(self) -> bool:
        """Whether the store is replicated."""
        return bool(self.listen or self.slave_listen)


@dataclass(frozen=True)
class LogsConfig(_Checked):
    """`[logs]`: what the stages and the supervisor write to `STORE/logs`."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True)
class Config(_Checked):
    """All sections. `Config()` has the values of `configs/default.toml`."""

    store: StoreConfig = field(default_factory=StoreConfig)
    producer: ProducerConfig = field(default_factory=ProducerConfig)
    committer: CommitterConfig = field(default_factory=CommitterConfig)
    flusher: FlusherConfig = field(default_factory=FlusherConfig)
    allocator: AllocatorConfig = field(default_factory=AllocatorConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    dispatcher: DispatcherConfig = field(default_factory=DispatcherConfig)
    supervisor: SupervisorConfig = field(default_factory=SupervisorConfig)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    logs: LogsConfig = field(default_factory=LogsConfig)

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages that a store with this configuration has."""
        return ALL_STAGES if self.replication.enabled else STAGES

    def to_json(self) -> dict[str, Any]:
        """Returns the configuration as plain values, in the form of `store.json`."""
        return asdict(self)

    def reloaded(self, new: Config) -> tuple[Config, dict[str, str]]:
        """Says what happens when a running store with this configuration gets another one.

        Returns the configuration that the store has then, and when each changed knob takes effect.
        A knob that needs a restart keeps its value.
        """
        values, changed = self.to_json(), {}
        for section, knobs in new.to_json().items():
            for knob, value in knobs.items():
                if value != values[section][knob]:
                    key = f"{section}.{knob}"
                    when = changed[key] = WHEN_CHANGED.get(key, WHEN_CHANGED[section])
                    if when in (AT_ONCE, NEW_PRODUCERS):
                        values[section][knob] = value
        return Config.from_json(values), changed

    @classmethod
    def from_json(cls, values: Mapping[str, Mapping[str, Any]]) -> Config:
        """Makes a Config from the values of a `store.json`, which a start has checked.

        Unknown keys are skipped.
        """
        sections: dict[str, Any] = {}
        for name, kind in SECTIONS.items():
            known = kind.__dataclass_fields__
            sections[name] = kind(**{key: value for key, value in values.get(name, {}).items() if key in known})
        return cls(**sections)


SECTIONS: dict[str, Any] = {name: section.default_factory for name, section in Config.__dataclass_fields__.items()}
"""Each section's class."""

AT_ONCE, NEW_PRODUCERS = "holds at once", "holds for producers that are made from now on"
RESTART, NEW_STORE = "needs a restart", "needs a new store"

WHEN_CHANGED = {
    "store": RESTART,
    "store.segment_bytes": NEW_STORE,
    "producer": NEW_PRODUCERS,
    "committer": AT_ONCE,
    "flusher": AT_ONCE,
    "allocator": AT_ONCE,
    "retention": AT_ONCE,
    "dispatcher": AT_ONCE,
    "dispatcher.queue_file_entries": RESTART,
    "supervisor": AT_ONCE,
    "replication": RESTART,
    "logs": RESTART,
}
"""When a changed knob takes effect in a running store: by section, or by knob."""
assert SECTIONS.keys() <= WHEN_CHANGED.keys()
