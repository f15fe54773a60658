"""A machine that was booted a moment ago: its clocks have not come as far as any interval."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.reading.view import StoreView
from commitlog.shm.layout import Lane
from tests.fake_clock import SteppingClock
from tests.faults.bench import bench
from tests.namespaces import just_booted
from tests.waiting import wait_until

LONG = {"flusher": {"positions_interval_ms": 600_000}, "store": {"segment_bytes": 1 << 16}}


def test_positions_are_written_with_a_lanes_first_flush(tmp_path: Path) -> None:
    """And with each segment's end, however long the interval between others is."""

    def write() -> None:
        with commitlog.Store.open(tmp_path / "store", LONG) as store, store.producer() as producer:
            with closing(StoreView(store.path)) as view:
                file = PositionsFile(view.lane_directory(producer.lane), view.store_id, DISK)

            def is_recorded(position: int) -> bool:
                positions = file.load()
                return positions is not None and positions.flushed_where >= position

            end = producer.send("t", b"first").physical_offset + 1
            producer.flush(timeout=60)
            wait_until(lambda: is_recorded(end), "the first positions")
            producer.send_batch("t", [bytes(10_000)] * 6)
            producer.send_batch("t", [bytes(10_000)] * 6)
            producer.flush(timeout=60)
            wait_until(lambda: is_recorded(1 << 16), "those of a segment's end")

    just_booted(1, write)


@pytest.mark.parametrize("stage", ["committer", "flusher"])
def test_the_first_message_does_not_wait_for_an_interval(stage: str, tmp_path: Path) -> None:
    """By RocketMQ's rule, fewer pages than least_pages wait for the interval since the last time.

    Here there was no last time.
    """

    least = {stage: {"least_pages": 4, "thorough_interval_ms": 60_000}}
    with bench(tmp_path / "store", clock=SteppingClock(uptime_seconds=1), **least) as made:
        made.producer().send("t", b"first")
        made.turn("allocator", "flusher", "committer", "flusher")
        assert made.lane(Lane.FLUSHED) == made.lane(Lane.WROTE)


@pytest.mark.nightly
def test_what_is_old_is_not_what_came_before_the_boot(tmp_path: Path) -> None:
    """Stages, producers and readers work at an uptime of a second.

    No stage counts as silent, and nothing as late.
    """

    def use() -> None:
        with commitlog.Store.open(tmp_path / "store", LONG) as store, store.producer() as producer:
            for number in range(100):
                producer.send("t", b"%d" % number)
            producer.flush(timeout=60)
            assert store.statistics().running
            with commitlog.Reader(store.path, start="earliest") as reader:
                assert sum(1 for _ in reader) == 100

    just_booted(1, use)
