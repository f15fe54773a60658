"""Slaves that follow a running store: what they get, when, and who is turned out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import commitlog
from commitlog import errors
from commitlog.cli.app import app
from commitlog.disk.replica_files import ReplicaState, known_replicas
from commitlog.disk.store_directory import StoreDirectory
from commitlog.status import PutMessageStatus
from tests.builders.slave import Slave, slave_port
from tests.waiting import wait_until

SEGMENT = 1 << 16
Replicated = tuple[commitlog.Store, commitlog.Producer]


def config(store: dict[str, Any] | None = None, **replication: Any) -> dict[str, Any]:
    knobs = {"slave_listen": "127.0.0.1:0", "slaves_count": True, "heartbeat_ms": 100, **replication}
    return {"store": {"segment_bytes": SEGMENT, "max_lanes": 2, **(store or {})}, "replication": knobs}


@contextmanager
def replicated(path: Path, **replication: Any) -> Iterator[Replicated]:
    with commitlog.Store.open(path, config(**replication)) as store, store.producer() as producer:
        producer.send("t", b"the first")
        yield store, producer


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    with commitlog.Store.open(tmp_path_factory.mktemp("slaves") / "store", config()) as opened:
        opened.statistics()  # it keeps a descriptor
        yield opened


@contextmanager
def shared(running: commitlog.Store) -> Iterator[Replicated]:
    """One store for tests that ask nothing about its replica's past, and a producer of the test.

    It is no fixture, because pytest would keep the producer, and so its descriptor.
    """
    with commitlog.Producer(running.path) as producer:
        in_sync(running, 0)
        producer.send("t", b"the first")
        yield running, producer


def fill(producer: commitlog.Producer, count: int = 300) -> int:
    """Messages over several segments. Returns where the log ends."""
    for number in range(count):
        end = producer.send(f"t{number % 3}", bytes([number % 256]) * (number * 37 % 1500)).end
    producer.flush(timeout=60)
    return end


def log_of(path: Path, end: int) -> bytes:
    files = sorted((path / "lanes" / "0" / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[:end]


def replica(path: Path) -> ReplicaState:
    (state,) = wait_until(lambda: known_replicas(StoreDirectory(path)), "a replica's file")
    return state


@contextmanager
def following(slave: Slave) -> Iterator[None]:
    """The slave takes and acknowledges all that comes, in a thread, until the block ends."""

    def work() -> None:
        with contextlib.suppress(OSError):  # the test has shut it
            while slave.receive():
                slave.acknowledge()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        slave.shut()
        thread.join()


def test_a_slave_gets_the_log_byte_for_byte(running: commitlog.Store) -> None:
    """Also the zeros behind a BLANK; no frame crosses the end of a segment."""
    with shared(running) as (store, producer), Slave(slave_port(store.path)) as slave:
        end = fill(producer)
        slave.follow(end)
        assert bytes(slave.log) == log_of(store.path, end)
        assert end > 2 * SEGMENT
        for offset, size in slave.frames:
            assert not size or offset // SEGMENT == (offset + size - 1) // SEGMENT
        producer.send("t", b"one more").wait("flushed", 60)
        slave.follow(store.statistics().lanes[0].flushed)
        assert bytes(slave.log).endswith(log_of(store.path, slave.end)[end:])


def test_a_slave_goes_on_where_it_was(tmp_path: Path) -> None:
    with replicated(tmp_path / "store") as (store, producer):
        port = slave_port(store.path)
        with Slave(port) as slave:
            where = fill(producer)
            slave.follow(where)
        with Slave(port, where) as again:
            again.follow(fill(producer, 50))
        assert bytes(slave.log + again.log) == log_of(store.path, again.end)
        assert wait_until(lambda: replica(store.path).connects == 2)


def test_messages_are_replicated_when_the_slave_has_them(running: commitlog.Store) -> None:
    """By wait, done, flush, await and callbacks."""
    with shared(running) as (store, producer), Slave(slave_port(store.path)) as slave:
        with following(slave):
            receipt = producer.send("t", b"x")
            in_sync(store)
            assert receipt.wait("replicated", 60) is PutMessageStatus.PUT_OK
            assert receipt.done("replicated")
            producer.flush("replicated", 60)
            told: list[PutMessageStatus] = []
            producer.send("t", b"y").add_callback(told.append, "replicated")
            assert wait_until(lambda: told) == [PutMessageStatus.PUT_OK]
            assert asyncio.run(wait_for_it(producer)) is PutMessageStatus.PUT_OK
        lane = store.statistics().lanes[0]
        assert lane.replicated == lane.flushed


async def wait_for_it(producer: commitlog.Producer) -> PutMessageStatus:
    return await producer.send("t", b"z").wait_async("replicated")


def in_sync(store: commitlog.Store, count: int = 1) -> None:
    wait_until(lambda: store.statistics().lanes[0].in_sync == count, f"{count} in sync")


def test_who_waits_without_a_replica_is_told_at_once(running: commitlog.Store) -> None:
    with shared(running) as (_, producer):
        receipt = producer.send("t", b"x")
        with pytest.raises(errors.ReplicaNotAvailable, match="0 of 1 replicas are in sync") as refused:
            receipt.wait("replicated")
        assert refused.value.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert receipt.done("flushed")
        told: list[PutMessageStatus] = []
        receipt.add_callback(told.append, "replicated")
        assert wait_until(lambda: told) == [PutMessageStatus.SLAVE_NOT_AVAILABLE]
        with pytest.raises(errors.ReplicaNotAvailable):
            asyncio.run(wait_for_it(producer))


def test_a_replica_that_is_slow_is_a_timeout(running: commitlog.Store) -> None:
    """The message is flushed here, and the slave may still get it."""
    with shared(running) as (store, producer), Slave(slave_port(store.path)) as slave:
        slave.follow(fill(producer))
        in_sync(store)
        receipt = producer.send("t", b"x")
        with pytest.raises(errors.ReplicationTimeout) as late:
            receipt.wait("replicated", 0.2)
        assert late.value.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        told: list[PutMessageStatus] = []
        receipt.add_callback(told.append, "replicated", timeout=0.1)
        assert wait_until(lambda: told) == [PutMessageStatus.FLUSH_SLAVE_TIMEOUT]
        slave.follow(receipt.end)
        assert receipt.wait("replicated", 60) is PutMessageStatus.PUT_OK


def test_a_sync_master_sends_when_the_replica_has_it(tmp_path: Path) -> None:
    with replicated_sync(tmp_path / "store") as (store, producer, slave):
        with following(slave):
            in_sync(store)
            receipt = producer.send("t", b"x")
            assert receipt.done("replicated")
            assert receipt.status is PutMessageStatus.PUT_OK
            batch = producer.send_batch("t", [b"1", b"2"])
            assert batch.done("replicated")
        in_sync(store, 0)
        with pytest.raises(errors.ReplicaNotAvailable) as refused:
            producer.send("t", b"nobody has it")
        left = refused.value.receipt
        assert left is not None
        assert left.done("flushed")
        assert left.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT


@pytest.mark.nightly
def test_two_slaves_of_one_address_count_as_two(tmp_path: Path) -> None:
    """As through a tunnel: their protocol has no names."""
    with replicated(tmp_path / "store", min_in_sync=2) as (store, producer):
        fill(producer)
        port = slave_port(store.path)
        with Slave(port) as one, Slave(port) as two, following(one), following(two):

            def both_count() -> bool:
                producer.send("orders", b"both get it").wait("flushed", 60)
                return store.statistics().lanes[0].in_sync == 2

            wait_until(both_count, "both count")
            producer.send("orders", b"both have it").wait("replicated", 60)


@contextmanager
def replicated_sync(path: Path) -> Iterator[tuple[commitlog.Store, commitlog.Producer, Slave]]:
    with (
        commitlog.Store.open(path, config(role="SYNC_MASTER", slave_timeout_ms=60_000)) as store,
        store.producer() as producer,
    ):
        producer.send("t", b"the first", wait=False)
        with Slave(slave_port(store.path)) as slave:
            yield store, producer, slave


@pytest.mark.nightly
def test_slaves_count_only_where_that_is_configured(tmp_path: Path) -> None:
    with (
        replicated(tmp_path / "store", slaves_count=False) as (store, producer),
        Slave(slave_port(store.path)) as slave,
    ):
        end = fill(producer)
        slave.follow(end)
        wait_until(lambda: replica(store.path).acknowledged == {0: end})
        assert store.statistics().lanes[0].in_sync == 0
        with pytest.raises(errors.ReplicaNotAvailable):
            producer.send("t", b"x").wait("replicated", 60)


def test_a_store_without_replicas_has_no_such_level(tmp_path: Path) -> None:
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as producer:
        receipt = producer.send("t", b"x")
        for wait in (receipt.done, receipt.wait, producer.flush):
            with pytest.raises(errors.IllegalArgument, match="not replicated"):
                wait("replicated")


@pytest.mark.parametrize(
    ("request_at", "why"),
    [(1 << 40, "it has another log, or more than this store"), (-5, "too far behind"), (1, None)],
)
def test_a_slave_asks_for_what_is_not_there(running: commitlog.Store, request_at: int, why: str | None) -> None:
    with shared(running) as (store, producer):
        fill(producer)
        slave = Slave(slave_port(store.path), request_at)
        if why is None:  # RocketMQ's way to ask for the whole history
            slave.follow(store.statistics().lanes[0].flushed)
            assert bytes(slave.log) == log_of(store.path, slave.end)[1:]
        else:
            assert slave.is_turned_out()
            assert wait_until(lambda: why in replica(store.path).refusal)
        slave.close()


def test_an_acknowledgement_beyond_what_was_sent_ends_the_connection(running: commitlog.Store) -> None:
    with shared(running) as (store, producer), Slave(slave_port(store.path)) as slave:
        end = fill(producer)
        slave.follow(end)
        slave.acknowledge(end + 1)
        assert slave.is_turned_out()
        assert wait_until(lambda: "it follows another log" in replica(store.path).refusal)


@pytest.mark.nightly
def test_what_retention_has_deleted(tmp_path: Path) -> None:
    """A slave with nothing begins at the first kept offset; one that is behind is refused."""
    with replicated(tmp_path / "store", keep_bytes=0) as (store, producer):
        fill(producer)
        first = wait_until(lambda: trimmed(store), "segments that are indexed and deleted")
        port = slave_port(store.path)
        with Slave(port) as slave:
            slave.follow(store.statistics().lanes[0].flushed)
            assert slave.begin == first
        with Slave(port, 8) as behind:
            assert behind.is_turned_out()
        assert "retention keeps the log from" in wait_until(lambda: replica(store.path).refusal)


def trimmed(store: commitlog.Store) -> int:
    """The first offset that is kept after a trim; 0 where nothing could be deleted yet."""
    done = CliRunner().invoke(app, ["trim", str(store.path), "--keep-bytes", "0", "--force", "--yes"])
    assert done.exit_code == 0, done.output
    return store.statistics().lanes[0].first


def test_heartbeats_keep_a_connection_and_silence_ends_it(tmp_path: Path) -> None:
    """A heartbeat has the exact next offset, and no data."""
    with replicated(tmp_path / "store", housekeeping_ms=3_000) as (store, producer):
        end = fill(producer)
        with Slave(slave_port(store.path)) as slave:
            slave.follow(end)
            while (end, 0) not in slave.frames:
                assert slave.receive()
            assert slave.is_turned_out()


def test_garbage_ends_a_connection_and_harms_no_other(running: commitlog.Store) -> None:
    with shared(running) as (store, producer), Slave(slave_port(store.path)) as slave:
        with socket.create_connection(("127.0.0.1", slave_port(store.path))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            stranger.settimeout(60)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        slave.follow(fill(producer))
        assert bytes(slave.log) == log_of(store.path, slave.end)


def test_a_killed_service_comes_back(tmp_path: Path) -> None:
    """What counted as replicated stays, and the slave goes on."""
    with replicated(tmp_path / "store") as (store, producer):
        with Slave(slave_port(store.path)) as slave:
            end = fill(producer)
            slave.follow(end)
            wait_until(lambda: store.statistics().lanes[0].replicated == end)
            (stage,) = (stage for stage in store.statistics().stages if stage.stage == "ha_service")
            os.kill(stage.pid, signal.SIGKILL)
            slave.is_turned_out()
        wait_until(lambda: store.statistics().stages[-1].pid not in (0, stage.pid))
        assert store.statistics().lanes[0].replicated == end
        port = wait_until(lambda: (port := slave_port(store.path)) and can_connect(port) and port)
        with Slave(port, end) as again:
            again.follow(fill(producer, 20))
            wait_until(lambda: store.statistics().lanes[0].replicated == again.end)


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_a_stop_waits_for_the_slave(tmp_path: Path) -> None:
    """What was flushed last reaches a slave that is connected, so that it can take over."""
    with commitlog.Store.open(tmp_path / "store", config()) as store, store.producer() as producer:
        producer.send("t", b"x")
        with Slave(slave_port(store.path)) as slave, following(slave):
            in_sync(store)
            for _ in range(2_000):
                end = producer.send("t", b"y" * 500).end
            store.close()
    assert slave.end == end


def test_a_slave_broker_of_rocketmq_5_is_told_its_master(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        broker.settimeout(60)
        address = f"127.0.0.1:{broker.getsockname()[1]}"
        with replicated(tmp_path / "store", slaves=f"0={address}") as (store, producer):
            peer, _ = broker.accept()
            with peer:
                peer.settimeout(60)
                size = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
                told = peer.recv(size, socket.MSG_WAITALL)
            assert int.from_bytes(told[:4], "big") == size - 4
            assert b'"code":906' in told
            assert f'"masterHaAddress":"127.0.0.1:{slave_port(store.path)}"'.encode() in told
            assert producer.send("t", b"x").done("accepted")
