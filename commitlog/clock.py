"""The only door to time: everything waits and stamps through a `Clock`, and tests swap it."""

from __future__ import annotations

import math
import time
from numbers import Real

from commitlog.errors import IllegalArgument

LONG_AGO_NS = -(1 << 62)
"""Means "never yet" as the monotonic time of an event.

It is before every time that `monotonic_ns` gives. Zero is not, because it is the moment of the
boot, which may have been just now.
"""


class Clock:
    """Wall time for stamps, monotonic time for waits.

    `wall_ms` is milliseconds since the epoch and may jump; only retention and look-ups by time
    decide by it. `monotonic_ns` never goes back; it measures every interval and deadline.
    """

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def boot_ns(self) -> int:
        """Nanoseconds since boot, suspended time included (CLOCK_BOOTTIME).

        A comparison with it shows whether the wall clock has jumped.
        """
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = Clock()


def limit_ns(timeout: object) -> float:
    """A limit in seconds as nanoseconds. None and infinity mean no limit.

    Raises IllegalArgument for anything that is not a time.
    """
    if timeout is None:
        return math.inf
    try:
        seconds = math.nan if isinstance(timeout, bool) or not isinstance(timeout, Real) else float(timeout)
    except OverflowError:  # a whole number that is too large for a float
        seconds = math.inf
    if not seconds >= 0:
        raise IllegalArgument(f"a timeout is seconds from 0 on, or None for no limit, not {timeout!r:.80}")
    return seconds * 1e9
