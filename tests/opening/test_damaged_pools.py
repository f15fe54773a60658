"""Something else is in the place of a file of the pool.

A start refuses it by name, and harms nothing.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import commitlog
from commitlog import errors
from commitlog.disk.store_directory import StoreDirectory
from commitlog.reading.view import StoreView
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Header, Lane
from tests.builders.killed import kill_store
from tests.builders.scrape import halted
from tests.command_line import run_process
from tests.crash.scene import halted_process, pid_of
from tests.nightly import with_nightly
from tests.waiting import wait_until

CONFIG = {"store": {"segment_bytes": 1 << 16}}


def _link(file: Path) -> None:
    file.symlink_to("/dev/zero")


HARMS: dict[str, Callable[[Path], object]] = {
    "empty": Path.touch,
    "too short": lambda file: file.write_bytes(b"x" * 5000),
    "too long": lambda file: file.write_bytes(bytes(1 << 20)),
    "a directory": Path.mkdir,
    "a link": _link,
    "a named pipe": os.mkfifo,
}


def remove(file: Path) -> None:
    shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()


@contextmanager
def in_its_place(file: Path, make: Callable[[Path], object]) -> Iterator[None]:
    """Something else is at the path of a file for a while."""
    aside = file.with_name("aside")
    file.rename(aside)
    make(file)
    try:
        yield
    finally:
        remove(file)
        aside.rename(file)


def test_write_buffers_whose_control_file_is_gone_are_not_passed_over(tmp_path: Path) -> None:
    """A cleaner may take one file of a pool: what only the others have is not given up."""
    path = tmp_path / "store"
    kill_with_unflushed(path)
    place = StoreDirectory(path).load().pool
    assert place is not None
    control = Path(place.directory, "control")
    aside = control.rename(control.with_name("aside"))
    with pytest.raises(errors.PoolNotAdopted, match=r"pool can't be read: .*/control.* Put the file back"):
        commitlog.Store.open(path, CONFIG)
    aside.rename(control)
    commitlog.Store.open(path, CONFIG).close()
    assert values(path) == [b"only in memory"]


@pytest.mark.nightly
def test_a_pool_of_another_layout_is_left_to_the_version_that_made_it(tmp_path: Path) -> None:
    """Of a killed store that was upgraded: what only its memory has is not given up."""
    path = tmp_path / "store"
    kill_with_unflushed(path)
    place = StoreDirectory(path).load().pool
    assert place is not None
    words = np.memmap(Path(place.directory, "control"), dtype=np.int64, mode="r+")
    words[Header.LAYOUT_VERSION] += 1
    with pytest.raises(
        errors.PoolNotAdopted, match=r"has layout \d+, not \d+.* start the version of commitlog that made it"
    ):
        commitlog.Store.open(path, CONFIG)
    words[Header.LAYOUT_VERSION] -= 1
    commitlog.Store.open(path, CONFIG).close()
    assert values(path) == [b"only in memory"]


def test_what_is_no_write_buffer_is_refused_by_name(tmp_path: Path) -> None:
    """The error says what is in its place, and how many bytes are given up without it."""
    path = tmp_path / "store"
    store = commitlog.Store.open(path, CONFIG)
    with commitlog.Producer(path) as producer:
        for number in range(100):
            producer.send("t", b"%d" % number)
        kill_store(store)
    place = StoreDirectory(path).load().pool
    assert place is not None
    pool = Path(place.directory)
    for make in HARMS.values():
        with (
            in_its_place(pool / "lane-0", make),
            pytest.raises(errors.PoolNotAdopted, match=r"lane 0: .*/lane-0.*damaged, or another's.*remove .*/lane-0"),
        ):
            commitlog.Store.open(path, CONFIG)
    right = (pool / "control").read_bytes()
    for wrong in (b"", right[:5000], b"\xff" * 8 + right[8:], right[:8] + b"\xff" + right[9:]):
        with (
            in_its_place(pool / "control", lambda file, wrong=wrong: file.write_bytes(wrong)),  # type: ignore[misc]
            pytest.raises(errors.PoolNotAdopted, match=r"the store's pool can't be read: .*/control"),
        ):
            commitlog.Store.open(path, CONFIG)
    assert commitlog.Store.open(path, CONFIG).close().drained
    with commitlog.Reader(path, start="earliest") as reader:
        assert [int(message.value) for message in reader] == list(range(100))


def test_a_pool_that_has_lost_its_positions(tmp_path: Path) -> None:
    """And the log is lost, too: `positions` tells that there was one. No lane begins anew."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, CONFIG) as store, store.producer() as producer:
        producer.send("t", b"1")
    kill_store(commitlog.Store.open(path, CONFIG))
    directory = StoreDirectory(path)
    facts = directory.load()
    assert facts.pool is not None
    directory.save(replace(facts, lanes={}))
    with closing(ControlRegion.attach(Path(facts.pool.directory), writable=True)) as control:
        row = control.row(0)
        for word in range(len(row)):
            row[word] = 0
        row.release()
    shutil.rmtree(path / "lanes/0/commitlog")
    commitlog.Store.open(path, CONFIG).close()
    with pytest.raises((errors.CorruptRecord, errors.DamagedFile)), commitlog.Reader(path, topic="t") as reader:
        list(reader)


@pytest.mark.parametrize("length", with_nightly([(1 << 16) - 20], [(1 << 16) + 20]))
def test_a_segment_of_a_wrong_size_keeps_what_only_it_has(length: int, tmp_path: Path) -> None:
    """It was written directly, nothing of it is flushed, and its file has another size now."""
    path, config = tmp_path / "store", {"store": CONFIG["store"] | {"write_path": "direct"}}
    store = commitlog.Store.open(path, config)
    with store.producer() as producer:
        producer.send("orders", b"x").wait("flushed")
        with closing(StoreView(path)) as view:
            wait_until(lambda: view.control and view.control.row(0)[Lane.OPENED] >= 2 << 16, "the next segment")
        with halted_process(pid_of(path, "flusher")):
            sent = 1  # and the last one
            while (receipt := producer.send("orders", b"y" * 1000)).physical_offset < 1 << 16:
                sent += 1
            kill_store(store)
    segment = path / f"lanes/0/commitlog/{receipt.physical_offset:020d}"
    os.truncate(segment, length)
    commitlog.Store.open(path, config).close()
    with commitlog.Reader(path) as reader:
        assert sum(1 for _ in reader) == sent + 1


def test_a_pool_that_the_system_lets_nobody_make(tmp_path: Path) -> None:
    """The error names the limit (`ulimit -f`), which is none of a path that is not safe."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, limits[1]))
    try:
        with pytest.raises(errors.FileSizeLimited, match=r"making the store's pool: EFBIG \(.*ulimit -f"):
            commitlog.Store.open(tmp_path / "store", CONFIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def kill_with_unflushed(path: Path) -> None:
    """Kills all of a store, whose only message is in its pool."""
    store = commitlog.Store.open(path, CONFIG)
    with commitlog.Producer(path) as producer, halted_process(pid_of(path, "committer")):
        producer.send("t", b"only in memory")
        kill_store(store)


def lose(path: Path, *patterns: str) -> None:
    """Removes files of a store, or of its pool."""
    for pattern in patterns:
        for file in path.glob(pattern):
            remove(file)


def values(path: Path) -> list[bytes]:
    with commitlog.Reader(path) as reader:
        return [message.value for message in reader]


@pytest.mark.parametrize("named", with_nightly([True], [False]))
def test_a_new_store_json_hides_no_pool(named: bool, tmp_path: Path, shm_root: Path) -> None:
    """The file is lost, and all that names the store's id: the start makes a new one.

    The pool may have lost the file with the store's path, too.
    """
    path = tmp_path / "store"
    file = StoreDirectory(path).file
    kill_with_unflushed(path)
    right = file.read_bytes()
    lose(path, "store.json", "lanes/*/positions")
    if not named:
        lose(shm_root, "*/store")
    for _ in range(2):  # the first one has made the file
        with pytest.raises(
            errors.PoolNotAdopted, match=r"store.json is new, .* the pool .* accepted and never flushed"
        ):
            commitlog.Store.open(path, CONFIG)
    file.write_bytes(right)
    commitlog.Store.open(path, CONFIG).close()
    assert values(path) == [b"only in memory"]


@pytest.mark.leaves_pools
@pytest.mark.parametrize("control", with_nightly(["lost"], ["there"]))
def test_an_emptied_store_names_its_pool(
    control: str, tmp_path: Path, shm_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who begins anew in the directory is told what the pool has, or that it can't be read."""
    path = tmp_path / "store"
    kill_with_unflushed(path)
    lose(path, "*")
    if control == "lost":
        lose(shm_root, "*/control")
    commitlog.Store.open(path, CONFIG).close()
    (pool,) = shm_root.iterdir()
    wanted = "accepted and never written to disk" if control == "there" else "can't be read"
    assert any(str(pool) in text and wanted in text for text in caplog.messages)


@pytest.mark.leaves_pools
@pytest.mark.parametrize("kind", with_nightly(["new"], ["older"]))
def test_a_pool_that_no_store_json_names_tells_what_was_flushed(kind: str, tmp_path: Path) -> None:
    """All of it was, and the lane's files are older, or its directory is lost: that is damage."""
    path, aside = tmp_path / "store", tmp_path / "aside"
    commitlog.Store.open(path, CONFIG).close()
    older = (path / "store.json").read_bytes()
    store = commitlog.Store.open(path, CONFIG)
    with commitlog.Producer(path) as one, commitlog.Producer(path) as other:
        for producer in (one, other):
            producer.send("t", b"1").wait("flushed")
        with halted(path):  # no segment is made and renamed meanwhile
            shutil.copytree(path / "lanes/0", aside)
        one.send("t", b"2").wait("flushed")
        kill_store(store)
    lose(path, "store.json", "lanes/*/positions", "lanes/0")
    if kind == "new":
        with pytest.raises(errors.RecoveryError, match=r"lanes/0 is missing, and .* bytes were flushed there"):
            commitlog.Store.open(path, CONFIG)
    else:
        (path / "store.json").write_bytes(older)
        aside.rename(path / "lanes/0")
        commitlog.Store.open(path, CONFIG).close()
        with pytest.raises((errors.CorruptRecord, errors.DamagedFile)):
            values(path)


@pytest.mark.parametrize("kind", with_nightly(["older"], ["new"]))
def test_a_pool_that_is_gone_and_that_no_store_json_names(
    kind: str, tmp_path: Path, shm_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The lane was not stopped properly: so a start says that something may be lost."""
    path = tmp_path / "store"
    commitlog.Store.open(path, CONFIG).close()
    older = (path / "store.json").read_bytes()
    kill_with_unflushed(path)
    lose(path, "store.json", "lanes/*/positions")
    lose(shm_root, "*")
    if kind == "older":
        (path / "store.json").write_bytes(older)
    for _ in range(2):
        commitlog.Store.open(path, CONFIG).close()
    told = [text for text in caplog.messages if "names no pool" in text]
    assert len(told) == 1
    assert values(path) == []


def test_no_second_store_begins_in_the_directory_of_one_that_runs(tmp_path: Path) -> None:
    """Somebody has taken its files away, also those that are locked."""
    path, aside = tmp_path / "store", tmp_path / "aside"
    aside.mkdir()
    with commitlog.Store.open(path, CONFIG), commitlog.Producer(path) as producer:
        producer.send("t", b"1").wait("flushed")
        wait_until(lambda: StoreDirectory(path).load().lanes, "store.json has the lane, so nobody writes it again")
        for file in path.iterdir():
            file.rename(aside / file.name)
        second = run_process("run", path)
        lose(path, "*")
        for file in aside.iterdir():
            file.rename(path / file.name)
        assert f"pid {pid_of(path, '')}".encode() in second.stderr
        assert second.returncode
        producer.send("t", b"3").wait("flushed")
    assert values(path) == [b"1", b"3"]


def test_an_older_store_json_hides_no_pool(tmp_path: Path) -> None:
    """The file of a proper stop is put back over that of a killed store: it names no pool."""
    path = tmp_path / "store"
    file = StoreDirectory(path).file
    commitlog.Store.open(path, CONFIG).close()
    older = file.read_bytes()
    kill_with_unflushed(path)
    newer = file.read_bytes()
    file.write_bytes(older)
    with pytest.raises(errors.PoolNotAdopted, match=r"store.json is older than the pool .* accepted and never flushed"):
        commitlog.Store.open(path, CONFIG)
    file.write_bytes(newer)
    commitlog.Store.open(path, CONFIG).close()
    assert values(path) == [b"only in memory"]
