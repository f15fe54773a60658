"""What a process does with its log where there is no space for it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging, sys
from commitlog.lines import log_to
log_to(open(sys.argv[1], "w"))
logging.warning("the disk is full")
logging.warning("%d", "no number")
"""


def test_a_full_disk_under_the_log_shows_no_traceback() -> None:
    """A mistake in the program's own call still does."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, "/dev/full"], capture_output=True, text=True, timeout=60)
    assert "No space left" not in done.stderr.split("Exception ignored")[0]
    assert "no number" in done.stderr
