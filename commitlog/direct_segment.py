"""A segment that its producer writes itself: RocketMQ's *only flush* path, without a mapping that could raise SIGBUS."""

from __future__ import annotations

import errno
from pathlib import Path

from commitlog.errors import disk_error
from commitlog.file_channel import FileChannel


class DirectSegment:
    """Looks like a write buffer to the producer: `segment[a:b] = data` is a pwrite, `segment[a:b]` a pread.

    Positions are bytes from the segment's start. Raises DiskInputOutput, QuotaExceeded, … as DiskError.
    """

    def __init__(self, path: Path, channel: FileChannel) -> None:
        self._channel = channel
        self._fd = channel.open(path, write=True)

    def __setitem__(self, place: slice, data: bytes | bytearray | memoryview) -> None:
        try:
            self._channel.pwrite(self._fd, data, place.start)
        except OSError as error:
            raise disk_error(error.errno or errno.EIO, "writing the segment; the message was not accepted") from error

    def __getitem__(self, place: slice) -> bytes:
        return self._channel.pread(self._fd, place.stop - place.start, place.start)

    def close(self) -> None:
        if self._fd >= 0:
            self._channel.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_fd"):  # not there when the file could not be opened
            self.close()
