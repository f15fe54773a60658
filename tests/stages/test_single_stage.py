"""A stage that is started by hand ends with a line that says why, and harms no running store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import commitlog

pytestmark = pytest.mark.usefixtures("shm_root")


def said_by_a_committer(store: Path) -> str:
    command = [sys.executable, "-P", "-m", "commitlog.stages.committer", str(store)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line.partition(" ERROR ")[2]


def test_where_no_store_is(tmp_path: Path) -> None:
    said = said_by_a_committer(tmp_path / "nothing")
    assert said == f"StoreNotFound: {tmp_path}/nothing: No such file or directory; start the store, not a single stage"


@pytest.mark.nightly
def test_of_a_store_that_runs_and_then_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with commitlog.Store.open(path) as store, store.producer() as producer:
        lock = path / "locks/committer"
        pid = lock.read_text().strip()
        assert said_by_a_committer(path) == f"StageFailed: {path}: a committer is running already (pid {pid})"
        lock.unlink()
        said = said_by_a_committer(path)
        assert (
            said
            == f"StageFailed: {path}: a committer is running already; its lock file was removed: stop the store first"
        )
        producer.send("orders", b"x").wait("flushed", timeout=60)
    said = said_by_a_committer(path)
    assert (
        said == f"StageFailed: {path}: the committer finds no pool of this store; start the store, not a single stage"
    )
