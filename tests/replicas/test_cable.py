"""A store and its replica on two machines, with a cable that loses packets, is slow, and breaks."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import commitlog
from commitlog.client.statistics import store_statistics
from commitlog.errors import ReplicaNotAvailable, ReplicationTimeout
from commitlog.reading.view import StoreView
from commitlog.replicas.promotion import promote
from tests.replicas.cable import ADDRESSES, TO_REPLICA, TO_STORE, Cable, Machines, two_machines, why_not
from tests.replicas.scene import Scene, await_copy, await_replicated, check_equal
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
    pytest.mark.timeout(1200),
    pytest.mark.leaves_pools,
]
PORT = 4440
STORE = """
import json, sys, commitlog
with commitlog.Store.open(sys.argv[1], json.loads(sys.argv[2])):
    sys.stdin.read()
"""
PATIENCE_SECONDS = 200.0
"""TCP waits longer and longer before it sends again what was lost."""


def start_store(scene: Scene, machines: Machines) -> None:
    certificate, key = scene.certificates.make("machine", ADDRESSES[0])
    config = scene.config(
        listen=f"{ADDRESSES[0]}:{PORT}",
        certificate=str(certificate),
        key=str(key),
        housekeeping_ms=3_000,
    )
    machines.start(0, "-c", STORE, str(scene.primary), json.dumps(config))


def start_replica(scene: Scene, machines: Machines) -> None:
    words = scene.arguments(name="copy")
    words[words.index("--from") + 1] = f"{ADDRESSES[0]}:{PORT}"
    machines.start(1, "-m", "commitlog", "replica", *words, "--name", "copy")


def await_in_sync(path: Path, count: int) -> None:
    def is_so() -> bool:
        view = StoreView(path)
        try:
            return store_statistics(view).lanes[0].in_sync == count
        finally:
            view.close()

    wait_until(is_so, f"{count} in sync", patience=PATIENCE_SECONDS)


class Sender:
    """Sends to a store, and notes what it was told is replicated."""

    def __init__(self, producer: commitlog.Producer, seed: int) -> None:
        self.producer, self._random = producer, random.Random(seed)
        self.replicated: list[bytes] = []

    def send(self, count: int) -> tuple[list[bytes], commitlog.Receipt]:
        values = [b"%d " % self._random.getrandbits(64) * self._random.randrange(1, 60) for _ in range(count)]
        receipts = [self.producer.send(f"t{number % 3}", value) for number, value in enumerate(values)]
        self.producer.flush("flushed", 60)
        return values, receipts[-1]

    def send_and_replicate(self, count: int) -> None:
        values, last = self.send(count)
        await_replicated(last)
        self.replicated += values


def break_cable(cable: Cable, held: set[int], sender: Sender, path: Path) -> None:
    """Nothing comes through for a while: nothing counts as replicated then, and nothing is lost."""
    cable.held = held
    values, last = sender.send(50)
    with pytest.raises((ReplicationTimeout, ReplicaNotAvailable)):
        last.wait("replicated", 0.5)
    await_in_sync(path, 0)
    sender.send(50)
    cable.held = set()
    await_in_sync(path, 1)
    await_replicated(last)
    sender.replicated += values


def test_a_cable_that_loses_packets_is_slow_and_breaks(scene: Scene) -> None:
    """Loss of 5 %, 100 ms each way; then it is half open, in each way, and cut in both."""
    with two_machines(5) as (machines, cable):
        start_store(scene, machines)
        wait_until(lambda: (scene.primary / "lanes").exists() and _runs(scene.primary), "the store runs")
        start_replica(scene, machines)
        with commitlog.Producer(scene.primary) as producer:
            sender = Sender(producer, 5)
            sender.send(10)
            await_in_sync(scene.primary, 1)
            cable.loss, cable.delay = 0.05, 0.1
            for _ in range(5):
                sender.send_and_replicate(200)
            assert cable.lost > 0
            for held in ({TO_REPLICA}, {TO_STORE}, {TO_REPLICA, TO_STORE}):
                break_cable(cable, held, sender, scene.primary)
            cable.loss = cable.delay = 0.0
            sender.send_and_replicate(200)
            await_copy(scene)
            check_equal(scene)
            cable.held = {TO_REPLICA, TO_STORE}
            sender.send(50)
    promote(scene.copy)
    with commitlog.Reader(scene.copy) as reader:
        there = {bytes(message.value) for message in reader}
    assert not [value for value in sender.replicated if value not in there]


def _runs(path: Path) -> bool:
    view = StoreView(path)
    try:
        return view.control is not None
    finally:
        view.close()
