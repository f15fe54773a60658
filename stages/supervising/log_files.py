"""The store's log files, `STORE/logs/<name>.log`. They are rotated, so they do not grow for ever.

A full file becomes `<name>.log.1`, and so on. RocketMQ leaves this to logback. Here a stage's log
is also its standard output and error, so that it has the stage's last words when it crashes. After
a rename the new file takes the place of these descriptors, for every writer to them.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from commitlog.config import LogsConfig
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.text.lines import JsonFormatter, LineHandler, log_to

LOG_BYTES = 16 << 20
"""A file of this size is full."""
_LAST_BYTES = 4096
LOGS_KEPT = 3
"""How many full files of each log are kept; older ones are removed."""

log = logging.getLogger(__name__)


def open_log(path: Path) -> int:
    """A descriptor that appends to the log file; it is made if it is missing. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def open_log_or_nothing(path: Path) -> tuple[int, str]:
    """Like `open_log`, but gives /dev/null where the file can't be had, and then says why.

    No process ends or stays away because its log can't be written. Raises OSError where there is no
    descriptor for either.
    """
    try:
        return open_log(path), ""
    except OSError as error:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), f"nothing is logged to {path}: {error.strerror}"


def log_to_file(path: Path, config: LogsConfig) -> None:
    """Sends this process's log to a file of its own.

    Where there is no such file, the log goes where it went before.
    """
    try:
        descriptor = open_log(path)
    except OSError as error:
        log.warning("nothing is logged to %s: %s", path, error.strerror)
        return
    # unbuffered: what a full disk has refused must not come again, in a child or at the close
    stream = io.TextIOWrapper(cast(BinaryIO, io.FileIO(descriptor, "a")), encoding="utf-8", write_through=True)
    _log_to(RotatingHandler(stream, path, [descriptor]), path, config)


def log_to_own_output(path: Path, config: LogsConfig) -> None:
    """Sends this process's log to its standard error.

    Where that is the file at `path`, it is rotated. Anything else, for example a terminal, is left
    as it is.
    """
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(sys.stderr.fileno()), os.stat(path)):
            own = RotatingHandler(sys.stderr, path, [sys.stdout.fileno(), sys.stderr.fileno()])
            _log_to(own, path, config)
            return
    _log_to(LineHandler(sys.stderr), path, config)


def _log_to(handler: LineHandler, path: Path, config: LogsConfig) -> None:
    level = config.level.upper()
    if config.format == "json":
        log_to(handler, level, JsonFormatter(path.stem))
    else:
        log_to(handler, level)


def last_lines(path: Path, channel: FileChannel = DISK) -> list[str]:
    """The last lines of a log; where it is empty, those of the full one before it.

    Raises OSError.
    """
    for file in (path, _full(path, 1)):
        with channel.opened(file) as fd:
            size = channel.size(fd)
            lines = (
                channel.pread(fd, _LAST_BYTES, max(size - _LAST_BYTES, 0)).decode(errors="replace").strip().splitlines()
            )
        if lines or not _full(path, 1).exists():
            break
    return lines


def _full(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


class RotatingHandler(LineHandler):
    """Writes lines to `stream`, which appends to the file at `path`, and rotates the file.

    `descriptors` are all descriptors that lead to the file.
    """

    def __init__(
        self, stream: TextIO, path: Path, descriptors: Sequence[int], channel: FileChannel = DISK, limit_bytes: int = 0
    ) -> None:
        super().__init__(stream)
        self._path, self._descriptors, self._channel = path, descriptors, channel
        self._limit_bytes = limit_bytes or LOG_BYTES

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line.

        A file that can't be rotated now continues to grow: its lines matter more.
        """
        with contextlib.suppress(OSError):
            if self._channel.size(self._descriptors[0]) >= self._limit_bytes:
                self._rotate()
        super().emit(record)

    def close(self) -> None:
        """Closes the file as well, unless it is the process's own output."""
        super().close()
        if min(self._descriptors) > 2:
            with contextlib.suppress(OSError):  # a full or broken disk
                self.stream.close()

    def _rotate(self) -> None:
        """Moves the names on by one, and makes a new file with the log's own name.

        It moves no name where another process has moved them already.
        """
        facts = os.fstat(self._descriptors[0])
        with contextlib.suppress(FileNotFoundError):  # somebody has removed the file
            if os.path.samestat(facts, os.stat(self._path, follow_symlinks=False)):
                for number in range(LOGS_KEPT, 0, -1):
                    with contextlib.suppress(FileNotFoundError):
                        source = _full(self._path, number - 1) if number > 1 else self._path
                        self._channel.rename(source, _full(self._path, number))
        new = open_log(self._path)
        try:
            for descriptor in self._descriptors:
                os.dup2(new, descriptor, inheritable=descriptor <= 2)
        finally:
            os.close(new)
