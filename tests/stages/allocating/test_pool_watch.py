"""Write buffers that run short are reported; locked memory is locked, or it is said why not."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog.shm.layout import Lane
from commitlog.shm.memory_lock import lock_memory
from commitlog.shm.pool import WriteBuffers
from commitlog.stages.allocating import pool_watch
from commitlog.stages.allocating.pool_watch import PoolWatch
from tests.builders.idle_store import SEGMENT, IdleStore, idle_store
from tests.waiting import wait_until

SECOND = 1_000_000_000


@pytest.fixture
def store(tmp_path: Path, shm_root: Path) -> Iterator[IdleStore]:
    with idle_store(tmp_path / "store", shm_root / "pool") as made:
        yield made


def watch(store: IdleStore, shm_root: Path, *, locks: bool = False) -> PoolWatch:
    return PoolWatch(shm_root / "pool", store.control.lane_table(), 1000, locks)


def test_a_pool_that_stays_empty_is_warned_about_once(
    store: IdleStore, shm_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not when it is empty for a moment; again when it was free in between."""
    caplog.set_level("INFO")
    looker = watch(store, shm_root)
    store.set(0, WROTE=2 * SEGMENT + 5)  # three buffers, all in use
    looker.update(0)
    assert store.get(0, Lane.LOW_WATER) == 0
    for seconds in (1, 2, 3):
        looker.update(seconds * SECOND)
    assert store.get(0, Lane.LOW_WATER) == 1
    assert caplog.text.count("no write buffer has been free for 1000 ms") == 1
    store.set(0, FLUSHED=2 * SEGMENT)
    looker.update(4 * SECOND)
    assert "free again" in caplog.text
    store.set(0, FLUSHED=2 * SEGMENT, WROTE=4 * SEGMENT + 5)
    looker.update(5 * SECOND)
    looker.update(6 * SECOND)
    assert store.get(0, Lane.LOW_WATER) == 2
    looker.close()


def _may_lock(size: int) -> bool:
    with mmap.mmap(-1, size) as memory, memoryview(memory) as view:
        return lock_memory(view) == 0


locks = pytest.mark.skipif(not _may_lock(3 * SEGMENT), reason="this process may not lock so much memory (ulimit -l)")


@locks
def test_buffers_are_locked_and_let_go(store: IdleStore, shm_root: Path) -> None:
    """Three segments fit into the usual limit.

    Memory that is given back is unmapped, because it would stay otherwise.
    """
    WriteBuffers.create(shm_root / "pool", 0, SEGMENT, 3).close()
    store.set(0, LOCKED_BYTES=7)
    looker = watch(store, shm_root, locks=True)
    assert store.get(0, Lane.LOCKED_BYTES) == 0  # the allocator that had locked them was killed
    looker.update(0)
    looker.lock_one()
    assert store.get(0, Lane.LOCKED_BYTES) == 3 * SEGMENT
    assert locked_kib() == 3 * SEGMENT // 1024
    store.set(0, BUFFERS=2)
    looker.update(1)
    assert store.get(0, Lane.LOCKED_BYTES) == locked_kib() == 0
    looker.close()


def locked_kib() -> int:
    """What this process has locked, as the kernel says."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmLck:"))


def test_memory_that_can_not_be_locked_is_used_all_the_same(
    store: IdleStore, shm_root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, not with each lease, with the limit and the way out."""
    WriteBuffers.create(shm_root / "pool", 0, SEGMENT, 3).close()
    monkeypatch.setattr(pool_watch, "lock_memory", lambda mapping: errno.ENOMEM)
    looker = watch(store, shm_root, locks=True)
    for now in (0, 1):
        looker.update(now)
        looker.lock_one()
    store.set(0, BUFFERS=3)
    looker.update(2)
    looker.lock_one()
    assert caplog.text.count("not locked into memory (ENOMEM)") == 1
    assert "LimitMEMLOCK" in caplog.text
    assert store.get(0, Lane.LOCKED_BYTES) == 0
    looker.close()


@locks
def test_a_running_store_locks_its_lanes(tmp_path: Path) -> None:
    """A store does so by default, and the statistics show it.

    Nothing stays locked or mapped when the lane is given back.
    """
    config = {
        "store": {"segment_bytes": 1 << 16},
        "allocator": {"lane_idle_ms": 10, "interval_ms": 10},
    }
    with commitlog.Store.open(tmp_path / "store", config) as store:
        with store.producer() as producer:
            wait_until(lambda: producer.statistics().locked_bytes == 3 << 16, "the lane to be locked")
            producer.send("t", b"x")
        wait_until(lambda: store.statistics().lanes[0].available_buffers is None, "the lane to be given back")
        wait_until(lambda: store.statistics().lanes[0].locked_bytes == 0, "the lock to be let go")
