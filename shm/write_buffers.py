"""The write buffers of a lane: RocketMQ's TransientStorePool, without its list of free buffers.

A lane's buffers are one region of N slots, each as large as a segment. Segment number S is written
in slot S mod N. A buffer is *borrowed* when the producer rolls into it, and *returned* when
everything in it is flushed. Both follow from the positions, so there is no list of free buffers
that a kill could leave wrong.

    wrote ────────────────────────────────┐
    flushed ──────────┐                   │
    segment    │  3   ▼   │      4      │ ▼   5      │      6
    slot (N=3) │    0     │      1      │     2      │      0

Slot 0 is free for segment 6 as soon as `flushed` has passed the end of segment 3.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from commitlog.shm.layout import DIRECT_WINDOW, MAX_SLOTS, Lane
from commitlog.shm.region import Region, RegionError

MIN_SLOTS = 3


def buffers_path(directory: Path, lane: int) -> Path:
    """The region of a lane's buffers in the pool directory."""
    return directory / f"lane-{lane}"


def available_buffers(wrote: int, flushed: int, segment_size: int, slots: int) -> int:
    """How many buffers are free.

    The buffers from the first unflushed segment to the one that is being written are in use.
    """
    return slots - (wrote // segment_size - flushed // segment_size + 1)


def is_direct(row: memoryview, segment: int) -> bool:
    """Whether the lessee of a lane writes a segment number directly to its file, without a slot."""
    return row[Lane.SLOTS] == 0 or row[Lane.DIRECT + segment % DIRECT_WINDOW] == segment + 1


def slot_is_free(segment: int, flushed: int, segment_size: int, slots: int) -> bool:
    """Whether the slot of a segment number may be written for it.

    The segment that used the slot before must be flushed to its end.
    """
    return flushed >= (segment - slots + 1) * segment_size


class WriteBuffers:
    """The mapped slots of one lane, each `segment_size` bytes. Raises RegionError."""

    def __init__(self, region: Region, segment_size: int, slots: int) -> None:
        if not MIN_SLOTS <= slots <= MAX_SLOTS or region.size != segment_size * slots:
            raise RegionError(f"{region.path}: {region.size} bytes are not {slots} buffers of {segment_size}")
        self.region = region
        self.segment_size = segment_size
        self.slots = slots
        self._views = [region.bytes[i * segment_size : (i + 1) * segment_size] for i in range(slots)]

    @classmethod
    def create(cls, directory: Path, lane: int, segment_size: int, slots: int) -> WriteBuffers:
        """Makes the lane's buffers, allocated in full. The caller holds the lane's lock.

        Raises RegionFull.
        """
        path = buffers_path(directory, lane)
        path.unlink(missing_ok=True)  # a half-made one: BUFFERS in the lane's row was even
        return cls(Region.create(path, segment_size * slots), segment_size, slots)

    @classmethod
    def attach(cls, directory: Path, lane: int, segment_size: int, slots: int, *, writable: bool) -> WriteBuffers:
        """Maps the lane's buffers. Raises FileNotFoundError, RegionError."""
        region = Region.attach(buffers_path(directory, lane), writable=writable)
        try:
            return cls(region, segment_size, slots)
        except RegionError:
            region.close()
            raise

    def slot(self, segment: int) -> memoryview:
        """The buffer of a segment number: the same view each time.

        It is writable if the region is.
        """
        return self._views[segment % self.slots]

    def writer(self, segment: int, position: int) -> Callable[[bytes], object]:
        """A `write` that puts bytes into a segment's slot, from `position` on.

        Each call continues where the last one ended. This is the cheapest store that Python has,
        because no slice is built. There is one writer only: a new one replaces the one before.
        """
        return self.region.writer(segment % self.slots * self.segment_size + position)

    def close(self) -> None:
        for view in self._views:
            view.release()
        self.region.close()


def remove_buffers(directory: Path, lane: int) -> None:
    """Gives a lane's shared memory back.

    The caller holds the lane's lock and knows that the lane is drained.
    """
    buffers_path(directory, lane).unlink(missing_ok=True)


def free_bytes(directory: Path) -> int:
    """How many bytes are free in the shared-memory file system."""
    facts = os.statvfs(directory)
    return facts.f_bavail * facts.f_frsize
