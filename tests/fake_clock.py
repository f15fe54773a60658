"""Clocks that tests turn.

They begin with the system's time, which the processes under test have.
"""

from __future__ import annotations

from commitlog.system.clock import Clock


class SetClock(Clock):
    """A clock that stands still until a test moves it, or somebody sleeps.

    No two looks at the monotonic time give the same number. `wall` is in milliseconds since the
    epoch, `boot` in nanoseconds since the boot.
    """

    def __init__(self) -> None:
        self.wall, self.boot = super().wall_ms(), super().boot_ns()
        self._suspended = self.boot - super().monotonic_ns()
        self._ticks = 0

    def wall_ms(self) -> int:
        return self.wall

    def boot_ns(self) -> int:
        return self.boot

    def monotonic_ns(self) -> int:
        self._ticks += 1
        return self.boot - self._suspended + self._ticks

    def sleep(self, seconds: float) -> None:
        self.pass_seconds(seconds)

    def pass_seconds(self, seconds: float) -> None:
        """Lets time pass: all clocks move."""
        self.wall += int(seconds * 1000)
        self.boot += int(seconds * 1e9)


class SteppingClock(Clock):
    """The system's clock, plus what a test has added: retries are due when the test says so.

    `uptime_seconds`: the time since the machine's boot when the clock is made.
    """

    def __init__(self, uptime_seconds: float | None = None) -> None:
        self.added_ns = 0 if uptime_seconds is None else int(uptime_seconds * 1e9) - super().monotonic_ns()

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.added_ns

    def step(self, seconds: float) -> None:
        """Moves time forward.

        Backward would be below zero on a machine that has just booted.
        """
        assert seconds >= 0
        self.added_ns += int(seconds * 1e9)
