"""Forked children of a test: all that they do ends with them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_CAPABILITY_VERSION = 0x20080522


def in_child(action: Callable[[], object]) -> str:
    """Runs the action in a forked child, which must come to its end.

    Returns its text, or its error with the error's class.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                said = str(action())
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode(errors="backslashreplace"))
        finally:
            os._exit(0)
    os.close(writing)
    said = b"".join(iter(lambda: os.read(reading, 65536), b"")).decode()
    os.close(reading)
    assert os.waitpid(child, 0)[1] == 0
    return said


def without_privileges(action: Callable[[], object]) -> str:
    """Runs the action in a forked child without capabilities.

    There modes of files count, also for root.
    """

    def act() -> object:
        drop_capabilities()
        return action()

    return in_child(act)


def drop_capabilities() -> None:
    """Takes all capabilities from this process, for ever."""
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, nothing) == 0
