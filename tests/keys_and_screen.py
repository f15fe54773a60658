"""A command on a terminal of its own: what its user sees, and types."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.waiting import PATIENCE_SECONDS, wait_until


@dataclass
class Terminal:
    """What a user of it sees and types."""

    process: subprocess.Popen[bytes]
    fd: int
    shown: bytearray = field(default_factory=bytearray)

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def see(self, text: str, *, patience: float = PATIENCE_SECONDS) -> None:
        """Returns when the text is on the screen, drawn after the last call."""

        def is_there() -> bool:
            if select.select([self.fd], [], [], 0.1)[0]:
                self.shown.extend(os.read(self.fd, 65536))
            return text.encode() in self.shown

        wait_until(is_there, f"{text!r} on the screen", patience=patience)
        self.shown.clear()

    def end(self, *, patience: float = PATIENCE_SECONDS) -> int:
        """The exit code, when it has ended by itself. What it still writes is read meanwhile."""

        def has_ended() -> bool:
            if select.select([self.fd], [], [], 0.1)[0]:
                self.shown.extend(os.read(self.fd, 65536))
            return self.process.poll() is not None

        wait_until(has_ended, "its end", patience=patience)
        while select.select([self.fd], [], [], 0)[0]:
            self.shown.extend(os.read(self.fd, 65536))
        return self.process.returncode


@contextmanager
def terminal(*words: object, columns: int = 80, rows: int = 24, **variables: str) -> Iterator[Terminal]:
    """Runs `commitlog WORDS…` on a terminal, which has to be as it was at the end."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    command = [sys.executable, "-P", "-m", "commitlog.cli", *map(str, words)]
    before = termios.tcgetattr(its)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "", "LINES": "", **variables}
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    try:
        yield Terminal(process, ours)
        assert termios.tcgetattr(its) == before, "the terminal is as it was"
    finally:
        process.kill()
        process.wait()
        os.close(its)
        os.close(ours)
