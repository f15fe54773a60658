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

from commitlog.client.statistics import RETENTION_WORDS, StoreStatistics
from commitlog.disk.store_directory import BACKUP_STARTS
from commitlog.errors import FAULT_BY_ERRNO, DiskError
from commitlog.reading.reader_states import STANDS_STILL_MS
from commitlog.shm.counters import RetentionFlag
from commitlog.shm.row_check import WORDS_DAMAGED
from commitlog.text.lines import for_shell, remount_command
from commitlog.text.quantities import counted
from commitlog.watching.remedies import (
    CERTIFICATE_FILES,
    CERTIFICATES,
    bytes_of_next_lane,
    free_space,
    logs_of,
    start_again,
    trim,
    why_blocked,
)
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

AHEAD_MS = 60_000
"""Clocks of machines differ by less than this, so it is no jump."""
RESTARTS_MS = 600_000
"""A restart longer ago than this is forgotten."""
ENOUGH_BYTES = 4 << 30
"""If this many bytes are free, nothing counts as nearly full, whatever the percentage says."""
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
"""The faults of a stage that space on the disk mends."""


@dataclass(frozen=True)
class Reason:
    """Why a store is not good. The code says which of the last four fields it has."""

    code: str
    """Its name, one of `CODES`."""
    severity: Severity
    text: str
    """What is wrong: one sentence."""
    way_out: str
    """What to do, in words."""
    command: str
    """The next step: a line for a shell, with the store's path quoted."""
    stage: str = ""
    lanes: tuple[int, ...] = ()
    reader: str = ""
    replica: str = ""

    @property
    def words(self) -> str:
        """What is wrong, then what to do, without the command."""
        return f"{self.text}; {self.way_out}"

    @property
    def said(self) -> str:
        """The same, and the command at its end: what people are shown."""
        return f"{self.words}: {self.command}"


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
    found = [*_store(snapshot, limits), *_only_in_memory(snapshot.statistics)]
    if is_looked_into(snapshot, limits):
        found += _stages(snapshot, limits)
        found += _lanes(snapshot, limits)
        found += _readers(snapshot, limits)
        found += _replicas(snapshot, limits)
        found += _replication(snapshot)
        found += _forwarders(snapshot)
        found += _retention(snapshot)
        found += _ahead(snapshot)
    found += _room(snapshot, limits, {reason.code for reason in found})
    found += _damage(snapshot)
    return in_order(reason for reason in found if reason.code not in limits.ignored)


def is_looked_into(snapshot: StoreSnapshot, limits: HealthLimits) -> bool:
    """Whether stages, lanes and who uses the store are looked at: not where the store is down."""
    return all(reason.code == "supervisor-silent" for reason in _store(snapshot, limits))


def unreadable(error: Exception, path: str | os.PathLike[str]) -> Health:
    """The health of the store at a path whose snapshot can't be taken, for this error."""
    text, way_out = str(error), "what is wrong with it"
    if isinstance(error, PermissionError):
        text, way_out = f"{error.filename}: {error.strerror}", "run as its owner; what else is wrong"
    text = f"{' '.join(text.split())} [{type(error).__name__}]"
    return in_order([_reason("unreadable", text, way_out, f"commitlog doctor {for_shell(path)}")])


def in_order(reasons: Iterable[Reason]) -> Health:
    """The health that has these reasons, in the order of `CODES`."""
    order = list(CODES)
    ordered = tuple(sorted(reasons, key=lambda reason: order.index(reason.code)))
    return Health(ordered[0].severity if ordered else "good", ordered)


def _reason(
    code: str,
    text: str,
    way_out: str,
    command: str,
    *,
    stage: str = "",
    lanes: tuple[int, ...] = (),
    reader: str = "",
    replica: str = "",
) -> Reason:
    return Reason(code, CODES[code], text, way_out, command, stage, lanes, reader, replica)


def _store(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[Reason]:
    facts, quoted = snapshot.statistics, for_shell(snapshot.statistics.path)
    run = f"commitlog run {quoted}"
    silent_ms = facts.supervisor_silent_ms or 0.0
    if facts.superseded_by and not facts.running:
        text = f"a replica of this store was promoted ({facts.superseded_by})"
        way_out = f"send to that one, and make this one its replica, with its address and {CERTIFICATE_FILES}"
        yield _reason("stopped", text, way_out, f"commitlog rejoin {quoted} --from HOST:PORT {CERTIFICATES}")
    elif facts.backup and not facts.running:
        way_out = f"{BACKUP_STARTS}, so restore a copy of it (`commitlog backup {quoted} DEST`); whether it is whole"
        yield _reason("stopped", "it is a backup, and was never started", way_out, f"commitlog verify {quoted}")
    elif facts.killed:
        yield _reason("killed", "the store was killed, or its machine went down", "continue it", run)
    elif facts.replica_of:
        yield from _own_replica(facts, limits)
    elif not facts.running:
        yield _reason("stopped", "the store does not run", "start it", run)
    elif snapshot.foreign_owner is not None:
        text = f"it runs, and belongs to user {snapshot.foreign_owner}: nobody else sees what its stages do"
        yield _reason("unreadable", text, "look as its owner; what is wrong with it", f"commitlog doctor {quoted}")
    elif facts.starting:
        text = "the store is being opened, and no stage runs yet"
        yield _reason("starting", text, "wait; what it does", f"commitlog logs {quoted} --stage supervisor")
    elif facts.closing:
        yield _reason("closing", "the store drains and stops", "wait, then start it again", run)
    elif silent_ms > limits.silent_ms:
        text = f"the supervisor has given no heartbeat for {_time(silent_ms)}, and starts no stage again that dies"
        end = f'kill -9 "$(cat {for_shell(f"{facts.path}/lock")})"'
        yield _reason("supervisor-silent", text, "end it, and start the store again", f"{end}; {run}")


def _only_in_memory(facts: StoreStatistics) -> Iterator[Reason]:
    """The reason for accepted messages that a stopped store has only in memory."""
    lanes = tuple(lane.lane for lane in facts.lanes if lane.wrote > lane.flushed)
    if lanes and not facts.running:
        count = sum(max(lane.wrote - lane.flushed, 0) for lane in facts.lanes)
        text = f"{_name(lanes)}: {counted(count, 'byte')} that were accepted are only in memory"
        way_out = "a restart of the machine would lose them; a start writes them to the disk"
        yield _reason("only-in-memory", text, way_out, f"commitlog run {for_shell(facts.path)}", lanes=lanes)


def _own_replica(facts: StoreStatistics, limits: HealthLimits) -> Iterator[Reason]:
    """What is wrong with a directory that is itself a replica."""
    quoted = for_shell(facts.path)
    if not facts.running:
        text = f"it is a replica of {facts.replica_of}, and no `commitlog replica` keeps it up to date"
        if facts.replica_complete:
            way_out, command = "start that again; if this copy is to take over", f"commitlog promote {quoted}"
        else:
            way_out = f"start that again, it is not whole yet; with {CERTIFICATE_FILES}"
            command = f"commitlog replica {quoted} --from {facts.replica_of} {CERTIFICATES}"
        yield _reason("stopped", text, way_out, command)
    elif facts.replica_behind_ms > limits.replica_behind_ms:
        waits = f"; it waits for {facts.replica_waits_for}" if facts.replica_waits_for else ""
        text = (
            f"it is a replica of {facts.replica_of}, and has what that had {_time(facts.replica_behind_ms)} ago{waits}"
        )
        yield _reason(
            "replica-behind", text, "see what `commitlog replica` says; how far it is", f"commitlog stat {quoted}"
        )


def _stages(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[Reason]:
    facts = snapshot.statistics
    for stage in facts.stages:
        name, logs = stage.stage, logs_of(facts, stage.stage)
        if not stage.pid:
            text = f"the {name} does not run"
            way_out = "the supervisor starts it again; if it stays so, see why"
            yield _reason("stage-gone", text, way_out, logs, stage=name)
        elif stage.silent_ms > limits.silent_ms:
            text = f"the {name} has given no heartbeat for {_time(stage.silent_ms)}"
            after = f"[supervisor] hung_after_ms = {snapshot.config.supervisor.hung_after_ms}"
            yield _reason(
                "stage-silent", text, f"wait, the supervisor restarts it after {after}; why", logs, stage=name
            )
        ago_ms = snapshot.time_ms - stage.started_ms
        if stage.restarts >= limits.restarts and ago_ms < RESTARTS_MS:
            text = f"the {name} was restarted {counted(stage.restarts, 'time')}, the last time {_time(ago_ms)} ago"
            yield _reason("stage-restarts", text, "see why it dies", logs_of(facts, "supervisor"), stage=name)


def _lanes(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[Reason]:
    facts = snapshot.statistics
    yield from _faults(snapshot)
    blocked = why_blocked(snapshot, limits.silent_ms)
    in_queues = "messages are flushed and not in the consume queues, which makes readers slow"
    for code, waits, limit_ms, what, (way_out, command) in (
        ("producer-blocked", snapshot.blocked_ms, limits.blocked_ms, "producers wait for a write buffer", blocked),
        (
            "unflushed",
            snapshot.unflushed_ms,
            limits.unflushed_ms,
            "messages are committed and not flushed",
            ("see why", logs_of(facts, "flusher")),
        ),
        (
            "undispatched",
            snapshot.undispatched_ms,
            limits.undispatched_ms,
            in_queues,
            ("see why", logs_of(facts, "dispatcher")),
        ),
    ):
        late = tuple(lane for lane, wait_ms in waits.items() if wait_ms > limit_ms)
        if late:
            text = f"{_name(late)}: {what}, for {_time(max(waits[lane] for lane in late))} at most"
            yield _reason(code, text, way_out, command, lanes=late)


def _faults(snapshot: StoreSnapshot) -> Iterator[Reason]:
    """One reason for each stage and errno: a full disk stops many lanes."""
    facts = snapshot.statistics
    met: dict[tuple[str, int], tuple[int, ...]] = {}
    for lane in facts.lanes:
        for stage, code in (lane.faults or {}).items():
            met[stage, code] = (*met.get((stage, code), ()), lane.lane)
    damaged = {lane for (_, code), lanes in met.items() if code == WORDS_DAMAGED for lane in lanes}
    if damaged:
        text = f"{_name(tuple(sorted(damaged)))}: somebody has written over its words in shared memory; it is set aside"
        way_out = f"{facts.path}/logs/committer.log says more; a new start recovers the lane"
        yield _reason("lane-words-damaged", text, way_out, start_again(facts), lanes=tuple(sorted(damaged)))
    for (stage, code), lanes in met.items():
        if code == WORDS_DAMAGED:
            continue
        name = errno.errorcode.get(code, str(code))
        said = f", {os.strerror(code)}" if code in errno.errorcode else ""
        text = f"{_name(lanes)}: the {stage} can't go on: {name}{said}"
        way_out, command = FAULT_BY_ERRNO.get(code, DiskError).hint, logs_of(facts, stage)
        if code in _NO_ROOM:
            more, command = free_space(snapshot, snapshot.config.retention.disk_clean_forcibly_percent)
            way_out = f"{way_out}; {more}"
        else:
            way_out += "; its log"
        yield _reason("stage-fault", text, way_out, command, stage=stage, lanes=lanes)


def _readers(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[Reason]:
    quoted = for_shell(snapshot.statistics.path)
    for reader in snapshot.readers:
        name, behind = reader.name, f"{counted(reader.behind, 'message')} behind"
        remove = f"commitlog readers {quoted} --remove {for_shell(name)}"
        if reader.lag is None:
            yield _reason("reader-unreadable", reader.warning, "if nobody needs it, remove it", remove, reader=name)
        if limits.reader_behind and reader.behind > limits.reader_behind:
            way_out = "more readers, or quicker ones; how far each is"
            yield _reason(
                "reader-behind", f"reader {name} is {behind}", way_out, f"commitlog readers {quoted}", reader=name
            )
        if reader.behind and reader.still_ms >= limits.reader_still_ms:
            text = f"reader {name} has not moved for {_time(reader.still_ms)}, and is {behind}"
            yield _reason("reader-still", text, "start it again; if it is gone for good", remove, reader=name)


def _replicas(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[Reason]:
    quoted = for_shell(snapshot.statistics.path)
    for replica in snapshot.replicas:
        name, behind = replica.name, f"{counted(replica.behind_bytes, 'byte')} behind"
        late_ms = replica.behind_ms(snapshot.time_ms)
        if not replica.connected:
            why = f": {replica.refusal}" if replica.refusal else ""
            way_out = "start it again there; if it is gone for good"
            command = f"commitlog replicas {quoted} --forget {for_shell(name)}"
            yield _reason("replica-gone", f"replica {name} is not connected{why}", way_out, command, replica=name)
        elif late_ms > limits.replica_behind_ms:
            text = f"replica {name} is {behind}, for {_time(late_ms)}"
            way_out = "a quicker disk or network there; how far it is"
            yield _reason("replica-behind", text, way_out, f"commitlog replicas {quoted}", replica=name)


def _replication(snapshot: StoreSnapshot) -> Iterator[Reason]:
    """What the HAService can't do. The text of a damaged file has its own way out."""
    facts, troubles = snapshot.statistics, snapshot.troubles
    for address, why in troubles.shut.items():
        text = f"no replica can come to {address}: {why}"
        way_out = "mend that, and it opens by itself; after a change of [replication]"
        yield _reason("not-listening", text, way_out, f"{start_again(facts)} --config FILE")
    for name, why in troubles.damaged.items():
        text = f"replicas keep the {name} that they have: {why}"
        yield _reason("file-not-copied", text, "all that is damaged", f"commitlog verify {for_shell(facts.path)}")


def _forwarders(snapshot: StoreSnapshot) -> Iterator[Reason]:
    for one in snapshot.forwarders:
        if one.state == "waiting":
            waits = f"{counted(one.behind_messages, 'message')} wait for {_time(one.behind_ms)} at most"
            text = f"forwarder {one.name}: {one.target} does not answer; {waits}"
            stat = f"commitlog stat {for_shell(snapshot.statistics.path)}"
            yield _reason("forwarder-waiting", text, "it goes on when that does; its last error", stat, reader=one.name)


def _retention(snapshot: StoreSnapshot) -> Iterator[Reason]:
    facts, config = snapshot.statistics, snapshot.config.retention
    warnings = facts.retention.warnings if facts.retention else ()
    forced = config.disk_clean_forcibly_percent  # a trim to less than the other limit would not last
    for flag, code, percent, and_so in (
        (RetentionFlag.DISK_HIGH, "disk-high", config.disk_max_used_percent, ""),
        (RetentionFlag.DISK_FORCES, "disk-forces", forced, "; readers lose what they have not read"),
        (RetentionFlag.DISK_REFUSES, "disk-refuses", forced, "; producers wait, then raise DiskFull"),
    ):
        if RETENTION_WORDS[flag] in warnings:
            way_out, command = free_space(snapshot, percent)
            yield _reason(code, RETENTION_WORDS[flag] + and_so, way_out, command)
    if (text := RETENTION_WORDS[RetentionFlag.CLOCK_JUMPED]) in warnings:
        way_out = "set the clock right; if it is right now, start the store again"
        yield _reason("clock-jumped", text, way_out, start_again(facts))
    if (text := RETENTION_WORDS[RetentionFlag.NOT_DELETED]) in warnings:
        yield _reason("not-deleted", text, "mend owner, permissions or the disk; why", logs_of(facts, "allocator"))


def _ahead(snapshot: StoreSnapshot) -> Iterator[Reason]:
    """The reason for lanes that were written to by a clock that was ahead.

    The clock may be right again. The next messages of such a lane keep its last time, because times
    in a lane never go back.
    """
    lanes = tuple(lane for lane, ahead_ms in snapshot.ahead_ms.items() if ahead_ms > AHEAD_MS)
    if lanes:
        late = _time(max(snapshot.ahead_ms[lane] for lane in lanes))
        text = f"{_name(lanes)}: the newest message is stored {late} later than now, and so are the next ones"
        way_out = (
            "set the clock if it is behind; if it was ahead, nothing of this goes for its age until then, and a search by "
            "time finds too much: [retention] max_bytes = SIZE limits it; at once"
        )
        _, command = trim(snapshot, 100)
        yield _reason("stored-ahead", text, way_out, command, lanes=lanes)


def _room(snapshot: StoreSnapshot, limits: HealthLimits, told: set[str]) -> Iterator[Reason]:
    space = snapshot.space
    used = _percent(space.disk_used, space.disk_free)
    if used > limits.full_percent and not told & {"disk-forces", "disk-refuses"}:
        text = f"the disk is {used:.1f} % full: {space.disk_free:,} bytes are free"
        way_out, command = free_space(snapshot, limits.full_percent)
        yield _reason("disk-nearly-full", text, way_out, command)
    if space.shared_memory_used is None or space.shared_memory_free is None:
        return
    total = space.shared_memory_used + space.shared_memory_free
    used, lane_bytes = _percent(space.shared_memory_used, space.shared_memory_free), bytes_of_next_lane(snapshot)
    if used > limits.full_percent or space.shared_memory_free < lane_bytes:
        text = (
            f"the shared memory is {100 * space.shared_memory_used / max(total, 1):.1f} % full: "
            f"{space.shared_memory_free:,} bytes are free"
        )
        if lane_bytes:
            text += f", and another producer takes {lane_bytes:,}"
        way_out = "close a producer, or enlarge it (--shm-size in Docker); as root"
        yield _reason("shared-memory-nearly-full", text, way_out, remount_command(space.shared_memory, total))


def _percent(used: int, free: int) -> float:
    """How full the disk is; 0 if enough is free."""
    return 0.0 if free >= ENOUGH_BYTES else used * 100 / max(used + free, 1)


def _damage(snapshot: StoreSnapshot) -> Iterator[Reason]:
    verify = f"commitlog verify {for_shell(snapshot.statistics.path)}"
    if lost := snapshot.lost_lanes:
        count = sum(lane.flushed - lane.first for lane in snapshot.statistics.lanes if lane.lane in lost)
        text = f"{_name(lost)}: the files of its log are gone, which had {counted(count, 'byte')}"
        yield _reason("lane-lost", text, "put them back; all that is missing", verify, lanes=lost)
    damaged: Mapping[int, int] = snapshot.damaged_ranges
    lanes = tuple(damaged)
    if damaged:
        text = f"{_name(lanes)}: {counted(sum(damaged.values()), 'damaged range')} of the log, as a start has found"
        yield _reason("damage-noted", text, "it ends with retention; what is damaged", verify, lanes=lanes)
    if snapshot.index_damage:
        text = f"topics and named readers can't be looked at: {' '.join(snapshot.index_damage.split())}"
        yield _reason("index-damaged", text, "what is damaged", verify)
    for text in snapshot.damaged_files:
        yield _reason("file-damaged", " ".join(text.split()), "all that is damaged", verify)


def _name(lanes: tuple[int, ...]) -> str:
    return f"lane{'s' * (len(lanes) > 1)} {', '.join(map(str, lanes))}"


def _time(ms: float) -> str:
    return f"{ms / 1000:,.0f} s" if ms < 7_200_000 else f"{ms / 3_600_000:,.0f} hours"
