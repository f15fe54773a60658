"""Segment files, mapped read-only and kept mapped in the process that reads them.

A Spark worker runs many tasks, so the mappings are kept between them. They are kept by device and
inode: if a path now belongs to a new file (the store was made again), nobody reads the old bytes.
Segments are never truncated or recycled, so a mapping stays valid even after retention has unlinked
its file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.mapped_file import map_segment, read_ahead
from commitlog.record.byte_ranges import ByteArray, Ints, gather

MAPPINGS_MAX = 128
"""How many files are kept mapped. Each takes a descriptor and address space.

The page cache is shared by all processes.
"""


_GAP_BYTES = 1 << 18
"""Parts of a file that are nearer to each other are read as one."""


class Segment:
    """One mapped segment file. `start` is the log offset of its first byte."""

    def __init__(self, path: Path, start: int, fd: int, length: int, size: int, channel: FileChannel) -> None:
        self.path, self.start, self.size = path, start, size
        self.map = map_segment(fd, length, size, channel)
        self.buffer = pa.py_buffer(self.map)
        self.u8: ByteArray = np.frombuffer(self.map, np.uint8)

    def read_ahead(self, begins: Ints, ends: Ints) -> None:
        """Has these parts of the file read, which are in order. Raises OSError (EIO)."""
        if not len(begins):
            return
        gaps = np.flatnonzero(begins[1:] - ends[:-1] > _GAP_BYTES)
        firsts, lasts = np.concatenate(([0], gaps + 1)), np.concatenate((gaps, [len(ends) - 1]))
        for begin, end in zip(begins[firsts].tolist(), ends[lasts].tolist(), strict=True):
            read_ahead(self.map, begin, end)

    def gather(self, dtype: str, at: Ints) -> npt.NDArray[Any]:
        """The values at these places of the segment. All of them must lie within it."""
        return gather(self.u8, dtype, at)

    def gather_as(self, dtype: np.dtype[np.void], at: Ints) -> npt.NDArray[np.void]:
        """The same for items with fields. Numpy copies them ten times faster as plain bytes."""
        return self.gather(f"V{dtype.itemsize}", at).view(dtype)


class SegmentCache:
    """The mapped segments that were used last, by device and inode.

    Threads may use it at the same time: each step on the dictionary is one operation, and copes
    with an entry that another thread has taken away meanwhile.
    """

    def __init__(self, channel: FileChannel = DISK, limit: int = MAPPINGS_MAX) -> None:
        self.channel, self.limit = channel, limit
        self._mapped: OrderedDict[tuple[int, int], Segment] = OrderedDict()

    def get(self, path: Path, start: int, segment_bytes: int) -> Segment:
        """The mapped segment file.

        If the file is too short, this is a copy that ends in zeros, and it is not kept. Raises
        FileNotFoundError: retention removed the file, or there is a link or a directory in its
        place.
        """
        try:
            fd = self.channel.open(path)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _no_file(path) from error
            raise
        try:
            facts = os.fstat(fd)
            key = facts.st_dev, facts.st_ino
            segment = self._mapped.get(key)
            if segment is None or segment.path != path:
                if not stat.S_ISREG(facts.st_mode):
                    raise _no_file(path)
                segment = Segment(path, start, fd, facts.st_size, segment_bytes, self.channel)
                if facts.st_size < segment_bytes:
                    return segment
                self._mapped[key] = segment
                while len(self._mapped) > self.limit:
                    self._mapped.popitem(last=False)
            else:
                with contextlib.suppress(KeyError):  # another thread has unmapped it
                    self._mapped.move_to_end(key)
        finally:
            self.channel.close(fd)
        return segment

    def forget_gone(self) -> None:
        """Unmaps files that are no longer at their path: a mapping keeps their disk space."""
        for key, segment in list(self._mapped.items()):
            try:
                facts = os.stat(segment.path)
            except FileNotFoundError:
                self._mapped.pop(key, None)
                continue
            if (facts.st_dev, facts.st_ino) != key:
                self._mapped.pop(key, None)

    def clear(self) -> None:
        self._mapped.clear()


def _no_file(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no regular file", str(path))


SEGMENTS = SegmentCache()
