"""A segment file in the making: it gets its name only when it is whole and durable."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import LaneDirectory, segment_name


class NewSegment:
    """A segment that is made in its lane's `tmp/`, and renamed into `commitlog/` by `publish`.

    So nobody sees a half-made segment, and a full disk is an error here, never in the middle of a
    write to the log. Without `publish`, or after an error, the end of the with-block removes the
    file: ext4 keeps what an allocation has got, so a full disk would stay full.

    `fd` is open to write its bytes. With `sparse`, blocks are allocated where bytes are written
    only. Everything raises OSError.
    """

    def __init__(
        self, lane: LaneDirectory, start: int, size: int, channel: FileChannel, *, sparse: bool = False
    ) -> None:
        self.start, self._lane, self._channel = start, lane, channel
        self._path = lane.tmp / segment_name(start)
        with contextlib.suppress(FileNotFoundError):
            channel.unlink(self._path)  # a process that was killed has left it
        self.fd = channel.open(self._path, write=True, create=True)
        self._is_published = False
        try:
            if sparse:
                channel.truncate(self.fd, size)
            else:
                channel.allocate(self.fd, size)
        except OSError:
            self.close()
            raise

    def sync(self) -> None:
        """Makes its bytes durable. Nothing can be written to it afterwards."""
        fd, self.fd = self.fd, -1
        try:
            self._channel.fdatasync(fd)
        finally:
            self._channel.close(fd)

    def publish(self) -> None:
        """Gives it its name in the log, durably."""
        if self.fd >= 0:
            self.sync()
        self._channel.rename(self._path, self._lane.segment_path(self.start))
        self._is_published = True
        self._channel.sync_directory(self._lane.commitlog)

    def close(self) -> None:
        """Closes it, and removes it where it was not published."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._channel.close(fd)
        if not self._is_published:
            with contextlib.suppress(OSError):  # the next one that makes this segment removes it
                self._channel.unlink(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
