"""A web server on a socket of its own, and clients that note what was answered."""

from __future__ import annotations

import http.client
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import PATIENCE_SECONDS, wait_until

_ENDS = (OSError, http.client.HTTPException)


class Service:
    """A running server with workers, which listens on the file `socket` in its directory."""

    def __init__(self, process: subprocess.Popen[bytes], address: Path) -> None:
        self.process, self.address = process, address

    def workers(self) -> set[int]:
        """Its children that serve requests."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return {int(pid) for pid in children if _is_worker(int(pid))}

    def connect(self, patience: float = PATIENCE_SECONDS) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(patience)
        try:
            connection.connect(str(self.address))
        except OSError:
            connection.close()
            raise
        return connection

    def post(self, key: str, value: bytes = b"one apple", patience: float = PATIENCE_SECONDS) -> int:
        """The status of the answer, or 0 where the connection broke or was silent for so long."""
        try:
            return self.begin(key, value, patience).end()
        except _ENDS:
            return 0

    def begin(self, key: str, value: bytes, patience: float = PATIENCE_SECONDS) -> Request:
        """A request whose first byte a worker has been asked for.

        The rest has not been sent.
        """
        return Request(self.connect(patience), key, value)


def _is_worker(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False  # gone meanwhile
    return bool(command) and b"resource_tracker" not in command  # a dead process has no command


class Request:
    """A request that a worker is at work on.

    It expects the server's word before it sends the value, so it knows that a worker has begun.
    """

    def __init__(self, connection: socket.socket, key: str, value: bytes) -> None:
        self._connection, self._value = connection, value
        try:
            head = f"POST /{key} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n"
            connection.sendall(f"{head}Content-Length: {len(value)}\r\n\r\n".encode())
            self._read_until(b"\r\n\r\n")
        except BaseException:
            connection.close()
            raise

    def _read_until(self, end: bytes) -> bytes:
        got = b""
        while not got.endswith(end):
            byte = self._connection.recv(1)
            if not byte:
                raise ConnectionError("the server closed the connection")
            got += byte
        return got

    def end(self) -> int:
        """Sends the value and returns the status."""
        with self._connection:
            self._connection.sendall(self._value)
            return int(self._read_until(b"\r\n").split()[1])

    def go_away(self) -> None:
        """Sends half of the value and closes."""
        with self._connection:
            self._connection.sendall(self._value[: len(self._value) // 2])


@contextmanager
def serving(command: list[str], directory: Path) -> Iterator[Service]:
    """Runs a server's command of this environment, and ends it with SIGTERM."""
    program = str(Path(sys.executable).with_name(command[0]))
    with (directory / "server.log").open("ab") as log:
        process = subprocess.Popen([program, *command[1:]], cwd=directory, stdout=log, stderr=log)
    service = Service(process, directory / "socket")
    try:
        wait_until(lambda: process.poll() is not None or service.post("ready", b"x"), "the server answers")
        yield service
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(PATIENCE_SECONDS)


@contextmanager
def sending(service: Service, answers: dict[str, int], clients: int = 2) -> Iterator[None]:
    """Threads that send request after request, and note each answer by its key."""
    over = threading.Event()
    numbers = itertools.count()

    def send() -> None:
        while not over.is_set():
            key = f"client-{next(numbers)}"
            answers[key] = service.post(key)
            over.wait(0.005 if answers[key] else 0.05)

    threads = [threading.Thread(target=send) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
