"""Shared memory that a removed store has left is named, and removed when its owner says so."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import commitlog
from commitlog import errors
from commitlog.cli.app import app
from commitlog.opening.stray_pools import stray_pools
from commitlog.shm.layout import STAGES
from tests import leaks
from tests.builders.killed import kill_store
from tests.builders.scrape import halted
from tests.crash.scene import pid_of
from tests.fake_clock import SetClock
from tests.nightly import with_nightly
from tests.waiting import wait_until

SMALL = {"store": {"segment_bytes": 1 << 16}}
PR_SET_CHILD_SUBREAPER = 36


def run(*words: object, given: str = "") -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=given)


def later() -> SetClock:
    """A clock that says that no heartbeat is young any more."""
    clock = SetClock()
    clock.boot = 1 << 62
    return clock


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commitlog.opening.stray_pools.stray_pools.__defaults__", (later(),))


def killed(path: Path, *, unflushed: bool) -> None:
    """A store of which everything was killed at once."""
    store = commitlog.Store.open(path, SMALL)
    producer = store.producer()
    producer.send("t", b"on disk").wait("flushed", timeout=60)
    os.kill(pid_of(path, "committer"), signal.SIGSTOP)
    if unflushed:
        producer.send("t", b"in memory")
    producer.close()
    kill_store(store)


def values(path: Path) -> list[bytes | None]:
    with commitlog.Reader(path) as reader:
        return [message.value for message in reader]


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("unflushed", with_nightly([True], [False]))
def test_the_pool_of_a_removed_store_is_named_and_removed(unflushed: bool, tmp_path: Path, shm_root: Path) -> None:
    """Where it holds what never came to disk, only when its owner says so himself."""
    killed(tmp_path / "gone", unflushed=unflushed)
    assert stray_pools() == []
    commitlog.Store.open(tmp_path / "other", SMALL).close()
    shutil.rmtree(tmp_path / "gone")
    (stray,) = wait_until(stray_pools, "the killed processes to go")
    assert stray.store == tmp_path / "gone"
    assert bool(stray.unflushed) is unflushed
    shown = run("stat", tmp_path / "other").output
    assert f"commitlog destroy {tmp_path / 'gone'}" in shown
    assert ("never written to disk" in shown) is unflushed
    asked = run("stat", tmp_path / "gone", "--json").exception
    assert isinstance(asked, errors.StoreNotFound)
    assert str(asked) == str(stray)
    refused = run("destroy", tmp_path / "gone", given="n\n")
    assert refused.exit_code == 1
    if unflushed:
        assert isinstance(run("destroy", tmp_path / "gone", "--yes").exception, errors.StoreRefused)
        assert stray.directory.exists()
        assert run("destroy", tmp_path / "gone", given="y\n").exit_code == 0
    else:
        assert run("destroy", tmp_path / "gone", "--yes").exit_code == 0
    assert not list(shm_root.iterdir())
    assert "there is no store here" in str(run("stat", tmp_path / "gone").exception)


@pytest.mark.usefixtures("late")
def test_a_zombie_keeps_no_pool(tmp_path: Path, shm_root: Path) -> None:
    """Killed stages stay as zombies if the first process does not wait for them.

    This is so in some containers.
    """
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0  # here it is this one
    try:
        killed(tmp_path / "gone", unflushed=False)
        shutil.rmtree(tmp_path / "gone")
        zombies = wait_until(lambda: _zombies(len(STAGES)), "the stages to be killed")
        assert run("destroy", tmp_path / "gone", "--yes").exit_code == 0
        assert not list(shm_root.iterdir())
        assert zombies == _zombies(len(STAGES))
    finally:
        assert libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0
    for zombie in zombies:
        os.waitpid(zombie, 0)


def _zombies(count: int) -> list[int]:
    """Children of this process that have ended, when there are so many."""
    ended = [pid for pid in leaks.pids() if leaks.parent_and_state(pid) == (os.getpid(), "Z")]
    return sorted(ended) if len(ended) == count else []


@pytest.mark.nightly
def test_memory_that_is_still_in_use_can_be_removed_later(tmp_path: Path, shm_root: Path) -> None:
    """`destroy` says when: the processes of a store that is gone leave by themselves."""
    killed(tmp_path / "gone", unflushed=False)
    shutil.rmtree(tmp_path / "gone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("commitlog.opening.stray_pools._SILENT_NS", 1 << 62)  # the last heartbeat is young
        early = run("destroy", tmp_path / "gone", "--yes").exception
    assert isinstance(early, errors.StoreRunning)
    assert "Its stages notice that within a minute" in str(early)
    assert "Repeat this command" in str(early)
    assert list(shm_root.iterdir())
    wait_until(lambda: run("destroy", tmp_path / "gone", "--yes").exit_code == 0, "the memory to be free")
    assert not list(shm_root.iterdir())


@pytest.mark.nightly
@pytest.mark.usefixtures("late")
def test_a_store_that_was_moved_keeps_its_pool(tmp_path: Path, shm_root: Path) -> None:
    """It looks like a stray only until it is started at its new place, where it loses nothing."""
    killed(tmp_path / "old", unflushed=True)
    (tmp_path / "old").rename(tmp_path / "new")
    (stray,) = wait_until(stray_pools, "the killed processes to go")
    assert "if it was moved, start it at its new place" in str(stray)
    with commitlog.Store.open(tmp_path / "new", SMALL):
        assert stray_pools() == []
        wait_until(lambda: values(tmp_path / "new") == [b"on disk", b"in memory"], "the committer to write it")
    assert not list(shm_root.iterdir())


@pytest.mark.leaves_pools
def test_the_pool_of_a_store_that_runs_is_no_stray(tmp_path: Path) -> None:
    """Also when its directory was removed under it."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        with halted(store.path):  # otherwise it may see that it was moved, and stop
            (tmp_path / "store").rename(tmp_path / "moved")
            found = stray_pools()
            (tmp_path / "moved").rename(tmp_path / "store")
        assert found == []
        assert store.running


def test_destroy_refuses_before_it_asks(tmp_path: Path) -> None:
    """While anything of the store runs: its supervisor, a stage alone, a producer alone."""
    path = tmp_path / "store"
    store = commitlog.Store.open(path, SMALL)
    refused = run("destroy", path, given="y\n")
    assert isinstance(refused.exception, errors.StoreRunning)
    assert "Remove" not in refused.output
    producer = commitlog.Producer(path)
    assert not store.close().drained
    assert "the producer of lane 0" in str(run("destroy", path, given="y\n").exception)
    producer.close()
    assert run("destroy", path, given="y\n").exit_code == 0
    assert not path.exists()
