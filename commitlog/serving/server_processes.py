"""The processes of a server: started, watched, and ended together.

gRPC gives a port to one process only, so each process has a port of its own, one above the other.
Clients are told of all of them. A process that dies is started again on its port.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Self

import orjson

from commitlog.disk.memory_limit import memory_limit
from commitlog.disk.server_files import ClientTraffic, ServerFile, ServerStatistics
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, ServingRefused
from commitlog.planning.address import Address
from commitlog.serving.memory_bounds import arrow_variables
from commitlog.serving.server_settings import ServerSettings
from commitlog.serving.traffic import summed

END_SECONDS = 15.0
RESTART_SECONDS = 1.0
_LOOK_SECONDS = 0.1
"""How often who waits for a process looks whether the server is to end."""
MEMORY_SHARE = 2
"""All processes together take at most this part of the machine's memory, or the container's."""
LEAST_BYTES = 320 << 20
"""What a process may take on the smallest machine. With 128 MiB the libraries can't be loaded."""

log = logging.getLogger(__name__)


class Server:
    """A running server. `ports` are those of its processes. Raises ServingRefused.

    What clients have used is in the directory of each store, as far as this user may write there.
    A start does not wait for a process any more once `is_ended` is true.
    """

    def __init__(
        self, settings: ServerSettings, processes: int = 1, is_ended: Callable[[], bool] = lambda: False
    ) -> None:
        if settings.port + processes > 1 << 16:
            raise ServingRefused(f"port {settings.port}: {processes} processes need as many ports from there on")
        memory_bytes = max(memory_limit() // MEMORY_SHARE // processes, LEAST_BYTES)
        self.settings = settings = replace(settings, memory_bytes=memory_bytes)
        self._ending = threading.Event()
        self._processes: list[_Process] = []
        self._files: dict[str, ServerFile | None] = {}
        self._writing = threading.Lock()
        try:
            for number in range(processes):
                port = settings.port + number if settings.port else 0
                self._processes.append(_Process(replace(settings, port=port), self._ending, is_ended, self._show))
        except BaseException:
            self.close()
            raise
        for process in self._processes:
            process.tell_ports(self.ports)
        self._files = dict.fromkeys(settings.stores)
        self._show()

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(process.port for process in self._processes)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes' ids."""
        return tuple(process.pid for process in self._processes)

    def address(self, store: str) -> Address:
        """Where clients of this machine find a store."""
        return Address(((self.settings.advertise, self.ports[0]),), store, self.settings.tls)

    def traffic(self) -> dict[str, dict[str, dict[str, int]]]:
        """What clients have used: store → client → field of ClientTraffic → count."""
        return summed([process.traffic for process in self._processes])

    def _show(self) -> None:
        """Writes for others to see what clients have used, after each change."""
        with self._writing:
            found = self.traffic() if self._files else {}
            for name in self._files:
                clients = {client: ClientTraffic(**counts) for client, counts in found.get(name, {}).items()}
                with contextlib.suppress(OSError):  # the disk is full, or the store was removed: it is served on
                    if file := self._file(name):
                        file.write(ServerStatistics(str(self.address(name)), os.getpid(), clients))

    def _file(self, name: str) -> ServerFile | None:
        """The file in the store that is at the path now. None where there is none to write to."""
        file = self._files[name]
        if file is None or not file.is_seen:
            if file is not None:
                file.close()
            file = self._files[name] = _server_file(self.settings.stores[name])
        return file

    def close(self) -> None:
        """Ends all processes. Running streams get a few seconds."""
        self._ending.set()
        for process in self._processes:
            process.end()
        for process in self._processes:
            process.wait()
        with self._writing:
            files, self._files = self._files, {}
        for file in filter(None, files.values()):
            with contextlib.suppress(OSError):
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def _server_file(path: str) -> ServerFile | None:
    """None for a RocketMQ store root, and where this user may not write."""
    directory = StoreDirectory(path)
    try:
        directory.load()
        directory.check_owner()
        return ServerFile(directory)
    except (CommitLogError, OSError) as error:
        log.info("%s: `commitlog stat` there does not show this server (%s)", path, error)
        return None


def _fact(line: bytes) -> dict[str, Any]:
    """Parses a line of a process; {} if the process was killed before the line was whole."""
    try:
        return dict(orjson.loads(line))
    except ValueError:
        return {}


class _Process:
    """One process, and the thread that listens to it and starts it again."""

    def __init__(
        self,
        settings: ServerSettings,
        ending: threading.Event,
        is_ended: Callable[[], bool],
        on_traffic: Callable[[], None],
    ) -> None:
        self._settings, self._ending, self._on_traffic = settings, ending, on_traffic
        self._is_ended = is_ended
        self.traffic: dict[str, Any] = {}
        self.port = 0
        self._past: dict[str, Any] = {}
        self._ports: tuple[int, ...] = ()
        self._start(settings.port)
        self._keeper = threading.Thread(target=self._keep, name=f"server {self.port}")
        self._keeper.start()

    def _start(self, port: int) -> None:
        """Starts it, and waits until it listens. Raises ServingRefused."""
        command = [sys.executable, "-P", "-m", "commitlog.serving.process_start"]
        quiet = {"GRPC_VERBOSITY": "NONE", **os.environ}  # a line for each handshake that fails, else
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=quiet)
        self._tell(arrow_variables(self._settings.memory_bytes))
        self._tell(asdict(replace(self._settings, port=port)))
        answer = self._first_answer() or {"refused": "the server has failed; its log says how"}
        if "refused" in answer:
            self.end()
            self._wait_for_end()
            raise ServingRefused(answer["refused"])
        self.port = answer["port"]

    def _first_answer(self) -> dict[str, Any]:
        """Its first line; {} if it has ended. If it hangs, the end of the server kills it."""
        assert self._process.stdout is not None
        waiting = select.poll()
        waiting.register(self._process.stdout, select.POLLIN)
        while not waiting.poll(_LOOK_SECONDS * 1000):
            if self._ending.is_set() or self._is_ended():
                self._process.kill()
                return {"refused": "the server was ended before it listened"}
        return _fact(self._process.stdout.readline())

    def _keep(self) -> None:
        is_there = True
        while is_there:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                if fact := _fact(line):
                    self.traffic = summed([self._past, fact["traffic"]])
                    self._on_traffic()
            self._wait_for_end()
            is_there = not self._ending.is_set() and self._start_again()

    def _start_again(self) -> bool:
        """Starts it on its port; False if the server ends meanwhile."""
        log.warning("the process of port %d has ended; it is started again", self.port)
        self._past = {
            store: {client: counts | {"streams": 0} for client, counts in clients.items()}
            for store, clients in self.traffic.items()
        }
        while not self._ending.wait(RESTART_SECONDS):
            try:
                self._start(self.port)
            except (ServingRefused, OSError) as error:  # there may be no descriptor or no memory for it yet
                log.warning("port %d: %s", self.port, error)
                continue
            self.tell_ports(self._ports)
            if self._ending.is_set():  # it was ended meanwhile
                self.end()
            return True
        return False

    def tell_ports(self, ports: tuple[int, ...]) -> None:
        """Says which ports the server has, now and whenever it was started again."""
        self._ports = ports
        self._tell({"ports": ports})

    @property
    def pid(self) -> int:
        return self._process.pid

    def _tell(self, facts: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, and its keeper sees to it
            self._process.stdin.write(orjson.dumps(facts) + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Asks it to end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def wait(self) -> None:
        """Waits for its end, and kills it if it does not come."""
        self._keeper.join(END_SECONDS)
        if self._keeper.is_alive():
            self._process.kill()
            self._keeper.join()

    def _wait_for_end(self) -> None:
        self._process.wait()
        self.end()
        assert self._process.stdout is not None
        self._process.stdout.close()
