"""Other ways to hand over messages on one machine.

Each is used as its manual says for the same promise.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks.harness import Bench, Sample, Stopwatch

INSTALL = "run scripts/bench --install"


def module_or_skip(bench: Bench, contestant: str, module: str) -> Any:
    """The package of a contestant. If it is not installed, prints a line and returns None."""
    try:
        return importlib.import_module(module)
    except ImportError:
        bench.skip(contestant, f"Python package {module} is not installed: {INSTALL}")
        return None


# ---- SQLite ------------------------------------------------------------------------------------


@contextlib.contextmanager
def sqlite(path: Path) -> Iterator[Callable[[Sequence[bytes]], None]]:
    """A table in WAL mode with synchronous=FULL.

    Each call is one transaction, durable when it returns.
    """
    with contextlib.closing(sqlite_connection(path)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, body BLOB)")

        def insert(bodies: Sequence[bytes]) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO log (body) VALUES (?)", [(body,) for body in bodies])
            connection.execute("COMMIT")

        yield insert


def sqlite_connection(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


# ---- queues between processes ------------------------------------------------------------------


def _drain_queue(queue: Any, count: int) -> None:
    for _ in range(count):
        queue.get()


def queue_put(body: bytes, count: int) -> Sample:
    """multiprocessing.Queue with a process that reads.

    The clock runs from the first put until the feeder thread has passed everything on.
    """
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    reader = context.Process(target=_drain_queue, args=(queue, count + 1))
    reader.start()
    queue.put(body)
    time.sleep(0.3)  # the reader has started
    with Stopwatch() as watch:
        for _ in range(count):
            queue.put(body)
        queue.close()
        queue.join_thread()
    reader.join()
    reader.close()
    return watch.each(count)


def _drain_fifo(queue: Any, count: int) -> None:
    received = 0
    while received < count:
        received += len(queue.get_many(timeout=60.0, max_messages_to_get=1000))


def fifo_put(faster_fifo: Any, body: bytes, count: int) -> Sample:
    """faster-fifo with a process that reads; 64 MiB of memory, one put() for each message."""
    queue = faster_fifo.Queue(max_size_bytes=1 << 26)
    reader = multiprocessing.get_context("fork").Process(target=_drain_fifo, args=(queue, count))
    reader.start()
    with Stopwatch() as watch:
        for _ in range(count):
            queue.put(body, timeout=60.0)
    reader.join()
    reader.close()
    return watch.each(count)


# ---- LMDB --------------------------------------------------------------------------------------


@contextlib.contextmanager
def lmdb(package: Any, path: Path, sync: bool) -> Iterator[Callable[[Sequence[bytes]], None]]:
    """Appends with ascending keys. Each call is one transaction, durable at its end if `sync`."""
    environment = package.open(str(path), map_size=1 << 36, sync=sync)
    last = [0]

    def insert(bodies: Sequence[bytes]) -> None:
        with environment.begin(write=True) as transaction:
            for body in bodies:
                last[0] += 1
                transaction.put(last[0].to_bytes(8, "big"), body, append=True)

    try:
        yield insert
    finally:
        environment.close()


# ---- Redis -------------------------------------------------------------------------------------


@contextlib.contextmanager
def redis_stream(bench: Bench, room: Path) -> Iterator[Callable[[Sequence[bytes]], None] | None]:
    """A Redis server of its own on a Unix socket, AOF with appendfsync always.

    Each call is one pipeline of XADD.
    """
    package = module_or_skip(bench, "Redis", "redis")
    server = shutil.which("redis-server") or shutil.which("valkey-server")
    if package is None or server is None:
        if server is None:
            bench.skip("Redis", "no redis-server on PATH; on Debian or Ubuntu: apt install redis-server")
        yield None
        return
    address = room / "redis.sock"
    command = [server, "--port", "0", "--unixsocket", str(address), "--dir", str(room)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = package.Redis(unix_socket_path=str(address))
        wait_for(lambda: _connects(address), process)

        def add(bodies: Sequence[bytes]) -> None:
            with client.pipeline(transaction=False) as pipeline:
                for body in bodies:
                    pipeline.xadd("log", {"b": body}, maxlen=1_000_000, approximate=True)
                pipeline.execute()

        yield add
        client.close()
    finally:
        process.terminate()
        process.wait(30)


def _connects(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(address))
        except OSError:
            return False
    return True


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Waits until a server answers. Raises RuntimeError when it has ended or takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} did not answer in {seconds:g} s")
        time.sleep(0.05)
