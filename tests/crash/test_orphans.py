"""Stages whose supervisor was killed: they tell producers, drain what they can, and leave.

The next start takes over the rest.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import commitlog
from commitlog import errors
from commitlog.cli.app import app
from commitlog.disk.file_channel import DISK
from commitlog.shm.layout import STAGES
from tests.crash.accounts import check, read_store
from tests.crash.scene import kill, pid_of
from tests.faults.channel import Rule
from tests.faults.stage import mark
from tests.faults.supervisor import patched_stages
from tests.faults.test_disk import CONFIG, Sender, faulty_store
from tests.nightly import with_nightly
from tests.waiting import wait_until


@contextlib.contextmanager
def orphaned(sender: Sender) -> Iterator[None]:
    """Kills the supervisor.

    Afterwards all stages must leave, and the next start finds everything.
    """
    kill(pid_of(sender.store.path, ""))
    with pytest.raises(errors.StageFailed):
        sender.store.close()
    yield
    wait_until(lambda: not still_there(sender.store.path), "the orphans to leave")


def stat(path: Path) -> str:
    return CliRunner().invoke(app, ["stat", str(path)]).output


def still_there(path: Path) -> list[str]:
    return [stage for stage in STAGES if DISK.is_locked(path / "locks" / stage)]


@pytest.mark.parametrize(
    "way", with_nightly(["in batches"], ["one by one, waiting for each", "in batches, with no linger"])
)
def test_a_producer_that_never_pauses_does_not_keep_them(way: str, tmp_path: Path) -> None:
    """Its error is that the store has stopped, or that the stages are gone.

    They drain and leave.
    """
    path, bodies = tmp_path / "store", [os.urandom(1000)] * 40
    rest = {"linger_ms": 0 if "no linger" in way else 6}
    store = commitlog.Store.open(path, {**CONFIG, "committer": rest, "flusher": rest})
    producer = store.producer()
    store._producers.clear()  # `close` would close it
    accepted = 0

    def send_on() -> None:
        nonlocal accepted
        while True:
            if "waiting" in way:
                receipt = producer.send("t", bodies[0])
                accepted += 1
                receipt.wait("flushed", 60)
            else:
                accepted += len(producer.send_batch("t", bodies))

    kill(pid_of(path, ""))
    said = f"it was killed, or its machine went down: `commitlog run {path}` continues it"
    with pytest.raises((errors.StoreStopped, errors.StoreNotRunning), match=re.escape(said)):
        send_on()
    with pytest.raises(errors.StageFailed):
        store.close()
    wait_until(lambda: not still_there(path), "the orphans to leave")
    assert f"WARNING: {said}" in stat(path)
    producer.close()
    commitlog.Store.open(path, CONFIG).close()
    assert "WARNING" not in stat(path)
    assert read_store(path).messages == accepted


@pytest.mark.parametrize("call", with_nightly(["fdatasync"], ["pwrite"]))
def test_a_disk_that_is_gone_does_not_keep_them_for_ever(call: str, tmp_path: Path) -> None:
    """They leave, and their logs say how much is left. The next start writes it."""
    path = tmp_path / "store"
    with faulty_store(path) as sender:
        sender.send().wait("flushed", timeout=60)
        sender.faults.set(Rule(call, error=errno.EIO, keeps=True))  # type: ignore[arg-type]
        for _ in range(10):
            sender.send()
        with orphaned(sender):
            sender.producer.close()
        assert "WARNING flusher leaves, " in (path / "logs/flusher.log").read_text()
        sender.faults.clear()
        sender.store = commitlog.Store.open(path, CONFIG)
    check(sender.noted, read_store(path), deaths=0)


class LateOrphan(threading.Thread):
    """Plays an orphan that took long to begin.

    It takes the flusher's lock when a start has let the lock go and launched its own flusher. It
    gives the lock back when that flusher waits for it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def run(self) -> None:
        with DISK.opened(self._path / "locks" / "flusher", write=True) as fd:
            wait_until(mark(self._path, "launched").exists, "the start to launch its flusher")
            assert DISK.try_lock(fd)
            wait_until(mark(self._path, "waits").exists, "the flusher to come for its lock")


@pytest.mark.nightly
def test_an_orphan_that_begins_late_is_waited_for(tmp_path: Path) -> None:
    """A stage is launched just before its supervisor is killed.

    It takes its lock after the next start has let all of them go.
    """
    path = tmp_path / "store"
    commitlog.Store.open(path, CONFIG).close()
    orphan = LateOrphan(path)
    orphan.start()
    try:
        with patched_stages("tests.faults.stage:behind_an_orphan"), commitlog.Store.open(path, CONFIG) as store:
            assert store.producer().send("t", b"x").wait("flushed", timeout=60).name == "PUT_OK"
    finally:
        orphan.join()
    assert mark(path, "waits").exists()
