"""A store whose pool is out of sight while a producer writes to it, as after a container's end."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog.errors import RecoveryError
from tests.builders.killed import kill_store
from tests.namespaces import with_tmpfs


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
