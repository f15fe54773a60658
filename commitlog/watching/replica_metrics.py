"""The metrics of replicas, as the store sees them that they follow."""

from __future__ import annotations

from collections.abc import Callable

from commitlog.disk.replica_files import ReplicaState
from commitlog.watching.metric import Kind, Metric, of_lane


def _of_replicas(name: str, kind: Kind, meaning: str, value: Callable[[ReplicaState], float]) -> Metric:
    return Metric(
        name,
        kind,
        ("replica",),
        meaning,
        lambda snapshot: (((replica.name,), value(replica)) for replica in snapshot.replicas),
    )


REPLICA_METRICS = (
    of_lane("commitlog_lane_in_sync_replicas", "gauge", "Replicas in sync", lambda lane: lane.in_sync),
    _of_replicas("commitlog_replica_connected", "gauge", "1 while it is connected", lambda replica: replica.connected),
    _of_replicas(
        "commitlog_replica_behind_bytes",
        "gauge",
        "What it lacks of what is flushed",
        lambda replica: replica.behind_bytes,
    ),
    _of_replicas(
        "commitlog_replica_behind_since_time_seconds",
        "gauge",
        "Since when it lacks what it lacks now, in seconds since 1970; 0 where it has all",
        lambda replica: replica.behind_since_ms / 1000,
    ),
    _of_replicas(
        "commitlog_replica_sent_bytes_total", "counter", "Bytes sent to it", lambda replica: replica.sent_bytes
    ),
    _of_replicas("commitlog_replica_connects_total", "counter", "How often it came", lambda replica: replica.connects),
    _of_replicas(
        "commitlog_replica_in_sync_lanes",
        "gauge",
        "Lanes in which it is in sync",
        lambda replica: len(replica.in_sync),
    ),
    Metric(
        "commitlog_replica_acknowledged_bytes",
        "gauge",
        ("replica", "lane"),
        "How far it has the log of a lane: a position",
        lambda snapshot: (
            ((replica.name, str(lane)), where)
            for replica in snapshot.replicas
            for lane, where in replica.acknowledged.items()
        ),
    ),
)
