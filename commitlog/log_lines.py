"""Lines for logs and terminals in which a name plays no tricks: a path or a topic may hold any character."""

from __future__ import annotations

import logging
from typing import TextIO


def printable(text: str) -> str:
    """The text on one line, its control characters written out: a line feed as \\n, an escape as \\x1b."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


class LineFormatter(logging.Formatter):
    """A record is one line of printable characters; a traceback follows on lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def log_to(stream: TextIO, level: int = logging.INFO, line: str = "%(asctime)s %(levelname)s %(message)s") -> None:
    """Sends this process's log there, and nowhere else."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(line))
    logging.basicConfig(handlers=[handler], level=level, force=True)
