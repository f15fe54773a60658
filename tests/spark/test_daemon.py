"""Workers of PySpark that Spark lets go while they wait: they end, and nobody reads a traceback."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
WORKER = """
import {imported}

def main(infile, outfile):
    asked = infile.read(1)
    outfile.write(b"answer" if asked else b"an error, as nothing was asked")
"""


def said_by_a_worker_let_go(daemon: str, tmp_path: Path, imported: str) -> str:
    """What a worker of `daemon` writes to standard error when its connection is closed after one answer. It runs a module
    that imports `imported`; its name must begin with "pyspark"."""
    (tmp_path / "pyspark_of_this_test.py").write_text(WORKER.format(imported=imported))
    known = {
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(tmp_path),
        "SPARK_REUSE_WORKER": "1",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "true",  # as Spark sets it
    }
    process = subprocess.Popen(
        [sys.executable, "-m", daemon, "pyspark_of_this_test"],
        env=os.environ | known,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    (length,) = struct.unpack("!i", process.stdout.read(4))
    path = process.stdout.read(length).decode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        (pid,) = struct.unpack("!i", connection.recv(4))
        connection.sendall(b"?")
        assert connection.recv(100) == b"answer"
    wait_until(lambda: not Path("/proc", str(pid)).exists(), 30, "the worker has ended")
    said = process.communicate(timeout=20)[1]  # its standard input ends, and so does it
    return said.decode()


def test_workers_of_tasks(tmp_path: Path) -> None:
    assert said_by_a_worker_let_go("commitlog.spark.daemon", tmp_path, "sys") == ""


@pytest.mark.parametrize("imported", ["pyspark_commitlog", "commitlog.spark.source", "commitlog.spark.sink"])
def test_workers_that_plan(tmp_path: Path, imported: str) -> None:
    """Spark starts these from its own daemon; one of these is imported in the first thing they do."""
    assert said_by_a_worker_let_go("pyspark.daemon", tmp_path, imported) == ""


def test_pyspark_is_not_quiet_by_itself(tmp_path: Path) -> None:
    """When this fails, `commitlog.spark.daemon` has had its day."""
    assert "BrokenPipeError" in said_by_a_worker_let_go("pyspark.daemon", tmp_path, "sys")
