"""The signals that end a command which runs until it is told to: Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


def on_end_signal(call: Callable[[], object]) -> None:
    """Has SIGINT and SIGTERM call a function in the main thread, in place of their usual effect."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        call()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
