"""Gives turns to the threads that share a producer: a thread that has waited long is let in.

A producer's calls exclude one another by a token (producer.py), which costs nothing while one
thread is alone. The token is not fair. A call may let go of the interpreter (a pwrite does), or be
much shorter than the interpreter's switch interval. Then a thread that calls in a loop has the
token whenever another thread looks. So a thread that has waited for a while stands in a line. A
thread that puts the token back and sees the line sleeps until the first of the line has come in.
This happens only once in a while, because a change of threads costs as much as many messages.

Greenlets of one thread are treated as threads: they wait by `time.sleep` and a lock's `acquire`,
which gevent must have replaced.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType

from commitlog.system.clock import LONG_AGO_NS, Clock

FREE, UNSURE = True, False
"""What a call puts back as the token: nothing is open, or the next call looks what was published.

Names, and no literals: CPython makes one tuple of two literals, and takes it apart by an iterator,
for which there may be no memory. Then the token would be gone.
"""
INSIDE = (
    "this thread is inside a call of this producer further up (in a signal handler or a finalizer?): do it when that has "
    "returned, or with a producer of its own"
)
_PAUSE_SECONDS_LEAST, _PAUSE_SECONDS_MOST = 0.000_01, 0.001
_TURN_NS = 1_000_000
"""How long a thread may go on while others stand in the line."""
_GIVING_WAY_SECONDS, _GIVING_WAY_TIMES = 0.000_05, 40


class Turns:
    """The line of threads before one producer. All its threads may use it at the same time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line: list[threading.Lock] = []
        self._next_ns = LONG_AGO_NS

    def wait(self, is_free: Callable[[], bool], ask: Callable[[], object]) -> None:
        """Returns when the token is free, or when the program ends.

        `ask` is called while this thread stands in the line. It makes the thread that puts the
        token back look at the line.
        """
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
        """Sleeps until the first in the line has come in, for two milliseconds at most.

        Only a thread that does not have the token calls it.
        """
        if not self._line or self._clock.monotonic_ns() < self._next_ns:
            return
        # the first in the line may just have left it, or another thread may have called it
        with contextlib.suppress(IndexError, RuntimeError):
            first = self._line[0]
            first.release()
            for _ in range(_GIVING_WAY_TIMES):
                if first not in self._line:
                    break
                self._clock.sleep(_GIVING_WAY_SECONDS)
        self._next_ns = self._clock.monotonic_ns() + _TURN_NS


def is_inside(owner: object, calls: frozenset[CodeType], frame: FrameType | None) -> bool:
    """Whether a call of `owner` that has the token is on this thread's stack, from `frame` upwards.

    The code of this call is one of `calls`, and its local variable `token` is not None.
    """
    while frame is not None:
        if frame.f_code in calls:
            held = frame.f_locals
            if held["self"] is owner and held.get("token") is not None:
                return True
        frame = frame.f_back
    return False
