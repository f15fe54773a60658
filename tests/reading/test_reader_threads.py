"""What other threads may do with a reader while one thread reads: close it, and ask it."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commitlog.client.reader import Reader
from commitlog.errors import DataLoss, ReaderError
from commitlog.reading.store_messages import StoreMessages
from commitlog.remote.rows_behind import RowsBehind
from tests.builders.hand_made import HandMadeStore, small_store
from tests.reading.test_reader_close import mapped_files
from tests.reading.test_topic_trim import trim
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("look_each_time")


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """100 messages of `orders` and of `other` in each of lanes 0 and 1."""
    return small_store(tmp_path / "store")


def in_another_thread(action: Callable[[], object]) -> None:
    """Does something in another thread, from its begin to its end."""
    raised: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


@contextmanager
def often_switched() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("inside", ["rows", "look"])
def test_a_close_while_columns_are_read_is_their_end(
    store: HandMadeStore, monkeypatch: pytest.MonkeyPatch, follow: bool, inside: str
) -> None:
    """The thread that reads frees all when it is done, without a word."""
    place, method = {"rows": (RowsBehind, "batches"), "look": (StoreMessages, "queues")}[inside]
    plain = getattr(place, method)

    def closed(self: Any, *given: object) -> object:
        monkeypatch.undo()
        in_another_thread(reader.close)
        return plain(self, *given)

    reader = Reader(store.path, "orders", follow=follow)
    batches = reader.arrow_batches()
    first = next(batches).num_rows
    monkeypatch.setattr(place, method, closed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            store.lane(0).append("orders", b"new")
        store.publish()
        rest = sum(batch.num_rows for batch in batches)
    assert reader.closed
    assert first + rest <= 203
    assert reader.statistics().messages == first + rest
    assert mapped_files(store.path) == []


def test_a_close_between_two_batches_of_columns_is_their_end(store: HandMadeStore) -> None:
    reader = Reader(store.path, "orders", follow=True)
    batches = reader.arrow_batches()
    next(batches)
    in_another_thread(reader.close)
    assert mapped_files(store.path) == []
    assert list(batches) == []


def test_a_close_while_values_are_read_is_their_end(store: HandMadeStore) -> None:
    reader = Reader(store.path, "orders")
    lists = reader.value_lists()
    next(lists)
    in_another_thread(reader.close)
    assert list(lists) == []
    del lists
    assert mapped_files(store.path) == []


@pytest.mark.parametrize("wrong", [next, lambda reader: reader.seek("earliest"), lambda r: next(r.arrow_batches())])
def test_messages_inside_of_columns_are_refused(store: HandMadeStore, wrong: Callable[[Reader], object]) -> None:
    """They would come twice."""
    with Reader(store.path, "orders") as reader:
        batches = reader.arrow_batches(["partition", "offset"])
        rows = next(batches).num_rows
        with pytest.raises(ReaderError, match="arrow_batches"):
            wrong(reader)
        rows += sum(batch.num_rows for batch in batches)
        assert rows == reader.statistics().messages == 200
        assert list(reader) == []


@pytest.mark.nightly
def test_any_thread_may_ask_while_topics_come(store: HandMadeStore) -> None:
    asked, end = 0, threading.Event()
    raised: list[Exception] = []

    def ask() -> None:
        nonlocal asked
        while not end.is_set():
            try:
                reader.position()
                reader.statistics()
            except Exception as error:
                raised.append(error)
            asked += 1

    with Reader(store.path, follow=True) as reader, often_switched():
        thread = threading.Thread(target=ask)
        thread.start()
        for number in range(120):
            store.lane(number % 2).append(f"t{number}", b"")
            store.publish()
            while reader.poll() is not None:
                pass
        wait_until(lambda: asked > 100, "questions")
        end.set()
        thread.join(60)
    assert raised == []


@pytest.mark.parametrize("follow", [True, False])
def test_columns_that_were_trimmed_meanwhile_are_data_loss(
    store: HandMadeStore, monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    """The reader has not read them, and says how it ended."""
    plain = RowsBehind.batches

    def trimmed(self: RowsBehind, places: Mapping[tuple[str, int], int]) -> Iterator[Any]:
        monkeypatch.undo()
        trim(store, "last 50")
        return plain(self, places)

    with Reader(store.path, "orders", follow=follow) as reader:
        monkeypatch.setattr(RowsBehind, "batches", trimmed)
        with pytest.raises(DataLoss, match=r"orders, lane [01].*trimmed before this reader had read them"):
            list(reader.arrow_batches())
        with pytest.raises(ReaderError, match="ended with DataLoss"):
            next(reader)
