"""The processes of a server: started, watched, and ended together.

gRPC gives a port to one process only, so each process has a port of its own, one above the other.
Clients are told of all of them. A process that dies is started again on its port.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Self

import orjson

from commitlog.errors import ServingRefused
from commitlog.planning.address import Address
from commitlog.serving.settings import ServerSettings
from commitlog.serving.traffic import summed

END_SECONDS = 15.0
RESTART_SECONDS = 1.0

log = logging.getLogger(__name__)


class Server:
    """A running server. `ports` are those of its processes. Raises ServingRefused."""

    def __init__(self, settings: ServerSettings, processes: int = 1) -> None:
        self.settings = settings
        self._ending = threading.Event()
        self._processes: list[_Process] = []
        try:
            for number in range(processes):
                port = settings.port + number if settings.port else 0
                if port >= 1 << 16:
                    raise ServingRefused(
                        f"port {settings.port}: {processes} processes need as many ports from there on"
                    )
                self._processes.append(_Process(replace(settings, port=port), self._on_end))
        except BaseException:
            self.close()
            raise
        self._tell_ports()

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(process.port for process in self._processes)

    def address(self, store: str) -> Address:
        """Where clients of this machine find a store."""
        return Address(((self.settings.advertise, self.ports[0]),), store, self.settings.tls)

    def traffic(self) -> dict[str, dict[str, dict[str, int]]]:
        """What clients have used: store → client → field of ClientTraffic → count."""
        return summed([process.traffic for process in self._processes])

    def _tell_ports(self) -> None:
        for process in self._processes:
            process.tell({"ports": self.ports})

    def _on_end(self, process: _Process) -> None:
        """Starts a process again that has ended by itself."""
        while not self._ending.is_set():
            log.warning("the process of port %d has ended; it is started again", process.port)
            if self._ending.wait(RESTART_SECONDS):
                return
            try:
                process.start(process.port)
            except ServingRefused as error:
                log.warning("%s", error)
                continue
            if self._ending.is_set():  # it was ended meanwhile
                process.end()
            process.tell({"ports": self.ports})
            return

    def close(self) -> None:
        """Ends all processes. Running streams get a few seconds."""
        self._ending.set()
        for process in self._processes:
            process.end()
        for process in self._processes:
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


class _Process:
    """One process, and the thread that listens to it."""

    def __init__(self, settings: ServerSettings, on_end: Callable[[_Process], None]) -> None:
        self._settings, self._on_end = settings, on_end
        self.traffic: dict[str, Any] = {}
        self.port = 0
        self._past: dict[str, Any] = {}
        self.start(settings.port)

    def start(self, port: int) -> None:
        """Starts it, and waits until it listens. Raises ServingRefused."""
        command = [sys.executable, "-m", "commitlog.serving.process"]
        quiet = {"GRPC_VERBOSITY": "NONE", **os.environ}  # a line for each handshake that fails, else
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=quiet)
        self.tell(asdict(replace(self._settings, port=port)))
        assert self._process.stdout is not None
        answer = orjson.loads(
            self._process.stdout.readline() or b'{"refused": "the server has failed; its log says how"}'
        )
        if "refused" in answer:
            self.end()
            self.wait()
            raise ServingRefused(answer["refused"])
        self.port = answer["port"]
        self._past = {
            store: {client: counts | {"streams": 0} for client, counts in clients.items()}
            for store, clients in self.traffic.items()
        }
        self._listener = threading.Thread(target=self._listen, name=f"server {self.port}", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        process = self._process
        assert process.stdout is not None
        for line in process.stdout:
            self.traffic = summed([self._past, orjson.loads(line)["traffic"]])
        process.wait()
        self._on_end(self)

    def tell(self, facts: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, and its listener sees to it
            self._process.stdin.write(orjson.dumps(facts) + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Asks it to end."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def wait(self) -> None:
        """Waits for its end, and kills it if it does not come."""
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
