"""Keeps shared memory out of swap with mlock, where the process is allowed to."""

from __future__ import annotations

import ctypes
import resource

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)


def lock_memory(mapping: memoryview) -> int:
    """Locks a mapped region into memory, for as long as it is mapped here.

    Returns 0, or the errno of the refusal.
    """
    address = np.frombuffer(mapping, dtype=np.uint8).__array_interface__["data"][0]
    if _libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(len(mapping))):
        return ctypes.get_errno()
    return 0


def lock_limit() -> int:
    """How many bytes this process may lock (RLIMIT_MEMLOCK; -1: any number). Root may lock more."""
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
