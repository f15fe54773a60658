"""Where a reader is, how far it is behind, and how it moves: with and without a name."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.client.reader import Reader
from commitlog.columns.mapped_segments import SEGMENTS
from commitlog.errors import BadStart, CommitLogError, DataLoss, OffsetOutOfRange, ReaderError, ServerUnavailable
from commitlog.reading.starting_point import Offsets
from tests.builders.hand_made import BEGIN_MS, HandMadeStore, small_store
from tests.builders.vector_store import load
from tests.nightly import by_url_nightly
from tests.served import is_by_url, place_of

pytestmark = pytest.mark.usefixtures("look_each_time", "little_patience", "no_segments_mapped", "both_ways")

TOPICS = ("orders", "other", "rare")
Key = tuple[str, int]


class Twin:
    """What a reader should say of its place: it counts the messages that it gives out."""

    def __init__(self, store: HandMadeStore, reader: Reader, topics: set[str]) -> None:
        self.store, self.reader, self.topics = store, reader, topics
        self.ends: dict[Key, int] = defaultdict(int)
        for lane in store.lanes.values():
            for topic, end in lane.next_offsets.items():
                if topic in topics and end:
                    self.ends[topic, lane.number] = end
        self.places = dict.fromkeys(self.ends, 0)

    def given(self, messages: list[Any]) -> None:
        for message in messages:
            key = message.topic, message.partition
            assert message.offset == self.places[key]
            self.places[key] += 1

    def check(self) -> None:
        assert flat(self.reader.position()) == self.places
        assert flat(self.reader.lag()) == {key: end - self.places[key] for key, end in self.ends.items()}

    def seek(self, start: Any) -> None:
        self.reader.seek(start)
        if isinstance(start, dict):
            for topic, lanes in start.items():
                for lane, offset in lanes.items():
                    self.places[topic, lane] = self.ends[topic, lane] if offset == -1 else max(offset, 0)
        elif start in ("earliest", "latest"):
            self.places = dict.fromkeys(self.ends, 0) if start == "earliest" else dict(self.ends)
        else:
            self.places = {key: max(end - int(start.split()[1]), 0) for key, end in self.ends.items()}


def flat(offsets: Offsets) -> dict[Key, int]:
    return {(topic, lane): offset for topic, lanes in offsets.items() for lane, offset in lanes.items()}


@by_url_nightly
@given(st.data())
@settings(max_examples=40)
def test_a_reader_knows_its_place(data: st.DataObject) -> None:
    """After any number of messages, one by one or in lists, and after it was moved."""
    messages = data.draw(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(TOPICS)), min_size=1, max_size=60))
    topics = data.draw(st.none() | st.sets(st.sampled_from(sorted({topic for _, topic in messages})), min_size=1))
    options: dict[str, Any] = data.draw(st.sampled_from([{}, {"name": "billing"}, {"ignore_corrupt": True}]))
    with tempfile.TemporaryDirectory() as directory:
        store = HandMadeStore(Path(directory), segment_bytes=1 << 12)
        for lane, topic in messages:
            store.lane(lane).append(topic, bytes(50))
        store.publish()
        with Reader(place_of(store.path), topics, **options) as reader:
            twin = Twin(store, reader, topics or set(TOPICS))
            queue = st.sampled_from(sorted(twin.ends))
            for _ in range(data.draw(st.integers(1, 6))):
                twin.check()
                match data.draw(st.sampled_from(["next", "batch", "seek", "queue"])):
                    case "next":
                        twin.given([found for _ in range(data.draw(st.integers(0, 9))) if (found := reader.poll())])
                    case "batch":
                        twin.given(next(reader.batches(data.draw(st.integers(1, 70))), []))
                    case "seek":
                        twin.seek(data.draw(st.sampled_from(["earliest", "latest", "last 2", "last 100"])))
                    case "queue":
                        topic, lane = data.draw(queue)
                        offset = data.draw(st.sampled_from([-1, -2]) | st.integers(0, twin.ends[topic, lane]))
                        twin.seek({topic: {lane: offset}})
            twin.check()
            twin.given(list(reader))
            twin.check()
            assert twin.places == twin.ends
        SEGMENTS.clear()


def test_a_position_is_a_start(store: HandMadeStore) -> None:
    """Also before the first message, and where another start than the earliest was given."""
    with Reader(place_of(store.path), "orders", start={"orders": {0: 7}}) as reader:
        assert reader.position() == {"orders": {0: 7, 1: 0}}
        some = [next(reader) for _ in range(9)]
        rest = reader.position()
        whole = list(reader)
    with Reader(place_of(store.path), "orders", start=rest) as other:
        assert list(other) == whole
    assert len({message.offset for message in some if message.partition == 0} & set(range(7))) == 0
    for start in ("latest", "last 3", datetime.fromtimestamp(BEGIN_MS / 1000 + 20, UTC).isoformat()):
        with Reader(place_of(store.path), "orders", start=start) as reader:
            begin = reader.position()
            first = {lane: min(one.offset for one in found) for lane, found in by_lane(list(reader)).items()}
            assert begin["orders"] == {0: 100, 1: 100} | first


def by_lane(messages: list[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for message in messages:
        found[message.partition].append(message)
    return found


def test_lag_counts_what_came_since(store: HandMadeStore) -> None:
    """A lane that is new is behind by all its messages."""
    with Reader(place_of(store.path), "orders") as reader:
        assert len(list(reader)) == 200
        assert reader.lag() == {"orders": {0: 0, 1: 0}}
        for lane in (1, 5):
            store.lane(lane).append("orders", b"more")
        store.publish()
        assert reader.lag() == {"orders": {0: 0, 1: 1, 5: 1}}
        assert next(reader, None) is None
        reader.seek(reader.position())
        assert [message.value for message in reader] == [b"more"] * 2
    with Reader(place_of(store.path), "orders", members=(1, 2)) as reader:
        assert reader.lag() == {"orders": {1: 101, 5: 1}}
        assert reader.position() == {"orders": {1: 0, 5: 0}}


def test_a_follower_moves_too(store: HandMadeStore) -> None:
    with Reader(place_of(store.path), "orders", follow=True) as reader:
        assert len([next(reader) for _ in range(200)]) == 200
        reader.seek("last 1")
        assert [next(reader).offset for _ in range(2)] == [99, 99]
        reader.seek("latest")
        store.lane(0).append("orders", b"new")
        store.publish()
        assert next(reader).value == b"new"
        reader.seek(datetime.fromtimestamp(BEGIN_MS / 1000, UTC))
        assert [next(reader).value for _ in range(201)].count(b"new") == 1
        assert reader.lag() == {"orders": {0: 0, 1: 0}}


def test_a_reader_with_a_name_never_takes_back_a_commit(store: HandMadeStore) -> None:
    """It gives messages out once more. Who seeks forward commits what he passes over."""
    with Reader(place_of(store.path), "orders", name="billing") as reader:
        messages = [next(reader) for _ in range(10)]
        reader.commit()
        committed = reader.committed()
        reader.seek("earliest")
        assert reader.position() == {"orders": {0: 0, 1: 0}}
        assert [next(reader) for _ in range(10)] == messages
        reader.seek("earliest")
        reader.commit()
        assert reader.committed() == committed
        reader.seek({"orders": {1: 50}})
        assert reader.committed() == committed
        reader.commit()
        assert reader.committed() == {"orders": {0: committed["orders"][0], 1: 50}}
    with Reader(place_of(store.path), "orders", name="billing") as reader:
        assert reader.position()["orders"][1] == 50
        assert next(reader).offset == committed["orders"][0]


def test_where_it_cannot_move_it_stays(store: HandMadeStore) -> None:
    with Reader(place_of(store.path), "orders") as reader:
        first = [next(reader) for _ in range(5)]
        here = reader.position()
        for kind, start in (
            (BadStart, "sometimes"),
            (OffsetOutOfRange, 101),
            (OffsetOutOfRange, {"orders": {0: 101}}),
            (OffsetOutOfRange, {"orders": {7: 1}}),
            (OffsetOutOfRange, {"other": {0: 1}}),
        ):
            with pytest.raises(kind):
                reader.seek(start)
            assert reader.position() == here
        assert len(list(reader)) == 200 - len(first)


def test_a_store_that_can_not_be_looked_at(store: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a server is away for a moment: the reader goes on where it was."""
    with Reader(place_of(store.path), "orders") as reader:
        first = [next(reader) for _ in range(5)]

        def away() -> NoReturn:
            raise ServerUnavailable("away")

        with monkeypatch.context() as patched:
            patched.setattr(reader._source, "queues_now", away)
            for call in (reader.lag, lambda: reader.seek("earliest")):
                with pytest.raises(ServerUnavailable):
                    call()
        assert first + list(reader) == messages_of(store)


def messages_of(store: HandMadeStore) -> list[Any]:
    with Reader(store.path, "orders") as reader:
        return list(reader)


def test_a_root_of_rocketmq(tmp_path: Path) -> None:
    written = load("v1_basic")
    with Reader(place_of(written.unpack(tmp_path / "root"))) as reader:
        lag = flat(reader.lag())
        assert set(flat(reader.position())) == set(lag)
        messages = [next(reader) for _ in range(3)]
        assert sum(flat(reader.lag()).values()) == sum(lag.values()) - 3
        rest = list(reader)
        assert not any(flat(reader.lag()).values())
        reader.seek("earliest")
        assert list(reader) == messages + rest


def test_a_reader_that_is_closed_or_has_failed(store: HandMadeStore) -> None:
    reader = Reader(place_of(store.path), "orders")
    reader.close()
    for call in (reader.position, reader.lag, lambda: reader.seek("earliest")):
        with pytest.raises(ReaderError, match="closed"):
            call()
    with closing(Reader(place_of(store.path), "orders", follow=True)) as reader:
        next(reader)
        shutil.rmtree(store.path)
        small_store(store.path, 3)
        with pytest.raises(DataLoss, match="another store"):
            reader.lag()
        with pytest.raises(DataLoss, match="another store"):
            reader.seek("earliest")
        if is_by_url():
            with pytest.raises(CommitLogError):  # its thread has ended, and that is not the end of the messages
                list(reader)


@pytest.mark.parametrize("both_ways", ["path"], indirect=True)
def test_it_does_not_move_while_it_gives_a_message(store: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a signal handler: a call inside `next` is refused."""
    with Reader(place_of(store.path), "orders", follow=True) as reader:
        assert len(list(iter(reader.poll, None))) == 200
        caught = []
        refresh = reader._source.refresh

        def seek_inside() -> None:
            monkeypatch.undo()
            with pytest.raises(ReaderError, match="inside `next`"):
                reader.seek("earliest")
            caught.append(True)
            refresh()

        monkeypatch.setattr(reader._source, "refresh", seek_inside)
        assert reader.poll() is None
        assert caught


@pytest.mark.filterwarnings("ignore:.*left out:commitlog.errors.ReadingWarning")
@pytest.mark.parametrize("both_ways", ["path"], indirect=True)
def test_damage_that_is_left_out(tmp_path: Path) -> None:
    """A gap in one queue hides no message of another: each counts."""
    store = HandMadeStore(tmp_path / "store")
    lane = store.lane(0)
    topics = (*["orders", "other"] * 10, "orders", "rare", *["orders", "other"] * 10)
    records = [lane.append(topic, bytes(50)) for topic in topics]
    store.publish()
    with store.directory.lane_directory(0).segment_path(0).open("r+b") as segment:
        segment.seek(records[20].physical_offset + 4)
        segment.write(b"\xff")
    with Reader(store.path, TOPICS, ignore_corrupt=True) as reader:
        assert len(list(reader)) == len(topics) - 1
        assert reader.position() == {"orders": {0: 21}, "other": {0: 20}, "rare": {0: 1}}
