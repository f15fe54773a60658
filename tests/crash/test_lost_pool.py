"""A store whose pool is out of sight while a producer writes to it, as after a container's end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import MessagesLost, RecoveryError, StageFailed
from commitlog.status import PutMessageStatus
from tests.builders.killed import kill_store
from tests.faults.channel import FaultsDirectory, Rule
from tests.faults.supervisor import OWN_DISK, patched_stages
from tests.namespaces import with_tmpfs
from tests.nightly import with_nightly
from tests.waiting import wait_until


@pytest.mark.leaves_pools
def test_a_start_is_refused_while_a_producer_writes_to_a_pool_elsewhere(tmp_path: Path, shm_root: Path) -> None:
    """Otherwise the producer would go on, and nobody would ever take what it sends to the disk."""
    config = {"store": {"segment_bytes": 1 << 16}, "supervisor": {"start_wait_ms": 100}}
    store = commitlog.Store.open(tmp_path / "store", config)

    def refused() -> None:
        with pytest.raises(RecoveryError, match=r"lane 0: .*lock is held, by a producer of the last run"):
            commitlog.Store.open(store.path, config)

    def goes_on() -> None:
        with commitlog.Store.open(store.path, config), commitlog.Reader(store.path, topic="orders") as reader:
            assert [message.value for message in reader] == [b"flushed"]

    with commitlog.Producer(store.path) as producer:
        producer.send("orders", b"flushed")
        producer.flush(timeout=30)
        kill_store(store)
        producer.send("orders", b"only in the old pool")
        with_tmpfs(shm_root, 8 << 20, refused)
    with_tmpfs(shm_root, 8 << 20, goes_on)


@pytest.mark.leaves_pools
def test_a_receipt_of_a_lost_message_stays_unconfirmed(tmp_path: Path, shm_root: Path) -> None:
    """A killed store has lost the memory of one lane. Other messages take the lost ones' places."""
    config = {"store": {"segment_bytes": 1 << 16}}
    store = commitlog.Store.open(tmp_path / "store", config)
    with commitlog.Producer(store.path) as producer:
        kept = producer.send("orders", b"flushed")
        kept.wait(timeout=60)
        kill_store(store)
        lost = producer.send("orders", b"in the pool")
    (buffers,) = shm_root.glob("commitlog-*/lane-0")
    buffers.unlink()
    told: list[PutMessageStatus] = []
    with commitlog.Store.open(store.path, config) as store, store.producer() as producer:
        for level in ("accepted", "flushed"):
            with pytest.raises(MessagesLost, match=r"lane 0: .* lost messages that it had accepted"):
                lost.wait(level, timeout=60)
        new = producer.send("orders", b"longer than the lost one")
        assert new.wait(timeout=60) is PutMessageStatus.PUT_OK
        assert new.physical_offset == lost.physical_offset
        assert not lost.done("accepted")
        assert lost.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        with pytest.raises(MessagesLost):
            lost.wait(timeout=60)
        with pytest.raises(MessagesLost):
            asyncio.run(lost.wait_async())
        lost.add_callback(told.append)
        wait_until(lambda: told == [PutMessageStatus.SERVICE_NOT_AVAILABLE], "the callback")
        assert kept.done()
        kept.add_callback(told.append)
        wait_until(lambda: told[1:] == [PutMessageStatus.PUT_OK], "the callback of the message that was kept")


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_a_receipt_of_a_lost_message_outlives_another_loss(tmp_path: Path, shm_root: Path) -> None:
    """The second one begins further behind in the log."""
    config = {"store": {"segment_bytes": 1 << 16}}
    lost = []
    for _ in range(2):
        store = commitlog.Store.open(tmp_path / "store", config)
        with commitlog.Producer(store.path) as producer:
            for _ in range(3):
                kept = producer.send("orders", b"flushed")
            kept.wait(timeout=60)
            kill_store(store)
            lost.append(producer.send("orders", b"in the pool"))
        (buffers,) = shm_root.glob("commitlog-*/lane-0")
        buffers.unlink()
    with commitlog.Store.open(store.path, config) as store, store.producer() as producer:
        assert producer.send("orders", b"behind all").wait(timeout=60) is PutMessageStatus.PUT_OK
        for receipt in lost:
            with pytest.raises(MessagesLost):
                receipt.wait(timeout=60)
        assert kept.done()
    with commitlog.Reader(store.path, topic="orders") as reader:
        assert [message.value for message in reader] == [b"flushed"] * 6 + [b"behind all"]


@pytest.mark.leaves_pools
@pytest.mark.parametrize("step", with_nightly([2], [0, 1, 3, 5, 8]))
def test_a_start_that_is_killed_while_it_recovers_a_lane_without_memory_is_repeated(
    step: int, tmp_path: Path, shm_root: Path
) -> None:
    """The log has no hole then, and the receipt of a lost message is not confirmed."""
    path = tmp_path / "store"
    faults = FaultsDirectory(path)
    with patched_stages(OWN_DISK):
        store = commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 16}})
        with commitlog.Producer(store.path) as producer:
            producer.send("orders", b"flushed").wait(timeout=60)
            kill_store(store)
            lost = producer.send("orders", b"in the pool")
        (buffers,) = shm_root.glob("commitlog-*/lane-0")
        buffers.unlink()
        faults.set(Rule("sync_directory", "/lanes/0", dies="before", skip=step, times=1))
        with pytest.raises(StageFailed):
            commitlog.Store.open(path).close()
        faults.clear()
        with commitlog.Store.open(path) as store, store.producer() as producer:
            producer.send("orders", b"longer than the lost one").wait(timeout=60)
            with pytest.raises(MessagesLost):
                lost.wait(timeout=60)
        with commitlog.Reader(path, topic="orders") as reader:
            assert [message.value for message in reader] == [b"flushed", b"longer than the lost one"]
