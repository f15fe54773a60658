"""A lane has lost its log and all that tells of its topics: readers of any topic are told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import DamagedFile, ReadingWarning
from tests.nightly import with_nightly

COUNT = 10


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped store of two lanes; both have messages of the same topic."""
    path = tmp_path_factory.mktemp("sound") / "store"
    config = {"store": {"segment_bytes": 1 << 16}}
    with commitlog.Store.open(path, config) as store, store.producer() as one, store.producer() as other:
        for producer in (one, other):
            for _ in range(COUNT):
                producer.send("orders", bytes(10_000))
    return path


def check(path: Path, intact: int) -> None:
    """Readers of the topic are told, and go on behind the damage where they are asked to."""
    with pytest.warns(ReadingWarning, match=r"lane \d is damaged from offset 0 on"):
        assert commitlog.read_arrow(path, "orders").read_all().num_rows == intact
    with pytest.raises(DamagedFile, match="missing"), commitlog.Reader(path, "orders") as reader:
        list(reader)
    left_out = pytest.warns(ReadingWarning, match="1 damaged place is left out")
    with commitlog.Reader(path, "orders", ignore_corrupt=True) as reader, left_out:
        given = list(reader)
    assert len(given) == intact


@pytest.mark.parametrize("lane", with_nightly([1], [0]))
def test_an_empty_directory_in_the_place_of_a_lane(lane: int, sound: Path, tmp_path: Path) -> None:
    """So do readers of the backups, while nothing was sent since, and later."""
    path = shutil.copytree(sound, tmp_path / "store")
    shutil.rmtree(path / f"lanes/{lane}")
    (path / f"lanes/{lane}").mkdir()
    commitlog.Store.open(path).close()
    check(path, COUNT)
    assert commitlog.backup(path, tmp_path / "backup").findings
    check(tmp_path / "backup", COUNT)
    with commitlog.Store.open(path) as store, store.producer() as one, store.producer() as other:
        for producer in (one, other):
            producer.send("orders", b"new")
    check(path, COUNT + 2)
    assert commitlog.backup(path, tmp_path / "later").findings
    check(tmp_path / "later", COUNT + 2)


def test_a_reader_that_is_behind_the_damage(sound: Path, tmp_path: Path) -> None:
    """It was told once, and goes on without a word."""
    path = shutil.copytree(sound, tmp_path / "store")
    shutil.rmtree(path / "lanes/0")
    (path / "lanes/0").mkdir()
    with commitlog.Store.open(path) as store, store.producer() as producer:
        assert producer.send("orders", b"new").partition == 0
    with commitlog.Reader(path, "orders", name="billing", ignore_corrupt=True) as reader:
        with pytest.warns(ReadingWarning, match="left out"):
            given = list(reader)
        assert len(given) == COUNT + 1
        reader.commit()
    with commitlog.Reader(path, "orders", name="billing") as reader:
        assert list(reader) == []
    with commitlog.Reader(path, "orders", start="latest") as reader:
        assert list(reader) == []
