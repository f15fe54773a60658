"""A stream of Spark's on a promoted copy: what the old primary alone had is lost, and nothing else.

The reader that Spark drives is driven here without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import commitlog
from commitlog.errors import DataLoss, StoreSuperseded
from commitlog.replicas.promotion import promote
from tests.nightly import by_url_nightly
from tests.replicas.scene import Scene, await_copy
from tests.spark.conftest import no_segments_mapped
from tests.spark.driven_stream import Offset, end_of, rows, stream

__all__ = ["no_segments_mapped"]
pytestmark = [by_url_nightly, pytest.mark.usefixtures("both_ways")]


def send(store: commitlog.Store, *values: bytes, others: Sequence[bytes] = ()) -> None:
    """Flushes messages of one lane, and `others` of the next one."""
    with store.producer() as producer, store.producer() as another:
        for value in values:
            producer.send("orders", value)
        for value in others:
            another.send("orders", value)
        producer.flush()
        another.flush()


def send_two(store: commitlog.Store) -> None:
    send(store, b"one", b"two")


@pytest.fixture
def read_of_primary(scene: Scene) -> tuple[Offset, Offset]:
    """Where a query of the primary began, and is now. The copy lacks a lane and two messages."""
    scene.copied(send_two)
    with scene.open() as store, stream(scene.primary) as reader:
        send(store, b"lost", b"lost too", others=[b"in a lane that is lost"])
        begin = reader.initialOffset()
        end = end_of(reader, begin)
        assert rows(reader, begin, end) == [b"one", b"two", b"lost", b"lost too", b"in a lane that is lost"]
    promote(scene.copy)
    return begin, end


def test_what_only_the_old_primary_had_is_a_loss(scene: Scene, read_of_primary: tuple[Offset, Offset]) -> None:
    """Although the copy is longer than the checkpoint by now."""
    begin, end = read_of_primary
    with scene.open(scene.copy, listen="") as store:
        send(store, b"three", b"four", b"five")
        with stream(scene.copy) as reader:
            said = "topic orders, lane 0: a replica was promoted, .* offsets 2 to 3, .* failOnDataLoss=false"
            with pytest.raises(DataLoss, match=said):
                end_of(reader, end)
            with pytest.raises(DataLoss, match=said):
                reader.partitions(begin, end)


@pytest.mark.nightly
def test_a_query_that_may_go_on_leaves_nothing_of_the_copy_out(
    scene: Scene, read_of_primary: tuple[Offset, Offset]
) -> None:
    """Its last batch is planned again after a crash: what is left of it comes once more."""
    begin, end = read_of_primary
    with scene.open(scene.copy, listen="") as store:
        send(store, b"three", b"four", b"five", others=[b"six", b"seven"])
        with stream(scene.copy, fails=False) as reader:
            assert rows(reader, begin, end) == [b"one", b"two"]
            after = end_of(reader, end)
            assert rows(reader, end, after) == [b"three", b"four", b"five", b"six", b"seven"]
            send(store, b"eight")
            last = end_of(reader, after)
            assert rows(reader, after, last) == [b"eight"]
    said = "epoch 0, .* has read epoch [1-9][0-9]* .* the path of that one"
    with stream(scene.primary) as reader, pytest.raises(StoreSuperseded, match=said):
        end_of(reader, last)


@pytest.mark.nightly
def test_a_query_that_has_read_no_more_than_the_copy_goes_on(scene: Scene) -> None:
    """On the copy, before and after it is promoted, by the same reader and by a new one."""
    with scene.open() as store, stream(scene.primary) as reader, scene.follower():
        send(store, b"one", b"two")
        await_copy(scene)
        start = end_of(reader, reader.initialOffset())
    with stream(scene.copy) as reader:
        assert end_of(reader, start) == start
        promote(scene.copy)
        with scene.open(scene.copy, listen="") as store:
            send(store, b"three")
            end = end_of(reader, start)
            assert rows(reader, start, end) == [b"three"]
            send(store, b"four")
            with stream(scene.copy) as another:
                assert rows(another, end, end_of(another, end)) == [b"four"]
