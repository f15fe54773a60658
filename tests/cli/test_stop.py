"""`commitlog stop`: ends a store that runs in another terminal, and waits until it has stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.errors import StoreNotFound, StoreRefused, StoreRunning, StoreStopped
from tests.builders.hand_made import small_store
from tests.builders.killed import kill_store
from tests.cli.test_cli import config, running
from tests.command_line import run
from tests.crash.scene import is_running, pid_of

__all__ = ["config"]


def stopped(store: Path, *options: str) -> str:
    """What `commitlog stop` prints. Raises what it ends with."""
    return CliRunner().invoke(app, ["stop", str(store), *options], catch_exceptions=False).output


@pytest.mark.nightly
def test_both_terminals_end_calmly(tmp_path: Path, config: Path) -> None:
    """All is on the disk, also what a producer of a third process had just sent."""
    store = tmp_path / "store"
    with running(store, config) as process:
        assert process.stdout
        assert process.stderr
        with commitlog.Producer(store) as producer:
            producer.send("t", b"apple")
        done = run("stop", store)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"stopped %s, all is on disk\n" % bytes(store), b"")
        assert (process.wait(60), process.stdout.read(), process.stderr.read()) == (
            0,
            b"stopped, all is on disk\n",
            b"",
        )
    assert stopped(store) == f"{store} does not run\n"
    assert run("cat", store).stdout == b"apple\n"


def test_a_program_that_runs_the_store_is_told(tmp_path: Path) -> None:
    """A producer that waits raises StoreStopped. It holds its lane, so the pool stays till then."""
    store = commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}})
    producer = store.producer()
    producer.send("t", b"apple")
    assert stopped(store.path).endswith("; the next start goes on with the pool; logs/supervisor.log says why\n")
    with pytest.raises(StoreStopped):
        producer.send("t", b"pear").wait("flushed", 60)
    assert not store.close().drained
    commitlog.Store.open(store.path).close()
    assert run("cat", store.path).stdout == b"apple\npear\n"


@pytest.mark.nightly
def test_it_waits_no_longer_than_it_is_told_and_may_be_repeated(tmp_path: Path, config: Path) -> None:
    """The flusher stands still. A second `commitlog stop` waits on, and hurries nobody."""
    config.write_text(config.read_text() + "[supervisor]\nstop_timeout_ms = 600000\n")
    store = tmp_path / "store"
    with running(store, config) as process:
        flusher = pid_of(store, "flusher")
        with commitlog.Producer(store) as producer:
            producer.send("t", b"first").wait("flushed", 60)
            os.kill(flusher, signal.SIGSTOP)
            producer.send("t", b"second")
        for _ in range(2):
            with pytest.raises(StoreRunning, match=r"still drains after 0\.3 s"):
                stopped(store, "--timeout", "300ms")
        assert is_running(flusher)
        command = [sys.executable, "-m", "commitlog.cli", "stop", str(store)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as stop:
            os.kill(flusher, signal.SIGCONT)
            out, _ = stop.communicate(timeout=60)
        assert (stop.returncode, out.endswith((b"all is on disk\n", b"does not run\n"))) == (0, True)
        assert process.wait(60) == 0
    assert run("cat", store).stdout == b"first\nsecond\n"


def test_a_process_that_is_not_the_supervisor_gets_no_signal(tmp_path: Path) -> None:
    """A pid of another container means another process here, or none; so does garbage."""
    store = tmp_path / "store"
    opened = commitlog.Store.open(store, {"store": {"segment_bytes": 1 << 16}})
    with subprocess.Popen(["sleep", "600"]) as other:
        supervisor = (store / "lock").read_text()
        for pid in (other.pid, 999_999_999, "9" * 30, "\0not a pid"):
            (store / "lock").write_text(f"{pid}\n")
            with pytest.raises(StoreRefused, match="no process of this machine or container"):
                stopped(store)
        assert other.poll() is None
        other.kill()
        (store / "lock").write_text(supervisor)
        assert stopped(store) == f"stopped {store}, all is on disk\n"
    opened.close()


@pytest.mark.leaves_pools
def test_stores_that_do_not_run(tmp_path: Path) -> None:
    """A killed one says that it was killed."""
    assert stopped(small_store(tmp_path / "idle").path).endswith("idle does not run\n")
    with pytest.raises(StoreNotFound):
        stopped(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    killed = commitlog.Store.open(tmp_path / "killed", {"store": {"segment_bytes": 1 << 16}})
    kill_store(killed)
    assert "does not run: it was killed, or its machine went down: `commitlog run" in stopped(killed.path)
