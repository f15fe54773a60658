"""What is kept for named readers, and what they have lost.

Also how they share lanes, and starts for single queues.
"""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.client.reader import Reader
from commitlog.disk.store_directory import StoreFacts, new_store_id
from commitlog.errors import (
    BadStart,
    DataLoss,
    OffsetOutOfRange,
    OptionError,
    ReaderError,
    ReadingWarning,
    StoreNotFound,
)
from commitlog.reading.named_reader import NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.stages.allocating.reader_needs import ReaderNeeds
from tests.builders.hand_made import HandMadeStore, small_store
from tests.builders.named_reader import billing, place, rest, stored
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("look_each_time", "little_patience")


def holders(store: HandMadeStore, end: int) -> list[str]:
    """Who needs something below an offset of the log in lanes 0 and 1."""
    needs = ReaderNeeds(store.directory, store.id)
    needs.refresh()
    return [name for lane in (0, 1) if (name := needs.holder(lane, end))]


# ---- what is kept, what is lost ----------------------------------------------------------------


def test_retention_keeps_what_is_not_committed(store: HandMadeStore) -> None:
    """From its making on; of all topics where it reads all."""
    end = max(lane.end for lane in store.lanes.values())
    with billing(store) as reader:
        assert holders(store, 1) == ["billing", "billing"]
        given = list(reader)
        assert holders(store, 1) == ["billing", "billing"]
        reader.commit()
        assert holders(store, end) == []
    assert len(given) == 200
    with Reader(store.path, name="all", lanes={1}) as reader:
        assert holders(store, 1) == ["all"]
        list(reader)
        reader.commit()
        assert holders(store, end) == []
        store.lane(1).append("new", b"x")
        store.lane(0).append("new", b"x")
        store.publish()
        assert holders(store, store.lane(1).end) == ["all"]


def test_retention_of_a_running_store(tmp_path: Path) -> None:
    """Segments stay until the reader commits, and go then."""
    config = {
        "store": {"segment_bytes": 1 << 16},
        "retention": {"max_bytes": 6 << 16, "interval_ms": 10},
        "flusher": {"positions_interval_ms": 10},
        "allocator": {"interval_ms": 10},
    }
    path = tmp_path / "store"
    with commitlog.Store.open(path, config) as store, store.producer() as producer:
        producer.send("t", b"first").wait("flushed", 60)
        with commitlog.Reader(path, topic="t", name="billing", follow=True) as reader:
            for _ in range(800):
                producer.send("t", bytes(1000))
            producer.flush(timeout=60)
            given = [message.offset for message in islice(reader, 801)]
            assert given == list(range(801))
            segments = path / "lanes/0/commitlog"
            assert len(list(segments.iterdir())) > 12
            reader.commit()
            wait_until(lambda: len(list(segments.iterdir())) <= 7, "what is committed to go")


def test_what_retention_took_is_counted(store: HandMadeStore) -> None:
    """An error that says how many; asked to, it goes on with a warning that says the same."""
    with billing(store) as reader:
        list(islice(reader, 10))
        reader.commit()
        at = reader.position()["orders"]
    store.lane(0).forget_before(2)
    first = next(r for r in store.lane(0).records if r.topic == "orders" and r.physical_offset >= 2 << 13).queue_offset
    text = (
        rf"reader billing: {first - at[0]:,} messages were deleted before it read them: .* lane 0 \(from {at[0]} on\)"
    )
    with pytest.raises(DataLoss, match=text):
        billing(store)
    assert stored(store).offsets == {"orders": at}
    with pytest.warns(ReadingWarning, match=text):
        given = rest(store, fail_on_data_loss=False)
    assert [offset for _, lane, offset in given if lane == 0] == list(range(first, 100))
    assert [offset for _, lane, offset in given if lane == 1] == list(range(at[1], 100))


def test_a_lane_that_is_gone_is_a_loss(store: HandMadeStore) -> None:
    """The error names the topic, the lane, and where the reader was."""
    with billing(store) as reader:
        list(reader)
        reader.commit()
    shutil.rmtree(store.path / "lanes/1")
    with pytest.raises(DataLoss, match="the whole of topic orders, lane 1, where it was at 100"):
        billing(store)


def test_a_position_beyond_the_end(store: HandMadeStore) -> None:
    """A store that was killed and not recovered yet, or put back."""
    NamedReaders(store.directory).save(NamedReader("billing", store.id, {"orders": {0: 101, 1: 0}}, 1, kind="python"))
    with pytest.raises(OffsetOutOfRange, match=r"it was at 101 in topic orders, lane 0, and the store ends at 100"):
        billing(store)


def test_positions_that_are_no_readers_of_this_store(store: HandMadeStore) -> None:
    """One of another store, a Spark query's, nonsense: each error has the way out."""
    readers = NamedReaders(store.directory)
    readers.save(NamedReader("billing", "f" * 32, {"orders": {0: 1}}, 1, kind="python"))
    with pytest.raises(ReaderError, match=r"belongs to another store .* --remove billing"):
        billing(store)
    readers.save(NamedReader("billing", store.id, {"orders": {0: 1}}, 1))
    with pytest.raises(ReaderError, match=r"is a Spark query's.* --remove billing"):
        billing(store)
    (store.directory.readers_directory / "billing.json").write_bytes(b"{}")
    with pytest.raises(ReaderError, match="not the position of a reader"):
        billing(store)


# ---- sharing work ------------------------------------------------------------------------------


def test_members_split_the_lanes(tmp_path: Path) -> None:
    """Each lane has one of them, also one that appears while they follow."""
    store = small_store(tmp_path / "store", rows=20, lanes=5, topics=("orders",))
    members = [
        Reader(store.path, "orders", members=(number, 3), name=f"billing-{number}", follow=True) for number in range(3)
    ]
    given = [
        [place(message) for message in islice(member, 20 * count)]
        for member, count in zip(members, (2, 2, 1), strict=True)
    ]
    assert [{lane for _, lane, _ in part} for part in given] == [{0, 3}, {1, 4}, {2}]
    store.lane(5).append("orders", b"new")
    store.publish()
    assert [message.partition if (message := member.poll()) else None for member in members] == [None, None, 5]
    for member in members:
        member.commit()
        member.close()
    assert [sorted(stored(store, f"billing-{number}").offsets["orders"]) for number in range(3)] == [
        [0, 3],
        [1, 4],
        [2, 5],
    ]


def test_some_lanes(store: HandMadeStore) -> None:
    """Also without a name."""
    with Reader(store.path, lanes=[1]) as reader:
        assert {message.partition for message in reader} == {1}
    assert {lane for _, lane, _ in rest(store, lanes={0})} == {0}
    assert stored(store).offsets == {"orders": {0: 0}}


def test_lanes_that_are_given_to_another_name(store: HandMadeStore) -> None:
    """A lane that is new under a name begins with what is kept."""
    with billing(store, lanes={0}) as reader:
        list(reader)
        reader.commit()
    assert rest(store, members=(0, 1)) == [("orders", 1, offset) for offset in range(100)]


@pytest.mark.parametrize(
    "options",
    [
        {"lanes": set()},
        {"lanes": {-1}},
        {"lanes": {128}},
        {"lanes": {True}},
        {"lanes": "01"},
        {"lanes": 5},
        {"members": (2, 2)},
        {"members": (-1, 2)},
        {"members": (0, 0)},
        {"members": (0.0, 2)},
        {"members": 3},
        {"members": (1, 2, 3)},
        {"lanes": {0}, "members": (0, 2)},
        {"auto_commit_seconds": -1},
        {"auto_commit_seconds": float("inf")},
        {"auto_commit_seconds": float("nan")},
        {"auto_commit_seconds": "1"},
        {"auto_commit_seconds": True},
        {"auto_commit_seconds": 1, "name": None},
    ],
    ids=str,
)
def test_wrong_options_are_errors_of_ours(store: HandMadeStore, options: dict[str, Any]) -> None:
    """Nothing is registered then."""
    with pytest.raises(OptionError):
        billing(store, **options)
    assert NamedReaders(store.directory).names() == []


@pytest.mark.parametrize("name", ["", "../x", "a b", 5, b"billing"])
def test_names_are_names_of_files(store: HandMadeStore, name: Any) -> None:
    """What could be no file, or a file elsewhere, is refused."""
    with pytest.raises(ReaderError, match="is not a reader's name"):
        billing(store, name=name)


def test_no_store_no_name(tmp_path: Path) -> None:
    """A reader with a name makes no store."""
    with pytest.raises(StoreNotFound):
        Reader(tmp_path / "none", name="billing")
    assert not (tmp_path / "none").exists()


def test_topics_are_topics(store: HandMadeStore) -> None:
    """What can be none would make a position that nobody can read."""
    for topic in ("a/b", "..", 5):
        with pytest.raises(commitlog.errors.IllegalTopic):
            billing(store, topic=topic if isinstance(topic, str) else {topic}, follow=True)
    assert NamedReaders(store.directory).names() == []


def test_another_store_at_the_path_of_a_running_reader(store: HandMadeStore) -> None:
    """Offsets of one are not written as places in the other."""
    with billing(store, follow=True) as reader:
        list(islice(reader, 200))
        store.directory.save(StoreFacts(new_store_id(), store.segment_bytes))
        with pytest.raises(DataLoss, match="is another store"):
            reader.poll()
        with pytest.raises(ReaderError, match="is another store now"):
            reader.commit()
    assert stored(store).offsets == {"orders": {0: 0, 1: 0}}


def test_a_rocketmq_root_keeps_no_position(store: HandMadeStore) -> None:
    """A root is only read; a reader without a name has starts by queue there too."""
    root = store.path / "lanes/0"
    with pytest.raises(OptionError, match="a RocketMQ store root is only read"):
        Reader(root, name="billing")
    with Reader(root, "orders", lanes={0}, start={"orders": {0: 98}}) as reader:
        assert [message.offset for message in reader] == [98, 99]


# ---- starts ------------------------------------------------------------------------------------


def test_starts_by_queue(store: HandMadeStore) -> None:
    """Queues without an offset begin at the earliest."""
    with Reader(store.path, start={"orders": {0: 42, 1: -1}, "other": {1: -2}}) as reader:
        given = list(map(place, reader))
    first = {(topic, lane): offset for topic, lane, offset in reversed(given)}
    assert first == {("orders", 0): 42, ("other", 0): 0, ("other", 1): 0}
    assert len(given) == 58 + 200


@pytest.mark.parametrize(
    ("start", "error"),
    [
        ({"orders": {0: 101}}, OffsetOutOfRange),
        ({"orders": {7: 1}}, OffsetOutOfRange),
        ({"none": {0: 1}}, OffsetOutOfRange),
        ({"other": {0: 1}}, OffsetOutOfRange),
        ({"orders": {0: -3}}, BadStart),
        ({"orders": {0: 1.0}}, BadStart),
        ({"orders": {0: True}}, BadStart),
        ({"orders": {-1: 1}}, BadStart),
        ({"orders": [1]}, BadStart),
        ({"a/b": {0: 1}}, commitlog.errors.IllegalTopic),
        ("{", BadStart),
        ('{"orders": {"0": 1, "0": 5}}', BadStart),
        ({"orders": {0: 1, "00": 5}}, BadStart),
        ("{}", BadStart),
        ({"orders": {}}, BadStart),
    ],
    ids=str,
)
def test_bad_starts_by_queue(store: HandMadeStore, start: Any, error: type[Exception]) -> None:
    """Each is refused when the reader is made."""
    with pytest.raises(error):
        Reader(store.path, topic="orders", start=start)
