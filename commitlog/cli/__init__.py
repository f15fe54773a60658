"""The command `commitlog`; what it can do is in app.py."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point.

    Slow imports are made in here, so that a Ctrl-C during them ends the command without a
    traceback.
    """
    try:
        from commitlog.cli.app import run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell says it: 128 and the signal's number
