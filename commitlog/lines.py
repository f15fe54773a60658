"""Lines of input, and lines for logs and terminals.

A path or a topic may hold any character, so everything that prints one escapes it here.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import stat
import sys
from typing import Any, TextIO

from commitlog.errors import MessageTooLarge

_NOT_UTF8 = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """The text on one line: a line feed is written out as \\n, an escape as \\x1b, and so on."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def to_json(values: Any, indent: int | None = None) -> bytes:
    """JSON of plain values.

    The odd bytes of a name that is not UTF-8 are written out, byte 255 as \\udcff. Otherwise only
    Python's own parser would take it.
    """
    text = json.dumps(values, ensure_ascii=False, indent=indent)
    return _NOT_UTF8.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()


class LineFormatter(logging.Formatter):
    """Writes a record as one line of printable characters, and its traceback on further lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


class LineHandler(logging.StreamHandler[TextIO]):
    """Drops a line that the system refuses to write, without a traceback on the user's terminal.

    The process that logs meets the same fault, and reports it by name.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def log_to(
    target: TextIO | LineHandler, level: int = logging.INFO, line: str = "%(asctime)s %(levelname)s %(message)s"
) -> None:
    """Sends this process's log to `target`, and nowhere else."""
    handler = target if isinstance(target, LineHandler) else LineHandler(target)
    handler.setFormatter(LineFormatter(line))
    logging.basicConfig(handlers=[handler], level=level, force=True)


class LineSplitter:
    """Splits input into lines as it comes. A line is the bytes before a newline.

    Errors call the input `name`; a line has at most `longest` bytes.
    """

    def __init__(self, name: str, longest: int) -> None:
        self._name, self._longest = name, longest
        self._partial = b""
        self._lines = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes.

        Raises MessageTooLarge for a line that is too long, so that endless input does not fill the
        memory.
        """
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._lines += len(lines)
        if len(self._partial) > self._longest:
            raise MessageTooLarge(
                f"MESSAGE_SIZE_EXCEEDED: {self._name}: line {self._lines + 1} is longer than {self._longest:,} bytes, the "
                f"largest message; is this a text file?"
            )
        return lines

    def end(self) -> list[bytes]:
        """What follows the last newline, as the input's last line. The next `feed` begins anew."""
        rest = [self._partial] if self._partial else []
        self.restart()
        return rest

    def restart(self) -> None:
        """Forgets a line that is not complete."""
        self._partial = b""
        self._lines = 0


def why_unreadable(name: str) -> str | None:
    """Why a file can't be read, in the system's words; None where it can.

    It does not open the file: opening and closing a named pipe would end it for its writer.
    """
    try:
        is_directory = stat.S_ISDIR(os.stat(name).st_mode)
    except OSError as error:
        return f"{error.strerror}; check the name and its permissions"
    if is_directory:
        return f"is a directory; name the files in it ({name.rstrip('/')}/*)"
    return None if os.access(name, os.R_OK) else f"{os.strerror(errno.EACCES)}; check its permissions"
