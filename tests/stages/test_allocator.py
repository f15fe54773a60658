"""The allocator, turned by hand: what is made first, what is left of a killed one, a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commitlog.config import Config
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.shm.counters import RetentionFlag
from commitlog.shm.layout import Header, Lane
from commitlog.stages.allocator import Allocator
from commitlog.system.clock import Clock
from tests.builders.idle_store import SEGMENT, IdleStore, idle_store
from tests.fake_clock import SetClock


@contextmanager
def allocator(store: IdleStore, channel: FileChannel = DISK, clock: Clock | None = None) -> Iterator[Allocator]:
    """An allocator in this process; it does what it is told, and leaves nothing."""
    service = Allocator(store.directory.path, channel, clock or SetClock())
    try:
        service.on_start()
        yield service
    finally:
        service.on_stop()
        service.let_go()


@pytest.fixture
def store(tmp_path: Path, shm_root: Path) -> Iterator[IdleStore]:
    with idle_store(tmp_path / "store", shm_root / "pool", lanes=(0, 1, 2)) as made:
        yield made


def made_in_order(service: Allocator, store: IdleStore) -> list[tuple[int, int]]:
    """(lane, segment number) of everything that the allocator makes until it has no more to do."""
    order: list[tuple[int, int]] = []
    while True:
        before = {lane: store.get(lane, Lane.ALLOCATED) for lane in range(3)}
        if not service.work():
            return order
        order += [(n, before[n] // SEGMENT) for n in range(3) if store.get(n, Lane.ALLOCATED) != before[n]]


def test_what_somebody_waits_for_comes_first(store: IdleStore) -> None:
    """The lane of a waiting producer is first, then one whose committer waits.

    Then come the next segments of all lanes in turn, then those after them.
    """
    store.set(0, WROTE=10)
    store.set(1, WROTE=4 * SEGMENT, COMMITTED=4 * SEGMENT, ALLOCATED=5 * SEGMENT)
    store.set(2, WROTE=2 * SEGMENT, COMMITTED=2 * SEGMENT, ALLOCATED=2 * SEGMENT, BLOCKED=1)
    with allocator(store) as service:
        order = made_in_order(service, store)
    assert order[:2] == [(2, 2), (0, 0)]
    assert sorted(order[2:5]) == [(0, 1), (1, 5), (2, 3)]
    assert sorted(order[5:]) == [(0, 2), (1, 6), (2, 4)]
    assert store.segments(0) == [0, SEGMENT, 2 * SEGMENT]


def test_what_a_killed_allocator_left_is_cleaned(store: IdleStore) -> None:
    """Half-made files in tmp/ are removed.

    A segment that was in place and not announced yet is used as it is.
    """
    lane_directory = store.directory.lane_directory(1)
    (lane_directory.tmp / "00000000000000065536").write_bytes(b"half")
    lane_directory.segment_path(0).write_bytes(bytes(SEGMENT))
    inode = lane_directory.segment_path(0).stat().st_ino
    with allocator(store) as service:
        assert not list(lane_directory.tmp.iterdir())
        made_in_order(service, store)
    assert lane_directory.segment_path(0).stat().st_ino == inode
    assert store.get(1, Lane.ALLOCATED) == 3 * SEGMENT


class FullFor(FileChannel):
    """No space for the segments of one lane."""

    def __init__(self, lane: int) -> None:
        self.lane, self.full = lane, True

    def allocate(self, fd: int, length: int) -> None:
        if self.full and Path(os.readlink(f"/proc/self/fd/{fd}")).parts[-4:-2] == ("lanes", str(self.lane)):
            raise OSError(errno.ENOSPC, "full")
        super().allocate(fd, length)


def test_a_lane_that_gets_no_segment_keeps_nobody_waiting(store: IdleStore) -> None:
    """Its fault has a name and goes when there is space again."""
    channel = FullFor(0)
    with allocator(store, channel) as service:
        made_in_order(service, store)
        assert store.segments(0) == []
        assert store.get(0, Lane.ALLOCATOR_FAULT) == errno.ENOSPC
        assert len(store.segments(1)) == len(store.segments(2)) == 3
        channel.full = False
        made_in_order(service, store)
    assert store.get(0, Lane.ALLOCATOR_FAULT) == 0
    assert len(store.segments(0)) == 3


def test_at_the_stop_only_what_has_data_is_made(store: IdleStore) -> None:
    """What was accepted has somewhere to go; nothing is made ahead."""
    store.set(0, WROTE=SEGMENT + 5)
    with allocator(store) as service:
        service.stopping = True
        assert service.left() == 1
        assert made_in_order(service, store) == [(0, 0), (0, 1)]
        assert service.left() == 0


def test_ahead_is_a_knob(tmp_path: Path, shm_root: Path) -> None:
    """allocator.segments_ahead, besides the one that is being written."""
    config = Config.from_json({"allocator": {"segments_ahead": 5}})
    with idle_store(tmp_path / "store", shm_root / "pool", config=config) as store, allocator(store) as service:
        made_in_order(service, store)
        assert len(store.segments(0)) == 6


def test_a_full_disk_is_not_filled_with_what_was_half_made(store: IdleStore) -> None:
    """ext4 keeps what it got for a segment that does not fit: readers and stops need that space."""
    store.set(0, WROTE=10)
    channel = FullFor(0)
    with allocator(store, channel) as service:
        service.work()
        assert store.get(0, Lane.ALLOCATOR_FAULT) == errno.ENOSPC
        assert not list(store.directory.lane_directory(0).tmp.iterdir())
        channel.full = False
        made_in_order(service, store)
    assert store.segments(0) == [0, SEGMENT, 2 * SEGMENT]


class FullDisk(FileChannel):
    """A disk that is too full, as long as `full` says so."""

    full = True

    def space(self, path: str | Path) -> tuple[int, int]:
        return (1 << 40, 0) if self.full else (0, 1 << 40)


def test_a_disk_that_was_full_is_looked_at_again_by_itself(store: IdleStore) -> None:
    """When there is space nothing says `full` any more, also where no lane needs a segment now."""
    channel, words = FullDisk(), store.control.words
    with allocator(store, channel) as service:
        made_in_order(service, store)
        assert store.get(0, Lane.ALLOCATOR_FAULT) == store.get(1, Lane.ALLOCATOR_FAULT) == errno.ENOSPC
        assert words[Header.RETENTION_FLAGS] & RetentionFlag.DISK_REFUSES
        store.set(0, BUFFERS=2)  # its producer has gone, and its memory was given back
        store.set(1, ALLOCATED=4 * SEGMENT)
        store.set(2, BUFFERS=2)
        channel.full = False
    with allocator(store, channel) as service:  # the first one was killed
        service.work()
        service.on_wait_end()
        assert [store.get(lane, Lane.ALLOCATOR_FAULT) for lane in range(3)] == [0, 0, 0]
        assert not words[Header.RETENTION_FLAGS] & RetentionFlag.DISK_REFUSES
