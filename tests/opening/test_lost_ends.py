"""A topic's consume queue and its last segment are lost: the ends of the last stop tell of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CorruptRecord, DamagedFile, DataLoss
from tests.builders.killed import kill_store
from tests.nightly import with_nightly

CONFIG = {"store": {"segment_bytes": 1 << 16}}
SENT = {"spread": 10, "together": 5}
INTACT = {"spread": 5, "together": 0}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped store; two topics have their last messages in one segment in the middle."""
    path = tmp_path_factory.mktemp("sound") / "store"
    with commitlog.Store.open(path, CONFIG) as store, store.producer() as producer:
        for topics, value in ((["spread"], b"early"), (["spread", "together"], b"the last")):
            for topic in topics * 5:
                producer.send(topic, value)
            for _ in range(10):
                producer.send("others", bytes(16_000))
    return path


def damage(path: Path, *, is_there: bool = False) -> None:
    lane = path / "lanes/0"
    (segment,) = (one for one in (lane / "commitlog").iterdir() if b"the last" in one.read_bytes())
    if is_there:
        segment.write_bytes(segment.read_bytes().replace(b"the last", b"damaged!"))
    else:
        segment.unlink()
    for topic in SENT:
        shutil.rmtree(lane / "consumequeue" / topic)


def check(path: Path, *, named: bool = True) -> None:
    """Everybody who reads the topics is told, and offsets go on. A backup has no named readers."""
    for topic in SENT:
        with pytest.raises((CorruptRecord, DamagedFile, DataLoss)):
            commitlog.read_arrow(path, topic).read_all()
        reader = commitlog.Reader(path, topic, name=topic if named else None)
        with pytest.raises((CorruptRecord, DamagedFile, DataLoss)), reader:
            list(reader)
        assert commitlog.read_arrow(path, topic, ignore_corrupt=True).read_all().num_rows == INTACT[topic]
    with commitlog.Store.open(path) as store, store.producer() as producer:
        assert {topic: producer.send(topic, b"new").offset for topic in SENT} == SENT


@pytest.mark.nightly
def test_after_a_stop(sound: Path, tmp_path: Path) -> None:
    """The start tells which messages are missing."""
    path = shutil.copytree(sound, tmp_path / "store")
    damage(path)
    commitlog.Store.open(path).close()
    check(path)


def test_in_a_backup(sound: Path, tmp_path: Path) -> None:
    """A backup knows of them, and so does the store that is made of it."""
    path = shutil.copytree(sound, tmp_path / "store")
    damage(path)
    assert commitlog.backup(path, tmp_path / "backup").findings
    check(tmp_path / "backup", named=False)


@pytest.mark.leaves_pools
@pytest.mark.parametrize("has_pool", with_nightly([False], [True]))
def test_after_a_kill(has_pool: bool, sound: Path, tmp_path: Path) -> None:
    """What the last stop noted is true still."""
    path = shutil.copytree(sound, tmp_path / "store")
    kill_store(commitlog.Store.open(path))
    if not has_pool:
        pool = StoreDirectory(path).load().pool
        assert pool
        shutil.rmtree(pool.directory)
    damage(path, is_there=has_pool)  # a pool is not adopted where files are missing
    commitlog.Store.open(path).close()
    check(path)
