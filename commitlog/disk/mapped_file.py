"""One segment, mapped read-only: RocketMQ's MappedFile, with its ReferenceResource.

No user process ever stores to a mapping, where a full disk is a SIGBUS; writing goes through
FileChannel. A mapping that somebody holds is not closed under him. A file that is unlinked stays
readable as long as its mapping does.
"""

from __future__ import annotations

import errno
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.errors import DamagedFile

_POLL_SECONDS = 0.001
_NO_FILE = (errno.EINVAL, errno.ELOOP, errno.ENODEV)


_BLOCK_BYTES = 1 << 20


def map_segment(fd: int, length: int, size: int, channel: FileChannel) -> mmap.mmap:
    """The first `size` bytes of a segment file of `length` bytes, read-only. One that is too short
    ends in zeros: it is a copy then, for to read a mapping beyond its file's end would be a SIGBUS.
    Raises OSError."""
    if length >= size:
        return channel.map_read(fd, size)
    copy = mmap.mmap(-1, size)
    for at in range(0, length, _BLOCK_BYTES):
        data = channel.pread(fd, min(_BLOCK_BYTES, length - at), at)
        copy[at : at + len(data)] = data
    return copy


class MappedFile:
    """A whole segment. `view` is its bytes, `start` its first byte's offset in the log, `size` its
    length in bytes.

    Of a file that is too short (`is_whole` is false) it is a copy that ends in zeros, so that its
    good records can be read. Raises FileNotFoundError, DamagedFile where the file is too long, or
    is a link, a pipe or a directory.
    """

    def __init__(self, path: Path, start: int, size: int, channel: FileChannel = DISK) -> None:
        self.path, self.start, self.size = path, start, size
        try:
            with channel.opened(path) as fd:
                actual = channel.size(fd)
                if actual > size:
                    raise DamagedFile(f"{path}: {actual:,} bytes, a segment of this log has {size:,}")
                self.is_whole = actual == size
                self._mapping = map_segment(fd, actual, size, channel)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise DamagedFile(f"{path}: no regular file; put the segment in its place") from error
            raise
        self.view = memoryview(self._mapping)
        self._lock = threading.Lock()
        self._holders = 0
        self._available = True

    def hold(self) -> bool:
        """Takes a reference, so that `shutdown` waits; False once shut down."""
        with self._lock:
            if self._available:
                self._holders += 1
            return self._available

    def release(self) -> None:
        """Gives a reference back."""
        with self._lock:
            self._holders -= 1

    @contextmanager
    def held(self) -> Iterator[memoryview]:
        """The bytes for the length of a with-block. Raises ValueError after `shutdown`."""
        if not self.hold():
            raise ValueError(f"{self.path} is closed")
        try:
            yield self.view
        finally:
            self.release()

    def shutdown(self, wait_seconds: float = 0.0, clock: Clock = SYSTEM_CLOCK) -> bool:
        """Lets no new holder in, waits for the others up to the limit, and unmaps.

        After the limit the mapping is left to its last view instead (Python unmaps it when that
        goes): True when it is unmapped already.
        """
        with self._lock:
            self._available = False
        deadline = clock.monotonic_ns() + int(wait_seconds * 1e9)
        while self._holders > 0 and clock.monotonic_ns() < deadline:
            clock.sleep(_POLL_SECONDS)
        try:
            self.view.release()
            self._mapping.close()
        except BufferError:
            return False
        return True
