"""The command `commitlog`; what it can do is in app.py."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point. What takes long to import is imported here, so that Ctrl-C ends it without a
    traceback then too.
    """
    try:
        from commitlog.cli.app import run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell says it: 128 and the signal's number
