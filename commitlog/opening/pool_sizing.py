"""Chooses the size of a store's segments, so that its write buffers fit into shared memory."""

from __future__ import annotations

import os

from commitlog.errors import NotEnoughSharedMemory
from commitlog.shm.region import base_directory
from commitlog.shm.write_buffers import free_bytes
from commitlog.text.lines import to_enlarge

_SHARE_OF_FREE = 0.75
_LANES_AT_LEAST = 4


def choose_segment_bytes(buffers_per_lane: int, largest: int, smallest: int) -> int:
    """The largest segment size with which the buffers of four lanes fit into shared memory.

    It is a power of two, and the buffers take at most three quarters of the free shared memory.
    Raises NotEnoughSharedMemory where not even one lane of the smallest segments fits.
    """
    free = free_bytes(base_directory())
    size = largest
    while size > smallest and size * buffers_per_lane * _LANES_AT_LEAST > free * _SHARE_OF_FREE:
        size //= 2
    if size * buffers_per_lane > free:
        raise NotEnoughSharedMemory(
            f"{base_directory()} has {free:,} bytes free, a lane takes at least {size * buffers_per_lane:,}: free some, or "
            f"{to_enlarge(base_directory(), size * buffers_per_lane)}"
        )
    return size


def check_lane_fits(segment_bytes: int, buffers_per_lane: int) -> None:
    """Raises NotEnoughSharedMemory if not even one lane of a store fits.

    All of the machine's shared memory counts, even what is in use.
    """
    facts = os.statvfs(base_directory())
    size = facts.f_blocks * facts.f_frsize
    if segment_bytes * buffers_per_lane > size:
        raise NotEnoughSharedMemory(
            f"{base_directory()} has {size:,} bytes, a lane of this store takes {segment_bytes * buffers_per_lane:,}: "
            f"{to_enlarge(base_directory(), segment_bytes * buffers_per_lane)}"
        )
