"""The committer locks write buffers into memory as they are used, or says why not."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog.shm.layout import Lane
from commitlog.shm.memory_lock import lock_memory_on_use
from commitlog.shm.write_buffers import WriteBuffers
from commitlog.stages import lane_buffers
from commitlog.stages.lane_buffers import LaneBuffers
from tests.builders.idle_store import SEGMENT, IdleStore, idle_store
from tests.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path, shm_root: Path) -> Iterator[IdleStore]:
    with idle_store(tmp_path / "store", shm_root / "pool") as made:
        WriteBuffers.create(shm_root / "pool", 0, SEGMENT, 3).close()
        yield made


def mapped(store: IdleStore, shm_root: Path) -> LaneBuffers:
    return LaneBuffers(store.control, store.control.lane_table(), locks_memory=True)


def _may_lock(size: int) -> bool:
    with mmap.mmap(-1, size) as memory, memoryview(memory) as view:
        return lock_memory_on_use(view) == 0


locks = pytest.mark.skipif(not _may_lock(3 * SEGMENT), reason="this process may not lock so much memory (ulimit -l)")


@locks
def test_buffers_are_locked_and_let_go(store: IdleStore, shm_root: Path) -> None:
    """Three segments fit into the usual limit.

    Memory that is given back is unmapped, because it would stay otherwise.
    """
    store.set(0, LOCKED_BYTES=7)
    buffers = mapped(store, shm_root)
    assert store.get(0, Lane.LOCKED_BYTES) == 0  # the committer that had locked them was killed
    buffers.follow()
    assert store.get(0, Lane.LOCKED_BYTES) == 3 * SEGMENT
    assert locked_kib() == 3 * SEGMENT // 1024
    store.set(0, BUFFERS=2)
    buffers.follow()
    assert store.get(0, Lane.LOCKED_BYTES) == locked_kib() == 0
    buffers.close()


@locks
def test_only_pages_that_were_used_are_in_the_committers_memory(store: IdleStore, shm_root: Path) -> None:
    """The kernel locks a page when it is read through the mapping."""
    buffers = mapped(store, shm_root)
    slot = buffers.get(0).slot(0)
    assert resident_kib(shm_root) == 0
    assert slot[0] == 0
    assert 0 < resident_kib(shm_root) <= SEGMENT // 1024  # the kernel maps the pages around it too
    slot.release()
    buffers.close()


def resident_kib(shm_root: Path) -> int:
    """How much of lane 0's buffers is mapped into this process, as the kernel says."""
    text = Path("/proc/self/smaps").read_text()
    return int(text[text.index(f"{shm_root}/pool/lane-0") :].partition("\nRss:")[2].split()[0])


def locked_kib() -> int:
    """What this process has locked, as the kernel says."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmLck:"))


def test_memory_that_can_not_be_locked_is_used_all_the_same(
    store: IdleStore, shm_root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, not with each lease, with the limit and the way out."""
    monkeypatch.setattr(lane_buffers, "lock_memory_on_use", lambda mapping: errno.ENOMEM)
    buffers = mapped(store, shm_root)
    for sequence in (1, 3):
        store.set(0, BUFFERS=sequence)
        assert buffers.get(0).slot(0)[0] == 0
    assert caplog.text.count("not locked into memory (ENOMEM)") == 1
    assert "LimitMEMLOCK" in caplog.text
    assert store.get(0, Lane.LOCKED_BYTES) == 0
    buffers.close()


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
