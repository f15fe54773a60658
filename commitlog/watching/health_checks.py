"""What `health` has looked at, and how far each value is from being a reason: `--explain`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from commitlog.shm.row_check import WORDS_DAMAGED
from commitlog.text.quantities import counted
from commitlog.watching.health import (
    AHEAD_MS,
    ENOUGH_BYTES,
    RESTARTS_MS,
    HealthLimits,
    health,
    is_looked_into,
)
from commitlog.watching.remedies import bytes_of_next_lane
from commitlog.watching.snapshot import StoreSnapshot

_FIXED = "fixed"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    codes: tuple[str, ...]
    """The reasons that it may be, of `CODES`."""
    verdict: str
    """`ok`, the severity of the reason that it is, `ignored`, or `not looked at`."""
    seen: str
    """The value."""
    limit: str
    """Where it begins to be a reason; empty where it is one or not, without a limit."""
    source: str
    """Where the limit comes from: an option, a knob with its section, or `fixed`. Else empty."""


def checks(snapshot: StoreSnapshot, limits: HealthLimits) -> tuple[Check, ...]:
    """All checks of one look at a store. Every code is in one of them."""
    severities = {reason.code: reason.severity for reason in health(snapshot, limits).reasons}
    inside = [*_stages(snapshot, limits), *_users(snapshot, limits), *_retention(snapshot)]
    if not is_looked_into(snapshot, limits):
        inside = [(codes, None, limit, source) for codes, _, limit, source in inside]
    found = []
    for codes, value, limit, source in (*_store(snapshot, limits), *inside, *_around(snapshot, limits)):
        verdict = next((severities[code] for code in codes if code in severities), "ok")
        if verdict == "ok" and limits.ignored.issuperset(codes):
            verdict = "ignored"
        if value is None:
            verdict, value = "not looked at", "the stages of the store do not run"
        found.append(Check(codes, verdict, value, limit, source))
    return tuple(found)


_Seen = tuple[tuple[str, ...], str | None, str, str]
"""Codes, value, limit and source. Without a value it was not looked at."""


def _store(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[_Seen]:
    """What is looked at of the store itself."""
    facts = snapshot.statistics
    state = "starting" if facts.starting else "a replica" if facts.replica_of else facts.state
    yield ("unreadable",), f"store.json, generation {facts.generation}", "", ""
    yield ("stopped", "killed", "closing", "starting"), f"the store is {state}", "", ""
    in_memory = sum(max(lane.wrote - lane.flushed, 0) for lane in facts.lanes)
    yield ("only-in-memory",), f"{counted(in_memory, 'byte')} are in memory only", "any, of a stopped store", _FIXED
    heartbeat = f"the supervisor's last heartbeat was {_time(facts.supervisor_silent_ms or 0.0)} ago"
    yield ("supervisor-silent",), heartbeat if facts.running else None, f"over {_time(limits.silent_ms)}", "--silent"


def _stages(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[_Seen]:
    """What is looked at of stages and lanes."""
    facts = snapshot.statistics
    running = sum(stage.pid > 0 for stage in facts.stages)
    yield ("stage-gone",), f"{running} of {counted(len(facts.stages), 'stage')} run", "", ""
    silence = _time(max((stage.silent_ms for stage in facts.stages if stage.pid), default=0.0))
    yield ("stage-silent",), f"a stage is silent for {silence}", f"over {_time(limits.silent_ms)}", "--silent"
    restarts = max((stage.restarts for stage in facts.stages), default=0)
    often = f"{limits.restarts}, the last one less than {_time(RESTARTS_MS)} ago"
    yield ("stage-restarts",), f"{counted(restarts, 'restart')} of a stage at most", often, _FIXED
    faults = [code for lane in facts.lanes for code in (lane.faults or {}).values()]
    aside = faults.count(WORDS_DAMAGED)
    yield ("lane-words-damaged",), f"{counted(aside, 'lane')} set aside", "", ""
    yield ("stage-fault",), f"{counted(len(faults) - aside, 'fault')} of stages", "", ""
    for code, what, waits, limit_ms in (
        ("producer-blocked", "a producer waits", snapshot.blocked_ms, limits.blocked_ms),
        ("unflushed", "a message waits to be flushed", snapshot.unflushed_ms, limits.unflushed_ms),
        ("undispatched", "a message waits to be dispatched", snapshot.undispatched_ms, limits.undispatched_ms),
    ):
        longest = _time(max(waits.values(), default=0.0))
        option = "--blocked" if code == "producer-blocked" else f"--{code}"
        yield (code,), f"{what} for {longest}", f"over {_time(limit_ms)}", option


def _users(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[_Seen]:
    """What is looked at of readers, replicas and forwarders."""
    facts = snapshot.statistics
    behind = max((reader.behind for reader in snapshot.readers), default=0)
    most = (f"over {limits.reader_behind:,}", "--reader-behind") if limits.reader_behind else ("", "")
    yield ("reader-behind",), f"a named reader is {counted(behind, 'message')} behind", *most
    still_ms = max((reader.still_ms for reader in snapshot.readers if reader.behind), default=0)
    still = f"a named reader that is behind has not moved for {_time(still_ms)}"
    yield ("reader-still",), still, _time(limits.reader_still_ms), "--reader-still"
    yield ("reader-unreadable",), counted(len(snapshot.readers), "named reader"), "", ""
    connected = [replica for replica in snapshot.replicas if replica.connected]
    yield ("replica-gone",), f"{len(connected)} of {counted(len(snapshot.replicas), 'replica')} connected", "", ""
    late_ms = max((replica.behind_ms(snapshot.time_ms) for replica in connected), default=facts.replica_behind_ms)
    late = f"a replica is behind for {_time(late_ms)}"
    yield ("replica-behind",), late, f"over {_time(limits.replica_behind_ms)}", _FIXED
    shut, damaged = snapshot.troubles.shut, snapshot.troubles.damaged
    yield ("not-listening",), f"addresses of [replication] that can't be opened: {len(shut)}", "", ""
    yield ("file-not-copied",), f"{counted(len(damaged), 'file')} that replicas do not get", "", ""
    waiting = sum(one.state == "waiting" for one in snapshot.forwarders)
    yield ("forwarder-waiting",), f"{waiting} of {counted(len(snapshot.forwarders), 'forwarder')} wait", "", ""


def _retention(snapshot: StoreSnapshot) -> Iterator[_Seen]:
    """What is looked at of time and of the disk, as the allocator sees it."""
    facts, retention = snapshot.statistics, snapshot.config.retention
    said = "; ".join(facts.retention.warnings) if facts.retention else ""
    yield ("clock-jumped", "not-deleted"), f"retention says: {said or 'nothing'}", "", ""
    ahead_ms = max(snapshot.ahead_ms.values(), default=0.0)
    ahead = f"a message is stored {_time(ahead_ms)} later than now"
    yield ("stored-ahead",), ahead, f"over {_time(AHEAD_MS)}", _FIXED
    disk = f"the disk is {_percent(snapshot.space.disk_used, snapshot.space.disk_free)}"
    for code, knob in (
        ("disk-high", "disk_max_used_percent"),
        ("disk-forces", "disk_clean_forcibly_percent"),
        ("disk-refuses", "disk_refuse_percent"),
    ):
        limit = f"over {getattr(retention, knob)} %, unless {retention.disk_enough_bytes:,} bytes are free"
        yield (code,), disk, limit, f"[retention] {knob}, disk_enough_bytes"


def _around(snapshot: StoreSnapshot, limits: HealthLimits) -> Iterator[_Seen]:
    """What is looked at in any case: room, and damage."""
    space, lane_bytes = snapshot.space, bytes_of_next_lane(snapshot)
    limit = f"over {limits.full_percent} %, unless {ENOUGH_BYTES:,} bytes are free"
    disk = f"the disk is {_percent(space.disk_used, space.disk_free)}"
    yield ("disk-nearly-full",), disk, limit, "--full-percent"
    memory, source = "the store has none now", "--full-percent"
    if space.shared_memory_used is not None and space.shared_memory_free is not None:
        memory = f"{space.shared_memory} is {_percent(space.shared_memory_used, space.shared_memory_free)}"
    if lane_bytes:
        limit += f"; or less than the {lane_bytes:,} bytes free that another producer takes"
        source += ", [store] buffers_per_lane and the size of a segment"
    yield ("shared-memory-nearly-full",), memory, limit, source
    yield (
        ("lane-lost",),
        f"{len(snapshot.lost_lanes)} of {counted(len(snapshot.statistics.lanes), 'lane')} lost",
        "",
        "",
    )
    yield ("damage-noted",), counted(sum(snapshot.damaged_ranges.values()), "damaged range"), "", ""
    yield ("index-damaged",), f"topics and named readers: {snapshot.index_damage or 'intact'}", "", ""
    yield ("file-damaged",), f"schemas and ends of topics: {len(snapshot.damaged_files)} damaged", "", ""


def _percent(used: int, free: int) -> str:
    return f"{100 * used / max(used + free, 1):.1f} % full, {free:,} bytes free"


def _time(ms: float) -> str:
    return f"{ms / 1000:,.1f} s"
