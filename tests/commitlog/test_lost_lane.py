"""A lane whose directory is gone, or all that was in it: whoever looks at the store says so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, CorruptRecord, DamagedFile, PoolNotAdopted, RecoveryError
from tests.builders.killed import kill_store
from tests.command_line import run
from tests.nightly import with_nightly
from tests.waiting import wait_until

CONFIG = {"store": {"segment_bytes": 1 << 16, "max_lanes": 2}}
SENT = 100


def send(path: Path) -> None:
    """A store that was stopped, with messages in two lanes."""
    with commitlog.Store.open(path, CONFIG) as store, store.producer() as one, store.producer() as other:
        for producer in (one, other):
            for number in range(SENT):
                producer.send("orders", b"%d" % number * 1000)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "store"
    send(path)
    return path


def read(path: Path) -> int:
    with commitlog.Reader(path) as reader:
        return sum(1 for _ in reader)


def _remove(lane: Path) -> None:
    shutil.rmtree(lane)


def _rename(lane: Path) -> None:
    lane.rename(lane.with_name("old"))


def _remove_all(lane: Path) -> None:
    shutil.rmtree(lane.parent)


def _rename_all(lane: Path) -> None:
    _rename(lane.parent)


@pytest.mark.parametrize("damage", [_remove, _rename, _remove_all])
def test_a_lane_is_missed(damage: Callable[[Path], None], made: Path, tmp_path: Path) -> None:
    """Readers, verify and backup say so, and the start asks for it."""
    path = tmp_path / "store"
    shutil.copytree(made, path)
    damage(path / "lanes/1")
    nothing = "lane 1: nothing of it" if damage is not _remove_all else "lane 0: nothing of it"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(DamagedFile):
            read(path)
    assert nothing in str(said[0].message)
    if damage is not _remove_all:
        with pytest.warns(commitlog.errors.ReadingWarning, match=nothing):
            assert commitlog.read_arrow(path, "orders").read_all().num_rows == SENT
    assert b"lanes/1 is missing" in run("verify", path).stdout
    assert run("backup", path, tmp_path / "backup").returncode == 1
    with pytest.raises(RecoveryError, match=r"lanes/\d is missing.*put it back, or make an empty directory"):
        commitlog.Store.open(path, CONFIG)


@pytest.mark.leaves_pools
def test_a_killed_store_misses_it_by_its_pool(tmp_path: Path) -> None:
    """In its first life nothing else knows of the lane."""
    path = tmp_path / "store"
    store = commitlog.Store.open(path, CONFIG)
    with store.producer() as producer:
        producer.send("orders", b"x").wait("flushed")
    kill_store(store)
    _rename(path / "lanes/0")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(DamagedFile):
            read(path)
    assert any("lane 0: nothing of it" in str(warning.message) for warning in said)
    assert b"lanes/0 is missing" in run("verify", path).stdout


@pytest.mark.leaves_pools
def test_a_killed_store_whose_pool_is_gone_misses_it(tmp_path: Path) -> None:
    """In its first life, too: `store.json` tells of each lane soon after its first message."""
    path = tmp_path / "store"
    store = commitlog.Store.open(path, CONFIG)
    with store.producer() as producer:
        producer.send("orders", b"x").wait("flushed")
    directory = StoreDirectory(path)
    wait_until(lambda: directory.load().lanes)
    kill_store(store)
    pool = directory.load().pool
    assert pool
    shutil.rmtree(pool.directory)
    _remove(path / "lanes/0")
    with pytest.warns(commitlog.errors.ReadingWarning, match="lane 0: nothing of it"), pytest.raises(DamagedFile):
        read(path)
    assert b"lanes/0 is missing" in run("verify", path).stdout
    with pytest.raises(RecoveryError, match="lanes/0 is missing"):
        commitlog.Store.open(path, CONFIG)


@pytest.mark.parametrize("damage", with_nightly([_rename_all], [_rename]))
def test_a_stop_does_not_forget_a_lane(damage: Callable[[Path], None], tmp_path: Path) -> None:
    """Its directory goes while the stages run and nobody sends: the next start misses it."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, CONFIG) as store:
        with store.producer() as producer:
            producer.send("orders", b"x")
            producer.flush()
        damage(path / "lanes/0")
    assert b"lanes/0 is missing" in run("verify", path).stdout
    with pytest.raises(RecoveryError, match="lanes/0 is missing"):
        commitlog.Store.open(path, CONFIG)


@pytest.mark.leaves_pools
def test_a_stop_keeps_what_only_the_pool_has_of_it(tmp_path: Path) -> None:
    """A message is in memory when the directory goes: the pool stays, the next start names it."""
    path, config = tmp_path / "store", CONFIG | {"supervisor": {"stop_timeout_ms": 1000}}
    store = commitlog.Store.open(path, config)
    with store.producer() as producer:
        producer.send("orders", b"x").wait("flushed")
        (committer,) = (stage.pid for stage in store.statistics().stages if stage.stage == "committer")
        os.kill(committer, signal.SIGSTOP)
        producer.send("orders", b"y")
        while (path / "lanes/0").exists():  # a stage may write there meanwhile
            shutil.rmtree(path / "lanes/0", ignore_errors=True)
        os.kill(committer, signal.SIGCONT)
    report = store.close()
    assert not report.drained
    assert "lane 0" in " ".join(report.kept)
    with pytest.raises(PoolNotAdopted, match="lane 0"):
        commitlog.Store.open(path, CONFIG)


@pytest.mark.parametrize("is_killed", with_nightly([True], [False]))
def test_a_directory_of_another_lane_is_left_as_it_is(is_killed: bool, made: Path, tmp_path: Path) -> None:
    """Where two directories have changed their names, no record is set aside or written over."""
    path = tmp_path / "store"
    shutil.copytree(made, path)
    lanes = [path / "lanes/0", path / "lanes/1"]
    if is_killed:  # in its first life, and without its pool
        facts = json.loads((path / "store.json").read_bytes())
        (path / "store.json").write_text(
            json.dumps({name: facts[name] for name in facts if name not in ("lanes", "crc32")})
        )
        for lane in lanes:
            (lane / "abort").touch()
    swap(*lanes)
    with pytest.raises(RecoveryError, match=r"lanes/0 has the log of lane 1: give the directory the name that it had"):
        commitlog.Store.open(path, CONFIG)
    refused = run("backup", path, tmp_path / "backup")
    assert refused.returncode == 1
    assert run("verify", path).returncode == 1
    swap(*lanes)
    commitlog.Store.open(path, CONFIG).close()
    assert read(path) == 2 * SENT


@pytest.mark.nightly
@pytest.mark.parametrize("is_killed", with_nightly([True], [False]))
def test_a_directory_of_another_store_is_left_as_it_is(is_killed: bool, made: Path, tmp_path: Path) -> None:
    """A lane's directory was put into the wrong store: nobody takes its messages for this one's."""
    path, other = tmp_path / "store", tmp_path / "other"
    shutil.copytree(made, path)
    send(other)
    swap(path / "lanes/1", other / "lanes/1")
    if is_killed:
        (path / "lanes/1/abort").touch()
    said = "lanes/1/positions: belongs to lane 1 of store"
    with pytest.raises(RecoveryError, match=said):
        commitlog.Store.open(path, CONFIG)
    with pytest.raises(DamagedFile, match=said):
        read(path)
    for command in (("verify", path), ("backup", path, tmp_path / "backup")):
        done = run(*command)
        assert done.returncode == 1
        assert said.encode() in done.stdout + done.stderr
    swap(path / "lanes/1", other / "lanes/1")
    commitlog.Store.open(path, CONFIG).close()
    assert read(path) == 2 * SENT


@pytest.mark.leaves_pools
def test_a_killed_store_misses_its_own_lane(made: Path, tmp_path: Path) -> None:
    """The pool is there, and says how far the lane goes; the directory is another store's."""
    path, other = tmp_path / "store", tmp_path / "other"
    shutil.copytree(made, other)
    store = commitlog.Store.open(path, CONFIG)
    with store.producer() as producer:
        producer.send("orders", b"x").wait("flushed")
        kill_store(store)
    swap(path / "lanes/0", other / "lanes/0")
    with pytest.raises(DamagedFile, match="lanes/0/positions: belongs to lane 0 of store"):
        read(path)


def make(path: Path, value: bytes, *, is_killed: bool = False) -> None:
    """A store with messages in one lane, stopped or killed when they are indexed."""
    way = "direct" if is_killed else "pool"  # a pool shows at once that the files are others
    config = {"store": {**CONFIG["store"], "write_path": way}, "flusher": {"positions_interval_ms": 20}}
    store = commitlog.Store.open(path, config)
    with store.producer() as producer:
        receipts = [producer.send("orders", value) for _ in range(SENT)]
        if is_killed:
            file = PositionsFile(StoreDirectory(path).lane_directory(0), "", DISK)
            wait_until(lambda: (p := file.load()) is not None and p.dispatched_where == receipts[-1].end, "the index")
            kill_store(store)
    if not is_killed:
        store.close()


@pytest.mark.leaves_pools
@pytest.mark.parametrize("state", with_nightly(["killed"], ["stopped", "killed, no pool"]))
def test_a_log_of_another_store_is_left_as_it_is(state: str, tmp_path: Path) -> None:
    """Only `commitlog/` was put into the wrong store: a record reaches over the lane's own end."""
    path, other = tmp_path / "store", tmp_path / "other"
    make(path, b"x" * 100, is_killed=state == "killed")
    make(other, b"y" * 137)
    if state == "killed, no pool":
        (path / "lanes/0/abort").touch()
    swap(path / "lanes/0/commitlog", other / "lanes/0/commitlog")
    said = "lanes/0/commitlog: not the log that was flushed here"
    with pytest.raises((RecoveryError, PoolNotAdopted), match=said):
        commitlog.Store.open(path, CONFIG)
    with pytest.warns(commitlog.errors.ReadingWarning, match="orders"), suppress(CorruptRecord, DamagedFile):
        read(path)
    for command in (("verify", path), ("backup", path, tmp_path / "backup")):
        done = run(*command)
        assert done.returncode == 1
        assert b"the log that was flushed here" in done.stdout + done.stderr
    swap(path / "lanes/0/commitlog", other / "lanes/0/commitlog")
    commitlog.Store.open(path, CONFIG).close()
    assert read(path) == SENT


def test_positions_that_are_swapped_hide_no_lost_log(made: Path, tmp_path: Path) -> None:
    """A file is in the place of a log, and `positions` is another lane's: readers miss the log."""
    path = tmp_path / "store"
    shutil.copytree(made, path)
    shutil.copy(path / "lanes/0/positions", path / "lanes/1/positions")
    shutil.rmtree(path / "lanes/1/commitlog")
    (path / "lanes/1/commitlog").touch()
    with (
        pytest.warns(commitlog.errors.ReadingWarning, match="lane 1: nothing of it can be read"),
        pytest.raises(DamagedFile, match="lanes/1/commitlog"),
    ):
        read(path)
    assert run("backup", path, tmp_path / "backup").returncode == 1


def swap(one: Path, other: Path) -> None:
    one.rename(one.with_name("aside"))
    other.rename(one)
    one.with_name("aside").rename(other)


def test_a_lane_that_loses_its_positions_and_its_last_segments(made: Path, tmp_path: Path) -> None:
    """The store knows how far it went: what is missing there is no torn tail."""
    path = tmp_path / "store"
    shutil.copytree(made, path)
    lane = path / "lanes/1"
    for file in (lane / "positions", max((lane / "commitlog").iterdir())):
        file.unlink()
    shutil.rmtree(lane / "consumequeue")
    (lane / "abort").touch()  # as a killed store has it
    commitlog.Store.open(path, CONFIG).close()
    with pytest.raises(CommitLogError, match="lanes/1"):
        read(path)
    assert run("verify", path).returncode == 1


def test_who_gives_it_up_says_so(made: Path, tmp_path: Path) -> None:
    """With an empty directory in its place the store starts, and offsets go on behind the loss."""
    path = tmp_path / "store"
    shutil.copytree(made, path)
    _remove(path / "lanes/1")
    (path / "lanes/1").mkdir()
    with commitlog.Store.open(path, CONFIG) as store:
        with store.producer() as one, store.producer() as other:
            receipts = [producer.send("orders", b"x") for producer in (one, other)]
        assert receipts[1].physical_offset >= SENT * 1000
    with pytest.raises(CommitLogError, match="lanes/1"):
        read(path)
    assert run("verify", path).returncode == 1
    with pytest.warns(commitlog.errors.ReadingWarning), commitlog.Reader(path, ignore_corrupt=True) as reader:
        assert sum(1 for _ in reader) == SENT + 2
