"""Workers of PySpark that Spark lets go while they wait: they end, and nobody reads a traceback."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
WORKER = """
import {imported}

def main(infile, outfile):
    while asked := infile.read(1):
        outfile.write(b"answer")
        if asked == b"?":
            return
        outfile.flush()
    outfile.write(b"an error, as nothing was asked")
"""
LAST, MORE = b"?", b"+"
"""Questions: after the one the worker waits for the next query, after the other for more of this one."""


@pytest.fixture
def directory(shm_root: Path) -> Iterator[Path]:
    """For the worker's module and the daemon's socket, whose path must be short."""
    made = shm_root / "daemon"
    made.mkdir()
    yield made
    shutil.rmtree(made)


def said_by_a_worker_let_go(daemon: str, directory: Path, imported: str, question: bytes = LAST) -> str:
    """What a worker of `daemon` writes to standard error when its connection is closed after one answer. It runs a module
    that imports `imported`; its name must begin with "pyspark"."""
    (directory / "pyspark_of_this_test.py").write_text(WORKER.format(imported=imported))
    known = {
        "PYTHONPATH": f"{ROOT}:{directory}",
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(directory),
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
        assert process.stdout is not None
        (length,) = struct.unpack("!i", process.stdout.read(4))
        path = process.stdout.read(length).decode()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            (pid,) = struct.unpack("!i", connection.recv(4))
            connection.sendall(question)
            assert connection.recv(100) == b"answer"
        wait_until(lambda: not Path("/proc", str(pid)).exists(), 30, "the worker has ended")
        return process.communicate(timeout=30)[1].decode()  # its standard input ends, and so does it


@pytest.mark.parametrize("question", [LAST, MORE])
def test_workers_of_tasks(directory: Path, question: bytes) -> None:
    assert said_by_a_worker_let_go("commitlog.spark.daemon", directory, "sys", question) == ""


@pytest.mark.parametrize("question", [LAST, MORE])
@pytest.mark.parametrize("imported", ["pyspark_commitlog", "commitlog.spark.source", "commitlog.spark.sink"])
def test_workers_that_plan(directory: Path, imported: str, question: bytes) -> None:
    """Spark starts these from its own daemon; one of these is imported in the first thing they do."""
    assert said_by_a_worker_let_go("pyspark.daemon", directory, imported, question) == ""


def test_pyspark_is_not_quiet_by_itself(directory: Path) -> None:
    """When this fails, `commitlog.spark.daemon` has had its day."""
    assert "BrokenPipeError" in said_by_a_worker_let_go("pyspark.daemon", directory, "sys")
