"""`Reader.close` ends the iteration for good, and leaves nothing open.

It is called in the loop, in a signal handler and in another thread.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

import commitlog
from commitlog.client.reader import Reader
from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.errors import ReaderError, ReadingWarning
from commitlog.message import Message
from commitlog.reading.store_messages import StoreMessages
from commitlog.system.clock import Clock
from tests.builders.hand_made import HandMadeStore, small_store
from tests.waiting import wait_until

THERE = 400
"""Messages in the store of these tests."""


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """100 messages of `orders` and of `other` in each of lanes 0 and 1."""
    return small_store(tmp_path / "store")


class Sleepless(Clock):
    """Instead of sleeping it does something."""

    def __init__(self, instead: Callable[[], object]) -> None:
        self.instead = instead

    def sleep(self, seconds: float) -> None:
        self.instead()


@contextmanager
def at_signal(action: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Within it a signal does `action`; gives what sends one."""
    before = signal.signal(signal.SIGUSR1, lambda number, frame: action() and None)
    try:
        yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def bounded(reader: Reader) -> list[Message]:
    """What the reader gives out until it ends; not for ever where it begins again."""
    return list(islice(reader, 3 * THERE))


def places(messages: list[Message]) -> list[tuple[str, int, int]]:
    return [(message.topic, message.partition, message.offset) for message in messages]


def mapped_files(path: Path) -> list[str]:
    """Files of a store that this process has mapped."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]


@pytest.mark.parametrize("follow", [True, False])
def test_a_close_in_the_body_is_the_end(store: HandMadeStore, follow: bool) -> None:
    """The rest of what was found already is not given out either; a second close is harmless."""
    with Reader(store.path, follow=follow) as reader:
        given = []
        for message in islice(reader, 3 * THERE):
            given.append(message)
            if len(given) == 30:
                reader.close()
        assert len(given) == 30
        reader.close()
        with pytest.raises(StopIteration):
            next(reader)
    with pytest.raises(StopIteration):
        next(reader)


def test_a_reader_that_never_began_can_be_closed(store: HandMadeStore) -> None:
    """It gives out nothing afterwards."""
    reader = Reader(store.path, follow=True)
    reader.close()
    assert bounded(reader) == []


def test_a_signal_handler_ends_it_out_of_its_sleep(store: HandMadeStore) -> None:
    """What was there was given out once."""
    with at_signal(lambda: reader.close()) as send:
        reader = Reader(store.path, follow=True, clock=Sleepless(send))
        given = bounded(reader)
    assert len(given) == len(set(places(given))) == THERE


def test_a_signal_handler_ends_it_while_it_walks(store: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler runs in the middle of `next`, which is below it on the stack."""
    plain, opened = FileChannel.map_read, []

    def map_read(channel: FileChannel, fd: int, length: int) -> object:
        opened.append(fd)
        if len(opened) == 5:
            send()
        return plain(channel, fd, length)

    with at_signal(lambda: reader.close()) as send:
        reader = Reader(store.path, follow=True)
        opened.clear()
        monkeypatch.setattr(FileChannel, "map_read", map_read)
        given = bounded(reader)
    assert len(given) == len(set(places(given))) < THERE
    assert mapped_files(store.path) == []


def test_another_thread_ends_it_out_of_its_sleep(store: HandMadeStore) -> None:
    """A reader that waits for messages ends when it is closed elsewhere."""
    reader = Reader(store.path, follow=True)
    given: list[Message] = []
    thread = threading.Thread(target=lambda: given.extend(islice(reader, 3 * THERE)))
    thread.start()
    wait_until(lambda: reader.statistics().messages == THERE, "all that is there")
    reader.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(given) == len(set(places(given))) == THERE


@pytest.mark.parametrize("after", range(0, 200, 20))
def test_another_thread_ends_it_while_it_reads(store: HandMadeStore, after: int) -> None:
    """It closes the reader at any point of its work.

    No message comes twice, no mapping is left, and nothing crashes because its memory is gone.
    """
    reader = Reader(store.path, follow=True)
    begun = threading.Event()

    def close() -> None:
        begun.wait(60)
        reader.close()

    thread = threading.Thread(target=close)
    thread.start()
    given = []
    for message in islice(reader, 3 * THERE):
        given.append(message)
        if len(given) == after + 1:
            begun.set()
    thread.join(60)
    assert len(given) == len(set(places(given)))
    assert mapped_files(store.path) == []


def test_a_topic_that_is_nowhere_found_does_not_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk over a long log without a wanted message checks between its steps if it was closed."""
    store = small_store(tmp_path / "store", rows=400, lanes=1, topics=("other",))
    store.lane(0).append("orders", b"the last")
    store.lane(0).publish()  # without an entry: it is found by walking
    steps = len(list((store.path / "lanes/0/commitlog").iterdir()))
    plain, walked = FileChannel.map_read, []

    def map_read(channel: FileChannel, fd: int, length: int) -> object:
        walked.append(fd)
        if len(walked) == 3:
            reader.close()
        return plain(channel, fd, length)

    with pytest.warns(ReadingWarning, match="no topic new yet"):
        reader = Reader(store.path, topic="new", follow=True)
    assert isinstance(reader._source, StoreMessages)
    reader._source._cursors[0, ""].where = 0
    monkeypatch.setattr(FileChannel, "map_read", map_read)
    assert bounded(reader) == []
    assert len(walked) == 3 < steps


def test_nothing_is_left_open(store: HandMadeStore) -> None:
    """Neither of a reader that came to its end, nor of one in the middle."""
    for count in (50, THERE + 1):
        before = len(os.listdir("/proc/self/fd"))
        reader = Reader(store.path)
        list(islice(reader, count))
        assert mapped_files(store.path) != []
        reader.close()
        assert mapped_files(store.path) == []
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_message_outlives_its_reader(store: HandMadeStore) -> None:
    """Its value is a copy: nothing of it lies in a mapping."""
    with Reader(store.path) as reader:
        message = next(reader)
    assert message.value == b"orders-0-0"


def test_statistics_of_a_closed_reader_are_its_last(store: HandMadeStore) -> None:
    reader = Reader(store.path)
    list(islice(reader, 150))
    before = reader.statistics()
    reader.close()
    assert reader.statistics() == before
    assert before.messages == 150


def test_two_threads_inside_one_reader_are_told(store: HandMadeStore) -> None:
    """By an error of ours; the thread that was inside goes on."""
    said: list[BaseException] = []

    def intrude() -> None:
        try:
            next(reader)
        except ReaderError as error:
            said.append(error)

    plain = FileChannel.map_read

    def map_read(channel: FileChannel, fd: int, length: int) -> object:
        if not said:
            thread = threading.Thread(target=intrude)
            thread.start()
            thread.join(60)
        return plain(channel, fd, length)

    with pytest.MonkeyPatch.context() as patch, Reader(store.path) as reader:
        patch.setattr(FileChannel, "map_read", map_read)
        assert len(bounded(reader)) == THERE
    assert "one thread at a time" in str(said[0])


def test_an_error_stays_the_end(store: HandMadeStore) -> None:
    """A reader that failed says so again: its loop is not told that this was all."""
    lane_directory = store.directory.lane_directory(1)
    segments = sorted(lane_directory.commitlog.iterdir())
    with Reader(store.path) as reader:
        first = next(reader)
        positions = PositionsFile(lane_directory, "", DISK)
        recorded = positions.load()
        assert recorded is not None
        positions.store(replace(recorded, first_where=int(segments[3].name)))
        for segment in segments[:3]:
            segment.unlink()
        with pytest.raises(commitlog.errors.DataLoss):
            bounded(reader)
        with pytest.raises(ReaderError, match="ended with DataLoss"):
            next(reader)
    assert first.offset == 0
    with pytest.raises(StopIteration):
        next(reader)


def test_damage_is_said_again(store: HandMadeStore) -> None:
    """And the reader looks there again, when it is asked again."""
    segments = sorted((store.path / "lanes/1/commitlog").iterdir())
    aside = store.path / "aside"
    with Reader(store.path) as reader:
        first = next(reader)
        segments[2].rename(aside)
        for _ in range(2):
            with pytest.raises(commitlog.errors.DamagedFile):
                bounded(reader)
        aside.rename(segments[2])
        assert bounded(reader)
    assert first.offset == 0
    with pytest.raises(StopIteration):
        next(reader)


def test_of_a_running_store(tmp_path: Path) -> None:
    """Its limits are in shared memory, which goes away under the reader when it is closed."""
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}}) as store:
        producer = store.producer()
        for number in range(500):
            producer.send("t", b"%d" % number)
        producer.flush(timeout=60)
        reader = Reader(store.path, follow=True)
        given: list[Message] = []
        thread = threading.Thread(target=lambda: given.extend(islice(reader, 3 * 500)))
        thread.start()
        wait_until(lambda: reader.statistics().messages == 500, "all that is there")
        reader.close()
        thread.join(60)
        assert not thread.is_alive()
        assert [message.offset for message in given] == list(range(500))
        assert reader.statistics().messages == 500
        assert reader.statistics().behind_bytes == {0: 0}
