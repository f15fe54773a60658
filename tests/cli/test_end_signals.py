"""An event that a signal's handler sets, whatever it comes into."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from commitlog.system.clock import SignalEvent
from tests.children import in_child


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize("timeout", [None, 600.0])
def test_a_signal_within_a_wait(timeout: float | None, line: int) -> None:
    """It comes before one of the lines of `wait`. The wait ends, and another thread's does."""

    def wait() -> bool:
        event, seen = SignalEvent(), 0

        def trace(frame: FrameType, kind: str, _: Any) -> Any:
            nonlocal seen
            if frame.f_code is not SignalEvent.wait.__code__:
                return None
            if kind == "line":
                if seen == line:
                    os.kill(os.getpid(), signal.SIGTERM)
                seen += 1
            return trace

        signal.signal(signal.SIGTERM, lambda *_: event.set())
        other = threading.Thread(target=event.wait)
        other.start()
        sys.settrace(trace)
        is_set = event.wait(timeout)
        sys.settrace(None)
        other.join()
        return is_set and seen > line

    assert in_child(wait) == "True"


def test_it_is_an_event() -> None:
    event = SignalEvent()
    assert not event.wait(0.001)
    assert not event.is_set()
    event.set()
    assert event.wait()
    assert event.wait(0)
    event.clear()
    assert not event.is_set()
    assert not event.wait(0.001)
