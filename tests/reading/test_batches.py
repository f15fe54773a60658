"""`Reader.batches` gives the messages that `next` gives, in lists, at least once as well."""

from __future__ import annotations

from itertools import chain, islice, product
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commitlog
from commitlog.client.reader import Reader
from commitlog.errors import CorruptRecord, DataLoss, IllegalArgument, ReaderError
from commitlog.message import Message
from commitlog.reading.given_places import GivenPlaces
from commitlog.reading.hand import Hand
from commitlog.reading.lane_cursor import LaneCursor
from tests.builders.hand_made import HandMadeStore, small_store
from tests.fake_clock import SetClock

pytestmark = pytest.mark.usefixtures("look_each_time")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    """100 messages of `orders` and of `other` in each of lanes 0 and 1."""
    return small_store(tmp_path_factory.mktemp("batches") / "store")


def everything(path: Path) -> list[Message]:
    with Reader(path) as reader:
        return list(reader)


@settings(max_examples=30)
@given(turns=st.lists(st.tuples(st.booleans(), st.integers(1, 150)), max_size=12))
def test_batches_and_single_messages_take_turns(store: HandMadeStore, turns: list[tuple[bool, int]]) -> None:
    found: list[Message] = []
    with Reader(store.path) as reader:
        for is_batch, most in turns:
            if is_batch:
                batch = next(reader.batches(most), [])
                assert len(batch) == min(most, 400 - len(found))
                found += batch
            else:
                found += islice(reader, most)
            assert reader.statistics().messages == len(found)
        found += chain.from_iterable(reader.batches())
    assert found == everything(store.path)


def test_batches_end_with_the_messages(store: HandMadeStore) -> None:
    with Reader(store.path, "orders") as reader:
        assert [len(batch) for batch in reader.batches(90)] == [90, 90, 20]
        assert list(reader.batches()) == []
    assert list(reader.batches()) == []


@pytest.mark.parametrize("most", [0, -1, 1.0, "5", None, True])
def test_most_is_a_number_of_messages(store: HandMadeStore, most: object) -> None:
    with Reader(store.path) as reader, pytest.raises(IllegalArgument, match="from 1 on"):
        reader.batches(most)  # type: ignore[arg-type]


def test_a_timeout_is_a_time(store: HandMadeStore) -> None:
    with Reader(store.path) as reader, pytest.raises(IllegalArgument):
        reader.batches(timeout=-1)


def test_a_follower_gets_what_is_there_and_waits_for_more(tmp_path: Path) -> None:
    """It waits no longer than it is told; without a limit it waits until something comes."""
    made = small_store(tmp_path / "store", rows=10)
    clock = SetClock()
    with Reader(made.path, "orders", follow=True, clock=clock) as reader:
        batches = reader.batches(15, timeout=3)
        assert [len(next(batches)) for _ in range(2)] == [15, 5]
        before = clock.boot
        assert next(batches) == []
        assert 2.9e9 < clock.boot - before < 3.1e9

        def more(seconds: float) -> None:
            made.lane(0).append("orders", b"new")
            made.publish()
            clock.pass_seconds(seconds)

        clock.sleep = more  # type: ignore[method-assign]
        assert [message.value for message in next(reader.batches())][:1] == [b"new"]


def test_an_automatic_commit_leaves_out_the_batch_that_is_worked_on(tmp_path: Path) -> None:
    made = small_store(tmp_path / "store", rows=10)
    with Reader(made.path, "orders", name="billing", auto_commit_seconds=0) as reader:
        batches = reader.batches(8)
        assert [len(next(batches)) for _ in range(2)] == [8, 8]
        assert sum(reader.committed()["orders"].values()) == 8
        assert sum(reader.position()["orders"].values()) == 16
        reader.commit()
        assert reader.committed() == reader.position()


def test_what_was_not_committed_comes_again(tmp_path: Path) -> None:
    made = small_store(tmp_path / "store", rows=10)
    with Reader(made.path, "orders", name="billing") as reader:
        batches = reader.batches(8)
        next(batches)
        reader.commit()
        again = next(batches)
    with Reader(made.path, "orders", name="billing") as reader:
        assert next(reader.batches(8)) == again


def test_good_messages_come_before_an_error(tmp_path: Path) -> None:
    """The error comes at the next call, and again until the record is healed."""
    made = small_store(tmp_path / "store")
    wanted = everything(made.path)
    at = made.lane(0).records[50].physical_offset + 90  # in the body
    segment = made.directory.lane_directory(0).segment_path(0)
    whole = segment.read_bytes()
    segment.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    with Reader(made.path) as reader:
        batches = reader.batches(130)
        found = [*next(batches), *next(batches)]
        assert len(found) == 200 + 50
        for _ in range(2):
            with pytest.raises(CorruptRecord):
                next(batches)
        segment.write_bytes(whole)
        found += chain.from_iterable(batches)
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_an_error_that_is_the_end_comes_after_the_batch_before_it(tmp_path: Path) -> None:
    made = small_store(tmp_path / "store", rows=10)
    with Reader(made.path, "orders", follow=True) as reader:
        batches = reader.batches(1000, timeout=0)
        assert len(next(batches)) == 20
        made.lane(0).append("orders", b"new")
        made.publish()
        assert len(next(batches)) == 1
        (made.path / "store.json").rename(tmp_path / "store.json")
        small_store(tmp_path / "other", rows=1)
        (tmp_path / "other" / "store.json").rename(made.path / "store.json")
        with pytest.raises(DataLoss, match="another store"):
            next(batches)
        with pytest.raises(ReaderError, match="ended with DataLoss"):
            next(batches)


class Interrupting(SetClock):
    """A clock that is asked for the time at most so many times."""

    looks = 2

    def monotonic_ns(self) -> int:
        self.looks -= 1
        if self.looks == 0:
            raise KeyboardInterrupt
        return super().monotonic_ns()


def test_an_interrupted_batch_comes_again(tmp_path: Path) -> None:
    """Nobody got it. So a commit does not count it, and the next batch begins with it."""
    made = small_store(tmp_path / "store", rows=10)
    clock = Interrupting()
    clock.looks = 0
    with Reader(made.path, "orders", follow=True, name="billing", clock=clock) as reader:
        first = next(reader.batches(5))
        clock.looks = 2
        with pytest.raises(KeyboardInterrupt):
            next(reader.batches(100))
        reader.commit()
        assert sum(reader.committed()["orders"].values()) == reader.statistics().messages == 5
        rest = next(reader.batches(100))
    assert first + rest == everything_of(made.path, "orders")


def everything_of(path: Path, topic: str) -> list[Message]:
    with Reader(path, topic) as reader:
        return list(reader)


@pytest.mark.parametrize(
    ("place", "options"),
    [
        *product([(Hand, "fill"), (LaneCursor, "_pieces")], [{}, {"name": "billing"}, {"follow": True}]),
        ((GivenPlaces, "note"), {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TimeoutError], ids=str)
def test_after_an_interrupt_a_reader_goes_on(
    store: HandMadeStore,
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[type, str],
    interrupt: type[BaseException],
    options: Any,
) -> None:
    """What it had read and nobody has comes again. What was given out does not."""

    def interrupted(self: object, *given: object) -> NoReturn:
        monkeypatch.undo()
        raise interrupt("a signal")

    for taken in (0, 40):
        with Reader(store.path, "orders", **options) as reader:
            given = list(islice(reader, taken))
            if taken:
                reader.seek(reader.position())  # so that nothing is in its hand
            monkeypatch.setattr(*place, interrupted)
            with pytest.raises(interrupt):
                next(reader)
            given += islice(reader, 200 - taken)
            assert sorted(map(place_of, given)) == sorted(map(place_of, everything_of(store.path, "orders")))


def place_of(message: Message) -> tuple[int, int]:
    return message.partition, message.offset


def test_a_signal_handler_that_reads_inside_next_is_refused(
    store: HandMadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    fill = Hand.fill

    def handler(self: Hand, messages: list[Message]) -> None:
        monkeypatch.undo()
        with pytest.raises(ReaderError, match="inside `next` already"):
            reader.poll()
        refused.append("poll")
        fill(self, messages)

    with Reader(store.path) as reader:
        monkeypatch.setattr(Hand, "fill", handler)
        assert list(reader) == everything(store.path)
    assert refused == ["poll"]


def test_a_closed_reader_gives_no_batch(store: HandMadeStore) -> None:
    reader = commitlog.Reader(store.path)
    batches = reader.batches(3)
    next(batches)
    reader.close()
    assert list(batches) == []
