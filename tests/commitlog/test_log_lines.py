"""What a process does with its log where there is no space for it."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from commitlog.text.lines import LineFormatter, LineHandler

PROGRAM = """
import logging, sys
from commitlog.text.lines import log_to
log_to(open(sys.argv[1], "w"))
logging.warning("the disk is full")
logging.warning("%d", "no number")
"""


def test_a_full_disk_under_the_log_shows_no_traceback() -> None:
    """A mistake in the program's own call still does."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, "/dev/full"], capture_output=True, text=True, timeout=60)
    assert "No space left" not in done.stderr.split("Exception ignored")[0]
    assert "no number" in done.stderr


def test_a_traceback_in_a_log_has_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    """A name of a client's may be in it."""
    handler = LineHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(message)s"))
    try:
        raise ValueError("column \x1b[2J\nsecond line")
    except ValueError:
        failed = sys.exc_info()
    handler.emit(logging.LogRecord("x", logging.ERROR, "", 0, "it has failed", None, failed))
    said = capsys.readouterr().err
    assert "column \\x1b[2J\nsecond line" in said
    assert "\x1b" not in said
