"""What is known of replicas and their connections: what stays, and what goes for good."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.config import ReplicationConfig
from commitlog.disk.replica_files import ReplicaFiles, ReplicaState, forget_replica, known_replicas
from commitlog.stages.allocating.replica_needs import ReplicaNeeds
from commitlog.stages.replicating.in_sync import InSync
from commitlog.stages.replicating.lane_log import LaneLog
from commitlog.stages.replicating.peer_connection import HAConnection, Throttle
from commitlog.stages.replicating.peers import Peers
from commitlog.stages.replicating.slave_listener import SlaveListener
from commitlog.system.clock import SYSTEM_CLOCK
from tests.builders.idle_store import IdleStore, idle_store
from tests.fake_clock import SetClock
from tests.waiting import wait_until

CONFIG = ReplicationConfig(listen="h:1")


@pytest.fixture
def store(tmp_path: Path, shm_root: Path) -> Iterator[IdleStore]:
    with idle_store(tmp_path / "store", shm_root / "pool") as made:
        yield made


def peers_of(store: IdleStore, clock: SetClock | None = None) -> Peers:
    clock = clock or SetClock()
    in_sync = InSync(store.control, 1, CONFIG, clock, lambda *_: None)
    return Peers(store.directory, store.facts, store.control, CONFIG, clock, in_sync, lambda _: None)


def lane_log(store: IdleStore, limit: int) -> dict[int, LaneLog]:
    log = LaneLog(
        store.directory.lane_directory(0), store.control.row(0), store.facts.segment_bytes, store.directory.channel
    )
    log.limit = limit
    return {0: log}


def test_a_replica_that_is_gone_keeps_its_file(store: IdleStore) -> None:
    ReplicaFiles(store.directory).save(ReplicaState("copy", "replica", store.facts.id, acknowledged={0: 100}))
    peers_of(store).look(lane_log(store, 300))
    assert [(state.name, state.behind_bytes) for state in known_replicas(store.directory)] == [("copy", 200)]


def test_what_a_replica_lacks_gets_older_after_the_clock_was_set_back(store: IdleStore) -> None:
    ReplicaFiles(store.directory).save(ReplicaState("copy", "replica", store.facts.id, acknowledged={0: 100}))
    clock = SetClock()
    peers = peers_of(store, clock)
    peers.look(lane_log(store, 300))
    clock.wall -= 3_600_000
    peers.look(lane_log(store, 300))
    clock.pass_seconds(40)
    peers.look(lane_log(store, 300))
    assert [state.behind_ms(clock.wall) for state in known_replicas(store.directory)] == [40_000]


def test_a_replica_of_a_busy_store_is_not_behind_for_longer_and_longer(store: IdleStore) -> None:
    """It lacks something at each look, and has soon what it lacked before; then it stands still."""
    files = ReplicaFiles(store.directory)
    files.save(ReplicaState("copy", "replica", store.facts.id, acknowledged={0: 100}))
    clock = SetClock()
    peers = peers_of(store, clock)
    (state,) = peers._states.values()
    behind = []
    for look in range(90):
        state.acknowledged = {0: min(100 * (look + 1), 6_000)}
        peers.look(lane_log(store, 100 * (look + 2)))
        behind += [one.behind_ms(clock.wall) for one in known_replicas(store.directory)]
        clock.pass_seconds(1)
    assert max(behind[:60]) == 1_000
    assert behind[-1] == 31_000


def test_a_replica_that_was_forgotten_stays_so_while_the_log_grows(store: IdleStore) -> None:
    ReplicaFiles(store.directory).save(ReplicaState("copy", "replica", store.facts.id, acknowledged={0: 100}))
    peers = peers_of(store)
    peers.look(lane_log(store, 300))
    forget_replica(store.directory, "copy")
    peers.look(lane_log(store, 400))
    assert known_replicas(store.directory) == []


def test_a_file_that_can_not_be_read_hides_no_other_replica(store: IdleStore) -> None:
    """Retention keeps what the others lack, and everything for that one, until it is forgotten."""
    files = ReplicaFiles(store.directory)
    for name in ("a", "b"):
        files.save(ReplicaState(name, "replica", store.facts.id, acknowledged={0: 100}))
    (store.directory.replicas_directory / "a.json").write_bytes(b"garbage")
    needs = ReplicaNeeds(store.directory, store.facts.id, store.control, keep_bytes=1 << 30)
    needs.refresh()
    assert needs.lacking(0, 200) == ["a", "b"]
    forget_replica(store.directory, "a")
    needs.refresh()
    assert needs.lacking(0, 200) == ["b"]


class Stuck(HAConnection):
    """Sends more than its peer ever takes."""

    def greet(self) -> None:
        self.send(bytes(64 << 20))

    def take(self, data: bytes) -> None:
        raise AssertionError

    def send_next(self) -> bool:
        raise AssertionError

    def send_heartbeat(self) -> None:
        raise AssertionError

    def finish(self) -> None:
        pass


def test_a_connection_that_is_stuck_can_be_broken_off(store: IdleStore) -> None:
    """So a replica that comes again never counts twice."""
    ours, theirs = socket.socketpair()
    with theirs:
        peers = peers_of(store)
        connection = Stuck(ours, "copy", CONFIG, SYSTEM_CLOCK, peers.note_end)
        peers.add(connection, "replica", "h:2")
        assert theirs.recv(1)
        connection.break_off()
        assert not connection.is_alive()
        assert peers.named("copy") == []


def test_a_stop_breaks_off_a_connection_that_is_stuck(store: IdleStore) -> None:
    """Its peer takes nothing, and may do so for long."""
    ours, theirs = socket.socketpair()
    with theirs:
        peers = peers_of(store)
        patient = ReplicationConfig(listen="h:1", housekeeping_ms=10_000_000)
        connection = Stuck(ours, "copy", patient, SYSTEM_CLOCK, peers.note_end)
        peers.add(connection, "replica", "h:2")
        assert theirs.recv(1)
        peers.end({})
        assert not connection.is_alive()


def test_a_slave_that_is_silent_does_not_keep_the_stage_waiting(
    store: IdleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread finds what may be sent, so it asks no other machine anything."""
    asked: list[str] = []

    def silent(*_: object, **__: object) -> socket.socket:
        asked.append(threading.current_thread().name)
        raise TimeoutError("silent")

    monkeypatch.setattr(socket, "create_connection", silent)
    config = ReplicationConfig(slave_listen="127.0.0.1:0", slaves="0=127.0.0.1:10911")
    listener = SlaveListener(peers_of(store), config, SYSTEM_CLOCK, Throttle(0, SYSTEM_CLOCK))
    try:
        listener.serve(lane_log(store, 100))
        wait_until(lambda: asked, "the slave was asked")
    finally:
        listener.close()
    assert threading.current_thread().name not in asked


def test_who_wakes_a_connection_that_has_ended_writes_to_no_other_file(store: IdleStore) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    connection = Stuck(ours, "copy", CONFIG, SYSTEM_CLOCK, lambda *_: None)
    connection.start()
    connection.join()
    files = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(16)]
    try:
        connection.end()
        for file in files:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(file)
    finally:
        for file in files:
            os.close(file)
