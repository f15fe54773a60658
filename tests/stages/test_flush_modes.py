"""The flusher's timed mode and its progress log, turned by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commitlog.config import Config
from commitlog.shm.layout import Lane, Stage
from commitlog.stages.flusher import Flusher
from tests.builders.idle_store import SEGMENT, IdleStore, idle_store
from tests.fake_clock import SetClock


@contextmanager
def flusher(tmp_path: Path, shm_root: Path, **knobs: Any) -> Iterator[tuple[Flusher, IdleStore, SetClock]]:
    """A flusher of a lane with three empty segments that are allocated."""
    config = Config.from_json({"flusher": knobs})
    clock = SetClock()
    with idle_store(tmp_path / "store", shm_root / "pool", config=config) as store:
        for start in range(0, 3 * SEGMENT, SEGMENT):
            store.directory.lane_directory(0).segment_path(start).write_bytes(bytes(SEGMENT))
        store.set(0, ALLOCATED=3 * SEGMENT)
        service = Flusher(store.directory.path, clock=clock)
        try:
            service.on_start()
            yield service, store, clock
        finally:
            service.on_stop()
            service.let_go()


def test_timed_syncs_once_in_an_interval(tmp_path: Path, shm_root: Path) -> None:
    """However often it is woken; the first sync comes at once."""
    with flusher(tmp_path, shm_root, timed=True, interval_ms=500) as (service, store, clock):
        committed = 0
        for milliseconds, is_due in [(0, True), (100, False), (399, False), (1, True), (499, False), (1, True)]:
            clock.pass_seconds(milliseconds / 1000)
            committed += 10
            store.set(0, WROTE=committed, COMMITTED=committed)
            service.work()
            assert (store.get(0, Lane.FLUSHED) == committed) is is_due
        assert store.get(0, Lane.SYNCS) == 3


def test_the_first_timed_sync_comes_at_once_after_a_boot_too(tmp_path: Path, shm_root: Path) -> None:
    """The monotonic clock counts from the boot: there it is not later than any interval."""
    with flusher(tmp_path, shm_root, timed=True, interval_ms=500) as (service, store, clock):
        clock.boot -= clock.monotonic_ns()
        store.set(0, WROTE=10, COMMITTED=10)
        assert service.work()
        assert store.get(0, Lane.FLUSHED) == 10


@pytest.mark.parametrize(
    "words",
    [{"FLUSH_REQUESTED": 20}, {"WROTE": SEGMENT + 5, "COMMITTED": SEGMENT + 5}],
    ids=["somebody waits", "a full segment"],
)
def test_timed_lets_nobody_wait(tmp_path: Path, shm_root: Path, words: dict[str, int]) -> None:
    with flusher(tmp_path, shm_root, timed=True) as (service, store, _):
        store.set(0, WROTE=10, COMMITTED=10)
        service.work()
        store.set(0, WROTE=20, COMMITTED=20)
        assert not service.work()
        store.set(0, **words)
        assert service.work()
        assert store.get(0, Lane.FLUSHED) == min(store.get(0, Lane.COMMITTED), SEGMENT)


def test_real_time_syncs_at_once(tmp_path: Path, shm_root: Path) -> None:
    with flusher(tmp_path, shm_root) as (service, store, _):
        for position in range(10, 100, 10):
            store.set(0, WROTE=position, COMMITTED=position)
            assert service.work()
            assert store.get(0, Lane.FLUSHED) == position


@pytest.mark.parametrize(
    ("rests", "beat_ago_ms", "sync_ms", "expected_ms"),
    [(0, 0, 1, 12), (1, 0, 1, 24), (1, 0, 6, 19), (1, 4, 1, 20), (1, 0, 20, 12), (1, 1000, 1, 12)],
    ids=["first rest", "busy", "slow sync", "woken late", "very slow sync", "committer asleep"],
)
def test_on_a_busy_lane_one_sync_serves_two_commits(
    tmp_path: Path, shm_root: Path, rests: int, beat_ago_ms: int, sync_ms: int, expected_ms: int
) -> None:
    """The rest ends just after the second commit, and is never longer than two rests."""
    with flusher(tmp_path, shm_root) as (service, store, clock):
        service.rests = rests
        service.control.stage_row("committer")[Stage.HEARTBEAT] = clock.monotonic_ns() - beat_ago_ms * 1_000_000
        store.set(0, WROTE=10, COMMITTED=10)
        assert service.work()
        clock.pass_seconds(sync_ms / 1000)
        assert service.rest_ms(clock.monotonic_ns()) == expected_ms


def test_progress_is_logged_now_and_then(tmp_path: Path, shm_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every tenth thorough interval, while something moves."""
    caplog.set_level("INFO")
    with flusher(tmp_path, shm_root, thorough_interval_ms=2_000) as (service, store, clock):
        store.set(0, WROTE=3000, COMMITTED=1000)
        service.work()
        clock.pass_seconds(19)
        service.on_wait_end()
        assert "flush progress" not in caplog.text
        clock.pass_seconds(2)
        service.on_wait_end()
        assert "1000 bytes flushed in 21 s; the disk is behind memory by 2000 bytes in all" in caplog.text
        clock.pass_seconds(100)
        service.on_wait_end()
        assert caplog.text.count("flush progress") == 1
