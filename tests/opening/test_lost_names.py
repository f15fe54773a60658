"""Damage of which nothing tells all topics any more: readers of every topic are told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.file_channel import DISK
from commitlog.disk.quarantine import noted_ranges
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.errors import CorruptRecord, DamagedFile, DataLoss, ReadingWarning
from commitlog.opening.recovery import recover_lane
from tests.builders.killed import kill_store
from tests.command_line import run
from tests.nightly import with_nightly
from tests.opening.test_recovery_killed import DyingChannel, Killed

CONFIG = {"store": {"segment_bytes": 1 << 16}}
INTACT = {"gone": 1, "apart": 2}
"""`gone` has lost all that it had behind its first message; `apart` has lost nothing."""
STRICT = (CorruptRecord, DamagedFile)
passes_queues_over = pytest.mark.filterwarnings(
    "ignore:.*consume queues are passed over:commitlog.errors.ReadingWarning"
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped store; the reader `billing` has read what `gone` has before the damage to come."""
    path = tmp_path_factory.mktemp("sound") / "store"
    with commitlog.Store.open(path, CONFIG) as store, store.producer() as producer:
        for topic in INTACT:
            producer.send(topic, b"early")
        producer.flush()
        with commitlog.Reader(path, "gone", name="billing") as reader:
            assert len(list(reader)) == 1
            reader.commit()
        for _ in range(5):
            producer.send("cut", bytes(16_000))
        producer.send("gone", b"the last")
        for _ in range(8):
            producer.send("cut", bytes(16_000))
        producer.send("apart", b"late")
    return path


def harm(path: Path, *, queues: bool = True, is_there: bool = False) -> LaneDirectory:
    """Damages the segment that has the last message of `gone`, and what tells of that message."""
    lane = StoreDirectory(path).lane_directory(0)
    (segment,) = (one for one in lane.commitlog.iterdir() if b"the last" in one.read_bytes())
    if is_there:
        begin, record, rest = segment.read_bytes().partition(b"the last")
        segment.write_bytes(begin[:-40] + bytes(40 + len(record)) + rest)
    else:
        segment.unlink()
    if queues:
        shutil.rmtree(lane.consumequeue)
        lane.ends_file.unlink()
    return lane


def check(path: Path, *, named: bool = True) -> None:
    """Strict readers of each topic are told, and those who go on have what is intact.

    A backup has no named readers.
    """
    for topic, count in INTACT.items():
        with pytest.warns(ReadingWarning, match="lane 0 is damaged from offset"):
            assert commitlog.read_arrow(path, topic).read_all().num_rows == count
        with pytest.raises(STRICT), commitlog.Reader(path, topic) as reader:
            list(reader)
    if named:
        with pytest.raises(STRICT), commitlog.Reader(path, "gone", name="billing") as reader:
            list(reader)


@pytest.mark.nightly
@passes_queues_over
def test_after_a_stop(sound: Path, tmp_path: Path) -> None:
    """Before a start and after each one, also where the queues of the first one are lost again."""
    path = shutil.copytree(sound, tmp_path / "store")
    lane = harm(path)
    check(path)
    for _ in range(2):
        commitlog.Store.open(path).close()
        check(path)
    shutil.rmtree(lane.consumequeue)
    commitlog.Store.open(path).close()
    check(path)


@passes_queues_over
@pytest.mark.leaves_pools
@pytest.mark.parametrize("has_pool", with_nightly([False], [True]))
def test_after_a_kill(has_pool: bool, sound: Path, tmp_path: Path) -> None:
    """With the pool, too: it has counted more entries than are found."""
    path = shutil.copytree(sound, tmp_path / "store")
    kill_store(commitlog.Store.open(path))
    if not has_pool:
        pool = StoreDirectory(path).load().pool
        assert pool
        shutil.rmtree(pool.directory)
    harm(path, is_there=has_pool)  # a pool is not adopted where files are missing
    commitlog.Store.open(path).close()
    check(path)


@pytest.mark.nightly
@passes_queues_over
def test_in_a_backup(sound: Path, tmp_path: Path) -> None:
    """Whether a start has noted the damage, or not; and in the store that is made of it."""
    path = shutil.copytree(sound, tmp_path / "store")
    harm(path)
    for name in ("before", "after"):
        assert commitlog.backup(path, tmp_path / name).findings
        check(tmp_path / name, named=False)
        commitlog.Store.open(path).close()
    commitlog.Store.open(tmp_path / "before").close()
    check(tmp_path / "before")


def test_who_goes_on(sound: Path, tmp_path: Path) -> None:
    """A reader that has read a message behind the damage is told nothing more."""
    path = shutil.copytree(sound, tmp_path / "store")
    harm(path)
    with commitlog.Store.open(path) as store, store.producer() as producer:
        producer.send("gone", b"new")
    left_out = pytest.warns(ReadingWarning, match="1 damaged place is left out")
    with commitlog.Reader(path, "gone", name="billing", ignore_corrupt=True) as reader, left_out:
        assert [message.value for message in reader] == [b"new"]
        reader.commit()
    with commitlog.Reader(path, "gone", name="billing") as reader:
        assert list(reader) == []


@pytest.mark.parametrize("queues", with_nightly([True], [False]))
def test_nobody_is_told_in_vain(queues: bool, sound: Path, tmp_path: Path) -> None:
    """Where the queues, or `ends.json`, tell all topics, readers of the others hear nothing."""
    path = shutil.copytree(sound, tmp_path / "store")
    lane = harm(path, queues=False)
    if queues:
        shutil.rmtree(lane.consumequeue)
    for _ in range(2):
        commitlog.Store.open(path).close()
        assert commitlog.read_arrow(path, "apart").read_all().num_rows == INTACT["apart"]
        with pytest.raises((*STRICT, DataLoss)):
            commitlog.read_arrow(path, "gone").read_all()
        with pytest.raises(STRICT), commitlog.Reader(path, "gone", name="billing") as reader:
            list(reader)


def test_retention_has_deleted_a_part_of_the_damage(sound: Path, tmp_path: Path) -> None:
    """Readers don't wait for ever for the file where the damage began."""
    path = shutil.copytree(sound, tmp_path / "store")
    lane = StoreDirectory(path).lane_directory(0)
    segments = sorted(lane.commitlog.iterdir())
    for segment in segments[:2]:
        segment.write_bytes(bytes(segment.stat().st_size))
    shutil.rmtree(lane.consumequeue)
    commitlog.Store.open(path).close()
    run("trim", path, "--keep-bytes", "200KB", "--force", "--yes")
    assert [segment.exists() for segment in segments] == [False, True, True, True]
    left_out = pytest.warns(ReadingWarning, match="1 damaged place is left out")
    with commitlog.Reader(path, "apart", ignore_corrupt=True) as reader, left_out:
        assert [message.value for message in reader] == [b"late"]


@pytest.mark.nightly
@pytest.mark.parametrize("ends", [False, True])
def test_a_start_that_is_killed_at_any_step(ends: bool, sound: Path, tmp_path: Path) -> None:
    """The starts after it know as much as one that was not killed."""
    facts, steps, is_killed = StoreDirectory(sound).load(), 0, True
    while is_killed:
        path = shutil.copytree(sound, tmp_path / str(steps))
        lane = harm(path, queues=False)
        shutil.rmtree(lane.consumequeue)
        if not ends:
            lane.ends_file.unlink()
        try:
            recover_lane(lane, facts.segment_bytes, DyingChannel(steps, steps % 2 > 0), print, store_id=facts.id)
            is_killed = False
        except Killed:
            steps += 1
        for _ in range(2):
            recover_lane(lane, facts.segment_bytes, DISK, print, store_id=facts.id)
        assert [noted.is_named for noted in noted_ranges(lane, DISK)] == [ends]
        shutil.rmtree(path)
    assert steps > 20
