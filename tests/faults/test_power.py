"""A power cut and a full disk, as real as a test can make them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.shm.layout import STAGES
from tests.crash.accounts import check, read_store
from tests.crash.scene import kill, pid_of
from tests.faults.channel import FaultsDirectory, Rule
from tests.faults.test_disk import CONFIG, Sender, faulty_store
from tests.namespaces import with_tmpfs
from tests.nightly import with_nightly
from tests.waiting import wait_until


@pytest.mark.leaves_pools
@pytest.mark.parametrize("write_path", with_nightly(["pool"], ["direct"]))
def test_after_a_power_cut_everything_flushed_is_there(write_path: str, tmp_path: Path, shm_root: Path) -> None:
    """Of each file only the synced part is left, and nothing of the memory.

    The next start finds every message that was acknowledged as flushed, in order, and goes on
    behind them.
    """
    path = tmp_path / "store"
    sender = _cut_power(path, write_path)
    flushed = len(sender.sent) - 40
    shutil.rmtree(next(shm_root.iterdir()))
    faults = FaultsDirectory(path)
    for file in path.glob("lanes/*/**/*"):
        if file.is_file() and file.name not in ("lock", "abort"):
            file.write_bytes(faults.durable(file).ljust(file.stat().st_size, b"\0"))
    with commitlog.Store.open(path, CONFIG) as store, commitlog.Reader(path) as reader:
        found = [message.value for message in reader]
        assert found == sender.sent[: len(found)]
        assert len(found) >= flushed
        assert store.producer().send("t", b"").offset == len(found)


def _cut_power(path: Path, write_path: str) -> Sender:
    """A store that was killed while it worked; its last 40 messages were never called flushed."""
    try:
        with faulty_store(path, write_path) as sender:
            for _ in range(100):
                last = sender.send(2000)
            last.wait("flushed", timeout=60)
            sender.faults.set(Rule("fdatasync", error=5, keeps=True))
            for _ in range(40):
                sender.send(300)
            for name in ("", *STAGES):
                kill(pid_of(path, name))
    except errors.StageFailed:
        return sender
    raise AssertionError("a killed store was closed as if nothing had happened")


PATIENT: dict[str, Any] = {
    **CONFIG,
    "producer": {"buffer_wait_ms": 60_000},
    "retention": {"disk_clean_forcibly_percent": 100, "disk_refuse_percent": 100},  # the disk itself has to refuse
}


@pytest.mark.nightly
def test_a_full_disk_is_named_and_heals(tmp_path: Path) -> None:
    """A file system of 3 MB is full, and senders are told.

    Then a file is deleted, and everything accepted is there.
    """
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)

    def fill_and_heal() -> None:
        with commitlog.Store.open(disk / "store", PATIENT) as store:
            sender = Sender(store, store.producer(), FaultsDirectory(tmp_path / "none"))
            sender.send().wait("flushed", timeout=60)
            filler = disk / "filler"
            _fill(filler)
            last, error = sender.fill()
            assert isinstance(error, errors.DiskFull)
            filler.unlink()
            wait_until(lambda: last.done("flushed"), "the lane to heal")
            assert sender.send().wait("flushed", timeout=60).name == "PUT_OK"
        check(sender.noted, read_store(disk / "store"), deaths=0)

    with_tmpfs(disk, 3 << 20, fill_and_heal)


def _fill(file: Path) -> None:
    """Takes all the space that is left on the file's disk."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        os.close(fd)
