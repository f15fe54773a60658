"""How long a reader that follows rests between two looks for more.

A rest is a part of the time since the last message, so looks cost little beside the messages, and
add little to their latency. A reader rests so by URL, with asyncio, and where no stage wakes it
(watched_words.py).
"""

from __future__ import annotations

from typing import NamedTuple

from commitlog.system.clock import Clock

_PART_OF_IDLE = {"accepted": 100, "committed": 30, "flushed": 30}
_MOST_NS = 20_000_000
_PART_OF_LONG_IDLE, _MOST_OF_LONG_IDLE_NS = 100, 40_000_000
"""After two seconds without a message the rests grow again."""


class Rest(NamedTuple):
    """A rest of a reader: after how long without a message, and how long it is."""

    idle_ns: int
    seconds: float


class Rests:
    """The rests of one reader. `least` is the shortest one, in seconds."""

    def __init__(self, clock: Clock, isolation: str, least: float) -> None:
        self._clock, self._part, self._least_ns = clock, _PART_OF_IDLE[isolation], int(least * 1e9)
        self._given, self._since_ns = -1, 0

    def next(self, given: int) -> Rest:
        """The next rest, where so many messages were given out so far."""
        now = self._clock.monotonic_ns()
        if given != self._given:
            self._given, self._since_ns = given, now
        idle = now - self._since_ns
        most = max(_MOST_NS, min(idle // _PART_OF_LONG_IDLE, _MOST_OF_LONG_IDLE_NS))
        return Rest(idle, max(self._least_ns, min(idle // self._part, most)) / 1e9)
