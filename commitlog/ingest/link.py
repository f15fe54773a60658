"""The socket between the job and one of its processes: JSON, one message a line, both ways.

The end of the socket tells each process that the other one has died.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import IO, Any

import orjson

Message = dict[str, Any]
_CHUNK_BYTES = 1 << 16
_TERM_SECONDS = 5.0
"""How long a process may take to end by SIGTERM: PySpark removes what it has made for a start."""


class Link:
    """One end. Only one thread may call `receive`; any thread may call `send`."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.closed = False
        self._pending = b""
        self._early: list[Message] = []
        self._lock = threading.Lock()

    @classmethod
    def inherited(cls) -> Link:
        """The child's end. Its descriptor is the program's only argument."""
        return cls(socket.socket(fileno=int(sys.argv[1])))

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Message) -> None:
        """Sends one message.

        Where the other end is gone, the message is dropped, and nothing else happens here. What
        that end said before may still be unread: `receive` gives it, and then closes the link.
        """
        with self._lock, contextlib.suppress(OSError):
            self.socket.sendall(orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")

    def receive(self, timeout_s: float | None = 0) -> list[Message]:
        """The messages that have arrived.

        Waits up to the timeout for the first one (None: without limit).
        """
        if self._early:
            early, self._early = self._early, []
            return early
        if self.closed or not select.select([self.socket], [], [], timeout_s)[0]:
            return []
        try:
            data = self.socket.recv(_CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            self.closed = True
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [orjson.loads(line) for line in lines]

    def receive_one(self) -> Message:
        """Waits for the next message; those that came with it stay for the next call.

        Raises EOFError when the other end is gone.
        """
        while not self.closed or self._early:
            messages = self.receive(None)
            if messages:
                first, *self._early = messages
                return first
        raise EOFError

    def close(self) -> None:
        self.closed = True
        self.socket.close()


class Child:
    """A process of the job, in its own session: Ctrl-C in the terminal reaches the job alone."""

    def __init__(
        self, name: str, module: str, settings: Message, *, output: IO[bytes] | int, stdin: int | None = None
    ) -> None:
        self.name = name
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.link = Link(ours)
        self.link.send(settings)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, timeout_s: float) -> bool:
        """Whether the process ended within the time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return self.process.poll() is not None

    def end(self, timeout_s: float) -> None:
        """Closes the link, which asks the process to go, and ends it when it does not.

        A process that still starts Spark does not look at its link. Its JVM would outlive it, so
        the signals are for all of its session that are in its process group.
        """
        self.link.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.wait(timeout_s):
                return
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.killpg(self.pid, number)
            timeout_s = _TERM_SECONDS
        self.process.wait()
