"""Waits for a condition, instead of sleeping for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""Long enough for a machine that is busy with other things: nothing is slower for it, but a
failure.
"""


def wait_until(condition: Callable[[], T], what: str = "", *, patience: float = PATIENCE_SECONDS) -> T:
    """Calls `condition` again and again until its answer is true, and returns the answer.

    After `patience` seconds it raises AssertionError, with `what` as the thing that did not happen.
    It looks after 1 ms at first, then less and less often, at last every 50 ms.
    """
    deadline = time.monotonic() + patience
    pause = 0.001
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {patience:g} s: {what or condition}; last seen: {answer!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
