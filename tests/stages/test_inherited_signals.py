"""A program that ignores or blocks signals starts a store: its stages inherit none of that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import commitlog
from tests.crash.scene import is_running, pid_of
from tests.nightly import with_nightly
from tests.waiting import wait_until

PROGRAM = """
import signal, sys, commitlog
{before}
store = commitlog.Store.open(sys.argv[1], {{"store": {{"segment_bytes": 1 << 16}}}})
with store.producer() as producer:
    producer.send("t", b"x").wait()
print("open", flush=True)
sys.stdin.read()
print(store.close().drained)
"""
BEFORE = {
    "ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})",
}


@pytest.mark.parametrize("before", with_nightly(list(BEFORE)[:1], list(BEFORE)[1:]))
def test_a_store_of_a_program_with_signals_of_its_own(tmp_path: Path, before: str) -> None:
    """A stage that was killed is started again, and a stop from outside is heard."""
    path = tmp_path / "store"
    command = [sys.executable, "-c", PROGRAM.format(before=BEFORE[before]), str(path)]
    for is_stopped in (False, True):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            assert program.stdout.readline() == "open\n"
            committer, supervisor = pid_of(path, "committer"), pid_of(path, "")
            os.kill(committer, signal.SIGKILL)
            wait_until(lambda: pid_of(path, "committer") not in (0, committer), "the next committer")  # noqa: B023
            if is_stopped:
                os.kill(supervisor, signal.SIGTERM)
                wait_until(lambda: not is_running(supervisor), "the store to stop")  # noqa: B023
            program.stdin.close()
            assert program.stdout.read() == "True\n"
        assert program.returncode == 0
    with commitlog.Reader(path) as reader:
        assert len(list(reader)) == 2
