"""The end of a log is lost: who has read it is not passed over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.errors import DataLoss, ReaderError
from commitlog.reading.named_reader import NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.stored_position import StoredPosition
from commitlog.remote.leased_position import LeasedPosition
from tests.builders.killed import kill_store
from tests.nightly import by_url_nightly, with_nightly
from tests.served import is_by_url, place_of
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


HARMS = {"older": (put_back, 10), "given up": (give_up, 0), "with queues": (lose_with_queues, None), "kept": (lose, 20)}
"""How the lane is harmed, and how many of the old offsets are not given out again."""


def send(path: Path, values: list[bytes], topic: str = "orders") -> None:
    send_in_turn(path, (topic, values))


def send_in_turn(path: Path, *parts: tuple[str, list[bytes]]) -> None:
    """Starts the store, sends to each topic its values, and stops it."""
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:
        for topic, values in parts:
            for value in values:
                producer.send(topic, value)
        producer.flush()


def read(path: Path) -> list[bytes]:
    with commitlog.Reader(path, "orders", name="billing", ignore_corrupt=True) as reader:
        found = [message.value for message in reader]
        reader.commit()
    return found


@pytest.mark.filterwarnings("ignore:.*(left out|is damaged from offset):commitlog.errors.ReadingWarning")
@pytest.mark.parametrize(("harm", "kept"), with_nightly(list(HARMS.values())[:1], list(HARMS.values())[1:]), ids=HARMS)
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


def test_an_older_copy_of_the_whole_store(tmp_path: Path) -> None:
    """All but the positions of readers is put back: only they tell that there was more."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    send(path, OLD[:10])
    shutil.copytree(path, copy)
    send(path, OLD[10:])
    assert read(path) == OLD
    with stream(path) as query:
        end = end_of(query, query.initialOffset())
    shutil.copytree(path / "readers", copy / "readers")
    shutil.rmtree(path)
    copy.rename(path)
    send(path, NEW)
    assert read(path) == NEW
    with stream(path) as query, pytest.raises(DataLoss, match="has read offsets"):
        end_of(query, end)
    epoch = StoreDirectory(path).load().epoch
    send(path, [])
    assert StoreDirectory(path).load().epoch == epoch


@pytest.mark.filterwarnings("ignore:.*(left out|is damaged from offset):commitlog.errors.ReadingWarning")
def test_who_reads_meanwhile_is_told(tmp_path: Path) -> None:
    """Neither a reader that is open, nor its commit, passes the new messages over."""
    path = tmp_path / "store"
    send(path, OLD)
    lane = StoreDirectory(path).lane_directory(0)
    with (
        commitlog.Reader(path, "orders", follow=True, ignore_corrupt=True) as nameless,
        commitlog.Reader(path, "orders", name="billing", follow=True) as billing,
        commitlog.Reader(path, "orders", name="slow") as slow,
        stream(path, fails=False) as query,
    ):
        for reader in (nameless, billing, slow):
            assert [next(reader).value for _ in OLD] == OLD
        billing.commit()
        end = end_of(query, query.initialOffset())
        scan = commitlog.read(path, "orders")
        before = commitlog.read(path, "orders", lanes={1})
        give_up(lane)
        send(path, NEW[:10])
        for ending in (scan.count, scan.to_arrow, lambda: list(scan.messages())):
            with pytest.raises(DataLoss, match="the messages 0 to 19 of topic orders, lane 0 are lost"):
                ending()
        assert before.count() == 0
        for reader in (nameless, billing):
            with pytest.raises(DataLoss, match="the messages 0 to 19 of topic orders, lane 0 are lost"):
                reader.poll(5)
        with pytest.raises(ReaderError, match="was started since and has lost messages"):
            slow.commit()
        billing.commit()
        assert rows(query, end, end_of(query, end)) == NEW[:10]
    assert read(path) == NEW[:10]
    with commitlog.Reader(path, "orders", name="slow", ignore_corrupt=True) as slow:
        assert [message.value for message in slow] == NEW[:10]


@by_url_nightly
@pytest.mark.filterwarnings("ignore:.*(left out|is damaged from offset):commitlog.errors.ReadingWarning")
@pytest.mark.usefixtures("both_ways")
def test_a_start_as_a_new_reader_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has looked at the store before, and its first place would be behind new messages."""
    path = tmp_path / "store"
    send(path, OLD)
    kept = LeasedPosition if is_by_url() else StoredPosition
    load = kept.load

    def late(position: Any) -> NamedReader | None:
        monkeypatch.undo()
        give_up(StoreDirectory(path).lane_directory(0))
        send(path, NEW)
        found: NamedReader | None = load(position)
        return found

    monkeypatch.setattr(kept, "load", late)
    with pytest.raises(ReaderError, match="was started since and has lost messages"):
        commitlog.Reader(place_of(path), "orders", name="billing", start="latest")
    with commitlog.Reader(place_of(path), "orders", name="billing", ignore_corrupt=True) as billing:
        assert [message.value for message in billing] == NEW


def lose_first(lane: LaneDirectory) -> None:
    """The segment where the log begins, and all that tells how many messages it had."""
    min(lane.commitlog.iterdir()).unlink()
    lose_queues(lane)


def lose_queues(lane: LaneDirectory) -> None:
    """With them go the entries of messages that are lost in noted damage."""
    shutil.rmtree(lane.consumequeue)
    lane.ends_file.unlink()


def lose_again(lane: LaneDirectory) -> None:
    """The same range of the log as before, with the note that told of it."""
    put_back(lane)
    pool = StoreDirectory(lane.path.parents[1]).load().pool
    assert pool
    shutil.rmtree(pool.directory)


AGAIN = {
    "below": (lose_with_queues, lose_first, "first"),
    "queues": (lose, lose_queues, "last"),
    "older twice": (put_back, lose_again, "orders"),
}
"""How the lane is harmed, how it is harmed again, and a topic whose offsets are used again then."""


@pytest.mark.filterwarnings("ignore:.*(left out|is damaged from offset):commitlog.errors.ReadingWarning")
@pytest.mark.parametrize(
    ("harm", "again", "topic"), with_nightly(list(AGAIN.values())[:1], list(AGAIN.values())[1:]), ids=AGAIN
)
def test_damage_after_damage_begins_an_epoch(
    harm: Callable[[LaneDirectory], None], again: Callable[[LaneDirectory], None], topic: str, tmp_path: Path
) -> None:
    """Wherever in the log it is. A start without new damage begins none."""
    path = tmp_path / "store"
    send_in_turn(path, ("first", OLD[:5]), ("orders", OLD[:10]))
    lane = StoreDirectory(path).lane_directory(0)
    shutil.copytree(lane.path, older(lane))
    send_in_turn(path, ("orders", OLD[10:]), ("last", OLD[:5]))
    harm(lane)
    store = commitlog.Store.open(path, SMALL)
    with store.producer() as producer:
        for value in NEW:
            producer.send("orders", value)
        producer.flush()
        with stream(path, topic=topic, fails=False) as query:
            end = end_of(query, query.initialOffset())
        if again is lose_again:
            kill_store(store)
    if again is not lose_again:
        store.close()
    again(lane)
    epochs = []
    for _ in range(3):
        send(path, [b"after"], topic)
        epochs.append(StoreDirectory(path).load().epoch)
    assert epochs[0] == 2
    assert epochs[1] == epochs[2]
    with stream(path, topic=topic) as query, pytest.raises(DataLoss, match="has read offsets"):
        end_of(query, end)
    with stream(path, topic=topic, fails=False) as query:
        assert rows(query, end, end_of(query, end))[-3:] == [b"after"] * 3


@pytest.mark.nightly
def test_a_note_that_cannot_be_read_ends_no_start(tmp_path: Path) -> None:
    """A start with its pool writes no note anew. Such a note is new damage once."""
    path = tmp_path / "store"
    send(path, OLD)
    lane = StoreDirectory(path).lane_directory(0)
    lose_with_queues(lane)
    for epoch in (1, 2, 2):
        store = commitlog.Store.open(path, SMALL)
        assert StoreDirectory(path).load().epoch == epoch
        with store.producer() as producer:
            producer.send("orders", b"new").wait("flushed")
            kill_store(store)
        (note,) = lane.quarantine.glob("corrupt-*.json")
        if epoch == 1:
            note.write_bytes(b"{}")
    commitlog.Store.open(path, SMALL).close()
