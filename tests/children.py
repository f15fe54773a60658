"""Forked children of a test: all that they do ends with them."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable

_CAPABILITY_VERSION = 0x20080522
_PR_CAPBSET_DROP = 24
_EXEMPT = (21, 24)
"""CAP_SYS_ADMIN and CAP_SYS_RESOURCE: who has one of them may have any number of threads."""


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
        _drop_capabilities()
        return action()

    return in_child(act)


def may_have(threads: int) -> None:
    """Has this process, and its children, have no more threads than so many together.

    It counts for a user of its own from now on. Its files stay root's, so only root can do this.
    """
    for capability in _EXEMPT:  # programs that it starts would get them back
        assert ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability) == 0
    os.setresuid(1_000_000 + os.getpid(), -1, -1)
    resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
    _drop_capabilities()


def _drop_capabilities() -> None:
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, nothing) == 0
