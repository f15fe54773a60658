"""A line that is slow, silent in one way or both, or cut in the middle of frames."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import commitlog
from commitlog.errors import ReplicaNotAvailable, ReplicationTimeout
from tests.nightly import with_nightly
from tests.replicas.line import Line, line
from tests.replicas.scene import Scene, await_copy, await_replicated, check_equal
from tests.waiting import wait_until


@contextmanager
def over_a_line(scene: Scene) -> Iterator[tuple[commitlog.Store, commitlog.Producer, Line]]:
    """A store, and its replica at the other end of a line. Both notice silence after a second."""
    with (
        scene.open(housekeeping_ms=1_000, heartbeat_ms=100) as store,
        store.producer() as producer,
        line(scene.port) as made,
        scene.follower(port=made.port),
    ):
        producer.send("orders", b"first")
        in_sync(store, 1)
        yield store, producer, made


def in_sync(store: commitlog.Store, count: int) -> None:
    wait_until(lambda: store.statistics().lanes[0].in_sync == count, f"{count} in sync")


@pytest.mark.nightly
@pytest.mark.parametrize("held", with_nightly([{"to store", "to replica"}], [{"to store"}, {"to replica"}]))
def test_a_line_that_is_silent(scene: Scene, held: set[str]) -> None:
    """Both ends are open, and nothing comes: in one way, or a partition.

    Nothing counts as replicated that the store does not know of. When the line works again, the
    replica gets all of it.
    """
    with over_a_line(scene) as (store, producer, way):
        way.hold(*held)
        receipt = producer.send("orders", b"second")
        with pytest.raises((ReplicationTimeout, ReplicaNotAvailable)):
            receipt.wait("replicated", 0.5)
        in_sync(store, 0)
        with pytest.raises(ReplicaNotAvailable):
            receipt.wait("replicated", 60)
        way.held.clear()
        await_replicated(receipt)
        await_copy(scene)
        check_equal(scene)


def test_a_line_that_is_cut_again_and_again(scene: Scene) -> None:
    """Wherever the cut is, the replica goes on there: nothing is missing, nothing doubled."""
    chance = random.Random(3)
    with over_a_line(scene) as (_, producer, way):
        for _ in range(6):
            passed = way.passed  # all of it may have passed before the flush is over
            for number in range(300):
                producer.send(f"t{number % 3}", bytes([number % 256]) * chance.randrange(2_000))
            producer.flush()
            wait_until(lambda passed=passed: way.passed > passed + 20_000, "some of it has passed")  # type: ignore[misc]
            way.cut()
        producer.flush("flushed", 60)
        await_copy(scene)
        check_equal(scene)


@pytest.mark.nightly
def test_a_bit_that_a_line_turns_over(scene: Scene) -> None:
    """In either way TLS notices it. The replica connects again: it is not of the certificates."""
    with over_a_line(scene) as (store, producer, made):
        for way in ("to store", "to replica"):
            in_sync(store, 1)
            made.flips.add(way)
            producer.send("orders", b"second")
            wait_until(lambda: not made.flips, "a bit is turned over")
            producer.flush("flushed", 60)
            await_copy(scene)
            check_equal(scene)


@pytest.mark.nightly
def test_a_bit_that_a_line_turns_over_in_the_handshake(scene: Scene) -> None:
    """In either way: the replica connects again, and blames no certificate."""
    with scene.open() as store, line(scene.port) as made, store.producer() as producer:
        for way in ("to store", "to replica"):
            made.flips.add(way)
            with scene.follower(port=made.port):
                wait_until(lambda: not made.flips, "a bit is turned over")
                producer.send("orders", b"one")
                producer.flush("flushed", 60)
                await_copy(scene)
