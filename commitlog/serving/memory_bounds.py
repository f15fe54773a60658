"""A process of a server takes so much memory and no more, whatever clients send.

Two things unpack what a client has sent before anything of ours sees it: Arrow a compressed batch,
and gRPC a compressed message, even that of a client that is not known yet. 1 MiB can become 1 GiB
so, and neither has a limit that can be set from here. So Arrow's allocator gets its memory at the
start and none later: a batch that does not fit is an error of its stream. The kernel bounds the
process: a message of gRPC's that does not fit ends it, and it is started again. So there are only
as many streams and waiting calls as fit, whatever they carry.
"""

from __future__ import annotations

import ctypes
import logging
import resource
from pathlib import Path

import pyarrow as pa

from commitlog.disk.file_channel import DISK

ARROW_BYTES_MAX = 2 << 30
"""Batches that are unpacked, and rows of typed topics that are sent: 256 streams of 8 MiB."""
STACK_BYTES = 1 << 20
"""Each thread reserves a stack, which counts as if it were used. By default it is 8 MiB."""
STREAM_BYTES = 32 << 20
"""What an open stream takes: a batch of 16 MiB, and what gRPC keeps of it."""
_STREAMS_SHARE = 0.75
"""How much of the rest of the memory is for streams. The other part is for clients that wait."""
_STATUS_BYTES_MAX = 1 << 16
_ATTRIBUTE_BYTES = 64
"""At least the size of a pthread_attr_t."""

log = logging.getLogger(__name__)


def arrow_bytes(memory_bytes: int) -> int:
    """How much of a process's memory Arrow gets."""
    return min(ARROW_BYTES_MAX, memory_bytes // 4)


def arrow_variables(memory_bytes: int) -> dict[str, str]:
    """What such a process has in its environment when it imports PyArrow, whose mimalloc reads it.

    numpy's OpenBLAS, which no server needs, would take 40 MiB for each core besides the first.
    """
    return {
        "OPENBLAS_NUM_THREADS": "1",
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


def calls_that_fit(memory_bytes: int) -> tuple[int, int]:
    """How many streams, and how many clients that wait, fit into what this process has left.

    Beyond that, malloc would fail somewhere in gRPC, which ends the process.
    """
    status = DISK.read_file(Path("/proc/self/status"), _STATUS_BYTES_MAX).decode()
    used = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))
    left = max(memory_bytes - used, 0)
    return int(left * _STREAMS_SHARE) // STREAM_BYTES, int(left * (1 - _STREAMS_SHARE)) // STACK_BYTES


def _use_small_stacks() -> None:
    """For threads that are made from now on, gRPC's too. Only glibc has this."""
    libc = ctypes.CDLL(None)
    attribute = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    if hasattr(libc, "pthread_setattr_default_np"):
        libc.pthread_attr_init(attribute)
        libc.pthread_attr_setstacksize(attribute, ctypes.c_size_t(STACK_BYTES))
        libc.pthread_setattr_default_np(attribute)
        libc.pthread_attr_destroy(attribute)
