"""Reads the logs of a store's processes: each through its rotation, all merged by time."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import StoreDirectory
from commitlog.shm.layout import ALL_STAGES
from commitlog.text.lines import parse_log_line

LOGGERS = ("supervisor", *ALL_STAGES)
"""Who writes a log, `STORE/logs/<name>.log`."""
_READ_BYTES = 1 << 20
_ROTATED_MOST = 100


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What one process has logged at one time. The message of a traceback has several lines.

    `order_ms` never goes down within a log, also where the clock did.
    """

    time_ms: int
    level: str
    stage: str
    message: str
    order_ms: int


class StageLog:
    """One log from its oldest file on. Each `read` goes on where the one before it has ended."""

    def __init__(self, path: Path, channel: FileChannel = DISK) -> None:
        self._path, self._channel = path, channel
        self._inode, self._position = -1, 0
        self._partial = b""
        self._last = LogEntry(0, "INFO", path.stem, "", 0)

    def read(self) -> Iterator[LogEntry]:
        """What was written since. Raises OSError."""
        entry: LogEntry | None = None
        for line in self._lines():
            begun = self._begin(line)
            if begun is None and entry is not None:
                entry = LogEntry(entry.time_ms, entry.level, entry.stage, f"{entry.message}\n{line}", entry.order_ms)
                continue
            if entry is not None:
                yield entry
            self._last = entry = begun or self._like_last(line)
        if entry is not None:
            yield entry

    def _begin(self, line: str) -> LogEntry | None:
        """The entry that begins with this line, or None if the line belongs to the one before."""
        if line.startswith("Traceback "):
            return self._like_last(line, "ERROR")
        found = parse_log_line(line)
        if found is None:
            return None
        return LogEntry(
            found.time_ms, found.level, self._path.stem, found.message, max(found.time_ms, self._last.order_ms)
        )

    def _like_last(self, line: str, level: str = "") -> LogEntry:
        last = self._last
        return LogEntry(last.time_ms, level or last.level, last.stage, line, last.order_ms)

    def _lines(self) -> Iterator[str]:
        files = self._open_files()
        try:
            for inode, fd in files:
                if inode != self._inode:
                    self._inode, self._position = inode, 0
                while data := self._channel.pread(fd, _READ_BYTES, self._position):
                    self._position += len(data)
                    *lines, self._partial = (self._partial + data).split(b"\n")
                    yield from (line.decode(errors="replace") for line in lines)
        finally:
            for _, fd in files:
                self._channel.close(fd)

    def _open_files(self) -> list[tuple[int, int]]:
        """Inode and descriptor of the files that are not read to their end, the oldest first.

        The newest is opened first. A rotation meanwhile then shows a file twice, and hides none.
        """
        opened: dict[int, int] = {}
        for number in range(_ROTATED_MOST):
            try:
                fd = self._channel.open(self._path.with_name(f"{self._path.name}.{number}") if number else self._path)
            except FileNotFoundError:
                if number:
                    break
                continue  # a rotation has just renamed it
            inode = os.fstat(fd).st_ino
            if inode in opened:
                self._channel.close(fd)
                continue
            opened[inode] = fd
            if inode == self._inode:
                break
        return list(reversed(opened.items()))


class StoreLogs:
    """The logs of a store, or those of `names` (of LOGGERS). Raises StoreNotFound."""

    def __init__(self, path: str | os.PathLike[str], names: Sequence[str] = (), channel: FileChannel = DISK) -> None:
        directory = StoreDirectory(path)
        if not directory.logs_directory.exists():
            directory.load()
        self._logs = [StageLog(directory.logs_directory / f"{name}.log", channel) for name in names or LOGGERS]

    def read(self) -> Iterator[LogEntry]:
        """What was logged since the last call, merged by time. Raises OSError."""
        return heapq.merge(*(log.read() for log in self._logs), key=attrgetter("order_ms"))
