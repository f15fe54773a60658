"""The end of a log is lost: who has read it is not passed over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.errors import DataLoss
from commitlog.reading.named_readers import NamedReaders
from tests.builders.killed import kill_store
from tests.spark.conftest import no_segments_mapped
from tests.spark.driven_stream import end_of, rows, stream

__all__ = ["no_segments_mapped"]

SMALL = {"store": {"segment_bytes": 65536, "max_lanes": 4}}
OLD = [b"%d" % row * 5000 for row in range(20)]
NEW = [b"new %d" % row for row in range(25)]


def give_up(lane: LaneDirectory) -> None:
    """As the error of a start says where a lane's directory is missing."""
    shutil.rmtree(lane.path)
    lane.path.mkdir()


def put_back(lane: LaneDirectory) -> None:
    """An older copy of the lane."""
    shutil.rmtree(lane.path)
    shutil.copytree(older(lane), lane.path)


def lose(lane: LaneDirectory) -> None:
    """The last segment that has messages; the consume queues tell how many it had."""
    [path for path in sorted(lane.commitlog.iterdir()) if any(path.read_bytes())][-1].unlink()


def lose_with_queues(lane: LaneDirectory) -> None:
    """Nothing tells how many messages it had."""
    lose(lane)
    shutil.rmtree(lane.consumequeue)
    lane.ends_file.unlink()


def older(lane: LaneDirectory) -> Path:
    return lane.path.parents[2] / "older"


HARMS = {"given up": (give_up, 0), "older": (put_back, 10), "with queues": (lose_with_queues, None), "kept": (lose, 20)}
"""How the lane is harmed, and how many of the old offsets are not given out again."""


def send(path: Path, values: list[bytes]) -> None:
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:
        for value in values:
            producer.send("orders", value)
        producer.flush()


def read(path: Path) -> list[bytes]:
    with commitlog.Reader(path, "orders", name="billing", ignore_corrupt=True) as reader:
        found = [message.value for message in reader]
        reader.commit()
    return found


@pytest.mark.filterwarnings("ignore:.*(left out|is damaged from offset):commitlog.errors.ReadingWarning")
@pytest.mark.parametrize(("harm", "kept"), HARMS.values(), ids=HARMS)
def test_new_messages_are_not_taken_for_old_ones(
    harm: Callable[[LaneDirectory], None], kept: int | None, tmp_path: Path
) -> None:
    """Neither by a named reader nor by a query that had read the lost messages."""
    path = tmp_path / "store"
    send(path, OLD[:10])
    lane = StoreDirectory(path).lane_directory(0)
    shutil.copytree(lane.path, older(lane))
    send(path, OLD[10:])
    assert read(path) == OLD
    with stream(path) as query:
        end = end_of(query, query.initialOffset())
    harm(lane)
    send(path, NEW)
    assert read(path) == NEW
    assert NamedReaders(StoreDirectory(path)).load("billing").offsets["orders"][0] >= len(NEW)
    if kept == len(OLD):
        return
    with stream(path) as query, pytest.raises(DataLoss, match="has read offsets"):
        end_of(query, end)
    with stream(path, fails=False) as query:
        assert rows(query, end, end_of(query, end)) == NEW


def test_a_note_that_cannot_be_read_ends_no_start(tmp_path: Path) -> None:
    """A start with its pool writes no note anew. Such a note may tell of all of the log."""
    path = tmp_path / "store"
    send(path, OLD)
    lane = StoreDirectory(path).lane_directory(0)
    lose_with_queues(lane)
    store = commitlog.Store.open(path, SMALL)
    with store.producer() as producer:
        producer.send("orders", b"new").wait("flushed")
        kill_store(store)
    (note,) = lane.quarantine.glob("corrupt-*.json")
    note.write_bytes(b"{}")
    with commitlog.Store.open(path, SMALL):
        assert StoreDirectory(path).load().epoch == 2
