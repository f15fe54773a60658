"""Keys of a terminal, without Enter."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator

from commitlog.system.clock import SYSTEM_CLOCK

_SPECIAL_KEY = re.compile(r"\x1b(\[[0-9;]*[A-Za-z~]|O[A-Za-z])")


@contextlib.contextmanager
def keyboard() -> Iterator[Callable[[float], str]]:
    """Gives a function that waits for keys for some seconds, and returns those that were pressed.

    Where standard input is no terminal, there are none: it only waits. The terminal is as before
    when the with-block ends, however it ends.
    """
    if not sys.stdin.isatty():
        yield _no_keys
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield lambda seconds: _pressed(fd, seconds)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _no_keys(seconds: float) -> str:
    SYSTEM_CLOCK.sleep(seconds)
    return ""


def _pressed(fd: int, seconds: float) -> str:
    """The keys that were pressed. Arrows and the like, which send several bytes, are left out."""
    if not select.select([fd], [], [], seconds)[0]:
        return ""
    return _SPECIAL_KEY.sub("", os.read(fd, 1024).decode(errors="replace"))
