"""One segment, mapped read-only: RocketMQ's MappedFile.

No process ever stores to a mapping, because there a full disk is a SIGBUS; writing goes through
FileChannel. A mapping stays as long as somebody uses its bytes. A file that is unlinked stays
readable as long as its mapping does.

A look at a byte that the disk can't read is a SIGBUS, too. So who looks at a mapping first has the
kernel read that part (`read_ahead`), which is an error then.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.errors import NOT_A_FILE, DamagedFile

if TYPE_CHECKING:
    from commitlog.record.record_layout import Buffer

_BLOCK_BYTES = 1 << 20
_POPULATE_READ, _HARDWARE_POISON = 22, 133
"""Linux's MADV_POPULATE_READ, of 5.14 and later, and EHWPOISON. Python has no names for them."""


def map_segment(fd: int, length: int, size: int, channel: FileChannel) -> mmap.mmap:
    """The first `size` bytes of a segment file of `length` bytes, read-only. Raises OSError.

    For a file that is too short it returns a copy that ends in zeros, because reading a mapping
    beyond the end of its file is a SIGBUS.
    """
    if length >= size:
        return channel.map_read(fd, size)
    copy = mmap.mmap(-1, size)
    for at in range(0, length, _BLOCK_BYTES):
        data = channel.pread(fd, min(_BLOCK_BYTES, length - at), at)
        copy[at : at + len(data)] = data
    return copy


def read_ahead(buffer: Buffer, begin: int, end: int) -> None:
    """Has the kernel read [begin, end) of a mapped file, before somebody looks at it.

    Raises OSError (EIO) where the disk can't read it, or the file was cut: a look would kill this
    process. Other buffers, and older kernels, have nothing to do here.
    """
    mapped = buffer.obj if isinstance(buffer, memoryview) else buffer
    if not isinstance(mapped, mmap.mmap) or len(mapped) != len(buffer) or not 0 <= begin < end:
        return
    first = begin - begin % mmap.PAGESIZE
    try:
        mapped.madvise(_POPULATE_READ, first, min(end, len(mapped)) - first)
    except OSError as error:
        if error.errno in (errno.EFAULT, _HARDWARE_POISON):
            raise OSError(errno.EIO, os.strerror(errno.EIO), _path_of(mapped)) from error


def _path_of(mapped: mmap.mmap) -> str:
    """The path of a mapped file, as the kernel has it."""
    import numpy as np

    address = np.frombuffer(mapped, np.uint8).ctypes.data
    for line in os.fsdecode(DISK.read_file("/proc/self/maps", 1 << 24)).splitlines():
        begin, _, end = line.partition(" ")[0].partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return line.split(maxsplit=5)[5] if line.count("/") else "a mapped file"
    return "a mapped file"


class MappedFile:
    """A whole segment, as bytes.

    `view` has its bytes, `start` is its first byte's offset in the log, and `size` its length in
    bytes.

    For a file that is too short (`is_whole` is false) `view` is a copy that ends in zeros, so that
    its good records can be read. Of one that is too long it is the begin, which has all records.
    Raises FileNotFoundError. Raises DamagedFile where it is a link, a pipe or a directory.
    """

    def __init__(self, path: Path, start: int, size: int, channel: FileChannel = DISK) -> None:
        self.path, self.start, self.size = path, start, size
        try:
            with channel.opened(path) as fd:
                actual = channel.size(fd)
                self.is_whole = actual >= size
                self._mapping = map_segment(fd, actual, size, channel)
        except OSError as error:
            if error.errno in NOT_A_FILE:
                raise DamagedFile(f"{path}: no regular file; put the segment in its place") from error
            raise
        self.view = memoryview(self._mapping)

    def close(self) -> bool:
        """Unmaps the file, and returns whether that was possible at once.

        Bytes that somebody still uses are unmapped when that use ends.
        """
        try:
            self.view.release()
            self._mapping.close()
        except BufferError:
            return False
        return True
