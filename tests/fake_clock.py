"""Time that passes when a test says so."""

from __future__ import annotations

from commitlog.clock import Clock


class FakeClock(Clock):
    """Time that passes in `sleep` only."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)
