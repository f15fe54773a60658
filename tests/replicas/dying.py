"""`python -m tests.replicas.dying N COMMAND…`: the command `commitlog`, killed at a point.

It dies by kill -9 before the N-th change that it makes on a disk. With 0 it lives, and its last
line says how many changes it has made. All changes go through `commitlog.disk.file_channel`, whose
`os` is replaced.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

_CHANGES = ("pwrite", "ftruncate", "posix_fallocate", "mkdir", "rmdir", "unlink", "rename")
_COUNTED = "changes of the disk: "


class DyingOs:
    """An `os` that counts changes, and kills this process before one of them."""

    def __init__(self, last: int) -> None:
        self._last, self.changes = last, 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        if name not in _CHANGES:
            return call

        def counted(*arguments: Any, **more: Any) -> Any:
            self._count()
            return call(*arguments, **more)

        return counted

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            self._count()
        return os.open(path, flags, mode)

    def _count(self) -> None:
        self.changes += 1
        if self.changes == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingChildren:
    """An `os` that kills each forked child of this process before the N-th file that it opens.

    `armed` says from when on.
    """

    def __init__(self, last: int, armed: Callable[[], bool]) -> None:
        self._last, self._armed, self._parent, self._opened = last, armed, os.getpid(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, *arguments: Any, **more: Any) -> int:
        if os.getpid() != self._parent and self._armed():
            self._opened += 1
            if self._opened == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
        return os.open(*arguments, **more)


def run(last: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command up to its N-th change of the disk; with 0 to its end."""
    return subprocess.run(
        [sys.executable, "-m", __name__, str(last), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def changes_of(done: subprocess.CompletedProcess[str]) -> int:
    """How many changes a command has made that came to its end."""
    assert done.returncode == 0, done.stdout
    return int(done.stdout.rpartition(_COUNTED)[2])


def points(count: int, most: int) -> Iterator[int]:
    """Points of a command with so many changes: all, or `most` of them, far from each other."""
    step = max(count / most, 1.0)
    at = 1.0
    while at <= count:
        yield int(at)
        at += step


def _main() -> None:
    from commitlog.cli import main
    from commitlog.disk import file_channel

    ours = DyingOs(int(sys.argv.pop(1)))
    vars(file_channel)["os"] = ours
    try:
        main()
    finally:
        print(f"{_COUNTED}{ours.changes}", flush=True)


if __name__ == "__main__":
    _main()
