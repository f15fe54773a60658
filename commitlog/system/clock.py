"""The only door to time: all waits and timestamps go through a `Clock`, and tests replace it."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from numbers import Real

from commitlog.errors import IllegalArgument

LONG_AGO_NS = -(1 << 62)
"""Means "never yet" as the monotonic time of an event.

This time is earlier than every time that `monotonic_ns` gives. Zero would not do: it is the moment
of the boot, which may have been just now.
"""


class Clock:
    """Wall time for stamps, monotonic time for waits.

    `wall_ms` is milliseconds since the epoch and may jump; only retention and look-ups by time use
    it for decisions. `monotonic_ns` never goes back; it measures every interval and deadline.
    """

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def boot_ns(self) -> int:
        """Nanoseconds since boot, suspended time included (CLOCK_BOOTTIME).

        If the wall clock jumps, a comparison with this time shows it.
        """
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = Clock()


class SignalEvent(threading.Event):
    """An event that a signal's handler may set.

    `threading.Event.set` takes a lock. The signal may interrupt a thread that is within `wait` and
    holds this lock. Then a handler that calls `set` would wait for its own thread for ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        """A `put` of this queue is safe at any moment, even inside a `get` of the same thread."""

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._told.put(None)

    def clear(self) -> None:
        self._is_set, self._told = False, queue.SimpleQueue()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._told.get(timeout=timeout)
                self._told.put(None)  # for others that wait
        return self._is_set


def limit_ns(timeout: object) -> float:
    """Converts a limit in seconds into nanoseconds. None and infinity mean no limit.

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
