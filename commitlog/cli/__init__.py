"""The command `commitlog`; what it can do is in app.py."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The entry point.

    Slow imports are made in here, so that a Ctrl-C during them ends the command without a
    traceback.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads are never used, and take long to start
    try:
        from commitlog.cli.output import open_the_door
        from commitlog.disk.descriptors import occupy_standard_descriptors

        occupy_standard_descriptors()
        open_the_door()
        from commitlog.cli.app import run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell says it: 128 and the signal's number
