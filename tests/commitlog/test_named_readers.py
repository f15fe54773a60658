"""Named readers: where they go on, what a commit counts, who may have the name, what is kept for them and what is lost."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import registered_readers
from commitlog.errors import (
    BadStart,
    DataLoss,
    OffsetOutOfRange,
    OptionError,
    ReaderError,
    ReaderInUse,
    ReadingWarning,
    StoreNotFound,
)
from commitlog.file_channel import FileChannel
from commitlog.message import Message
from commitlog.reader import Reader
from commitlog.registered_readers import RegisteredReader, RegisteredReaders
from commitlog.store_directory import StoreFacts, new_store_id
from stages.reader_needs import ReaderNeeds
from tests.children import in_child
from tests.fake_clock import SetClock
from tests.spark.hand_made import HandMadeStore, small_store
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("look_each_time")

Places = list[tuple[str, int, int]]


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered_readers, "PATIENCE_SECONDS", 0.05)


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """100 messages of `orders` and of `other` in each of lanes 0 and 1."""
    return small_store(tmp_path / "store")


def billing(store: HandMadeStore, **options: Any) -> Reader:
    return Reader(store.path, **{"topic": "orders", "name": "billing"} | options)


def place(message: Message) -> tuple[str, int, int]:
    return message.topic, message.partition, message.offset


def rest(store: HandMadeStore, **options: Any) -> Places:
    """What is given out now to a reader of the name."""
    with billing(store, **options) as reader:
        return list(map(place, reader))


def stored(store: HandMadeStore, name: str = "billing") -> RegisteredReader:
    return RegisteredReaders(store.directory).load(name)


def holders(store: HandMadeStore, end: int) -> list[str]:
    """Who needs something below an offset of the log in lanes 0 and 1."""
    needs = ReaderNeeds(store.directory, store.id)
    needs.refresh()
    return [name for lane in (0, 1) if (name := needs.holder(lane, end))]


# ---- going on --------------------------------------------------------------------------------------------------------


def test_it_goes_on_where_it_was(store: HandMadeStore) -> None:
    """Every message once, in the order of a reader without a name; then what came since."""
    with Reader(store.path, topic="orders") as plain:
        expected = list(map(place, plain))
    given: Places = []
    for count in (1, 70, 1, 100, 200):
        with billing(store) as reader:
            given += map(place, islice(reader, count))
            reader.commit()
    assert sorted(given) == sorted(expected)
    assert given[:71] == expected[:71]
    store.lane(1).append("orders", b"more")
    store.publish()
    assert rest(store) == [("orders", 1, 100)]


def test_what_is_not_committed_comes_again(store: HandMadeStore) -> None:
    with billing(store) as reader:
        first = list(map(place, islice(reader, 10)))
        reader.commit()
        more = list(map(place, islice(reader, 30)))
    assert rest(store)[:30] == more
    assert not set(first) & set(rest(store))


@pytest.mark.parametrize("start", ["latest", "last 3", "earliest", 95, {"orders": {0: 98, 1: -1}}])
def test_the_start_counts_the_first_time(store: HandMadeStore, start: Any) -> None:
    """And holds from then on, also where the first reader read nothing: its position is in the store before that."""
    with Reader(store.path, topic="orders", start=start) as plain:
        expected = list(map(place, plain))
    billing(store, start=start).close()
    store.lane(0).append("orders", b"more")
    store.publish()
    assert sorted(rest(store, start="earliest")) == sorted([*expected, ("orders", 0, 100)])


def test_a_commit_of_a_message_moves_its_queue_only(store: HandMadeStore) -> None:
    """As Kafka's: up to it and with it, in its topic and lane; never back."""
    with billing(store) as reader:
        given = list(islice(reader, 60))
        last = max((message for message in given if message.partition == 1), key=lambda message: message.offset)
        reader.commit(last)
        reader.commit(next(message for message in given if message.partition == 1))
        assert reader.committed() == {"orders": {0: 0, 1: last.offset + 1}}
        assert reader.position() == {"orders": {0: 60 - last.offset - 1, 1: last.offset + 1}}
    assert stored(store).offsets == {"orders": {0: 0, 1: last.offset + 1}}
    left = rest(store)
    assert left.count(("orders", 0, 0)) == 1
    assert min(offset for _, lane, offset in left if lane == 1) == last.offset + 1


def test_a_message_of_somebody_else_is_not_committed(store: HandMadeStore) -> None:
    with billing(store) as reader, Reader(store.path) as plain:
        next(reader)
        for message in islice(plain, 100, 102):
            with pytest.raises(ReaderError, match="was not given out by this reader"):
                reader.commit(message)
    assert stored(store).offsets == {"orders": {0: 0, 1: 0}}


def test_a_reader_without_a_name_has_no_position(store: HandMadeStore) -> None:
    with Reader(store.path) as reader:
        for call in (reader.commit, reader.position, reader.committed):
            with pytest.raises(ReaderError, match="no name"):
                call()
    assert not store.directory.readers_directory.exists()


def test_a_closed_reader_commits_no_more(store: HandMadeStore) -> None:
    reader = billing(store)
    next(reader)
    reader.close()
    with pytest.raises(ReaderError, match="closed: commit before"):
        reader.commit()


def test_new_topics_and_lanes_are_read_from_their_first_message(store: HandMadeStore) -> None:
    """Of a reader of all topics, while it follows and after a stop."""
    with Reader(store.path, name="all", start="latest", follow=True) as reader:
        store.lane(0).append("new", b"x")
        store.lane(2).append("orders", b"y")
        store.publish()
        given = [reader.poll(60), reader.poll(60)]
        assert sorted(place(message) for message in given if message) == [("new", 0, 0), ("orders", 2, 0)]
        reader.commit()
    store.lane(3).append("new", b"z")
    store.publish()
    with Reader(store.path, name="all") as reader:
        assert list(map(place, reader)) == [("new", 3, 0)]


# ---- automatic commits -----------------------------------------------------------------------------------------------


def test_automatic_commits_leave_out_the_message_in_hand(store: HandMadeStore) -> None:
    """At the chosen interval, and when it is closed."""
    clock = SetClock()
    with billing(store, lanes={0}, auto_commit_seconds=10, clock=clock) as reader:
        list(islice(reader, 5))
        assert reader.committed() == {"orders": {0: 0}}
        clock.pass_seconds(10)
        next(reader)
        assert stored(store).offsets == {"orders": {0: 5}}
        list(islice(reader, 3))
        assert stored(store).offsets == {"orders": {0: 5}}
    assert stored(store).offsets == {"orders": {0: 8}}
    assert rest(store, lanes={0})[0] == ("orders", 0, 8)


def test_an_iteration_that_came_to_its_end_counts_all(store: HandMadeStore) -> None:
    with billing(store, auto_commit_seconds=3600) as reader:
        assert len(list(reader)) == 200
        assert stored(store).offsets == {"orders": {0: 100, 1: 100}}
    assert rest(store) == []


def test_a_reader_that_waits_has_done_all(store: HandMadeStore) -> None:
    """Who asks for another has done the last one: an idle reader is not behind by one for ever."""
    clock = SetClock()
    with billing(store, follow=True, auto_commit_seconds=10, clock=clock) as reader:
        for _ in range(200):
            next(reader)
        clock.pass_seconds(10)
        assert reader.poll() is None
        assert stored(store).offsets == {"orders": {0: 100, 1: 100}}


def test_without_them_close_writes_nothing(store: HandMadeStore) -> None:
    with billing(store) as reader:
        list(islice(reader, 50))
    assert stored(store).offsets == {"orders": {0: 0, 1: 0}}


def test_a_disk_that_does_not_take_the_position(
    store: HandMadeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first must be there, a commit says that it failed, an automatic one is tried again and said once."""

    def full(self: FileChannel, path: object, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(FileChannel, "replace_file", full)
        with pytest.raises(ReaderError, match=r"reader billing: its position can't be written .* No space left"):
            billing(store)
    reader = billing(store, auto_commit_seconds=0)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(FileChannel, "replace_file", full)
        list(islice(reader, 20))
        with pytest.raises(ReaderError, match="No space left"):
            reader.commit()
    assert caplog.text.count("No space left") == 1
    list(islice(reader, 2))
    assert sum(stored(store).offsets["orders"].values()) == 21
    reader.close()


# ---- who has the name ------------------------------------------------------------------------------------------------


def test_one_at_a_time_has_the_name(store: HandMadeStore) -> None:
    with billing(store):
        with pytest.raises(ReaderInUse, match=rf"reader billing is in use by process {os.getpid()}: stop that reader"):
            billing(store)
        billing(store, name="shipping").close()
    billing(store).close()


def test_a_reader_that_could_not_begin_lets_go(store: HandMadeStore) -> None:
    for options in ({"start": "never"}, {"topic": "none"}, {"start": 5_000}):
        with pytest.raises(commitlog.errors.CommitLogError):
            billing(store, **options)
    assert not RegisteredReaders(store.directory).is_held("billing")
    assert RegisteredReaders(store.directory).names() == []


def test_a_reader_that_nobody_closed_lets_go(store: HandMadeStore) -> None:
    """When Python frees it."""
    reader = billing(store)
    next(reader)
    del reader
    gc.collect()
    billing(store).close()


def test_a_forked_child_neither_holds_nor_commits(store: HandMadeStore) -> None:
    """Its copy is its parent's; the name is free when the parent lets go, however long the child lives."""
    reader = billing(store, auto_commit_seconds=0)
    next(reader)
    assert in_child(reader.commit).startswith("ReaderError: reader billing was made before a fork")
    assert in_child(lambda: next(reader)).startswith("ReaderError: reader billing was made before a fork")
    assert in_child(reader.close) == "None"
    assert RegisteredReaders(store.directory).is_held("billing")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    reader.close()
    billing(store).close()
    for fd in (reading, writing):
        os.close(fd)
    os.waitpid(child, 0)
    assert stored(store).offsets == {"orders": {0: 0, 1: 0}}


READING = """
import sys
import commitlog
reader = commitlog.Reader(sys.argv[1], topic="orders", name="billing", follow=True)
for message in reader:
    print(message.partition, message.offset, flush=True)
    sys.stdin.readline()
    if message.offset % 7 == 6:
        reader.commit()
"""


def test_killed_readers_miss_nothing(store: HandMadeStore) -> None:
    """kill -9 again and again, each time after some messages: what a reader did not commit, the next one gets."""
    given: list[tuple[int, int]] = []
    for round_ in range(1, 6):
        command = [sys.executable, "-c", READING, str(store.path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        lines = []
        try:
            for _ in range(20 + 3 * round_):
                lines.append(process.stdout.readline())
                process.stdin.write("\n")
                process.stdin.flush()
            if round_ == 1:
                with pytest.raises(ReaderInUse, match=f"process {process.pid}"):
                    billing(store)
        finally:
            process.kill()
            lines += process.stdout.readlines()
            process.stdout.close()
            process.stdin.close()
            process.wait(60)
        given += [(int(lane), int(offset)) for lane, offset in map(str.split, lines)]
    with billing(store) as reader:
        given += [(message.partition, message.offset) for message in reader]
    assert set(given) == {(lane, offset) for lane in (0, 1) for offset in range(100)}
    for lane in (0, 1):  # nobody jumped ahead: each message came after all before it
        seen = -1
        for offset in (offset for number, offset in given if number == lane):
            assert offset <= seen + 1
            seen = max(seen, offset)


def test_a_signal_handler_inside_a_commit(store: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may close, which is done when the commit is; a commit of its own is refused."""
    plain = FileChannel.replace_file
    said: list[str] = []

    def replace_file(channel: FileChannel, path: Any, data: bytes) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        plain(channel, path, data)

    def handler(number: int, frame: object) -> None:
        try:
            reader.commit()
        except ReaderError as error:
            said.append(str(error))
        reader.close()

    reader = billing(store)
    list(islice(reader, 9))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        monkeypatch.setattr(FileChannel, "replace_file", replace_file)
        reader.commit()
    finally:
        signal.signal(signal.SIGUSR1, before)
    monkeypatch.setattr(FileChannel, "replace_file", plain)
    assert "in the middle of a commit" in said[0]
    assert sum(stored(store).offsets["orders"].values()) == 9
    assert len(rest(store)) == 191


def test_commits_of_many_threads(store: HandMadeStore) -> None:
    """While one reads and another closes; nothing is passed over."""
    reader = billing(store)
    said: list[str] = []

    def commit() -> None:
        try:
            while not reader.closed:
                reader.commit()
        except ReaderError as error:
            said.append(str(error))

    threads = [threading.Thread(target=commit) for _ in range(3)]
    for thread in threads:
        thread.start()
    given = [place(message) for message in islice(reader, 150)]
    reader.close()
    for thread in threads:
        thread.join(60)
    assert all("is closed" in text for text in said)
    left = rest(store)
    assert set(given) | set(left) == {("orders", lane, offset) for lane in (0, 1) for offset in range(100)}


# ---- what is kept, what is lost --------------------------------------------------------------------------------------


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
            producer.flush(60)
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
    with billing(store) as reader:
        list(reader)
        reader.commit()
    shutil.rmtree(store.path / "lanes/1")
    with pytest.raises(DataLoss, match="the whole of topic orders, lane 1, where it was at 100"):
        billing(store)


def test_a_position_beyond_the_end(store: HandMadeStore) -> None:
    """A store that was killed and not recovered yet, or put back."""
    RegisteredReaders(store.directory).save(
        RegisteredReader("billing", store.id, {"orders": {0: 101, 1: 0}}, 1, kind="python")
    )
    with pytest.raises(OffsetOutOfRange, match=r"it was at 101 in topic orders, lane 0, and the store ends at 100"):
        billing(store)


def test_positions_that_are_no_readers_of_this_store(store: HandMadeStore) -> None:
    """One of another store, a Spark query's, nonsense: each error has the way out."""
    readers = RegisteredReaders(store.directory)
    readers.save(RegisteredReader("billing", "f" * 32, {"orders": {0: 1}}, 1, kind="python"))
    with pytest.raises(ReaderError, match=r"one in another store .* --remove billing"):
        billing(store)
    readers.save(RegisteredReader("billing", store.id, {"orders": {0: 1}}, 1))
    with pytest.raises(ReaderError, match=r"is a Spark query's.* --remove billing"):
        billing(store)
    (store.directory.readers_directory / "billing.json").write_bytes(b"{}")
    with pytest.raises(ReaderError, match="not the position of a reader"):
        billing(store)


# ---- sharing work ----------------------------------------------------------------------------------------------------


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
        {"isolation": "committed"},
    ],
    ids=str,
)
def test_wrong_options_are_errors_of_ours(store: HandMadeStore, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        billing(store, **options)
    assert RegisteredReaders(store.directory).names() == []


@pytest.mark.parametrize("name", ["", "../x", "a b", 5, b"billing"])
def test_names_are_names_of_files(store: HandMadeStore, name: Any) -> None:
    with pytest.raises(ReaderError, match="no reader's name"):
        billing(store, name=name)


def test_no_store_no_name(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        Reader(tmp_path / "none", name="billing")
    assert not (tmp_path / "none").exists()


def test_topics_are_topics(store: HandMadeStore) -> None:
    """What can be none would make a position that nobody can read."""
    for topic in ("a/b", "..", 5):
        with pytest.raises(commitlog.errors.IllegalTopic):
            billing(store, topic=topic if isinstance(topic, str) else {topic}, follow=True)
    assert RegisteredReaders(store.directory).names() == []


def test_another_store_at_the_path_of_a_running_reader(store: HandMadeStore) -> None:
    """Offsets of one are not written as places in the other."""
    with billing(store, follow=True) as reader:
        list(islice(reader, 200))
        store.directory.save(StoreFacts(new_store_id(), store.segment_bytes))
        assert reader.poll() is None
        with pytest.raises(ReaderError, match="is another store now"):
            reader.commit()
    assert stored(store).offsets == {"orders": {0: 0, 1: 0}}


def test_a_rocketmq_root_keeps_no_position(store: HandMadeStore) -> None:
    root = store.path / "lanes/0"
    with pytest.raises(OptionError, match="a RocketMQ store root is only read"):
        Reader(root, name="billing")
    with Reader(root, "orders", lanes={0}, start={"orders": {0: 98}}) as reader:
        assert [message.offset for message in reader] == [98, 99]


# ---- starts ----------------------------------------------------------------------------------------------------------


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
        ({}, BadStart),
        ({"orders": {}}, BadStart),
    ],
    ids=str,
)
def test_bad_starts_by_queue(store: HandMadeStore, start: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Reader(store.path, topic="orders", start=start)
