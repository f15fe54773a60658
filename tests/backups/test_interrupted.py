"""Backups that a full disk or a kill ends at any call: the next one completes them."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

import commitlog
from commitlog.backups.store_backup import StoreBackup
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.locks import holder_of, write_holder
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DiskFull, FileSizeLimited, ReadingWarning, StoreRefused
from commitlog.inspecting.verify import verify_store
from commitlog.opening.recovery import recover_lane
from commitlog.record.record_layout import Buffer
from commitlog.schemas.declaring import declared_schema
from commitlog.schemas.topic_schemas import TopicSchema
from tests.builders.hand_made import HandMadeStore
from tests.nightly import with_nightly
from tests.waiting import wait_until

_WHOLE_BYTES = 1000
Rows = list[tuple[int, int, bytes]]
_NIGHTLY = [("full disk", False, 97), ("kill -9", True, 97), *product(("full disk", "kill -9"), (True, False), (1,))]


def rows(path: Path, topic: str) -> Rows:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReadingWarning)  # half a backup may be slow to read
        reader = commitlog.Reader(path, topic=topic)
    with reader:
        return sorted((message.partition, message.offset, message.value) for message in reader)


def add(store: HandMadeStore) -> None:
    """More messages in each lane. One segment goes from lane 0, all that were there from lane 3."""
    for lane in store.lanes.values():
        for number in range(90):
            lane.append("orders", b"more-%d" % number * 20)
        lane.dispatch()
        lane.forget_before(lane.end // store.segment_bytes - 3 if lane.number else 1)


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    made = HandMadeStore(tmp_path / "store", segment_bytes=1 << 12)
    for number in (0, 3):
        for row in range(30):
            made.lane(number).append("orders", b"orders-%d" % row * 10)
            made.lane(number).append("other", b"other-%d" % row)
    made.publish()
    schema = made.directory.topics_directory / "orders" / "1.json"
    schema.parent.mkdir(parents=True)
    schema.write_bytes(TopicSchema("orders", 1, declared_schema("id INT")).to_bytes())
    return made


class Striking(FileChannel):
    """Does something else at a certain call among all that change files. Large writes are parted.

    `is_struck` says whether that call came. A lock file does not count: its content is for people,
    and a full disk stops nobody from writing it. Nor does the note that the store itself gets in
    the end: the backup is good without it.
    """

    def __init__(self, at: int, strike: Callable[[], None]) -> None:
        self._left, self._strike = at, strike

    @property
    def is_struck(self) -> bool:
        return self._left < 0

    def _count(self, fd: int = -1) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}") if fd >= 0 else ""
        if name.endswith("lock"):
            return
        if "last-backup.json" in name:
            self._left = sys.maxsize
        self._left -= 1
        if self._left == -1:
            self._strike()

    def write_once(self, fd: int, data: Buffer, offset: int) -> int:
        self._count(fd)
        return super().write_once(fd, memoryview(data)[: max(len(data) // 2, _WHOLE_BYTES)], offset)

    def fdatasync(self, fd: int) -> None:
        self._count()
        super().fdatasync(fd)

    def truncate(self, fd: int, length: int) -> None:
        self._count(fd)
        super().truncate(fd, length)

    def sync_directory(self, path: str | Path) -> None:
        self._count()
        super().sync_directory(path)

    def rename(self, source: str | Path, target: str | Path) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: str | Path) -> None:
        self._count()
        super().unlink(path)


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def end_at(number: int, how: str, store: Path, dest: Path) -> bool:
    """Makes a backup that ends at a call. Returns False if it has fewer calls."""
    if how == "full disk":
        channel = Striking(number, full)
        try:
            StoreBackup(store, dest, channel).run()
        except OSError:
            return True
        assert not channel.is_struck, "a full disk was passed over"
        return False
    child = os.fork()
    if child == 0:
        try:
            StoreBackup(store, dest, Striking(number, lambda: os.kill(os.getpid(), signal.SIGKILL))).run()
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def started(backup: Path, place: Path, segment_bytes: int, store_id: str) -> Path:
    """A copy of a backup whose lanes were recovered as a start does it."""
    shutil.copytree(backup, place)
    directory = StoreDirectory(place)
    for number in directory.lane_numbers():
        recover_lane(directory.lane_directory(number), segment_bytes, DISK, lambda line: None, store_id=store_id)
    return place


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("how", "is_first", "step"),
    with_nightly([("full disk", True, 97), ("kill -9", False, 97)], _NIGHTLY),
)
def test_a_backup_that_ends_at_any_call(
    how: str, is_first: bool, step: int, store: HandMadeStore, tmp_path: Path
) -> None:
    """A first backup is refused by whoever opens it, until it is complete.

    Before a second one is complete, it is read as it was, or further. So is what a start makes of
    it.
    """
    base, dest, copy = tmp_path / "base", tmp_path / "backup", tmp_path / "copy"
    before: Rows = []
    if not is_first:
        commitlog.backup(store.path, base)
        add(store)
        before = rows(base, "orders")
    number, refused = 0, 0
    oldest = {lane.number: _first_orders(store, lane.number) for lane in store.lanes.values()}
    whole = rows(store.path, "orders")
    while True:
        if not is_first:
            shutil.copytree(base, dest)
        if not end_at(number, how, store.path, dest):
            break
        if (dest / "store.json").exists():
            kept = [row for row in before if row[1] >= oldest[row[0]]]
            for place in (dest, started(dest, copy, store.segment_bytes, store.id)):
                found = rows(place, "orders")
                assert set(kept) <= set(found) <= {*before, *whole}, (number, place)
            shutil.rmtree(copy)
        elif (dest / "incomplete-backup.json").exists():
            refused += 1
            with pytest.raises(StoreRefused, match="not complete"):
                commitlog.Reader(dest, topic="orders")
            if refused == 1:
                with pytest.raises(StoreRefused, match="not complete"):
                    commitlog.Store.open(dest)
        assert commitlog.backup(store.path, dest).good
        verified = verify_store(dest)
        assert verified.good, (number, verified)
        assert rows(dest, "orders") == whole
        assert rows(dest, "other") == rows(store.path, "other")
        shutil.rmtree(dest)
        number += step
    assert number > 100
    assert bool(refused) == is_first


def _first_orders(store: HandMadeStore, lane: int) -> int:
    """The first queue offset that the store still has in a lane."""
    return min(offset for number, offset, _ in rows(store.path, "orders") if number == lane)


def test_a_full_disk_has_a_name(store: HandMadeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says whether there is a backup from before."""
    for calls in (5, 30):  # the directory is empty at the fifth
        monkeypatch.setattr("commitlog.backups.store_backup.DISK", Striking(calls, full))
        with pytest.raises(DiskFull, match="the first backup is not complete yet"):
            commitlog.backup(store.path, tmp_path / "backup")
    monkeypatch.setattr("commitlog.backups.store_backup.DISK", DISK)
    commitlog.backup(store.path, tmp_path / "backup")
    add(store)
    monkeypatch.setattr("commitlog.backups.store_backup.DISK", Striking(30, full))
    with pytest.raises(DiskFull, match="the last backup counts"):
        commitlog.backup(store.path, tmp_path / "backup")


def test_a_limit_of_the_process_is_no_full_disk(
    store: HandMadeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room on the disk would not help: the way out is another one."""

    def limited() -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr("commitlog.backups.store_backup.DISK", Striking(30, limited))
    with pytest.raises(FileSizeLimited, match=r"not complete yet; .* raise the limit \(ulimit -f\), then repeat it"):
        commitlog.backup(store.path, tmp_path / "backup")


class SmallDisk(FileChannel):
    """Has room for so many segments of 4 KiB."""

    def __init__(self, path: Path, room: int) -> None:
        self.path, self.room = path, room

    def truncate(self, fd: int, size: int) -> None:
        used = [file for name in ("commitlog", "tmp") for file in self.path.glob(f"lanes/*/{name}/0*")]
        if size == 1 << 12 and sum(file.stat().st_size == size for file in used) >= self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().truncate(fd, size)


def test_a_first_backup_on_a_disk_that_was_too_small(tmp_path: Path) -> None:
    """The same command goes on, also where it fits only because the store has deleted segments."""
    store, dest = HandMadeStore(tmp_path / "store", segment_bytes=1 << 12), tmp_path / "backup"
    lane = store.lane(0)
    while lane.end < 10 * store.segment_bytes:
        lane.append("orders", bytes(1000))
    lane.publish()
    disk = SmallDisk(dest, 6)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            StoreBackup(store.path, dest, disk).run()
    lane.forget_before(6)
    assert StoreBackup(store.path, dest, disk).run().good
    assert verify_store(dest).good
    assert rows(dest, "orders") == rows(store.path, "orders")
    assert not list(dest.glob("lanes/0/tmp/*"))


def wait_for(pipe: int) -> None:
    os.read(pipe, 1)


def test_one_backup_at_a_time(store: HandMadeStore, tmp_path: Path) -> None:
    """A second one to the same place is refused while the first goes on."""
    dest, reading, writing = tmp_path / "backup", *os.pipe()
    child = os.fork()
    if child == 0:
        try:
            StoreBackup(store.path, dest, Striking(30, lambda: wait_for(reading))).run()
        finally:
            os._exit(0)
    wait_until(lambda: holder_of(dest / "lock", DISK) == str(child), "the first backup")
    with pytest.raises(commitlog.errors.StoreRunning, match=f"process {child}"):
        commitlog.backup(store.path, dest)
    os.write(writing, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reading)
    os.close(writing)
    assert rows(dest, "orders") == store.rows("orders")


def test_a_holder_writes_its_pid_after_it_was_met(store: HandMadeStore, tmp_path: Path) -> None:
    """A lock is taken before the pid is in its file. A refusal has the pid even then."""
    (tmp_path / "backup").mkdir()
    lock = tmp_path / "backup" / "lock"
    with DISK.opened(lock, write=True, create=True) as fd:
        assert DISK.try_lock(fd)

        class Before(FileChannel):
            """Reads the file as it was just before its holder wrote into it."""

            def read_file(self, path: str | Path, limit: int = 1 << 20) -> bytes:
                text = super().read_file(path, limit)
                if path == lock:
                    write_holder(fd, DISK)
                return text

        for earlier in (b"", b"4194305\n"):  # no pid, and one that nobody has
            lock.write_bytes(earlier)
            with pytest.raises(commitlog.errors.StoreRunning, match=f"process {os.getpid()}:"):
                StoreBackup(store.path, lock.parent, Before()).run()
