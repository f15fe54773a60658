"""`commitlog serve` as a process of its own, whose server a test can kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.waiting import wait_until


class ServeCommand:
    """A running command; `url` is the one that it has printed first."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.url = process.stdout.readline().strip()

    def kill_server(self) -> None:
        """Kills the process that serves, as a lack of memory does. The command starts another."""
        (server,) = wait_until(self._servers, "a server runs")
        server.kill()
        wait_until(lambda: server not in self._servers(), "the killed server is gone")

    def _servers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()


@contextmanager
def serve_command(store: Path, *arguments: str) -> Iterator[ServeCommand]:
    """Serves a store on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "commitlog", "serve", str(store), "--listen", "127.0.0.1:0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield ServeCommand(process)
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
