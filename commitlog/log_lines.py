"""Lines for logs and terminals in which a name plays no tricks: a path or a topic may hold any character."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any, TextIO

_NOT_UTF8 = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """The text on one line, its control characters written out: a line feed as \\n, an escape as \\x1b."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def to_json(values: Any, indent: int | None = None) -> bytes:
    """JSON of plain values. A name that is no UTF-8 has its odd bytes written out, byte 255 as \\udcff; else nothing but
    Python's own parser would take it."""
    text = json.dumps(values, ensure_ascii=False, indent=indent)
    return _NOT_UTF8.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()


class LineFormatter(logging.Formatter):
    """A record is one line of printable characters; a traceback follows on lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


class LineHandler(logging.StreamHandler[TextIO]):
    """A line that finds no place is dropped: logging's own report, a traceback on the user's terminal, says no more than
    the fault that its writer noticed as well. It comes out with a later one, when there is space again."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def log_to(
    target: TextIO | LineHandler, level: int = logging.INFO, line: str = "%(asctime)s %(levelname)s %(message)s"
) -> None:
    """Sends this process's log there, and nowhere else."""
    handler = target if isinstance(target, LineHandler) else LineHandler(target)
    handler.setFormatter(LineFormatter(line))
    logging.basicConfig(handlers=[handler], level=level, force=True)
