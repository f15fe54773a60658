"""The power of a replica's machine is cut: what it has acknowledged is there, and nothing else.

A replica's disk is recorded while it follows a store (crash/recording.py). Then the disk is made as
it may have been at any point of the record (crash/disk_model.py), and recovered by the real code.
The store's log is what was flushed there, so a prefix of it is a log that the store can't lose.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import commitlog
from commitlog.disk import file_channel
from commitlog.disk.replica_mark import load_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.inspecting.verify import verify_store
from commitlog.replicas.incoming import Incoming
from commitlog.replicas.promotion import promote, recover_all
from commitlog.replicas.replica import Replica
from commitlog.replicas.tls import Credentials
from commitlog.replicas.wire import ACKNOWLEDGEMENT, NO_LANE
from tests.crash.disk_model import Disk, Luck, write_state
from tests.crash.recording import Entry, Journal, recording
from tests.replicas.scene import Scene, await_copy, log_of


@contextmanager
def following(scene: Scene) -> Iterator[None]:
    """A replica in this process, whose disk is recorded."""
    certificate, key = scene.certificates.make("of-copy")
    credentials = Credentials(certificate, key, scene.certificates.authority)
    replica = Replica(scene.copy, f"localhost:{scene.port}", credentials, "copy")
    thread = threading.Thread(target=replica.run)
    thread.start()
    try:
        yield
    finally:
        replica.stop()
        thread.join()


def record(scene: Scene, chance: random.Random) -> tuple[list[Entry], dict[int, bytes]]:
    """The replica's record, and the store's log by lanes. The replica follows twice."""
    journal = Journal(scene.path / "journal")
    ours, real_sync = recording(scene.copy, journal.file), Incoming.sync

    def noted_sync(self: Incoming, *, beside: bool = False) -> bytes:
        said = real_sync(self, beside=beside)
        for lane, end in ACKNOWLEDGEMENT.iter_unpack(said):
            if lane != NO_LANE:
                journal.note("acknowledged", lane=lane, end=end)
        return said

    with scene.open() as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_channel, "os", ours)
        patch.setattr(Incoming, "sync", noted_sync)
        producers = [store.producer(), store.producer()]
        for _ in range(2):
            send(producers, chance, 100)
            with following(scene):
                send(producers, chance, 300)
                await_copy(scene)
        for producer in producers:
            producer.close()
        log = log_of(scene.primary)
    ours.journal.close()
    journal.close()
    return list(journal.entries()), log


def send(producers: list[commitlog.Producer], chance: random.Random, count: int) -> None:
    for number in range(count):
        producer = chance.choice(producers)
        producer.send(f"t{number % 3}", chance.randbytes(chance.choice((0, 10, 100, 400, 3000))))
        if chance.random() < 0.1:
            producer.flush("flushed", 60)
    for producer in producers:
        producer.flush("flushed", 60)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("states", [25, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_what_was_acknowledged_is_there_after_a_power_cut(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, states: int
) -> None:
    chance = random.Random(11)
    scene.sections["dispatcher"] = {"queue_file_entries": 1_000}  # a recovery reads all of each file
    entries, log = record(scene, chance)
    # The witness that the replica has left is newer than each of these states: they would be older
    # copies that somebody has put back, and lack what was acknowledged later.
    monkeypatch.setenv("XDG_STATE_HOME", str(scene.path / "of a machine whose power was cut"))
    disk, acknowledged, promoted = Disk(), dict.fromkeys(log, 0), 0
    cuts = sorted(chance.randrange(1, len(entries) + 1) for _ in range(states))
    at = 0
    for number, cut in enumerate(cuts):
        for entry in entries[at:cut]:
            disk.take(entry)
            if entry.what == "acknowledged":
                acknowledged[entry.facts["lane"]] = entry.facts["end"]
        at = cut
        luck: Luck = chance.choices(("none", "all", "some"), (2, 1, 7))[0]
        root = scene.path / f"state-{number}"
        write_state(disk.state(chance, luck), root)
        promoted += check(root, acknowledged, log)
    assert promoted > states // 4


def check(root: Path, acknowledged: dict[int, int], log: dict[int, bytes]) -> bool:
    """Recovers what is there, and promotes it where it may be. Returns whether it was."""
    directory = StoreDirectory(root)
    if not directory.file.exists():
        assert not any(acknowledged.values())
        return False
    mark = load_mark(directory)
    assert mark is not None
    if mark.complete:
        ends = dict(promote(root).ends)
    else:
        found = recover_all(directory, directory.load(), lambda line: None)
        ends = {lane: lane_end.end for lane, lane_end in found.items()}
    for lane, end in acknowledged.items():
        assert ends.get(lane, 0) >= end, f"lane {lane}: {end} was acknowledged, and {ends.get(lane, 0)} is there"
    for lane, end in ends.items():
        files = sorted((root / "lanes" / str(lane) / "commitlog").glob("[0-9]*"))
        assert b"".join(file.read_bytes() for file in files)[:end] == log[lane][:end]
    assert not mark.complete or verify_store(root).good
    return mark.complete
