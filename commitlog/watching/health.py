"""Whether a store does its work: `health(snapshot)`, one answer for every tool.

It looks at nothing but the snapshot, so it gives the same answer for the same snapshot. Each reason
has a code that stays the same in later versions. docs/operate.md lists all codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commitlog.watching.snapshot import StoreSnapshot

Status = Literal["good", "degraded", "down"]


@dataclass(frozen=True)
class Reason:
    """Why a store is not good."""

    code: str
    """Its name, in kebab-case: it does not change."""
    severity: Literal["degraded", "down"]
    text: str
    """What is wrong: one sentence."""
    way_out: str
    """What to do."""


@dataclass(frozen=True)
class Health:
    """What is to be said of a store. `reasons` has the worst ones first; a good store has none."""

    status: Status
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class HealthLimits:
    """From where on something is a reason."""

    silent_ms: int = 5_000
    """A stage, or the supervisor, has given no heartbeat for this long."""


DEFAULT_LIMITS = HealthLimits()


def health(snapshot: StoreSnapshot, limits: HealthLimits = DEFAULT_LIMITS) -> Health:
    """The health of the store at the moment of the snapshot."""
    facts = snapshot.statistics
    reasons = []
    if facts.state == "stopped":
        reasons.append(Reason("stopped", "down", "the store does not run", f"`commitlog run {facts.path}`"))
    if facts.state == "killed":
        text = "the store was killed, and does not run"
        reasons.append(Reason("killed", "down", text, f"`commitlog run {facts.path}` goes on where it was"))
    if facts.state == "closing":
        reasons.append(Reason("closing", "down", "the store drains and stops", f"`commitlog run {facts.path}`"))
    for stage in facts.stages if facts.running else ():
        if stage.silent_ms > limits.silent_ms:
            text = f"the {stage.stage} has given no heartbeat for {stage.silent_ms / 1000:,.0f} s"
            reasons.append(Reason("stage-silent", "degraded", text, f"see {facts.path}/logs/{stage.stage}.log"))
    return in_order(reasons)


def in_order(reasons: list[Reason]) -> Health:
    """The health that follows from reasons."""
    ordered = tuple(sorted(reasons, key=lambda reason: reason.severity != "down"))
    return Health(ordered[0].severity if ordered else "good", ordered)
