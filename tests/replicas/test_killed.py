"""kill -9 of the replica, of the HAService and of the whole primary, at random moments.

Afterwards the copy is a prefix of the primary's log, byte for byte. Nothing that was acknowledged
as replicated is missing on it when it is promoted.
"""

from __future__ import annotations

import contextlib
import random

import pytest

import commitlog
from commitlog.errors import StageFailed
from commitlog.inspecting.verify import verify_store
from commitlog.replicas.promotion import promote
from tests.crash.scene import kill, pid_of
from tests.nightly import with_nightly
from tests.replicas.scene import ReplicaCommand, Scene, await_copy, check_equal, kill_all, log_of
from tests.replicas.sender import Sender
from tests.waiting import wait_until

pytestmark = pytest.mark.leaves_pools
KINDS = ("replica", "ha_service", "primary", "all")


def carry_out(kind: str, scene: Scene, store: commitlog.Store, command: ReplicaCommand) -> commitlog.Store:
    """One kill. Returns the store that runs then."""
    if kind in ("replica", "all"):
        command.kill()
    if kind == "ha_service":
        kill(pid_of(scene.primary, "ha_service"))
    if kind in ("primary", "all"):
        kill_all(store)
        store = scene.open()
    if kind in ("replica", "all"):
        command.start()
    return store


def await_replicated(noted: list[bytes], wanted: int) -> None:
    wait_until(lambda: len(noted) >= wanted, "messages are replicated")


@pytest.mark.lasting
@pytest.mark.parametrize(
    ("kind", "seed", "kills"),
    with_nightly([("all", 0, 1)], [(kind, seed, 3) for kind in KINDS for seed in range(18)]),
)
def test_nothing_that_was_replicated_is_lost_by_kills(scene: Scene, kind: str, seed: int, kills: int) -> None:
    """Each seed has kills of its kind and one at the end: over 200 in `-m nightly`."""
    rng, noted = random.Random(seed), list[bytes]()
    scene.sections["supervisor"] = {"start_wait_ms": 60_000}
    store = scene.open()
    with scene.replica() as command:
        try:
            for _ in range(kills):
                sender = Sender(scene.primary, rng.getrandbits(32), [], noted)
                wanted = len(noted) + rng.randrange(1, 400)
                await_replicated(noted, wanted)
                store = carry_out(kind, scene, store, command)
                sender.end()
            await_copy(scene)
            check_equal(scene)
            sender = Sender(scene.primary, rng.getrandbits(32), [], noted)
            wanted = len(noted) + rng.randrange(1, 400)
            await_replicated(noted, wanted)
            if rng.random() < 0.5:
                command.kill()
                kill_all(store)
            else:
                kill_all(store)
                command.kill()
            sender.end()
        finally:
            with contextlib.suppress(StageFailed):
                store.close()
    promote(scene.copy)
    with commitlog.Reader(scene.copy, topic="orders") as reader:
        there = {bytes(message.value) for message in reader}
    assert not [value for value in noted if value not in there]
    assert verify_store(scene.copy).good
    scene.open().close()
    copy, primary = log_of(scene.copy), log_of(scene.primary)
    assert all(primary[lane].startswith(data) for lane, data in copy.items())
