"""A process of a server takes so much memory and no more, whatever clients send.

Two things unpack what a client has sent before anything of ours sees it: Arrow a compressed batch,
and gRPC a compressed message, even that of a client that is not known yet. 1 MiB can become 1 GiB
so, and neither has a limit that can be set from here. So Arrow's allocator gets its memory at the
start and none later: a batch that does not fit is an error of its stream. The kernel bounds the
process: a message of gRPC's that does not fit ends it, and it is started again.
"""

from __future__ import annotations

import ctypes
import logging
import resource

import pyarrow as pa

ARROW_BYTES_MAX = 2 << 30
"""Batches that are unpacked, and rows of typed topics that are sent: 256 streams of 8 MiB."""
STACK_BYTES = 1 << 20
"""Each thread reserves a stack, which counts as if it were used. By default it is 8 MiB."""
_ATTRIBUTE_BYTES = 64
"""At least the size of a pthread_attr_t."""

log = logging.getLogger(__name__)


def arrow_bytes(memory_bytes: int) -> int:
    """How much of a process's memory Arrow gets."""
    return min(ARROW_BYTES_MAX, memory_bytes // 4)


def arrow_variables(memory_bytes: int) -> dict[str, str]:
    """The environment of such a process: mimalloc reads it when PyArrow is imported."""
    return {
        "ARROW_DEFAULT_MEMORY_POOL": "mimalloc",
        "MIMALLOC_RESERVE_OS_MEMORY": f"{arrow_bytes(memory_bytes) >> 20}MiB",
        "MIMALLOC_DISALLOW_OS_ALLOC": "1",
        "MIMALLOC_LIMIT_OS_ALLOC": "1",  # its name in older versions
    }


def limit_memory(memory_bytes: int) -> None:
    """Bounds this process, before it has many threads."""
    _use_small_stacks()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or memory_bytes < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, hard))
    try:
        pa.allocate_buffer(arrow_bytes(memory_bytes) + 1)
    except MemoryError:
        return
    log.warning("this PyArrow's allocator has no limit: a batch that does not fit into memory ends the process")


def _use_small_stacks() -> None:
    """For threads that are made from now on, gRPC's too. Only glibc has this."""
    libc = ctypes.CDLL(None)
    attribute = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    if hasattr(libc, "pthread_setattr_default_np"):
        libc.pthread_attr_init(attribute)
        libc.pthread_attr_setstacksize(attribute, ctypes.c_size_t(STACK_BYTES))
        libc.pthread_setattr_default_np(attribute)
        libc.pthread_attr_destroy(attribute)
