"""A store whose pool is out of sight while a producer writes to it, as after a container's end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import RecoveryError, StoreStopped
from commitlog.status import PutMessageStatus
from tests.builders.killed import kill_store
from tests.namespaces import with_tmpfs
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
            with pytest.raises(StoreStopped, match=r"lane 0: .* lost messages that it had accepted"):
                lost.wait(level, timeout=60)
        new = producer.send("orders", b"longer than the lost one")
        assert new.wait(timeout=60) is PutMessageStatus.PUT_OK
        assert new.physical_offset == lost.physical_offset
        assert not lost.done("accepted")
        assert lost.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        with pytest.raises(StoreStopped, match="lost"):
            lost.wait(timeout=60)
        with pytest.raises(StoreStopped, match="lost"):
            asyncio.run(lost.wait_async())
        lost.add_callback(told.append)
        wait_until(lambda: told == [PutMessageStatus.SERVICE_NOT_AVAILABLE], "the callback")
        assert kept.done()
        kept.add_callback(told.append)
        wait_until(lambda: told[1:] == [PutMessageStatus.PUT_OK], "the callback of the message that was kept")
