"""The disk of a replica is full: it says so, waits, and goes on when there is room."""

from __future__ import annotations

import errno
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from commitlog.cli.app import app
from commitlog.errors import DiskInputOutput, ReplicaNotAvailable, ReplicationTimeout
from commitlog.replicas import replica
from commitlog.replicas.replica import Replica
from commitlog.replicas.tls import Credentials
from commitlog.system.clock import Clock
from tests.faults.channel import FaultsDirectory, FaultyChannel, Rule
from tests.nightly import with_nightly
from tests.replicas.scene import Scene, await_copy, check_equal, flushed_of
from tests.waiting import wait_until


class LateIndexing(Clock):
    """The time of a machine that is busy: a thread that indexes is late for its connection.

    It goes on when the copy is connected. The thread that takes in waits for its first round.
    """

    def __init__(self) -> None:
        self.replica: Replica | None = None
        self._looks: Counter[threading.Thread] = Counter()

    def monotonic_ns(self) -> int:
        replica, thread = self.replica, threading.current_thread()
        if replica is None:
            pass
        elif thread.name == "commitlog-index":
            self._looks[thread] += 1
            if self._looks[thread] == 1:
                wait_until(lambda: replica.mark.connected or replica._done.is_set(), "it is connected")
        elif replica.mark.connected:
            wait_until(self._have_all_looked, "the other thread has indexed")
        return super().monotonic_ns()

    def _have_all_looked(self) -> bool:
        return all(looks > 1 or not thread.is_alive() for thread, looks in list(self._looks.items()))


class Following:
    """A replica in this process, on a disk that fails on command. `said` has what it tells."""

    def __init__(self, scene: Scene) -> None:
        certificate, key = scene.certificates.make("of-copy")
        credentials = Credentials(certificate, key, scene.certificates.authority)
        self.faults, self.said = FaultsDirectory(scene.copy), list[str]()
        clock = LateIndexing()
        self.replica = clock.replica = Replica(
            scene.copy, f"localhost:{scene.port}", credentials, "copy",
            tell=self.said.append, channel=FaultyChannel(scene.copy), clock=clock,
        )  # fmt: skip
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.replica.run()
        except BaseException as error:
            self.error = error


@contextmanager
def following(scene: Scene) -> Iterator[Following]:
    made = Following(scene)
    try:
        yield made
    finally:
        if made.error is None:
            made.replica.stop()
        made.thread.join()
        assert made.error is None or isinstance(made.error, DiskInputOutput), repr(made.error)


FULL = {
    "a segment": Rule("allocate", "/tmp/", errno.ENOSPC),
    "half a record": Rule("pwrite", "/commitlog/", errno.ENOSPC, short=10),
    "a consume queue": Rule("pwrite", "/consumequeue/", errno.ENOSPC),
    "positions": Rule("pwrite", "/positions/", errno.EDQUOT),
    "a sync": Rule("fdatasync", "/commitlog/", errno.ENOSPC),
}


def stat(scene: Scene) -> str:
    return CliRunner().invoke(app, ["stat", str(scene.copy)]).output


@pytest.mark.parametrize("what", with_nightly(["a sync"], [what for what in FULL if what != "a sync"]))
def test_a_replica_whose_disk_is_full_goes_on_when_there_is_room(
    scene: Scene, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing counts as replicated that it does not have. The primary and its producers go on.

    It says once what it waits for, however often it tries, and though the store sends nothing for
    the first second of each connection.
    """
    monkeypatch.setattr(replica, "_ROOM_SECONDS", 0.2)
    with scene.open(transfer_second_bytes=60_000) as store, store.producer() as producer, following(scene) as copy:
        producer.send("orders", b"first")
        wait_until(lambda: store.statistics().lanes[0].in_sync == 1, f"it is in sync: {copy.error}")
        copy.faults.set(FULL[what])
        receipts = [producer.send(f"t{number % 3}", bytes(3_000)) for number in range(60)]
        producer.flush("flushed", 60)
        wait_until(lambda: any("there is room" in line for line in copy.said), f"it says so: {copy.said}")
        wait_until(lambda: store.statistics().lanes[0].in_sync == 0, "it is not in sync")
        wait_until(lambda: re.search(r" [1-9][0-9,]* ms behind, waits for room (on|in) its", stat(scene)), "stat, too")
        if what in ("a segment", "half a record", "a sync"):
            with pytest.raises((ReplicaNotAvailable, ReplicationTimeout)):
                receipts[-1].wait("replicated", 0.5)
        producer.send("orders", b"last").wait("flushed", 60)
        tries = copy.faults.hits()
        wait_until(lambda: copy.faults.hits() > tries + 1, "it has tried again")
        assert [line for line in copy.said if "there is room" in line] == copy.said[1:]
        assert flushed_of(scene.copy).get(0, 0) <= flushed_of(scene.primary)[0]
        copy.faults.clear()
        wait_until(lambda: store.statistics().lanes[0].in_sync == 1, "it is in sync again")
        producer.flush("replicated", 60)
        await_copy(scene)
        check_equal(scene)
        wait_until(lambda: "has room again" in copy.said[-1], "it says so")
        assert len(copy.said) == 3, copy.said
        wait_until(lambda: " 0 ms behind" in stat(scene) and "waits for" not in stat(scene), "nothing is in its way")


@pytest.mark.nightly
def test_a_broken_disk_ends_a_replica(scene: Scene) -> None:
    with scene.open() as store, store.producer() as producer, following(scene) as copy:
        producer.send("orders", b"first")
        wait_until(lambda: store.statistics().lanes[0].in_sync == 1, f"it is in sync: {copy.error}")
        copy.faults.set(Rule("fdatasync", "/commitlog/", errno.EIO))
        producer.send("orders", b"second").wait("flushed", 60)
        copy.thread.join(60)
        assert isinstance(copy.error, DiskInputOutput)
