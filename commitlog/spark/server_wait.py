"""How long a server may wait for something new before it answers an idle query.

An idle query asks for its offsets some 60 times a second. A server that answers each question at
once is busy all the time for nothing. So it may answer late if that harms nobody:

- only a query that has been told "nothing new" and comes back with the same offsets
- not under AvailableNow: such a query is about to end.
- only briefly where the query has other sources: Spark asks one after the other, so they would
  wait as well. Each source has a process of its own and knows of no other. But at first all of them
  wait briefly, and so a source comes back late where there is another one. And Spark commits the
  same offsets twice where there was a batch without us. A batch without any rows, as a watermark
  causes, looks the same.

A query with a trigger interval comes back late too, so it never waits long.

New rows end a wait. `query.stop()` ends it too, because Spark interrupts the call.
"""

from __future__ import annotations

from typing import Any

from commitlog.remote.requests import WAIT_MS_MAX
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock

SHORT_WAIT_MS = 50
"""The wait in a query that has other sources, or may have some."""
SHORT_WAITS = 4
"""How many times in a row a source must come back at once before it waits long."""
AT_ONCE_NS = 40_000_000
"""A query that comes back within this time counts as back at once.

Without a trigger interval it comes back after `spark.sql.streaming.pollingDelay`, 10 ms.
"""


class ServerWait:
    """Finds from Spark's calls how long a server may wait. An index of a directory never waits."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._idle_at: dict[str, Any] | None = None
        self._answered_ns = LONG_AGO_NS
        self._committed: dict[str, Any] | None = None
        self._has_company = False
        self._in_a_row = 0
        """How many times in a row the query came back at once, with the same offsets."""

    def milliseconds(self, start: dict[str, Any]) -> int:
        """How long the server may wait for rows behind `start`."""
        is_back_at_once = self._clock.monotonic_ns() - self._answered_ns < AT_ONCE_NS
        self._in_a_row = self._in_a_row + 1 if start == self._idle_at and is_back_at_once else 0
        if start != self._idle_at:
            return 0
        return WAIT_MS_MAX if self._in_a_row > SHORT_WAITS and not self._has_company else SHORT_WAIT_MS

    def answered(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Notes the answer to Spark: the end of the next batch. It is `start` if nothing is new."""
        self._idle_at = start if start == end else None
        self._answered_ns = self._clock.monotonic_ns()

    def committed(self, end: dict[str, Any]) -> None:
        """Notes that Spark has committed a batch with this end."""
        self._has_company = self._has_company or end == self._committed
        self._committed = end
