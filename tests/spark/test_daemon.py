"""Workers of PySpark that Spark lets go while they wait: they end, and nobody reads a traceback."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.nightly import with_nightly
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
WORKER = """
import os, socket
import {imported}

def main(infile, outfile):
    while asked := infile.read(1):
        if asked == b"a":
            with socket.socket(fileno=os.dup(infile.fileno())) as connection:
                at_once = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            outfile.write(b"at once" if at_once else b"delayed")
            return
        outfile.write(b"answer")
        if asked == b"?":
            return
        outfile.flush()
    outfile.write(b"an error, as nothing was asked")
"""
LAST, MORE, ACKNOWLEDGED = b"?", b"+", b"a"
"""Questions: after the first the worker waits for the next query, after the second for more of this
one; the third asks how it acknowledges what it gets."""
SECRET = b"of this test"
OURS = ["pyspark_commitlog", "commitlog.spark.source", "commitlog.spark.sink"]
"""Spark starts workers from its own daemon; one of these is imported in the first thing they do."""


@pytest.fixture
def directory(shm_root: Path) -> Iterator[Path]:
    """For the worker's module and the daemon's socket, whose path must be short."""
    made = shm_root / "daemon"
    made.mkdir()
    yield made
    shutil.rmtree(made)


@contextmanager
def running(daemon: str, directory: Path, imported: str, *, unix: bool) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon whose workers run a module that imports `imported`.

    The module's name must begin with "pyspark".
    """
    (directory / "pyspark_of_this_test.py").write_text(WORKER.format(imported=imported))
    known = {
        "PYTHONPATH": f"{ROOT}:{directory}",
        "PYTHON_UNIX_DOMAIN_ENABLED": str(unix).lower(),
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(directory),
        "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(),
        "SPARK_REUSE_WORKER": "1",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "true",  # as Spark sets it
    }
    with subprocess.Popen(
        [sys.executable, "-m", daemon, "pyspark_of_this_test"],
        env=os.environ | known,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        yield process
        process.communicate(timeout=100)  # its standard input ends, and so does it


def number(stream: IO[bytes]) -> int:
    found: int = struct.unpack("!i", stream.read(4))[0]
    return found


def said_by_a_worker_let_go(daemon: str, directory: Path, imported: str, question: bytes = LAST) -> str:
    """What a worker of `daemon` prints to standard error when its connection is closed.

    The connection is closed after one answer.
    """
    with running(daemon, directory, imported, unix=True) as process:
        assert process.stdout is not None
        path = process.stdout.read(number(process.stdout)).decode()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            (pid,) = struct.unpack("!i", connection.recv(4))
            connection.sendall(question)
            assert connection.recv(100) == b"answer"
        wait_until(lambda: not Path("/proc", str(pid)).exists(), "the worker has ended")
        return process.communicate(timeout=100)[1].decode()


def how_tasks_are_acknowledged(daemon: str, directory: Path, imported: str, tasks: int) -> list[bytes]:
    """What a worker says to each of so many tasks that it gets over TCP."""
    with running(daemon, directory, imported, unix=False) as process:
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", number(process.stdout))) as connection:
            assert len(connection.recv(4)) == 4  # the worker's pid
            connection.sendall(struct.pack("!i", len(SECRET)) + SECRET)
            assert connection.recv(6) == struct.pack("!i", 2) + b"ok"
            found = []
            for _ in range(tasks):
                connection.sendall(ACKNOWLEDGED)
                found.append(connection.recv(7))
            return found


@pytest.mark.parametrize("question", [LAST, MORE])
def test_workers_of_tasks(directory: Path, question: bytes) -> None:
    assert said_by_a_worker_let_go("commitlog.spark.launching.daemon", directory, "sys", question) == ""


@pytest.mark.parametrize("question", with_nightly([MORE], [LAST]))
@pytest.mark.parametrize("imported", OURS)
def test_workers_of_sparks_own_daemon(directory: Path, imported: str, question: bytes) -> None:
    assert said_by_a_worker_let_go("pyspark.daemon", directory, imported, question) == ""


def test_pyspark_is_not_quiet_by_itself(directory: Path) -> None:
    """When this fails, `commitlog.spark.launching.daemon` has had its day."""
    assert "BrokenPipeError" in said_by_a_worker_let_go("pyspark.daemon", directory, "sys")


@pytest.mark.parametrize(
    ("daemon", "imported"),
    with_nightly(
        [("commitlog.spark.launching.daemon", "sys"), ("pyspark.daemon", OURS[1])],
        [("pyspark.daemon", OURS[0]), ("pyspark.daemon", OURS[2])],
    ),
)
def test_tasks_over_tcp_are_acknowledged_at_once(directory: Path, daemon: str, imported: str) -> None:
    """Every task from the second one on is acknowledged at once.

    The first one comes with greetings. Without it, Spark would wait 40 ms before it sends the rest
    of each task.
    """
    assert how_tasks_are_acknowledged(daemon, directory, imported, tasks=20)[1:] == [b"at once"] * 19


@pytest.mark.nightly
def test_pyspark_delays_them_by_itself(directory: Path) -> None:
    """When this fails, `improve_workers` need not do it. After a pause they are not delayed."""
    assert b"delayed" in how_tasks_are_acknowledged("pyspark.daemon", directory, "sys", tasks=300)
