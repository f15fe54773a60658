"""A direct writer dies between its pwrite and the publish.

What it wrote was never accepted, and never appears.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.appending.lease import Lease
from commitlog.disk.direct_segment import DirectSegment
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory
from commitlog.inspecting.verify import verify_store
from commitlog.reading.view import attach_control
from commitlog.record.record_layout import Buffer
from commitlog.shm.layout import Lane
from tests.builders.killed import kill_store
from tests.crash.accounts import check, read_store
from tests.faults.channel import FaultsDirectory, Rule
from tests.faults.test_disk import CONFIG, SEGMENT_BYTES, Sender, faulty_store
from tests.waiting import wait_until

TORN = b"never accepted " * 700


def killed_at_its_first_direct_write_of(body: bytes, send: Callable[[], None]) -> None:
    """Runs `send` in a forked child that dies when the segment file holds that body."""
    child = os.fork()
    if child == 0:
        real = DirectSegment.__setitem__

        def write_and_die(segment: DirectSegment, place: slice, data: Buffer) -> None:
            real(segment, place, data)
            if body in bytes(data):
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            DirectSegment.__setitem__ = write_and_die  # type: ignore[method-assign]
            send()
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def looks_whole(path: Path, sender: Sender) -> None:
    """Files, readers and `verify` agree: what was accepted is there, and nothing else."""
    check(sender.noted, read_store(path), deaths=0)
    report = verify_store(path)
    assert report.good
    assert sum(lane.records for lane in report.lanes) == len(sender.noted)
    with commitlog.Reader(path) as reader:
        assert len(list(reader)) == len(sender.noted)


def test_a_clean_stop_leaves_nothing_of_it(tmp_path: Path) -> None:
    """The next start does not publish it, and the next message leaves no rest of it behind."""
    path = tmp_path / "store"
    config = {**CONFIG, "store": {**CONFIG["store"], "write_path": "direct"}}
    with commitlog.Store.open(path, config) as store:
        sender = Sender(store, store.producer(), FaultsDirectory(path))
        sender.send().wait("flushed", timeout=60)
        sender.producer.close()
        killed_at_its_first_direct_write_of(TORN, lambda: _send_with_a_new_producer(path, TORN))
    looks_whole(path, sender)
    with commitlog.Store.open(path, config) as store:
        again = Sender(store, store.producer(), sender.faults, sender.noted, sender.sent)
        again.send(10).wait("flushed", timeout=60)
    looks_whole(path, sender)


def _send_with_a_new_producer(path: Path, *bodies: bytes) -> None:
    producer = commitlog.Producer(path)
    for body in bodies:
        producer.send("t", body)


def test_a_segment_written_directly_for_want_of_a_buffer(tmp_path: Path) -> None:
    """A lane of the pool whose buffers are all full.

    A writer that dies in its direct segment leaves nothing above `wrote`.
    """
    path = tmp_path / "store"
    ahead = 8
    made = {**CONFIG["allocator"], "segments_ahead": ahead}
    with faulty_store(path, producer={"when_no_buffer": "write_direct"}, allocator=made) as sender:
        sender.send().wait("flushed", timeout=60)
        row = sender.producer._lease.row
        wait_until(lambda: row[Lane.OPENED] >= ahead * SEGMENT_BYTES, "segments for all that is sent")
        sender.faults.set(Rule("fdatasync", error=errno.EIO, keeps=True))
        while sender.producer.statistics().direct_segments == 0:
            last = sender.send(3000)
        wait_until(lambda: row[Lane.COMMITTED] == row[Lane.WROTE], "the committer")
        sender.producer.close()
        killed_at_its_first_direct_write_of(TORN, lambda: _send_with_a_new_producer(path, TORN))
        sender.heals(last)
    looks_whole(path, sender)


def test_a_clean_stop_leaves_nothing_of_an_interrupted_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its body has zeros for longer than a page, and the next message ends within them."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, {**CONFIG, "store": {**CONFIG["store"], "write_path": "direct"}}) as store:
        sender = Sender(store, store.producer(), FaultsDirectory(path))
        sender.send()
        real = DirectSegment.__setitem__

        def write_and_interrupt(segment: DirectSegment, place: slice, data: Buffer) -> None:
            real(segment, place, data)
            raise KeyboardInterrupt

        monkeypatch.setattr(DirectSegment, "__setitem__", write_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            sender.producer.send("t", bytes(15_000))
        monkeypatch.undo()
        sender.send(10).wait("flushed", timeout=60)
    looks_whole(path, sender)


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_a_direct_lane_that_the_pool_takes_over(tmp_path: Path) -> None:
    """The next start has the other write path, and the next writer dies when it has buffers.

    The start after that does not take the bytes that the first writer left behind `wrote` for
    somebody else's.
    """
    path = tmp_path / "store"
    config = {**CONFIG, "allocator": {"interval_ms": 20, "lane_idle_ms": 0}}
    store = commitlog.Store.open(path, {**config, "store": {**CONFIG["store"], "write_path": "direct"}})
    sender = Sender(store, store.producer(), FaultsDirectory(path))
    sender.send().wait("flushed", timeout=60)
    sender.producer.close()
    killed_at_its_first_direct_write_of(TORN, lambda: _send_with_a_new_producer(path, TORN))
    kill_store(store)
    store = commitlog.Store.open(path, config)
    lock = path / "lanes" / "0" / "lock"
    wait_until(lambda: not (_lane_word(path, Lane.BUFFERS) & 1 or DISK.is_locked(lock)), "the lane to be given back")
    child = os.fork()
    if child == 0:
        try:
            Lease.wait_drained = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
            commitlog.Producer(path)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert _lane_word(path, Lane.SLOTS) == 3
    kill_store(store)
    assert commitlog.Store.open(path, config).close().drained
    looks_whole(path, sender)


def _lane_word(path: Path, word: int) -> int:
    """A word of lane 0 in the store's pool."""
    directory = StoreDirectory(path)
    control = attach_control(directory, directory.load())
    assert control is not None
    try:
        return control.row(0)[word]
    finally:
        control.close()
