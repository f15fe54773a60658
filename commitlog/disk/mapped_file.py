"""One segment, mapped read-only: RocketMQ's MappedFile.

No process ever stores to a mapping, because there a full disk is a SIGBUS; writing goes through
FileChannel. A mapping stays as long as somebody uses its bytes. A file that is unlinked stays
readable as long as its mapping does.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.errors import NOT_A_FILE, DamagedFile

_BLOCK_BYTES = 1 << 20


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
