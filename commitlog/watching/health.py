"""Whether a store does its work: `health(snapshot)`, one answer for every tool.

It looks at nothing but the snapshot, so the same snapshot always gives the same answer. Each reason
has a code that later versions keep. docs/operate.md lists all codes.

A store is *down* if it takes no messages, or if nobody watches over its stages: to start it again
is the way out. It is *degraded* if it works and something needs somebody's eyes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from commitlog.errors import FAULT_BY_ERRNO, DiskError
from commitlog.quantities import counted
from commitlog.reading.named_readers import STANDS_STILL_MS
from commitlog.shm.counters import RetentionFlag
from commitlog.shm.row_check import WORDS_DAMAGED
from commitlog.statistics import RETENTION_WORDS, StoreStatistics
from commitlog.watching.snapshot import StoreSnapshot

Severity = Literal["degraded", "down"]

CODES: dict[str, Severity] = {
    "unreadable": "down",
    "stopped": "down",
    "killed": "down",
    "closing": "down",
    "starting": "down",
    "supervisor-silent": "down",
    "lane-lost": "degraded",
    "only-in-memory": "degraded",
    "stage-gone": "degraded",
    "stage-silent": "degraded",
    "stage-restarts": "degraded",
    "lane-words-damaged": "degraded",
    "stage-fault": "degraded",
    "producer-blocked": "degraded",
    "unflushed": "degraded",
    "undispatched": "degraded",
    "reader-behind": "degraded",
    "reader-still": "degraded",
    "reader-unreadable": "degraded",
    "replica-gone": "degraded",
    "replica-behind": "degraded",
    "not-listening": "degraded",
    "file-not-copied": "degraded",
    "forwarder-waiting": "degraded",
    "clock-jumped": "degraded",
    "stored-ahead": "degraded",
    "disk-high": "degraded",
    "disk-forces": "degraded",
    "disk-refuses": "degraded",
    "not-deleted": "degraded",
    "disk-nearly-full": "degraded",
    "shared-memory-nearly-full": "degraded",
    "damage-noted": "degraded",
    "index-damaged": "degraded",
    "file-damaged": "degraded",
}
"""Every code, and how bad it is; in the order in which reasons are told."""

_RETENTION_CODES = {
    RetentionFlag.CLOCK_JUMPED: ("clock-jumped", "set the clock right, or start the store again"),
    RetentionFlag.DISK_HIGH: ("disk-high", "free space, or lower retention.reserved_hours or retention.max_bytes"),
    RetentionFlag.DISK_FORCES: ("disk-forces", "free space: readers lose what they have not read"),
    RetentionFlag.DISK_REFUSES: ("disk-refuses", "free space: producers wait, then raise DiskFull"),
    RetentionFlag.NOT_DELETED: ("not-deleted", "logs/allocator.log says why: mend owner, permissions or the disk"),
}
_AHEAD_MS = 60_000
"""Clocks of machines differ by less than this, so it is no jump."""
_RESTARTS_MS = 600_000
"""A restart longer ago than this is forgotten."""
_ENOUGH_BYTES = 4 << 30
"""If this many bytes are free, nothing counts as nearly full, whatever the percentage says."""


@dataclass(frozen=True)
class Reason:
    """Why a store is not good. The code says which of the last four fields it has."""

    code: str
    """Its name, one of `CODES`."""
    severity: Severity
    text: str
    """What is wrong: one sentence."""
    way_out: str
    """What to do; empty where the text says it."""
    stage: str = ""
    lanes: tuple[int, ...] = ()
    reader: str = ""
    replica: str = ""

    @property
    def said(self) -> str:
        """What is wrong, then what to do: what people are shown."""
        return "; ".join(filter(None, (self.text, self.way_out)))


@dataclass(frozen=True)
class Health:
    """The health of a store. `reasons` has the worst reasons first; a good store has none."""

    status: Literal["good", "degraded", "down"]
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class HealthLimits:
    """The limits beyond which something is a reason."""

    silent_ms: int = 5_000
    """A stage, or the supervisor, has given no heartbeat for this long."""
    restarts: int = 3
    """A stage has died this often, the last time within ten minutes."""
    blocked_ms: int = 1_000
    """A producer has been waiting this long for a write buffer."""
    unflushed_ms: int = 30_000
    """A message has been committed this long, and is not flushed."""
    undispatched_ms: int = 60_000
    """A message is this old and flushed, and not in the consume queues."""
    reader_behind: int = 0
    """A named reader has not read more messages than this; 0: no limit."""
    reader_still_ms: int = STANDS_STILL_MS
    """A named reader is behind and has not moved for this long."""
    replica_behind_ms: int = 30_000
    """A connected replica has lacked something that is flushed for this long."""
    full_percent: int = 95
    """The disk or the shared memory is fuller than this, and less than 4 GiB are free."""
    ignored: frozenset[str] = field(default_factory=frozenset)
    """Codes that are no reason."""


DEFAULT_LIMITS = HealthLimits()


def health(snapshot: StoreSnapshot, limits: HealthLimits = DEFAULT_LIMITS) -> Health:
    """The health of the store at the moment of the snapshot."""
    found = [*_store(snapshot.statistics, limits), *_only_in_memory(snapshot.statistics)]
    if not found or found[0].code == "supervisor-silent":
        found += _stages(snapshot.statistics, snapshot.time_ms, limits)
        found += _lanes(snapshot, limits)
        found += _readers(snapshot, limits)
        found += _replicas(snapshot, limits)
        found += _replication(snapshot)
        found += _forwarders(snapshot)
        found += _retention(snapshot.statistics)
        found += _ahead(snapshot)
    found += _room(snapshot, limits, {reason.code for reason in found})
    found += _damage(snapshot)
    return in_order(reason for reason in found if reason.code not in limits.ignored)


def unreadable(error: Exception) -> Health:
    """The health of a store whose snapshot can't be taken, for this error."""
    text, way_out = str(error), ""
    if isinstance(error, PermissionError):
        text, way_out = f"{error.filename}: {error.strerror}", "run as its owner"
    return in_order([_reason("unreadable", f"{' '.join(text.split())} [{type(error).__name__}]", way_out)])


def in_order(reasons: Iterable[Reason]) -> Health:
    """The health that has these reasons, in the order of `CODES`."""
    order = list(CODES)
    ordered = tuple(sorted(reasons, key=lambda reason: order.index(reason.code)))
    return Health(ordered[0].severity if ordered else "good", ordered)


def _reason(
    code: str,
    text: str,
    way_out: str,
    *,
    stage: str = "",
    lanes: tuple[int, ...] = (),
    reader: str = "",
    replica: str = "",
) -> Reason:
    return Reason(code, CODES[code], text, way_out, stage, lanes, reader, replica)


def _store(facts: StoreStatistics, limits: HealthLimits) -> Iterator[Reason]:
    run = f"`commitlog run {facts.path}`"
    silent_ms = facts.supervisor_silent_ms or 0.0
    if facts.superseded_by and not facts.running:
        text = f"a replica of this store was promoted ({facts.superseded_by})"
        yield _reason("stopped", text, f"send to that one, and `commitlog rejoin {facts.path} --from HOST:PORT`")
    elif facts.killed:
        yield _reason("killed", "the store was killed, or its machine went down", f"{run} continues it")
    elif facts.replica_of:
        yield from _own_replica(facts, limits)
    elif not facts.running:
        yield _reason("stopped", "the store does not run", f"{run} starts it")
    elif facts.starting:
        log = f"{facts.path}/logs/supervisor.log"
        yield _reason("starting", "the store is being opened, and no stage runs yet", f"wait; see {log}")
    elif facts.closing:
        yield _reason("closing", "the store drains and stops", f"{run} starts it again")
    elif silent_ms > limits.silent_ms:
        text = f"the supervisor has given no heartbeat for {_time(silent_ms)}, and starts no stage again that dies"
        yield _reason("supervisor-silent", text, f"kill it (its pid is in {facts.path}/lock); then {run}")


def _only_in_memory(facts: StoreStatistics) -> Iterator[Reason]:
    """The reason for accepted messages that a stopped store has only in memory."""
    lanes = tuple(lane.lane for lane in facts.lanes if lane.wrote > lane.flushed)
    if lanes and not facts.running:
        count = sum(max(lane.wrote - lane.flushed, 0) for lane in facts.lanes)
        text = f"{_name(lanes)}: {counted(count, 'byte')} that were accepted are only in memory"
        way_out = f"`commitlog run {facts.path}` writes them to the disk; a restart of the machine would lose them"
        yield _reason("only-in-memory", text, way_out, lanes=lanes)


def _own_replica(facts: StoreStatistics, limits: HealthLimits) -> Iterator[Reason]:
    """What is wrong with a directory that is itself a replica."""
    if not facts.running:
        text = f"it is a replica of {facts.replica_of}, and no `commitlog replica` keeps it up to date"
        promote = f", or `commitlog promote {facts.path}`" if facts.replica_complete else ": it is not whole yet"
        yield _reason("stopped", text, f"start that again{promote}")
    elif facts.replica_behind_ms > limits.replica_behind_ms:
        waits = f"; it waits for {facts.replica_waits_for}" if facts.replica_waits_for else ""
        text = f"it is a replica of {facts.replica_of}, and had all of that {_time(facts.replica_behind_ms)} ago{waits}"
        yield _reason("replica-behind", text, "see what `commitlog replica` says")


def _stages(facts: StoreStatistics, now_ms: int, limits: HealthLimits) -> Iterator[Reason]:
    for stage in facts.stages:
        name, log = stage.stage, f"{facts.path}/logs/{stage.stage}.log"
        if not stage.pid:
            text = f"the {name} does not run"
            yield _reason("stage-gone", text, f"the supervisor starts it again; if it stays so, see {log}", stage=name)
        elif stage.silent_ms > limits.silent_ms:
            text = f"the {name} has given no heartbeat for {_time(stage.silent_ms)}"
            yield _reason(
                "stage-silent", text, "wait, the supervisor restarts it after supervisor.hung_after_ms", stage=name
            )
        ago_ms = now_ms - stage.started_ms
        if stage.restarts >= limits.restarts and ago_ms < _RESTARTS_MS:
            text = f"the {name} was restarted {counted(stage.restarts, 'time')}, the last time {_time(ago_ms)} ago"
            yield _reason("stage-restarts", text, f"see {log}", stage=name)


def _lanes(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[Reason]:
    yield from _faults(snapshot.statistics)
    for code, waits, limit_ms, what, way_out in (
        (
            "producer-blocked",
            snapshot.blocked_ms,
            limits.blocked_ms,
            "producers wait for a write buffer",
            _why_blocked(snapshot.statistics, limits),
        ),
        (
            "unflushed",
            snapshot.unflushed_ms,
            limits.unflushed_ms,
            "messages are committed and not flushed",
            f"see {snapshot.statistics.path}/logs/flusher.log",
        ),
        (
            "undispatched",
            snapshot.undispatched_ms,
            limits.undispatched_ms,
            "messages are flushed and not in the consume queues, which makes readers slow",
            f"see {snapshot.statistics.path}/logs/dispatcher.log",
        ),
    ):
        late = tuple(lane for lane, wait_ms in waits.items() if wait_ms > limit_ms)
        if late:
            text = f"{_name(late)}: {what}, for {_time(max(waits[lane] for lane in late))} at most"
            yield _reason(code, text, way_out, lanes=late)


def _why_blocked(facts: StoreStatistics, limits: HealthLimits) -> str:
    """Why producers wait, and the way out: a stage that hangs or is gone, or a slow disk."""
    for stage in facts.stages:
        if stage.stage in ("committer", "flusher") and (not stage.pid or stage.silent_ms > limits.silent_ms):
            return f"the {stage.stage} does nothing; see {facts.path}/logs/{stage.stage}.log"
    return "the disk does not keep up: a quicker disk, or store.buffers_per_lane"


def _faults(facts: StoreStatistics) -> Iterator[Reason]:
    """One reason for each stage and errno: a full disk stops many lanes."""
    met: dict[tuple[str, int], tuple[int, ...]] = {}
    for lane in facts.lanes:
        for stage, code in (lane.faults or {}).items():
            met[stage, code] = (*met.get((stage, code), ()), lane.lane)
    damaged = {lane for (_, code), lanes in met.items() if code == WORDS_DAMAGED for lane in lanes}
    if damaged:
        text = f"{_name(tuple(sorted(damaged)))}: somebody has written over its words in shared memory; it is set aside"
        way_out = f"start the store again: that recovers the lane; {facts.path}/logs/committer.log says more"
        yield _reason("lane-words-damaged", text, way_out, lanes=tuple(sorted(damaged)))
    for (stage, code), lanes in met.items():
        if code == WORDS_DAMAGED:
            continue
        name = errno.errorcode.get(code, str(code))
        said = f", {os.strerror(code)}" if code in errno.errorcode else ""
        text = f"{_name(lanes)}: the {stage} can't go on: {name}{said}"
        yield _reason("stage-fault", text, FAULT_BY_ERRNO.get(code, DiskError).hint, stage=stage, lanes=lanes)


def _readers(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[Reason]:
    path = snapshot.statistics.path
    for reader in snapshot.readers:
        name, behind = reader.name, f"{counted(reader.behind, 'message')} behind"
        if reader.lag is None:
            yield _reason("reader-unreadable", reader.warning, "", reader=name)
        if limits.reader_behind and reader.behind > limits.reader_behind:
            yield _reason("reader-behind", f"reader {name} is {behind}", "more readers, or quicker ones", reader=name)
        if reader.behind and reader.still_ms >= limits.reader_still_ms:
            text = f"reader {name} has not moved for {_time(reader.still_ms)}, and is {behind}"
            way_out = f"start it again, or `commitlog readers {path} --remove {name}`"
            yield _reason("reader-still", text, way_out, reader=name)


def _replicas(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[Reason]:
    path = snapshot.statistics.path
    for replica in snapshot.replicas:
        name, behind = replica.name, f"{counted(replica.behind_bytes, 'byte')} behind"
        late_ms = replica.behind_ms(snapshot.time_ms)
        if not replica.connected:
            why = f": {replica.refusal}" if replica.refusal else ""
            way_out = f"start it again, or `commitlog replicas {path} --forget {name}`"
            yield _reason("replica-gone", f"replica {name} is not connected{why}", way_out, replica=name)
        elif late_ms > limits.replica_behind_ms:
            text = f"replica {name} is {behind}, for {_time(late_ms)}"
            yield _reason("replica-behind", text, "a quicker disk or network there", replica=name)


def _replication(snapshot: StoreSnapshot) -> Iterator[Reason]:
    """What the HAService can't do. The text of a damaged file has its own way out."""
    troubles = snapshot.troubles
    for address, why in troubles.shut.items():
        way_out = "mend that, and it opens by itself; what [replication] says needs a restart"
        yield _reason("not-listening", f"no replica can come to {address}: {why}", way_out)
    for name, why in troubles.damaged.items():
        yield _reason("file-not-copied", f"replicas keep the {name} that they have: {why}", "")


def _forwarders(snapshot: StoreSnapshot) -> Iterator[Reason]:
    for one in snapshot.forwarders:
        if one.state == "waiting":
            waits = f"{counted(one.behind_messages, 'message')} wait for {_time(one.behind_ms)} at most"
            text = f"forwarder {one.name}: {one.target} does not answer; {waits}"
            yield _reason("forwarder-waiting", text, "`commitlog stat` has its last error", reader=one.name)


def _retention(facts: StoreStatistics) -> Iterator[Reason]:
    warnings = facts.retention.warnings if facts.retention else ()
    for flag, (code, way_out) in _RETENTION_CODES.items():
        if RETENTION_WORDS[flag] in warnings:
            yield _reason(code, RETENTION_WORDS[flag], way_out)


def _ahead(snapshot: StoreSnapshot) -> Iterator[Reason]:
    """The reason for lanes that were written to by a clock that was ahead.

    The clock may be right again. The next messages of such a lane keep its last time, because times
    in a lane never go back.
    """
    lanes = tuple(lane for lane, ahead_ms in snapshot.ahead_ms.items() if ahead_ms > _AHEAD_MS)
    if lanes:
        late = _time(max(snapshot.ahead_ms[lane] for lane in lanes))
        text = f"{_name(lanes)}: the newest message is stored {late} later than now, and so are the next ones"
        way_out = (
            "set the clock if it is behind; if it was ahead, nothing of this goes for its age until then, and a search by "
            "time finds too much: retention.max_bytes limits it"
        )
        yield _reason("stored-ahead", text, way_out, lanes=lanes)


def _room(snapshot: StoreSnapshot, limits: HealthLimits, told: set[str]) -> Iterator[Reason]:
    space = snapshot.space
    used = _percent(space.disk_used, space.disk_free)
    if used > limits.full_percent and not told & {"disk-forces", "disk-refuses"}:
        text = f"the disk is {used:.1f} % full: {space.disk_free:,} bytes are free"
        yield _reason("disk-nearly-full", text, "free space")
    if space.shared_memory_used is not None and space.shared_memory_free is not None:
        used = _percent(space.shared_memory_used, space.shared_memory_free)
        if used > limits.full_percent:
            text = f"the shared memory is {used:.1f} % full: {space.shared_memory_free:,} bytes are free"
            way_out = "a larger one (--shm-size in Docker), or fewer producers: a new one may get no lane"
            yield _reason("shared-memory-nearly-full", text, way_out)


def _percent(used: int, free: int) -> float:
    """How full the disk is; 0 if enough is free."""
    return 0.0 if free >= _ENOUGH_BYTES else used * 100 / max(used + free, 1)


def _damage(snapshot: StoreSnapshot) -> Iterator[Reason]:
    path = snapshot.statistics.path
    if lost := snapshot.lost_lanes:
        count = sum(lane.flushed - lane.first for lane in snapshot.statistics.lanes if lane.lane in lost)
        text = f"{_name(lost)}: the files of its log are gone, which had {counted(count, 'byte')}"
        yield _reason("lane-lost", text, f"put them back, or see what `commitlog run {path}` says of them", lanes=lost)
    damaged: Mapping[int, int] = snapshot.damaged_ranges
    lanes = tuple(damaged)
    if damaged:
        text = f"{_name(lanes)}: {counted(sum(damaged.values()), 'damaged range')} of the log, as a start has found"
        yield _reason("damage-noted", text, f"`commitlog verify {path}` says more; it ends with retention", lanes=lanes)
    if snapshot.index_damage:
        text = f"topics and named readers can't be looked at: {' '.join(snapshot.index_damage.split())}"
        yield _reason("index-damaged", text, f"`commitlog verify {path}` says more")
    for text in snapshot.damaged_files:
        yield _reason("file-damaged", " ".join(text.split()), "")


def _name(lanes: tuple[int, ...]) -> str:
    return f"lane{'s' * (len(lanes) > 1)} {', '.join(map(str, lanes))}"


def _time(ms: float) -> str:
    return f"{ms / 1000:,.0f} s" if ms < 7_200_000 else f"{ms / 3_600_000:,.0f} hours"
