"""An interrupt takes nothing away from a reader, wherever it comes: see docs/python.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import commitlog
from commitlog.client.reader import Reader
from commitlog.reading.lane_cursor import LaneCursor
from commitlog.reading.store_messages import StoreMessages
from commitlog.shm.control_region import ControlRegion
from tests.builders.hand_made import HandMadeStore
from tests.interrupts import interrupted
from tests.nightly import with_nightly

MESSAGES = 12


def one_by_one(reader: Reader, given: list[tuple[int, int]]) -> None:
    for message in reader:
        given.append((message.partition, message.offset))


def polled(reader: Reader, given: list[tuple[int, int]]) -> None:
    while (message := reader.poll()) is not None or reader.lag() != {"orders": {0: 0, 1: 0}}:
        if message is not None:
            given.append((message.partition, message.offset))


def in_lists(reader: Reader, given: list[tuple[int, int]]) -> None:
    for messages in reader.batches(5):
        given += [(message.partition, message.offset) for message in messages]


def in_columns(reader: Reader, given: list[tuple[int, int]]) -> None:
    for batch in reader.arrow_batches(["partition", "offset"]):
        given += zip(*batch.to_pydict().values(), strict=True)


def moved(reader: Reader, given: list[tuple[int, int]]) -> None:
    """It moves to where it is, in the middle."""
    for message in reader:
        given.append((message.partition, message.offset))
        if len(given) == MESSAGES // 2:
            reader.seek(reader.position())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    made = HandMadeStore(tmp_path_factory.mktemp("made") / "store", segment_bytes=4096)
    for number in range(MESSAGES):
        made.lane(number % 2).append("orders", b"%d" % number)
    made.publish()
    return made


def read_by(path: Path, read: Callable[[Reader], Iterator[object]]) -> None:
    with Reader(path, "orders") as reader:
        list(read(reader))


@pytest.mark.parametrize(
    "read",
    [
        lambda path: Reader(path, "orders").close(),
        lambda path: read_by(path, lambda reader: reader.arrow_batches()),
        lambda path: read_by(path, lambda reader: reader.value_lists()),
    ],
    ids=["made", "columns", "values"],
)
def test_a_timeout_of_a_signal_handler_is_not_taken_for_the_disks(
    store: HandMadeStore,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[Path], object],
    request: pytest.FixtureRequest,
) -> None:
    def late(*_: object, **__: object) -> NoReturn:
        raise TimeoutError("a signal")

    place = {"made": (StoreMessages, "begin"), "columns": (StoreMessages, "refresh"), "values": (LaneCursor, "read")}
    monkeypatch.setattr(*place[request.node.callspec.id], late)
    with pytest.raises(TimeoutError, match="a signal"):
        read(store.path)


def test_a_timeout_while_a_pool_is_opened_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that takes a running store for a stopped one would wait in silence."""

    def late(*_: object, **__: object) -> NoReturn:
        raise TimeoutError("a signal")

    with commitlog.Store.open(tmp_path / "store") as live, monkeypatch.context() as patch:
        patch.setattr(ControlRegion, "attach", late)
        with pytest.raises(TimeoutError, match="a signal"):
            Reader(live.path, follow=True)
        patch.undo()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a finalizer was interrupted
@pytest.mark.parametrize("step", with_nightly([97], [7]))
@pytest.mark.parametrize("name", [None, "billing"])
@pytest.mark.parametrize("read", [one_by_one, polled, in_lists, in_columns, moved])
def test_after_an_interrupt_all_messages_come_once(
    store: HandMadeStore, read: Callable[[Reader, list[tuple[int, int]]], None], name: str | None, step: int
) -> None:
    number, wanted = 1, [(lane, offset) for lane in (0, 1) for offset in range(MESSAGES // 2)]
    while True:
        with Reader(store.path, "orders", name=name) as reader:
            given: list[tuple[int, int]] = []
            with interrupted(number) as interrupts:
                read(reader, given)
            read(reader, given)
            assert sorted(given) == wanted, number
            assert reader.position() == {"orders": {0: MESSAGES // 2, 1: MESSAGES // 2}}
        if interrupts.left > 0:
            break
        number += step
