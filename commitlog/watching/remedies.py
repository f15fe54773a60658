"""What to do about a reason of health: in words, and as a command to paste."""

from __future__ import annotations

from commitlog.client.statistics import StoreStatistics
from commitlog.text.lines import for_shell
from commitlog.text.quantities import rounded_down
from commitlog.watching.snapshot import StoreSnapshot

CERTIFICATE_FILES = "this machine's files for TLS"
CERTIFICATES = "--certificate own.pem --key own.key --authority authority.pem"
"""The files as docs/replicate.md names them."""
_BUFFERS_MAX = 8
"""The most that `[store] buffers_per_lane` may be."""


def logs_of(facts: StoreStatistics, stage: str) -> str:
    """The command that shows what a stage, or the supervisor, has logged."""
    return f"commitlog logs {for_shell(facts.path)} --stage {stage}"


def start_again(facts: StoreStatistics) -> str:
    """The command that stops a running store, and starts it."""
    quoted = for_shell(facts.path)
    return f"commitlog stop {quoted} && commitlog run {quoted}"


def why_blocked(snapshot: StoreSnapshot, silent_ms: int) -> tuple[str, str]:
    """The way out for producers that wait, and a command: a stage hangs, or the disk is slow."""
    facts = snapshot.statistics
    for stage in facts.stages:
        if stage.stage in ("committer", "flusher") and (not stage.pid or stage.silent_ms > silent_ms):
            return f"the {stage.stage} does nothing; see why", logs_of(facts, stage.stage)
    buffers = snapshot.config.store.buffers_per_lane
    knob = f", or [store] buffers_per_lane = {2 * buffers} at the next start" if 2 * buffers <= _BUFFERS_MAX else ""
    return f"the disk does not keep up: a quicker disk{knob}; how quick it is", f"commitlog top {for_shell(facts.path)}"


def trim(snapshot: StoreSnapshot, percent: int) -> tuple[int, str]:
    """How many bytes of the store to keep for a disk no fuller than `percent`, and the command.

    It never takes more than half of the store, which need not make up for what others have put on
    the disk.
    """
    facts, space, enough = snapshot.statistics, snapshot.space, snapshot.config.retention.disk_enough_bytes
    held = _held(facts)
    excess = space.disk_used - (space.disk_used + space.disk_free) * percent // 100
    if enough:
        excess = min(excess, enough - space.disk_free)
    keep, words = rounded_down(max(held - excess if excess > 0 else 0, held // 2))
    return keep, f"commitlog trim {for_shell(facts.path)} --keep-bytes {words}"


def free_space(snapshot: StoreSnapshot, percent: int) -> tuple[str, str]:
    """How the disk becomes no fuller than `percent`: in words, and by a trim, if that takes any."""
    facts, size = snapshot.statistics, max(snapshot.statistics.segment_bytes, 1)
    if all(lane.first // size == max(lane.wrote - 1, lane.first) // size for lane in facts.lanes):
        way_out = (
            f"free space on it; a trim takes nothing, as each lane has its last segment only ({_held(facts):,} bytes)"
        )
        return f"{way_out}; how full it is", f"df -h {for_shell(facts.path)}"
    keep, command = trim(snapshot, percent)
    knobs = f"[retention] max_bytes = {keep}"
    if (hours := snapshot.config.retention.reserved_hours) > 1:
        knobs += f", or reserved_hours = {hours // 2},"
    disk = f"the store has {_held(facts):,} of {snapshot.space.disk_used:,} bytes"
    return f"free space ({disk}), or set {knobs} and reload; at once", command


def _held(facts: StoreStatistics) -> int:
    return sum(lane.wrote - lane.first for lane in facts.lanes)


def bytes_of_next_lane(snapshot: StoreSnapshot) -> int:
    """How much shared memory another producer takes; 0 where it needs none or may not come."""
    facts, config = snapshot.statistics, snapshot.config.store
    is_free = any(not lane.producer and lane.available_buffers is not None for lane in facts.lanes)
    if config.write_path != "pool" or is_free or sum(lane.producer > 0 for lane in facts.lanes) >= config.max_lanes:
        return 0
    return facts.segment_bytes * config.buffers_per_lane
