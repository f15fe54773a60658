"""How long a server may wait for something new before it answers an idle query.

An idle query asks for its offsets some 60 times a second. A server that answers each time at once
is kept busy by nothing. So it may answer late where that harms nobody:

- only a query that has been told "nothing new" and comes back with the same offsets
- not under AvailableNow: such a query is about to end.
- only briefly where the query has other sources: Spark asks one after the other, so they would
  wait as well. Each source has a process of its own and knows of no other. But at first all of them
  wait briefly, and so a source comes back late where there is another one. And Spark commits the
  same offsets twice where there was a batch without us. A batch without any rows, as a watermark
  causes, looks the same.

A query with a trigger interval comes back late too, so it never waits long.

New rows end a wait, and so does `query.stop()`: Spark interrupts the call.
"""

from __future__ import annotations

from typing import Any

from commitlog.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock
from commitlog.remote.requests import WAIT_MS_MAX

SHORT_WAIT_MS = 50
"""The wait in a query that has other sources, or may have some."""
SHORT_WAITS = 4
"""So often a source has to be back at once before it waits long."""
AT_ONCE_NS = 40_000_000
"""A query without an interval comes back after `spark.sql.streaming.pollingDelay`, 10 ms."""


class ServerWait:
    """Finds it out from what Spark asks. An index of a directory ignores it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._idle_at: dict[str, Any] | None = None
        self._answered_ns = LONG_AGO_NS
        self._committed: dict[str, Any] | None = None
        self._has_company = False
        self._in_a_row = 0
        """How often the query was back at once, with the same offsets."""

    def milliseconds(self, start: dict[str, Any]) -> int:
        """How long the server may wait for rows behind `start`."""
        is_back_at_once = self._clock.monotonic_ns() - self._answered_ns < AT_ONCE_NS
        self._in_a_row = self._in_a_row + 1 if start == self._idle_at and is_back_at_once else 0
        if start != self._idle_at:
            return 0
        return WAIT_MS_MAX if self._in_a_row > SHORT_WAITS and not self._has_company else SHORT_WAIT_MS

    def answered(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Says where the next batch ends: at its `start` if there is nothing new."""
        self._idle_at = start if start == end else None
        self._answered_ns = self._clock.monotonic_ns()

    def committed(self, end: dict[str, Any]) -> None:
        """Says that Spark has committed a batch that ends there."""
        self._has_company = self._has_company or end == self._committed
        self._committed = end
