"""Whether a stage hangs: how long it has given no heartbeat, counted while the supervisor runs.

When a machine stands still (a paused virtual machine or container, the cgroup freezer, SIGSTOP to a
whole group), nobody runs, so nobody hangs; but the clock goes on. A waiting process asks every now
and then whether the time is over. Between two questions no more than `STEP_NS` is counted, so a
standstill of any length counts as one step.
"""

from __future__ import annotations

from dataclasses import dataclass

from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Stage
from commitlog.system.clock import Clock

STEP_NS = 400_000_000
"""Two of the supervisor's rounds.

A process that asks less often waits longer, which does no harm.
"""


class Patience:
    """A limit of the time (ns) that is spent waiting."""

    def __init__(self, clock: Clock, limit_ns: int) -> None:
        self.spent_ns, self.limit_ns = 0, limit_ns
        self._clock, self._looked_ns = clock, clock.monotonic_ns()

    def is_over(self) -> bool:
        """Whether more than the limit was spent. The caller asks every now and then."""
        now = self._clock.monotonic_ns()
        self.spent_ns += min(now - self._looked_ns, STEP_NS)
        self._looked_ns = now
        return self.spent_ns > self.limit_ns


@dataclass
class _Silence:
    sign: tuple[int, int]
    """Pid, and its last heartbeat; 0 before the first."""
    patience: Patience


class Heartbeats:
    """What the supervisor has seen of the stages' heartbeats.

    A stage is silent from the moment when the supervisor saw its last heartbeat.
    """

    def __init__(self, control: ControlRegion, clock: Clock) -> None:
        self._control, self._clock = control, clock
        self._silences: dict[str, _Silence] = {}

    def silent_for(self, name: str, pid: int, limit_ns: int, start_ns: int) -> int:
        """For how long (ns) a stage has been silent, if that is longer than the limit; otherwise 0.

        A stage that was just launched has not stored its pid yet. The limit for its first heartbeat
        is `start_ns`, if that is longer than the limit.
        """
        row = self._control.stage_row(name)
        has_begun = row[Stage.PID] == pid
        sign = pid, row[Stage.HEARTBEAT] if has_begun else 0
        known = self._silences.get(name)
        if known is None or known.sign != sign:
            limit_ns = limit_ns if has_begun else max(limit_ns, start_ns)
            self._silences[name] = _Silence(sign, Patience(self._clock, limit_ns))
            return 0
        return known.patience.spent_ns if known.patience.is_over() else 0
