"""A named reader by URL goes on at a copy that was promoted; a replica holds no names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DataLoss, ReaderError, StoreRefused
from commitlog.planning.address import Address
from commitlog.reading.named_readers import NamedReaders
from commitlog.remote import fetching, leased_position
from commitlog.replicas.promotion import promote
from commitlog.serving.server_processes import Server
from commitlog.serving.server_settings import ServerSettings
from tests.nightly import with_nightly
from tests.replicas.scene import Scene, await_copy
from tests.served import forget_connection
from tests.serving.asking import address_of


@contextmanager
def serving(path: Path) -> Iterator[Server]:
    """A server that calls a store `store`, whatever its directory is called."""
    with Server(ServerSettings({"store": str(path)}, "127.0.0.1", 0, advertise="127.0.0.1")) as server:
        yield server


def both(first: Server, second: Server) -> Address:
    return replace(address_of(first), hosts=address_of(first).hosts + address_of(second).hosts)


def send(store: commitlog.Store, first: int, end: int) -> None:
    with store.producer() as producer:
        for number in range(first, end):
            producer.send("orders", b"%d" % number)
        producer.flush()


def committed(path: Path) -> int:
    return sum(NamedReaders(StoreDirectory(path)).load("billing").offsets["orders"].values())


def test_it_goes_on_at_the_promoted_copy(scene: Scene) -> None:
    """In whatever order the hosts are named: the first one here is the copy."""
    with _copied(scene) as copy:
        with scene.open() as store, scene.follower(), serving(scene.primary) as primary:
            send(store, 0, 50)
            await_copy(scene)
            url = str(both(copy, primary))
            reader = commitlog.Reader(url, "orders", name="billing", follow=True)
            found = [int(message.value) for message in islice(reader, 30)]
            reader.commit()
            assert committed(scene.primary) == 30
            send(store, 50, 80)
            await_copy(scene)
            found += [int(message.value) for message in islice(reader, 40)]
        promote(scene.copy)
        with scene.open(scene.copy, listen="") as store, reader:
            reader.commit()
            assert committed(scene.copy) == 70
            send(store, 80, 100)
            found += [int(message.value) for message in islice(reader, 30)]
            reader.commit()
        assert found == list(range(100))
        assert committed(scene.copy) == 100
        forget_connection(both(copy, primary))


@contextmanager
def _copied(scene: Scene) -> Iterator[Server]:
    """A server of a copy, which has nothing yet."""
    with scene.open(), scene.follower():
        await_copy(scene)
    with serving(scene.copy) as server:
        yield server


@contextmanager
def _behind_a_loss(
    scene: Scene, begin: Callable[[commitlog.Reader], None], **options: Any
) -> Iterator[commitlog.Reader]:
    """A reader that has begun at 60 messages. Then the copy took over with 50, and has 20 more."""
    with _copied(scene) as copy:
        with scene.open() as store:
            with scene.follower():
                send(store, 0, 50)
                await_copy(scene)
            with serving(scene.primary) as primary:
                send(store, 50, 60)
                reader = commitlog.Reader(str(both(primary, copy)), "orders", follow=True, **options)
                begin(reader)
        promote(scene.copy)
        with scene.open(scene.copy, listen="") as store, reader:
            send(store, 100, 120)
            yield reader
        forget_connection(both(primary, copy))


@pytest.mark.nightly
def test_messages_that_the_copy_does_not_have(scene: Scene) -> None:
    """They were read, and are lost: DataLoss, and a new reader begins where all agree."""

    def begin(reader: commitlog.Reader) -> None:
        assert len(list(islice(reader, 60))) == 60

    lost = pytest.raises(DataLoss, match="50 to 59 of topic orders")
    with _behind_a_loss(scene, begin, name="billing") as reader, lost:
        next(reader)


@pytest.mark.parametrize("wants_more", with_nightly([True], [False]))
def test_a_commit_of_messages_that_the_copy_does_not_have(scene: Scene, wants_more: bool) -> None:
    """It is refused, also after DataLoss has told of them: new ones have their offsets."""

    def begin(reader: commitlog.Reader) -> None:
        assert len(list(islice(reader, 60))) == 60

    with _behind_a_loss(scene, begin, name="billing") as reader:
        if wants_more:
            with pytest.raises(DataLoss):
                next(reader)
        with pytest.raises(ReaderError, match="make a new reader"):
            reader.commit()
        reader.close()
        with commitlog.Reader(scene.copy, "orders", name="billing") as again:
            assert [int(message.value) for message in again] == [*range(50), *range(100, 120)]


@pytest.mark.parametrize("name", with_nightly(["billing"], [None]))
@pytest.mark.parametrize("then", with_nightly(["next"], ["messages", "columns"]))
def test_columns_of_messages_that_the_copy_does_not_have(scene: Scene, name: str | None, then: str) -> None:
    batches: Iterator[pa.RecordBatch] = iter(())

    def begin(reader: commitlog.Reader) -> None:
        nonlocal batches
        batches, rows = reader.arrow_batches(["offset"]), 0
        while rows < 60:
            rows += next(batches).num_rows

    with _behind_a_loss(scene, begin, name=name) as reader:
        if then != "next":
            batches.close()  # type: ignore[attr-defined]
        with pytest.raises(DataLoss, match="50 to 59 of topic orders"):
            next({"next": batches, "messages": reader, "columns": reader.arrow_batches(["offset"])}[then])
        if name is not None:
            with pytest.raises(ReaderError, match="make a new reader"):
                reader.commit()


@pytest.mark.nightly
def test_a_replica_holds_no_name(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read without one."""
    monkeypatch.setattr(leased_position, "PATIENCE_SECONDS", 0.1)
    with _copied(scene) as copy:
        url = str(address_of(copy))
        with scene.open() as store, scene.follower():
            send(store, 0, 10)
            await_copy(scene)
            with commitlog.Reader(url, "orders", follow=True) as reader:
                assert len(list(islice(reader, 10))) == 10
            with pytest.raises(StoreRefused, match="is a replica"):
                commitlog.Reader(url, "orders", name="billing")
        forget_connection(address_of(copy))


@pytest.mark.parametrize("read", with_nightly([55], [20]))
def test_in_the_middle_of_what_the_copy_does_not_have(scene: Scene, monkeypatch: pytest.MonkeyPatch, read: int) -> None:
    """It goes on if it had none of the lost messages; new ones are never taken for the rest.

    It has heard of them, and has no reason to look again before it asks for the next ones.
    """
    for name in ("AHEAD_BYTES", "_FIRST_ROWS", "_PIECE_BYTES_LEAST", "_PIECE_BYTES_MOST"):
        monkeypatch.setattr(fetching, name, 1)
    found: list[int] = []

    def begin(reader: commitlog.Reader) -> None:
        found.extend(int(message.value) for message in islice(reader, read))

    with _behind_a_loss(scene, begin) as reader:
        if read > 50:
            with pytest.raises(DataLoss, match="of topic orders, lane 0 are lost"):
                found += [int(message.value) for message in islice(reader, 60)]
            assert found == list(range(read))
        else:
            found += [int(message.value) for message in islice(reader, 70 - read)]
            assert found == [*range(50), *range(100, 120)]
