"""Every metric of a store: name, type, labels, meaning, and how a snapshot gives its samples.

The names are Prometheus' own style: `commitlog_` first, base units (seconds, bytes, ratios from 0
to 1), counters end in `_total`. Each sample also has the label `store`, the store's path.
docs/metrics.md has the same table.

Counters begin with the pool, so a store that is stopped has none, and they begin at 0 after the
next start. Positions are gauges: a start after a power loss may find a log shorter than it was.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from commitlog.client.statistics import RETENTION_WORDS
from commitlog.native import description
from commitlog.reading.reader_states import ReaderState
from commitlog.watching.forwarder_metrics import FORWARDER_METRICS
from commitlog.watching.health import health
from commitlog.watching.metric import (
    Metric,
    Sample,
    durations,
    live_lanes,
    of_lane,
    of_process,
    of_retention,
    of_stage,
    of_store,
    position,
    put_times,
)
from commitlog.watching.replica_metrics import REPLICA_METRICS
from commitlog.watching.server_metrics import SERVER_METRICS
from commitlog.watching.snapshot import StoreSnapshot, TopicCount

# ---- samples that are more than a field --------------------------------------------------------


@cache
def _version() -> str:
    try:
        return version("pyspark-commitlog")
    except PackageNotFoundError:  # a directory on the path, which nobody has installed
        return ""


def _info(snapshot: StoreSnapshot) -> Iterator[Sample]:
    facts = snapshot.statistics
    yield (_version(), description, facts.store_id, str(facts.generation)), 1


def _states(snapshot: StoreSnapshot) -> Iterator[Sample]:
    for state in ("running", "closing", "killed", "stopped"):
        yield (state,), state == snapshot.statistics.state


def _statuses(snapshot: StoreSnapshot) -> Iterator[Sample]:
    now = health(snapshot).status
    for status in ("good", "degraded", "down"):
        yield (status,), status == now


def _reasons(snapshot: StoreSnapshot) -> Iterable[Sample]:
    return Counter((reason.code, reason.severity) for reason in health(snapshot).reasons).items()


def _backup_age(snapshot: StoreSnapshot) -> float | None:
    if snapshot.backed_up_ms is None:
        return None
    return max(snapshot.time_ms - snapshot.backed_up_ms, 0) / 1000


def _retention_warnings(snapshot: StoreSnapshot) -> Iterator[Sample]:
    retention = snapshot.statistics.retention
    if retention is not None:
        for flag, text in RETENTION_WORDS.items():
            yield (str(flag.name).lower(),), text in retention.warnings


def _faults(snapshot: StoreSnapshot) -> Iterator[Sample]:
    for lane in snapshot.statistics.lanes:
        for stage, code in (lane.faults or {}).items():
            yield (str(lane.lane), stage, errno.errorcode.get(code, str(code))), 1


def _waits(ms_of: Callable[[StoreSnapshot], Mapping[int, float]]) -> Callable[[StoreSnapshot], Iterator[Sample]]:
    """Seconds for each lane; 0 for a lane where nothing waits."""
    return lambda snapshot: (
        ((str(lane.lane),), ms_of(snapshot).get(lane.lane, 0) / 1000) for lane in live_lanes(snapshot)
    )


def _damaged_ranges(snapshot: StoreSnapshot) -> Iterator[Sample]:
    for lane in snapshot.statistics.lanes:
        yield (str(lane.lane),), snapshot.damaged_ranges.get(lane.lane, 0)


def _put_durations(snapshot: StoreSnapshot) -> Iterator[Sample]:
    return (((str(lane.lane),), found) for lane in snapshot.statistics.lanes for found in put_times(lane))


def _action_durations(snapshot: StoreSnapshot) -> Iterator[Sample]:
    return (((stage,), durations(histogram)) for stage, histogram in snapshot.durations.items())


def _topics(value: Callable[[TopicCount], float]) -> Callable[[StoreSnapshot], Iterator[Sample]]:
    return lambda snapshot: (((one.topic, str(one.lane)), value(one)) for one in snapshot.topics)


def _readers_by_topic(
    lanes_of: Callable[[ReaderState], Mapping[str, Mapping[int, int]] | None],
) -> Callable[[StoreSnapshot], Iterator[Sample]]:
    """Sums over the lanes, for each reader and topic: a sample for each lane would be too many."""
    return lambda snapshot: (
        ((reader.name, topic), sum(lanes.values()))
        for reader in snapshot.readers
        for topic, lanes in (lanes_of(reader) or {}).items()
    )


def _progress_ages(snapshot: StoreSnapshot) -> Iterator[Sample]:
    """Only of readers whose position can be read."""
    return (((reader.name,), reader.still_ms / 1000) for reader in snapshot.readers if reader.lag is not None)


def _ms(value: float | None) -> float | None:
    """Milliseconds in seconds."""
    return None if value is None else value / 1000


# ---- the table ---------------------------------------------------------------------------------

UP = of_store("commitlog_up", "gauge", "1 if the store could be read at this scrape, else 0", lambda _: 1)

STORE_METRICS = (
    UP,
    Metric(
        "commitlog_store_info",
        "info",
        ("version", "core", "store_id", "generation"),
        "The package and the native core that read the store, the store's id, and the number of its start",
        _info,
    ),
    Metric(
        "commitlog_store_state",
        "gauge",
        ("state",),
        "1 for the store's state: running, closing, killed or stopped",
        _states,
    ),
    of_store(
        "commitlog_store_behind_seconds",
        "gauge",
        "Of a replica: for how long it may lack what it lacks now; 0: it has all, or is no replica",
        lambda snapshot: snapshot.statistics.replica_behind_ms / 1000,
    ),
    of_store(
        "commitlog_store_starting",
        "gauge",
        "1 while the store is being opened; the recovery of a large one takes a while",
        lambda snapshot: snapshot.statistics.starting,
    ),
    of_store(
        "commitlog_supervisor_heartbeat_age_seconds",
        "gauge",
        "Since the supervisor's last heartbeat",
        lambda snapshot: _ms(snapshot.statistics.supervisor_silent_ms),
    ),
    Metric(
        "commitlog_health_status", "gauge", ("status",), "1 for the store's health: good, degraded or down", _statuses
    ),
    Metric(
        "commitlog_health_reasons",
        "gauge",
        ("code", "severity"),
        "How often this reason keeps the store from being good; no sample for reasons that do not hold",
        _reasons,
    ),
    of_store(
        "commitlog_backup_age_seconds",
        "gauge",
        "Since the end of the last good `commitlog backup` of the store; none where no backup is known",
        _backup_age,
    ),
    of_store(
        "commitlog_segment_size_bytes",
        "gauge",
        "Size of a segment file",
        lambda snapshot: snapshot.statistics.segment_bytes,
    ),
    of_store(
        "commitlog_disk_used_bytes", "gauge", "Used of the disk that has the store", lambda now: now.space.disk_used
    ),
    of_store(
        "commitlog_disk_free_bytes",
        "gauge",
        "What this user may still use of that disk",
        lambda now: now.space.disk_free,
    ),
    of_store(
        "commitlog_shared_memory_used_bytes",
        "gauge",
        "Used of the file system in memory that has the pool",
        lambda now: now.space.shared_memory_used,
    ),
    of_store(
        "commitlog_shared_memory_free_bytes",
        "gauge",
        "What this user may still use of that memory",
        lambda now: now.space.shared_memory_free,
    ),
    of_store(
        "commitlog_pool_size_bytes", "gauge", "What the store's pool takes of that memory", lambda now: now.space.pool
    ),
)

RETENTION_METRICS = (
    of_retention(
        "commitlog_retention_deleted_segments_total", "counter", "Segments deleted", lambda done: done.deleted_segments
    ),
    of_retention(
        "commitlog_retention_deleted_bytes_total", "counter", "Bytes of these segments", lambda done: done.deleted_bytes
    ),
    of_retention(
        "commitlog_retention_forced_segments_total",
        "counter",
        "Segments deleted before their time, because the disk was too full",
        lambda done: done.forced_segments,
    ),
    of_retention(
        "commitlog_retention_disk_used_ratio",
        "gauge",
        "How full the disk is, as retention sees it: 0 to 1",
        lambda done: done.disk_used_percent / 100,
    ),
    Metric(
        "commitlog_retention_warning",
        "gauge",
        ("reason",),
        "1 while this hinders retention: clock_jumped, held_by_reader, disk_high, disk_forces, disk_refuses, not_deleted",
        _retention_warnings,
    ),
)

LANE_METRICS = (
    position("commitlog_lane_first_bytes", "Where the log begins: what is below was deleted", lambda lane: lane.first),
    position("commitlog_lane_wrote_bytes", "Position up to which messages are accepted", lambda lane: lane.wrote),
    position("commitlog_lane_committed_bytes", "Position up to which they are written", lambda lane: lane.committed),
    position("commitlog_lane_flushed_bytes", "Position up to which they are durable", lambda lane: lane.flushed),
    position(
        "commitlog_lane_replicated_bytes",
        "Position up to which all in-sync replicas have them; 0 without replicas",
        lambda lane: lane.replicated,
    ),
    position("commitlog_lane_dispatched_bytes", "Position up to which they are indexed", lambda lane: lane.dispatched),
    of_lane("commitlog_lane_leased", "gauge", "1 while a producer holds the lane", lambda lane: lane.producer != 0),
    of_lane("commitlog_lane_messages_total", "counter", "Messages accepted", lambda lane: lane.messages),
    of_lane(
        "commitlog_lane_last_flush_age_seconds",
        "gauge",
        "Since the last sync; none before the first one",
        lambda lane: _ms(lane.flushed_ms_ago),
    ),
    Metric(
        "commitlog_lane_blocked_seconds",
        "gauge",
        ("lane",),
        "For how long its producer has been waiting for a write buffer now; 0: it does not wait",
        _waits(lambda snapshot: snapshot.blocked_ms),
    ),
    Metric(
        "commitlog_lane_unflushed_seconds",
        "gauge",
        ("lane",),
        "For how long its oldest committed message has been waiting to be flushed; 0: none waits",
        _waits(lambda snapshot: snapshot.unflushed_ms),
    ),
    Metric(
        "commitlog_lane_undispatched_seconds",
        "gauge",
        ("lane",),
        "For how long its oldest flushed message has been waiting to be indexed; 0: none waits",
        _waits(lambda snapshot: snapshot.undispatched_ms),
    ),
    Metric(
        "commitlog_lane_stored_ahead_seconds",
        "gauge",
        ("lane",),
        "How much later than now its newest message is stored, by a clock that was ahead; 0: it is not",
        _waits(lambda snapshot: snapshot.ahead_ms),
    ),
    Metric(
        "commitlog_lane_damaged_ranges",
        "gauge",
        ("lane",),
        "Damaged ranges of its log that were noted; `commitlog verify` names them",
        _damaged_ranges,
    ),
    Metric(
        "commitlog_lane_fault",
        "gauge",
        ("lane", "stage", "error"),
        "1 for an error that keeps a stage from going on with the lane, such as ENOSPC; else no sample",
        _faults,
    ),
    of_lane(
        "commitlog_lane_buffer_waits_total",
        "counter",
        "Waits of producers for a write buffer",
        lambda lane: lane.buffer_waits,
    ),
    of_lane(
        "commitlog_lane_buffer_wait_seconds_total",
        "counter",
        "Time of these waits",
        lambda lane: _ms(lane.buffer_wait_ms),
    ),
    of_lane(
        "commitlog_lane_buffer_wait_max_seconds",
        "gauge",
        "The longest of these waits since the pool was made",
        lambda lane: _ms(lane.buffer_wait_max_ms),
    ),
    of_lane(
        "commitlog_lane_buffer_timeouts_total",
        "counter",
        "Waits that ended in NoBufferAvailable",
        lambda lane: lane.buffer_timeouts,
    ),
    of_lane("commitlog_lane_available_buffers", "gauge", "Free write buffers", lambda lane: lane.available_buffers),
    of_lane(
        "commitlog_lane_low_water_total",
        "counter",
        "How often no buffer was free for long",
        lambda lane: lane.low_water,
    ),
    of_lane(
        "commitlog_lane_direct_segments_total",
        "counter",
        "Segments that a producer wrote itself, because no buffer was free",
        lambda lane: lane.direct_segments,
    ),
    of_lane(
        "commitlog_lane_locked_bytes",
        "gauge",
        "Of its write buffers, locked into memory",
        lambda lane: lane.locked_bytes,
    ),
    of_lane("commitlog_lane_commits_total", "counter", "Commits", lambda lane: lane.commits),
    of_lane("commitlog_lane_syncs_total", "counter", "Syncs (fdatasync)", lambda lane: lane.syncs),
    of_lane(
        "commitlog_lane_dispatched_records_total", "counter", "Records indexed", lambda lane: lane.dispatched_records
    ),
    Metric(
        "commitlog_lane_put_duration_seconds",
        "histogram",
        ("lane",),
        "How long puts took, in RocketMQ's buckets; all that did not wait are in the first one",
        _put_durations,
    ),
)

STAGE_METRICS = (
    of_stage("commitlog_stage_running", "gauge", "1 while the stage has a process", lambda stage: stage.pid != 0),
    of_stage(
        "commitlog_stage_heartbeat_age_seconds",
        "gauge",
        "Since its last heartbeat",
        lambda stage: stage.silent_ms / 1000,
    ),
    of_stage(
        "commitlog_stage_start_time_seconds",
        "gauge",
        "When it began to work, in seconds since 1970",
        lambda stage: stage.started_ms / 1000 if stage.started_ms else None,
    ),
    of_stage(
        "commitlog_stage_restarts_total", "counter", "How often it was started again", lambda stage: stage.restarts
    ),
    of_stage("commitlog_stage_rounds_total", "counter", "Rounds", lambda stage: stage.rounds),
    of_stage("commitlog_stage_wakeups_total", "counter", "Rounds that a wakeup began", lambda stage: stage.wakeups),
    of_stage(
        "commitlog_stage_actions_total",
        "counter",
        "Commits, syncs, segments made, slices of a log indexed",
        lambda stage: stage.actions,
    ),
    Metric(
        "commitlog_stage_action_duration_seconds",
        "histogram",
        ("stage",),
        "How long these actions took",
        _action_durations,
    ),
    of_stage(
        "commitlog_stage_bad_frames_total",
        "counter",
        "Frames that no process of ours has sent",
        lambda stage: stage.bad_frames,
    ),
    of_stage(
        "commitlog_stage_left", "gauge", "Bytes or steps that it left undone at the last stop", lambda stage: stage.left
    ),
    of_process(
        "commitlog_stage_cpu_seconds_total", "counter", "CPU time of its process", lambda usage: usage.cpu_seconds
    ),
    of_process(
        "commitlog_stage_resident_memory_bytes",
        "gauge",
        "Resident memory of its process",
        lambda usage: usage.resident_bytes,
    ),
)

TOPIC_METRICS = (
    Metric(
        "commitlog_topic_first_offset",
        "gauge",
        ("topic", "lane"),
        "Offset of the oldest message",
        _topics(lambda one: one.first),
    ),
    Metric(
        "commitlog_topic_end_offset",
        "gauge",
        ("topic", "lane"),
        "Offset of the next message",
        _topics(lambda one: one.end),
    ),
)

READER_METRICS = (
    Metric(
        "commitlog_reader_running",
        "gauge",
        ("reader", "kind"),
        "1 while a process reads under the name; kind is python, spark, forward, or empty if its position can't be read",
        lambda snapshot: (((reader.name, reader.kind), reader.running) for reader in snapshot.readers),
    ),
    Metric(
        "commitlog_reader_behind_messages",
        "gauge",
        ("reader", "topic"),
        "Messages of the topic that it has not read, over all lanes",
        _readers_by_topic(lambda reader: reader.lag),
    ),
    Metric(
        "commitlog_reader_offset",
        "gauge",
        ("reader", "topic"),
        "Its offsets in the topic, added up over all lanes",
        _readers_by_topic(lambda reader: reader.offsets),
    ),
    Metric("commitlog_reader_progress_age_seconds", "gauge", ("reader",), "Since it last moved", _progress_ages),
    Metric(
        "commitlog_reader_warning",
        "gauge",
        ("reader",),
        "1 while `commitlog readers` warns of it: its position can't be read, or it stands still",
        lambda snapshot: (((reader.name,), bool(reader.warning)) for reader in snapshot.readers),
    ),
)

METRICS = (
    *STORE_METRICS,
    *RETENTION_METRICS,
    *LANE_METRICS,
    *STAGE_METRICS,
    *TOPIC_METRICS,
    *READER_METRICS,
    *SERVER_METRICS,
    *REPLICA_METRICS,
    *FORWARDER_METRICS,
)
