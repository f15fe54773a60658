"""A snapshot has what the tools show, of a store that runs, hangs, was killed or is stopped."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.file_channel import DISK
from commitlog.errors import CommitLogError
from commitlog.watching.snapshot import StoreWatch, bytes_in
from tests.fake_clock import SetClock

SMALL = {"store": {"segment_bytes": 1 << 16}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store that runs, with two topics, a reader and a lane in use."""
    path = tmp_path_factory.mktemp("running") / "store"
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:
        for topic in ("apples", "pears", "apples"):
            producer.send(topic, bytes(100))
        producer.flush(timeout=60)
        with commitlog.Reader(path, topic="apples", name="billing") as reader:
            reader.commit(next(iter(reader)))
        yield path


def test_a_running_store(running: Path) -> None:
    """Topics, readers, room, times and processes are all there."""
    with StoreWatch(running) as watch:
        found = watch.snapshot()
    assert found.statistics.state == "running"
    assert [(one.topic, one.lane, one.messages) for one in found.topics] == [("apples", 0, 2), ("pears", 0, 1)]
    assert [(reader.name, reader.behind) for reader in found.readers] == [("billing", 1)]
    assert found.space.disk_free > 0
    assert (found.space.pool or 0) > 0
    assert found.durations["flusher"].total >= 1
    assert set(found.usage) == {"committer", "flusher", "allocator", "dispatcher"}
    assert all(usage.resident_bytes > 0 for usage in found.usage.values())
    lane = found.lane(0)
    assert lane is not None
    assert 0 <= (lane.flushed_ms_ago or -1) < time.monotonic() * 1000
    assert not found.blocked_ms


def test_it_follows_a_store_through_its_stop(tmp_path: Path) -> None:
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        with store.producer() as producer:
            producer.send("t", b"x")
            producer.flush(timeout=60)
        watch = StoreWatch(store.path)
        assert watch.snapshot().statistics.running
    with watch:
        stopped = watch.snapshot()
    assert stopped.statistics.state == "stopped"
    assert (stopped.space.pool, stopped.durations, stopped.usage) == (None, {}, {})
    assert [one.messages for one in stopped.topics] == [1]


def test_the_time_since_a_flush_is_that_of_the_clock(running: Path) -> None:
    clock = SetClock()
    with StoreWatch(running, clock) as watch:
        earlier = watch.snapshot()
        clock.pass_seconds(10)
        later = watch.snapshot()
    assert later.seconds_since(earlier) == pytest.approx(10)
    ages = [lane.flushed_ms_ago for snapshot in (earlier, later) for lane in snapshot.statistics.lanes]
    assert ages == [ages[0], pytest.approx((ages[0] or 0) + 10_000)]


class SlowClock(SetClock):
    """Whatever is done takes a millisecond at least."""

    def monotonic_ns(self) -> int:
        self.pass_seconds(0.001)
        return super().monotonic_ns()


def test_small_files_are_not_read_all_the_time(tmp_path: Path) -> None:
    """Thousands of schemas would cost more than all else. Their damage is seen later."""
    clock = SlowClock()
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, StoreWatch(store.path, clock) as watch:
        store.create_topic("typed", "id BIGINT")
        assert watch.snapshot().damaged_files == ()
        (store.path / "topics/typed/1.json").write_bytes(b"{}")
        assert watch.snapshot().damaged_files == ()
        clock.pass_seconds(1)
        assert len(watch.snapshot().damaged_files) == 1


def test_only_health_has_readers_and_no_topics(running: Path) -> None:
    with StoreWatch(running, only_health=True) as watch:
        found = watch.snapshot()
    assert ([(reader.name, reader.behind) for reader in found.readers], found.topics, found.usage) == (
        [("billing", 1)],
        (),
        {},
    )


def test_a_directory_that_is_gone_takes_nothing(tmp_path: Path) -> None:
    assert bytes_in(tmp_path / "gone") == 0


def test_a_restart_that_is_met_without_a_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who watches says so, and sees the store that runs as soon as there are descriptors again."""

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with commitlog.Store.open(tmp_path / "store"):
        pass
    with StoreWatch(tmp_path / "store", only_health=True) as watch:
        assert not watch.snapshot().statistics.stages
        with commitlog.Store.open(tmp_path / "store"):
            with monkeypatch.context() as patch:
                patch.setattr(DISK, "open", refuse)
                with pytest.raises(CommitLogError, match="EMFILE"):
                    watch.snapshot()
            assert watch.snapshot().statistics.stages
