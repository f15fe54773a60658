"""A reader that waits sleeps until a stage wakes it: it does not look for messages all the time."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal

import pytest

import commitlog
from commitlog.client.reader import Reader
from commitlog.native import core
from commitlog.reading import store_messages
from commitlog.reading.queue_order import QueueOrder
from commitlog.reading.view import StoreView
from commitlog.shm.layout import STAGES, Stage
from tests.nightly import with_nightly
from tests.waiting import wait_until

ISOLATIONS = ("accepted", "committed", "flushed")
HOUR_NS = 3_600_000_000_000

needs_core = pytest.mark.skipif(core is None, reason="there is no native core")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[commitlog.Store]:
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}}) as opened:
        yield opened


@pytest.fixture
def sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers look for anything but messages once in an hour."""
    monkeypatch.setattr(store_messages, "_LOOK_ANYWAY_NS", HOUR_NS)


def assert_next_wakes(reader: Reader, producer: commitlog.Producer, value: bytes) -> None:
    """Sends a message while the reader sleeps."""
    assert reader.poll(0.05) is None  # longer than accepted messages are looked for
    sender = threading.Timer(0.1, producer.send, ("orders", value))
    sender.start()
    assert next(reader).value == value
    sender.join()


@needs_core
@pytest.mark.usefixtures("sleepy")
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_stage_wakes_a_reader_that_sleeps(
    store: commitlog.Store, isolation: Literal["accepted", "committed", "flushed"]
) -> None:
    with store.producer() as producer, Reader(store.path, isolation=isolation, follow=True) as reader:
        producer.send("orders", b"first").wait("flushed", 60)
        assert next(reader).value == b"first"
        for number in range(5):
            assert_next_wakes(reader, producer, b"%d" % number)


@needs_core
@pytest.mark.usefixtures("sleepy")
@pytest.mark.parametrize("stage", with_nightly(["flusher"], ["committer"]))
def test_a_stage_that_was_killed_wakes_readers_again(store: commitlog.Store, stage: str) -> None:
    lock = store.path / "locks" / stage
    with store.producer() as producer, Reader(store.path, follow=True) as reader:
        producer.send("orders", b"before")
        assert next(reader).value == b"before"
        before = lock.read_text()
        os.kill(int(before), signal.SIGKILL)
        wait_until(lambda: lock.read_text() not in ("", before), "the stage is back")
        sender = threading.Timer(0.1, producer.send, ("orders", b"after"))
        sender.start()
        assert next(reader).value == b"after"
        sender.join()


@needs_core
@pytest.mark.usefixtures("sleepy")
@pytest.mark.parametrize("isolation", with_nightly(list(ISOLATIONS)[:1], list(ISOLATIONS)[1:]))
def test_a_signal_ends_the_sleep(
    store: commitlog.Store, isolation: Literal["accepted", "committed", "flushed"]
) -> None:
    def raise_timeout(number: int, frame: object) -> None:
        raise TimeoutError

    with store.producer() as producer, Reader(store.path, isolation=isolation, follow=True) as reader:
        producer.send("orders", b"first").wait("flushed", 60)
        assert next(reader).value == b"first"
        before = signal.signal(signal.SIGALRM, raise_timeout)
        try:
            for _ in range(3):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                with pytest.raises(TimeoutError):
                    next(reader)
        finally:
            signal.signal(signal.SIGALRM, before)
        producer.send("orders", b"second")
        assert next(reader).value == b"second"


def maps() -> int:
    """How often this process has mapped the control region of a pool."""
    return Path("/proc/self/maps").read_text().count("/control\n")


def test_a_reader_that_is_closed_while_it_sleeps_ends(store: commitlog.Store) -> None:
    """Its memory is unmapped, although a thread sleeps in it when `close` is called."""
    before = maps()
    found: list[object] = []
    reader = Reader(store.path, follow=True)
    thread = threading.Thread(target=lambda: found.extend(reader))
    thread.start()
    wait_until(lambda: maps() > before + 1 or core is None, "the reader sleeps in a mapping of its own")
    reader.close()
    thread.join(60)
    assert not thread.is_alive()
    assert found == []
    assert maps() == before


def test_without_the_core_a_stage_wakes_nobody_and_readers_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMITLOG_NATIVE", "off")  # for the stages
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as producer:
        view = StoreView(store.path)
        assert view.control is not None
        assert {view.control.stage_row(stage)[Stage.WAKES_READERS] for stage in STAGES} == {0}
        view.close()
        monkeypatch.setattr(store_messages, "_LOOK_ANYWAY_NS", HOUR_NS)
        with Reader(store.path, follow=True) as reader:
            for number in range(3):
                assert reader.poll(0.05) is None
                producer.send("orders", b"%d" % number)
                assert next(reader).value == b"%d" % number


@needs_core
@pytest.mark.usefixtures("sleepy")
def test_a_message_that_the_committer_leaves_alone_wakes_a_reader_of_what_is_accepted(tmp_path: Path) -> None:
    """It waits for more pages. The reader does not."""
    config = {"committer": {"least_pages": 1000, "thorough_interval_ms": 3_600_000}}
    with (
        commitlog.Store.open(tmp_path / "store", config) as store,
        store.producer() as producer,
        Reader(store.path, isolation="accepted", follow=True) as reader,
    ):
        producer.send("orders", b"first")
        assert next(reader).value == b"first"
        for number in range(5):
            assert_next_wakes(reader, producer, b"%d" % number)


@pytest.mark.usefixtures("sleepy")
def test_a_look_inside_of_a_record_delays_nothing(tmp_path: Path) -> None:
    """The committer has committed a part of it, and goes on while the reader sleeps."""
    config = {"store": {"segment_bytes": 1 << 22}, "committer": {"slice_bytes": 65_536, "linger_ms": 200}}
    with (
        commitlog.Store.open(tmp_path / "store", config) as store,
        store.producer() as producer,
        closing(StoreView(store.path)) as view,
    ):
        producer.send("orders", b"small").wait("flushed", 60)
        with Reader(store.path, isolation="committed", follow=True, start="latest") as reader:
            begin = view.limits(0).committed
            producer.send("orders", bytes(400_000))
            wait_until(lambda: view.limits(0).committed > begin, "a part is committed")
            reader._source.refresh(whole=True)
            assert not any(reader._source.messages())
            assert next(reader).value == bytes(400_000)


def test_a_follower_of_a_stopped_store_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count_looks(monkeypatch)
    store = commitlog.Store.open(tmp_path / "store")
    with Reader(store.path, follow=True) as reader:
        with store.producer() as producer:
            producer.send("orders", b"first")
            assert next(reader).value == b"first"
        store.close()
        reader.poll(0.5)
        looks.clear()
        assert reader.poll(1) is None
        assert len(looks) < 200


@pytest.mark.nightly
def test_a_pool_that_can_not_be_mapped_again_is_looked_at_as_before(
    store: commitlog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has no descriptor left for a while. It rests, and learns of messages."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "no descriptor")

    looks = count_looks(monkeypatch)
    with Reader(store.path, follow=True) as reader:
        assert reader.poll(0.3) is None
        store.close()
        assert reader.poll(0.3) is None
        monkeypatch.setattr(store_messages, "WatchedWords", refuse)
        with commitlog.Store.open(store.path) as again, again.producer() as producer:
            producer.send("orders", b"first")
            assert next(reader).value == b"first"
            looks.clear()
            assert reader.poll(1) is None
            assert len(looks) < 1000


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list with an item for each look of a reader at its store."""
    looks: list[None] = []
    refresh = store_messages.StoreMessages.refresh

    def counted(self: store_messages.StoreMessages, *, whole: bool = False) -> None:
        looks.append(None)
        refresh(self, whole=whole)

    monkeypatch.setattr(store_messages.StoreMessages, "refresh", counted)
    return looks


@pytest.mark.parametrize("method", with_nightly(["pass_rows"], ["advance"]))
def test_an_interrupt_when_a_message_is_given_loses_nothing(
    store: commitlog.Store, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It comes when the message is out of hand, and its lane has not noted that yet."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with store.producer() as producer, Reader(store.path, isolation="accepted", follow=True) as reader:
        producer.send("orders", b"0").wait("flushed", 60)
        assert next(reader).value == b"0"
        assert reader.poll(0.3) is None
        producer.send("orders", b"1")
        assert next(reader).value == b"1"
        with monkeypatch.context() as patch:
            patch.setattr(QueueOrder, method, interrupt)
            with suppress(KeyboardInterrupt):
                reader.poll(0)
        producer.send("orders", b"2")
        assert next(reader).value == b"2"
