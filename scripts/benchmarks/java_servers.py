"""What contestants in Java need: jars, which Maven fetches, ports, processes that can be paused."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from scripts.benchmarks.rivals import INSTALL, wait_for

HERE = Path(__file__).parent
POMS = tuple(HERE / pom for pom in ("kafka/broker.xml", "kafka/spark.xml", "rocketmq/broker.xml"))
"""What `scripts/bench --install` fetches."""
_FETCH_SECONDS = 900
_START_SECONDS = 120.0


def jars(pom: Path, fetch: bool = False) -> str | None:
    """The class path of a POM; None where its jars are not here.

    With `fetch` they are fetched first.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "commitlog-benchmarks"
    known = cache / f"{pom.stem}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if known.exists() and all(Path(jar).exists() for jar in known.read_text().split(":")):
        return known.read_text()
    if not fetch:
        return None
    cache.mkdir(parents=True, exist_ok=True)
    draft = known.with_name(f"{known.name}.{os.getpid()}")
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath", "-DincludeScope=runtime"]
    subprocess.run([*command, f"-Dmdep.outputFile={draft}"], check=True, timeout=_FETCH_SECONDS)
    draft.rename(known)
    return known.read_text()


def why_not(pom: Path) -> str:
    """Why the jars of a POM are not here, and what to do about it."""
    if not shutil.which("java"):
        return "no java on PATH; on Debian or Ubuntu: apt install default-jre-headless"
    if jars(pom) is None:
        tools = "" if shutil.which("mvn") else ", which needs Maven (apt install maven)"
        return f"its jars are not here: {INSTALL}{tools}"
    return ""


def version(pom: Path, jar: str) -> str:
    """The version of a jar of a POM; empty where its jars are not here."""
    names = [Path(each).stem for each in (jars(pom) or "").split(":")]
    return next((name.rpartition("-")[2] for name in names if name.startswith(f"{jar}-")), "")


class Servers:
    """Processes that run only while they have their turn."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def __len__(self) -> int:
        return len(self._processes)

    def start(self, command: list[str], port: int, **streams: Any) -> subprocess.Popen[bytes]:
        """Starts a server, and returns when it listens. Raises RuntimeError."""
        output: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **streams}
        process = subprocess.Popen(command, **output)
        self._processes.append(process)
        wait_for(lambda: _listens(port), process, _START_SECONDS)
        return process

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            os.kill(process.pid, number)

    def cpu_seconds(self) -> float:
        """CPU time of all of them so far."""
        return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in self._processes)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


@contextlib.contextmanager
def servers() -> Iterator[Servers]:
    """Kills them when the with-block ends."""
    running = Servers()
    try:
        yield running
    finally:
        running.kill()


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
