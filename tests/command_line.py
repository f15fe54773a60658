"""Commands as a user types them, but in this process: a new one takes most of a second of a core.

Tests of signals, terminals, standard input and what Python itself is told start one all the same.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from subprocess import CompletedProcess
from unittest.mock import patch

from typer.testing import CliRunner

from commitlog.cli import main


def run(*words: object, given: bytes = b"", **variables: str) -> CompletedProcess[bytes]:
    """Runs `commitlog WORDS…` from its entry point to its exit code.

    `given` is its standard input, `variables` are set for it. A bug is raised here.
    """
    arguments = ["commitlog", *map(str, words)]
    code: object = 0
    with (
        CliRunner().isolation(given, variables) as streams,
        patch.object(sys, "argv", arguments),
        warnings.catch_warnings(),  # the command shows them in its own way
    ):
        warnings.resetwarnings()
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = (stream.getvalue() for stream in streams[:2])
    assert isinstance(code, int), code
    return CompletedProcess(arguments, code, out, err)


def run_process(*words: object, given: bytes = b"") -> CompletedProcess[bytes]:
    """Runs the same in a process of its own; one that waits for ever fails the test."""
    command = [sys.executable, "-m", "commitlog.cli", *map(str, words)]
    return subprocess.run(command, input=given, capture_output=True, timeout=60)
