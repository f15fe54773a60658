"""Threads that share a producer: one that waits long for its turn is let in, although nobody holds
a lock.

A producer's calls exclude one another by a token (producer.py) that costs one thread alone nothing.
It is not fair: where a call lets go of the interpreter (a pwrite does), or is short beside the
interpreter's switch interval, a thread in a loop has the token whenever another one looks. So who
has waited for a while stands in a line; and a thread that has put the token back and sees the line
sleeps until the first of it has come in. That happens once in a while only, because to go from one
thread to the next costs as much as many messages.

Greenlets of one thread are not told from threads: they wait by `time.sleep` and a lock's `acquire`,
which gevent has to have replaced.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType

from commitlog.clock import LONG_AGO_NS, Clock

_PAUSE_SECONDS_LEAST, _PAUSE_SECONDS_MOST = 0.000_01, 0.001
_TURN_NS = 1_000_000
"""How long a thread may go on while others stand in the line."""
_GIVING_WAY_SECONDS, _GIVING_WAY_TIMES = 0.000_05, 40


class Turns:
    """The line before one producer. For all its threads at the same time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line: list[threading.Lock] = []
        self._next_ns = LONG_AGO_NS

    def wait(self, is_free: Callable[[], bool], ask: Callable[[], object]) -> None:
        """Returns when the token is free, or when the program ends. `ask` is called while this
        thread stands in the line, so that whoever puts the token back looks at it."""
        pause, bell = 0.0, threading.Lock()
        bell.acquire()
        try:
            while not is_free() and not sys.is_finalizing():
                if pause < _PAUSE_SECONDS_MOST:
                    self._clock.sleep(pause)
                    pause = 2 * pause + _PAUSE_SECONDS_LEAST
                    continue
                if bell not in self._line:
                    self._line.append(bell)
                ask()
                bell.acquire(timeout=_PAUSE_SECONDS_MOST)
        finally:
            with contextlib.suppress(ValueError):
                self._line.remove(bell)

    def give_way(self) -> None:
        """For who does not have the token: sleeps until the first in the line has come in, two
        milliseconds at most.
        """
        if not self._line or self._clock.monotonic_ns() < self._next_ns:
            return
        # the first in the line may have just left it, or been called by another thread
        with contextlib.suppress(IndexError, RuntimeError):
            first = self._line[0]
            first.release()
            for _ in range(_GIVING_WAY_TIMES):
                if first not in self._line:
                    break
                self._clock.sleep(_GIVING_WAY_SECONDS)
        self._next_ns = self._clock.monotonic_ns() + _TURN_NS


def is_inside(owner: object, calls: frozenset[CodeType], frame: FrameType | None) -> bool:
    """Whether `frame`, or one further up this thread's stack, is a method of `owner` whose code is
    one of `calls` and which has the token: its local variable of that name is not None."""
    while frame is not None:
        if frame.f_code in calls:
            held = frame.f_locals
            if held["self"] is owner and held.get("token") is not None:
                return True
        frame = frame.f_back
    return False
