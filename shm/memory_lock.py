"""Keeps shared memory out of swap with mlock2, if the process may do that."""

from __future__ import annotations

import ctypes
import resource

import numpy as np

_MLOCK_ONFAULT = 1
_libc = ctypes.CDLL(None, use_errno=True)


def lock_memory_on_use(mapping: memoryview) -> int:
    """Locks each page of a mapped region into memory when it is first used through this mapping.

    A page stays locked while it is mapped in this process. The whole region counts for the limit.
    Returns 0, or the errno of the refusal.
    """
    address = np.frombuffer(mapping, dtype=np.uint8).__array_interface__["data"][0]
    if _libc.mlock2(ctypes.c_void_p(address), ctypes.c_size_t(len(mapping)), _MLOCK_ONFAULT):
        return ctypes.get_errno()
    return 0


def lock_limit() -> int:
    """How many bytes this process may lock (RLIMIT_MEMLOCK; -1: any number). Root may lock more."""
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
