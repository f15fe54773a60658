"""A store whose health is looked at, and what every reason has to have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import commitlog
from commitlog.watching.health import CODES, DEFAULT_LIMITS, Health, HealthLimits, Reason, health
from commitlog.watching.snapshot import Space, StoreSnapshot, StoreWatch
from tests.pasted import check_knobs, check_pasted
from tests.waiting import wait_until

QUICK: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": 1 << 16},
    "committer": {"interval_ms": 20},
    "flusher": {"interval_ms": 20},
    "allocator": {"interval_ms": 20},
    "dispatcher": {"interval_ms": 20, "linger_ms": 0},
    "retention": {"interval_ms": 20},
    "producer": {"buffer_wait_ms": 100_000},
}
LIMITS = HealthLimits(silent_ms=60_000, full_percent=100)
"""A loaded machine may leave a process alone for seconds, and the disk here may be full."""
SOON_SILENT = replace(LIMITS, silent_ms=500)
"""For processes that are halted: they beat every 20 ms."""
ROOM = Space(disk_used=1 << 30, disk_free=1 << 40, shared_memory_used=1 << 20, shared_memory_free=1 << 40, pool=1 << 20)


def reasons_of(snapshot: StoreSnapshot, limits: HealthLimits = DEFAULT_LIMITS) -> tuple[Reason, ...]:
    """All reasons of a snapshot. Each ends in a command."""
    reasons = health(snapshot, limits).reasons
    for reason in reasons:
        check(reason)
    return reasons


def look(path: Path, limits: HealthLimits = LIMITS) -> Health:
    with StoreWatch(path, only_health=True) as watch:
        return health(watch.snapshot(), limits)


def codes(path: Path, limits: HealthLimits = LIMITS) -> set[str]:
    return {reason.code for reason in look(path, limits).reasons}


def expect(path: Path, code: str, limits: HealthLimits = LIMITS, **fields: object) -> Reason:
    """Waits until a reason of this code and with these fields is given, and returns it."""

    def found() -> Reason | None:
        reasons = look(path, limits).reasons
        return next((one for one in reasons if one.code == code and fields.items() <= vars(one).items()), None)

    reason = wait_until(found, f"{code} {fields}")
    assert reason is not None
    assert reason.severity == CODES[code]
    check(reason)
    return reason


def check(reason: Reason) -> None:
    """It ends in a command, and names knobs with section and value."""
    assert reason.said == f"{reason.text}; {reason.way_out}: {reason.command}"
    check_pasted(reason.command)
    check_knobs(reason.said)
    assert "\n" not in reason.said


def expect_good(path: Path) -> None:
    wait_until(lambda: look(path) == Health("good"), "a good store")


def snapshot_of(store: commitlog.Store) -> StoreSnapshot:
    """A snapshot with room enough."""
    with StoreWatch(store.path, only_health=True) as watch:
        return replace(watch.snapshot(), space=ROOM)
