"""Positions in bytes become counts of messages that never exceed what was sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.ingest.latency import Latencies
from commitlog.ingest.meter import Meter, Series
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.counters import record_duration
from commitlog.shm.layout import Lane, Stage

LANE = 3


@pytest.fixture
def control(shm_root: Path, tmp_path: Path) -> Iterator[ControlRegion]:
    region = ControlRegion.create(shm_root, "0123456789abcdef" * 2, tmp_path)
    yield region
    region.close()
    (shm_root / "control").unlink()


def stand(control: ControlRegion, messages: int, *positions: int) -> None:
    """Sets a lane's count of messages, and wrote, committed, flushed, dispatched."""
    row = control.row(LANE)
    row[Lane.MESSAGES] = messages
    indices = (Lane.WROTE, Lane.COMMITTED, Lane.FLUSHED, Lane.DISPATCHED)
    for index, position in zip(indices, positions, strict=True):
        row[index] = position


def counts(meter: Meter, at: float = 0.0) -> list[float]:
    return list(meter.read(at).messages.values())


def test_only_this_runs_messages_count(control: ControlRegion) -> None:
    """What stood in the lane before the run is no part of it."""
    stand(control, 50, 5000, 5000, 5000, 5000)
    meter = Meter(control)
    meter.follow(LANE)
    assert counts(meter) == [0, 0, 0, 0]
    stand(control, 60, 6000, 6000, 6000, 5500)
    assert counts(meter) == [10, 10, 10, 5]
    stand(control, 60, 6000, 6000, 6000, 6000)
    assert counts(meter) == [10, 10, 10, 10]


def test_sizes_may_change(control: ControlRegion) -> None:
    """Each stretch between two looks has its own bytes a message."""
    meter = Meter(control)
    meter.follow(LANE)
    stand(control, 100, 1000, 0, 0, 0)
    counts(meter)
    stand(control, 110, 11_000, 6_000, 1_000, 500)
    assert counts(meter) == [110, 105, 100, 50]


def test_a_count_that_was_seen_late_is_corrected(control: ControlRegion) -> None:
    """The position is stored before the count; the next look sets it right."""
    meter = Meter(control)
    meter.follow(LANE)
    stand(control, 9, 1000, 1000, 1000, 1000)
    assert counts(meter) == [9, 9, 9, 9]
    stand(control, 10, 1000, 1000, 1000, 1000)
    assert counts(meter) == [10, 10, 10, 10]


def test_syncs_restarts_and_faults(control: ControlRegion) -> None:
    """Counted from the start of the run; faults are named with their place."""
    flusher = control.stage_row("flusher")
    record_duration(flusher, Stage.HISTOGRAM, 5_000_000)
    flusher[Stage.RESTARTS] = 2
    meter = Meter(control)
    meter.follow(LANE)
    record_duration(flusher, Stage.HISTOGRAM, 1_000_000)
    flusher[Stage.RESTARTS] = 3
    control.row(LANE)[Lane.FLUSHER_FAULT] = 28
    reading = meter.read(0.0)
    assert reading.syncs.total == 1
    assert reading.restarts["flusher"] == 1
    assert reading.faults == {f"flusher of lane {LANE}": 28}


def test_a_series_stays_small() -> None:
    """A long run is thinned out evenly, first point kept."""
    series = Series(("a",), interval=1.0)
    for second in range(50_000):
        series.add(float(second), second * 2.0)
    assert len(series.points) <= Series.POINTS_MAX
    assert series.seconds[0] == 0
    assert series.column("a") == [second * 2 for second in series.seconds]
    gaps = {round(b - a) for a, b in zip(series.seconds, series.seconds[1:], strict=False)}
    assert max(gaps) <= 2 * min(gaps)


def test_percentiles_are_within_two_percent() -> None:
    """Weights count, an empty histogram has no percentile, and others' counts can be merged."""
    latencies = Latencies()
    assert latencies.percentile(0.5) is None
    latencies.add([10.0, 1000.0], [990, 10])
    other = Latencies()
    other.add([100.0])
    latencies.merge(other.to_json())
    assert latencies.total == 1001
    assert latencies.percentile(0.5) == pytest.approx(10, rel=0.02)
    assert latencies.percentile(0.999) == pytest.approx(1000, rel=0.02)
    assert latencies.summary()["max"] == 1000
    durations, shares = latencies.curve()
    assert shares[-1] == 1
    assert durations == sorted(durations)
