"""A disk that is really full, also when a stage dies: the store heals by itself."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

import pytest

import commitlog
from commitlog import errors
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.locks import holder_of, write_holder
from commitlog.disk.store_directory import StoreDirectory
from commitlog.record.record_layout import Buffer
from commitlog.shm.layout import Lane
from tests.builders.killed import kill_store
from tests.command_line import run
from tests.faults.bench import bench
from tests.faults.channel import FaultsDirectory, Rule
from tests.faults.supervisor import patched_stages
from tests.namespaces import with_tmpfs
from tests.nightly import with_nightly
from tests.waiting import wait_until

MIB = 1 << 20
CONFIG: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": 1 << 16},
    "producer": {"buffer_wait_ms": 1000},
    "dispatcher": {"queue_file_entries": 1000},
    "retention": {"reserved_hours": 0, "disk_clean_forcibly_percent": 100, "disk_refuse_percent": 100},
    "supervisor": {"restarts_max": 3},
}


def fill(ballast: Path) -> None:
    """Takes every byte that the disk has left."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\1" * size)
            except OSError:
                continue


def send_until_refused(producer: commitlog.Producer, number: int, size: int = 1000) -> int:
    """Sends numbered messages until no buffer is left. Returns the next number."""
    try:
        while True:
            producer.send("t", b"%d" % number + bytes(size))
            number += 1
    except (errors.DiskFull, errors.NoBufferAvailable):
        return number


def stage_pid(store: commitlog.Store, name: str) -> int:
    """The pid of a stage; 0 while it does not run."""
    return next(stage.pid for stage in store.statistics().stages if stage.stage == name)


def die(store: commitlog.Store, name: str) -> None:
    """Kills a stage, and waits for one that works in its place."""
    pid = stage_pid(store, name)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: stage_pid(store, name) not in (0, pid), f"another {name}")


def test_each_stage_may_die_while_the_disk_is_full(tmp_path: Path) -> None:
    """The stage is started again at once. When there is space all messages come to the disk."""
    place = tmp_path / "disk"
    place.mkdir()

    def act() -> None:
        with commitlog.Store.open(place / "store", CONFIG) as store, store.producer() as producer:
            producer.send("t", b"0").wait("flushed", timeout=60)
            fill(place / "ballast")
            sent = send_until_refused(producer, 1)
            for stage in ("committer", "flusher", "allocator", "dispatcher"):
                die(store, stage)
            (place / "ballast").unlink()
            producer.flush(timeout=60)
        with commitlog.Reader(place / "store", start="earliest") as reader:
            assert [int(message.value.rstrip(b"\0")) for message in reader] == list(range(sent))

    with_tmpfs(place, 8 * MIB, act)


def test_a_trim_frees_a_disk_without_a_byte(tmp_path: Path) -> None:
    """`health` names it as the way out, and it needs no room itself. What waits is written then."""
    place = tmp_path / "disk"
    place.mkdir()

    def act() -> None:
        with commitlog.Store.open(place / "store", CONFIG) as store, store.producer() as producer:
            for number in range(100):
                producer.send("t", b"%d" % number + bytes(10_000))
            producer.flush()
            wait_until(lambda: store.statistics().lanes[0].dispatched == store.statistics().lanes[0].wrote, "the index")
            fill(place / "ballast")
            sent = send_until_refused(producer, 100, 10_000)
            assert b"at once: commitlog trim" in run("health", store.path).stdout
            done = run("trim", store.path, "--keep-bytes", "500kB", "--yes")
            assert (done.returncode, done.stdout[:8]) == (0, b"deleted "), done.stderr
            wait_until(lambda: not store.statistics().lanes[0].faults, "the allocator to go on")
            producer.flush(timeout=60)
            with commitlog.Reader(store.path, start="earliest") as reader:
                left = [int(message.value.rstrip(b"\0")) for message in reader]
            assert 0 < left[0] < 100
            assert left == list(range(left[0], sent))

    with_tmpfs(place, 8 * MIB, act)


@pytest.mark.parametrize(
    ("where", "code"),
    with_nightly(
        [("/locks/", errno.EROFS)],
        [
            ("/store.json", errno.EMFILE),
            *[("/locks/", code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE)],
        ],
    ),
)
def test_a_stage_that_the_disk_refuses_waits_for_it(where: str, code: int, tmp_path: Path) -> None:
    """It may come as often as it likes: a store is not given up for a disk that may heal."""
    faults = FaultsDirectory(tmp_path / "store")
    with patched_stages(), commitlog.Store.open(tmp_path / "store", CONFIG) as store, store.producer() as producer:
        faults.set(Rule("open", where=where, error=code, stage="committer"))
        os.kill(stage_pid(store, "committer"), signal.SIGKILL)
        wait_until(lambda: faults.hits() > CONFIG["supervisor"]["restarts_max"] + 2, "the committer to try")
        receipt = producer.send("t", b"x")
        faults.clear()
        receipt.wait("flushed", timeout=60)
        log = (store.path / "logs/committer.log").read_text()
        assert "the committer ends, and is started again, because the system refuses what it needs" in log
        assert "Traceback" not in log


def test_no_log_is_needed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A log whose file can't be had is said once, and stops neither a start nor a stage."""
    for name in ("supervisor", "committer"):
        (tmp_path / f"store/logs/{name}.log").mkdir(parents=True)
    with commitlog.Store.open(tmp_path / "store", CONFIG) as store, store.producer() as producer:
        die(store, "committer")
        producer.send("t", b"x").wait("flushed", timeout=60)
    assert len([record for record in caplog.records if "nothing is logged to" in record.getMessage()]) == 1


def test_a_lock_file_on_a_full_disk_names_nobody_wrong(tmp_path: Path) -> None:
    """It is held all the same. It keeps its pid where the new one can be written over it."""

    class Full(FileChannel):
        def write_once(self, fd: int, data: Buffer, offset: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "lock"
    path.write_text("123456789\n")
    with DISK.opened(path, write=True) as fd:
        write_holder(fd, DISK)
        assert holder_of(path, DISK) == str(os.getpid())
        write_holder(fd, Full())
        assert holder_of(path, DISK) == "?"


def test_a_flusher_without_threads_syncs_one_lane_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may have no process left: the disk does not need one."""

    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with bench(tmp_path / "store") as made:
        producers = [made.producer() for _ in range(3)]
        made.settle()  # all lanes have their segments
        monkeypatch.setattr(made.stages["flusher"]._syncs, "submit", refuse)
        receipts = [producer.send("t", b"x") for producer in producers]
        for receipt in receipts:
            made.control.row(receipt.partition)[Lane.FLUSH_REQUESTED] = receipt.end
        made.settle()
        assert all(receipt.done("flushed") for receipt in receipts)


@pytest.mark.nightly
def test_a_pool_whose_store_can_not_be_named_is_adopted(tmp_path: Path) -> None:
    """The name is for people who find the pool later; full shared memory ends no start."""
    store = commitlog.Store.open(tmp_path / "store", CONFIG)
    with commitlog.Producer(store.path) as producer:
        producer.send("t", b"x")
        kill_store(store)
    place = StoreDirectory(store.path).load().pool
    assert place is not None
    name = Path(place.directory, "store")
    name.unlink()
    name.mkdir()  # a file that can't be written to, for root too
    with commitlog.Store.open(store.path, CONFIG) as again:
        name.rmdir()
        assert again.producer().last("t") is not None


def test_a_producer_needs_no_text_in_its_lanes_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is RocketMQ's, and on a full disk the file stays empty."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with bench(tmp_path / "store") as made:
        made.producer().close()
        os.truncate(tmp_path / "store/lanes/0/lock", 0)
        with monkeypatch.context() as patch:
            patch.setattr(DISK, "write_once", refuse)
            assert made.producer().lane == 0
