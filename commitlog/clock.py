"""The only door to time: tests swap it, everything else waits and stamps through it."""

from __future__ import annotations

import math
import time
from numbers import Real

from commitlog.errors import IllegalArgument

LONG_AGO_NS = -(1 << 62)
"""Stands for "never yet" where the monotonic time of the last time is kept. It lies before every
time that `monotonic_ns` gives. Zero does not: it is the moment of the boot, which may have been
just now."""


class Clock:
    """Wall time for stamps, monotonic time for waits.

    `wall_ms` is milliseconds since the epoch and may jump; nothing decides by it but retention and
    time look-ups. `monotonic_ns` never goes back and is what every interval and deadline is
    measured with.
    """

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def boot_ns(self) -> int:
        """Nanoseconds since boot, suspended time included (CLOCK_BOOTTIME): tells a clock jump from
        time passed.
        """
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = Clock()


def limit_ns(timeout: object) -> float:
    """A limit in seconds as nanoseconds; None and infinity are no limit. Raises IllegalArgument for
    what is no time.
    """
    if timeout is None:
        return math.inf
    try:
        seconds = math.nan if isinstance(timeout, bool) or not isinstance(timeout, Real) else float(timeout)
    except OverflowError:  # a whole number of more digits than a float has
        seconds = math.inf
    if not seconds >= 0:
        raise IllegalArgument(f"a timeout is seconds from 0 on, or None for no limit, not {timeout!r:.80}")
    return seconds * 1e9
