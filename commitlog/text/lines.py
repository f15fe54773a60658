"""Lines of input, and lines for logs and terminals.

A path or a topic may hold any character, so everything that prints one escapes it here.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shlex
import stat
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from commitlog.errors import MessageTooLarge

_NOT_UTF8 = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """The text on one line: a line feed is written out as \\n, an escape as \\x1b, and so on."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def for_shell(word: str | os.PathLike[str]) -> str:
    """A path or a name for a command that somebody pastes into a shell: quoted if need be."""
    return shlex.quote(os.fspath(word))


def remount_command(directory: str | os.PathLike[str], total: int) -> str:
    """The command by which root doubles a file system in memory, which has `total` bytes now."""
    return f"mount -o remount,size={-(-2 * total // (1 << 20))}m {for_shell(directory)}"


def to_enlarge(directory: str | os.PathLike[str], needed: int = 0) -> str:
    """The way out where a file system in memory is too small, or has no room for `needed` bytes."""
    facts = os.statvfs(directory)
    total = max(facts.f_blocks * facts.f_frsize, needed)
    return f"enlarge it (--shm-size in Docker); as root: {remount_command(directory, total)}"


def wrapped(line: str, width: int, indent: str = "    ") -> list[str]:
    """The line in parts of at most `width` columns, broken between words.

    The parts behind the first one have `indent`. A longer word, such as a path, stays whole, and
    begins a line of its own, so that a terminal breaks it only where it has to.
    """
    parts = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [part if len(part) <= width else part.lstrip() for part in parts] or [""]


def fitted(line: str, width: int, indent: str = "    ") -> list[str]:
    """The same for a screen, which has no room for a longer word: it is cut in its middle."""
    most = max(width - len(indent), 1)
    return wrapped(" ".join(middle_cut(word, most) for word in line.split(" ")), width, indent)


def middle_cut(text: str, most: int) -> str:
    """A text of at most `most` characters: what is too much is left out in its middle."""
    if len(text) <= most:
        return text
    begin = (most - 1) // 2
    return f"{text[:begin]}…{text[len(text) - (most - 1 - begin) :]}"


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table: columns as wide as needed, aligned to the right.

    They stand closer together where 80 columns of a terminal are too few.
    """
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) - 2 <= _NARROW else " "
    for row in (heads, *rows):
        yield gap.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


_NARROW = 80

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def for_terminal(data: bytes) -> bytes:
    """Makes a user's bytes safe for a terminal: control characters are written out, as \\x1b.

    Tabs and line feeds stay.
    """
    text = data.decode(errors="backslashreplace")
    return _OBEYED.sub(lambda found: f"\\x{ord(found[0]):02x}", text).encode()


def can_draw(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which a line can be written over: not on a dumb one."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def to_json(values: Any, indent: int | None = None) -> bytes:
    """Writes plain values as JSON.

    Bytes of a name that are not UTF-8 are written out: byte 255 is \\udcff. Without this, only
    Python's own parser would take the text.
    """
    text = json.dumps(values, ensure_ascii=False, indent=indent)
    return _NOT_UTF8.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()


class LineFormatter(logging.Formatter):
    """Writes a record as one line of printable characters, and its traceback on further lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object on a line, with its traceback in the message.

    `stage` is the name of the process. The time is UTC, to the millisecond.
    """

    def __init__(self, stage: str) -> None:
        super().__init__()
        self._stage = stage

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        values = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "stage": self._stage,
            "message": super().format(record),
        }
        return to_json(values).decode()


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log, read again. `time_ms` is in ms since 1970."""

    time_ms: int
    level: str
    message: str


_TEXT_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ([A-Z]+) (.*)", re.DOTALL)


def parse_log_line(line: str) -> LogLine | None:
    """Parses a line that one of our formatters has written. Any other line gives None.

    Other lines are those of tracebacks, and of somebody's `print`. The time in a line of text is
    read in this machine's time zone.
    """
    try:
        if line.startswith("{"):
            values = json.loads(line)
            time, level, message = (str(values[name]) for name in ("time", "level", "message"))
            return LogLine(round(datetime.fromisoformat(time).timestamp() * 1000), level, message)
        if found := _TEXT_LINE.fullmatch(line):
            second = int(datetime.fromisoformat(found[1]).timestamp())
            return LogLine(second * 1000 + int(found[2]), found[3], found[4])
    except (ValueError, KeyError):  # it only looks like one
        pass
    return None


class LineHandler(logging.StreamHandler[TextIO]):
    """Drops a line that the system refuses to write; the user's terminal gets no traceback.

    The process that logs meets the same fault itself, and reports it by name.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def log_to(
    target: TextIO | LineHandler,
    level: int | str = logging.INFO,
    line: str | logging.Formatter = "%(asctime)s %(levelname)s %(message)s",
) -> None:
    """Sends this process's log to `target`, and nowhere else. `line` formats a record."""
    handler = target if isinstance(target, LineHandler) else LineHandler(target)
    handler.setFormatter(LineFormatter(line) if isinstance(line, str) else line)
    logging.basicConfig(handlers=[handler], level=level, force=True)


class LineSplitter:
    """Splits input into lines as it comes. A line is the bytes before a newline.

    Errors call the input `name`. A line may have at most `longest` bytes. If `skips` is set, longer
    lines are left out and counted in `skipped`. `lines` counts all complete lines.
    """

    def __init__(self, name: str, longest: int, *, skips: bool = False) -> None:
        self._name, self._longest, self._skips = name, longest, skips
        self._partial = b""
        self._is_within_skipped = False
        self.lines = 0
        self.skipped = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Takes more input, and returns the lines that are complete now.

        Raises MessageTooLarge for a line that is too long, so that endless input does not fill the
        memory.
        """
        if self._is_within_skipped:
            _, end, data = data.partition(b"\n")
            self._is_within_skipped = not end
            self.lines += len(end)
        *lines, self._partial = (self._partial + data).split(b"\n")
        self.lines += len(lines)
        if self._skips:
            return self._without_long(lines)
        if len(self._partial) > self._longest:
            raise MessageTooLarge(
                f"MESSAGE_SIZE_EXCEEDED: {self._name}: line {self.lines + 1} is longer than {self._longest:,} bytes, the "
                f"largest message; is this a text file? --skip-long passes over such lines"
            )
        return lines

    def _without_long(self, lines: list[bytes]) -> list[bytes]:
        kept = [line for line in lines if len(line) <= self._longest]
        self.skipped += len(lines) - len(kept)
        if len(self._partial) > self._longest:
            self.skipped += 1
            self._partial, self._is_within_skipped = b"", True
        return kept

    def end(self) -> list[bytes]:
        """Returns the bytes after the last newline as the last line.

        The next `feed` begins a new input.
        """
        rest = [self._partial] if self._partial else []
        self._partial, self._is_within_skipped = b"", False
        self.lines = 0
        return rest


def why_unreadable(name: str) -> str | None:
    """Says why a file can't be read, in the system's words; None if it can be read.

    The file is not opened: to open and close a named pipe would end the pipe for its writer.
    """
    try:
        is_directory = stat.S_ISDIR(os.stat(name).st_mode)
    except OSError as error:
        return f"{error.strerror}; check the name and its permissions"
    if is_directory:
        return f"is a directory; name the files in it ({name.rstrip('/')}/*)"
    return None if os.access(name, os.R_OK) else f"{os.strerror(errno.EACCES)}; check its permissions"
