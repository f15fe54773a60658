"""Named readers: where they go on, what a commit counts, who may have the name."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from itertools import islice
from typing import Any

import pytest

import commitlog
from commitlog.client.reader import Reader
from commitlog.disk.file_channel import FileChannel
from commitlog.errors import (
    ReaderError,
    ReaderInUse,
    ReadingWarning,
)
from commitlog.reading.named_readers import NamedReaders
from tests.builders.hand_made import HandMadeStore
from tests.builders.named_reader import Places, billing, place, rest, stored
from tests.children import in_child
from tests.fake_clock import SetClock
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("look_each_time", "little_patience")


# ---- going on ----------------------------------------------------------------------------------


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
    """A new reader of the name begins behind the last commit."""
    with billing(store) as reader:
        first = list(map(place, islice(reader, 10)))
        reader.commit()
        more = list(map(place, islice(reader, 30)))
    assert rest(store)[:30] == more
    assert not set(first) & set(rest(store))


@pytest.mark.parametrize("start", ["latest", "last 3", "earliest", 95, {"orders": {0: 98, 1: -1}}])
def test_the_start_counts_the_first_time(store: HandMadeStore, start: Any) -> None:
    """The start counts only the first time, even if the first reader read nothing.

    Its position is in the store before it reads.
    """
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
    """A reader commits only messages that it has given out itself."""
    with billing(store) as reader, Reader(store.path) as plain:
        next(reader)
        for message in islice(plain, 100, 102):
            with pytest.raises(ReaderError, match="was not given out by this reader"):
                reader.commit(message)
    assert stored(store).offsets == {"orders": {0: 0, 1: 0}}


def test_a_reader_without_a_name_has_no_commits(store: HandMadeStore) -> None:
    """Its commit and committed are errors, and nothing is written to the store."""
    with Reader(store.path) as reader:
        for call in (reader.commit, reader.committed):
            with pytest.raises(ReaderError, match="no name"):
                call()
    assert not store.directory.readers_directory.exists()


def test_a_closed_reader_commits_no_more(store: HandMadeStore) -> None:
    """The error says to commit before the close."""
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


@pytest.mark.parametrize("options", [{"topic": "other"}, {"lanes": {0}}, {"members": (1, 2)}])
def test_a_place_is_not_forgotten_without_a_word(store: HandMadeStore, options: Any) -> None:
    """Who reads there again would get all again, or pass over what retention has deleted since."""
    with billing(store) as reader:
        list(reader)
        reader.commit()
    before = stored(store)
    with pytest.raises(ReaderError, match=r"reader billing has places that it does not read now: topic orders, lane"):
        billing(store, **options)
    assert stored(store) == before
    assert rest(store) == []
    with pytest.warns(ReadingWarning, match=r"they are forgotten, and nothing is kept for them"):
        billing(store, fail_on_data_loss=False, **options).close()
    billing(store, **options).close()


# ---- automatic commits -------------------------------------------------------------------------


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
    """With automatic commits the end of the iteration commits, whatever the interval."""
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
    """Without automatic commits only `commit` moves the position."""
    with billing(store) as reader:
        list(islice(reader, 50))
    assert stored(store).offsets == {"orders": {0: 0, 1: 0}}


def test_a_disk_that_does_not_take_the_position(
    store: HandMadeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first position must be written, and a commit says that it has failed.

    An automatic commit is tried again, and its failure is reported once.
    """

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


# ---- who has the name --------------------------------------------------------------------------


def test_one_at_a_time_has_the_name(store: HandMadeStore) -> None:
    """A second reader of the name is refused until the first is closed; other names are free."""
    with billing(store):
        with pytest.raises(ReaderInUse, match=rf"reader billing is in use by process {os.getpid()}: stop that reader"):
            billing(store)
        billing(store, name="shipping").close()
    billing(store).close()


def test_a_lock_file_that_is_removed_is_made_again(store: HandMadeStore) -> None:
    """By the next commit: then the name is refused to others as before."""
    with billing(store) as reader:
        next(reader)
        (store.directory.readers_directory / "billing.lock").unlink()
        reader.commit()
        with pytest.raises(ReaderInUse, match=f"in use by process {os.getpid()}"):
            billing(store)
    billing(store).close()


def test_of_two_readers_without_a_lock_file_one_hears_of_it(store: HandMadeStore) -> None:
    """Its commits would move the other one back, or undo a `--seek`."""
    with billing(store) as first:
        next(first)
        (store.directory.readers_directory / "billing.lock").unlink()
        with billing(store) as second:
            list(second)
            second.commit()
            for _ in range(2):
                with pytest.raises(ReaderInUse, match=r"somebody has removed .*billing\.lock, and process"):
                    first.commit()
        assert rest(store) == []


def test_a_reader_that_could_not_begin_lets_go(store: HandMadeStore) -> None:
    """After a refused start nobody holds the name, and no position is left."""
    for options in ({"start": "never"}, {"topic": "none"}, {"start": 5_000}):
        with pytest.raises(commitlog.errors.CommitLogError):
            billing(store, **options)
    assert not NamedReaders(store.directory).is_held("billing")
    assert NamedReaders(store.directory).names() == []


def test_a_reader_that_nobody_closed_lets_go(store: HandMadeStore) -> None:
    """When Python frees it."""
    reader = billing(store)
    next(reader)
    del reader
    gc.collect()
    billing(store).close()


def test_a_forked_child_neither_holds_nor_commits(store: HandMadeStore) -> None:
    """The child has a copy of its parent's reader.

    The name is free when the parent releases it, however long the child lives.
    """
    reader = billing(store, auto_commit_seconds=0)
    next(reader)
    assert in_child(reader.commit).startswith("ReaderError: reader billing was made before a fork")
    assert in_child(lambda: next(reader)).startswith("ReaderError: reader billing was made before a fork")
    assert in_child(reader.close) == "None"
    assert NamedReaders(store.directory).is_held("billing")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    reader.close()
    wait_until(lambda: not NamedReaders(store.directory).is_held("billing"), "the child to close its copy")
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
    """Readers are killed with kill -9 again and again, each after some messages.

    The next reader gets what the one before it did not commit.
    """
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


def test_what_a_killed_commit_left_is_removed(store: HandMadeStore) -> None:
    """By the next one of the name; another name's file in the making is not touched."""
    readers = store.directory.readers_directory
    billing(store).close()
    for left in (".billing.json.4711.tmp", ".billing.json.5.json.4711.tmp"):
        (readers / left).write_bytes(b"{")
    billing(store).close()
    assert sorted(os.listdir(readers)) == [".billing.json.5.json.4711.tmp", "billing.json", "billing.lock"]


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
