"""Producer processes of a benchmark: they start together, and their answers are collected.

A worker is `python -P -m scripts.benchmarks.workers`. The first line of its input is a job (JSON:
`kind` and what that needs). The worker says `ready` when it can begin, begins at the next line, and
answers with one JSON object.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson


class Workers:
    """Processes that wait for `go`."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self.processes = processes

    def go(self) -> list[dict[str, Any]]:
        """Lets all of them begin, and waits for their answers."""
        self.let_go()
        return self.answers()

    def let_go(self) -> None:
        for process in self.processes:
            assert process.stdin
            process.stdin.write(b"go\n")
            process.stdin.flush()

    def answers(self) -> list[dict[str, Any]]:
        return [orjson.loads(line_of(process)) for process in self.processes]


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    """The next line that a worker says. Raises RuntimeError if it has ended."""
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker ended with {process.wait()}")
    return line


@contextlib.contextmanager
def workers(jobs: list[dict[str, Any]], environment: Mapping[str, str] | None = None) -> Iterator[Workers]:
    """A process for each job, all of them ready. `environment` is added to that of the bench."""
    processes = []
    try:
        for job in jobs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scripts.benchmarks.workers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # like programs of their own; and Ctrl-C is for the bench alone
            )
            processes.append(process)
            assert process.stdin
            process.stdin.write(orjson.dumps(job) + b"\n")
            process.stdin.flush()
        for process in processes:
            line_of(process)
        yield Workers(processes)
    except BaseException:  # nobody waits for their answers
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            assert process.stdin
            assert process.stdout
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def main() -> None:
    """The life of one worker."""
    from scripts.benchmarks import jobs

    job = orjson.loads(sys.stdin.buffer.readline())
    kind, path = job.pop("kind"), Path(job.pop("path"))
    with getattr(jobs, kind)(path, **job) as turn:
        _say(b"ready")
        if sys.stdin.buffer.readline():
            _say(orjson.dumps(turn()))


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
