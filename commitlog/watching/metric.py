"""What a metric of a store is, and the usual ways in which a snapshot gives its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from commitlog.client.statistics import LaneStatistics, RetentionStatistics, StageStatistics
from commitlog.shm.counters import PUT_TIME_LIMITS_MS, Histogram, bucket_floor
from commitlog.shm.layout import HISTOGRAM_BUCKETS
from commitlog.watching.snapshot import ProcessUsage, StoreSnapshot

Kind = Literal["gauge", "counter", "histogram", "info"]
UNITS = ("seconds", "bytes", "ratio")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram's sample: for each limit how many are at or below it, and the sum of all.

    The last limit is infinity.
    """

    limits: Sequence[float]
    counts: Sequence[int]
    total: float


Sample = tuple[tuple[str, ...], float | Distribution]
"""The values of the metric's labels, in their order, and the value."""


@dataclass(frozen=True)
class Metric:
    """One metric. `labels` are those besides `store`."""

    name: str
    """As it is scraped: a counter's with `_total`, an info's with `_info`."""
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    samples: Callable[[StoreSnapshot], Iterable[Sample]]

    @property
    def family(self) -> str:
        """The name in `# TYPE` of OpenMetrics."""
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def unit(self) -> str:
        """The unit, which ends the family's name, or ""."""
        return next((unit for unit in UNITS if self.family.endswith(f"_{unit}")), "")


# ---- histograms --------------------------------------------------------------------------------

DURATION_BUCKETS = tuple(range(16, HISTOGRAM_BUCKETS - 16, 4))
"""The first of our 192 buckets behind each limit: two limits to a power of two, 16 µs to 12.6 s."""
DURATION_LIMITS = (*(bucket_floor(bucket) / 1e6 for bucket in DURATION_BUCKETS), float("inf"))
_DURATION_FLOORS = tuple(bucket_floor(bucket) / 1e6 for bucket in range(HISTOGRAM_BUCKETS))
PUT_TIME_LIMITS = (0.001, *(limit / 1000 for limit in PUT_TIME_LIMITS_MS[1:]), float("inf"))
_PUT_TIME_FLOORS = tuple(limit / 1000 for limit in (0, *PUT_TIME_LIMITS_MS))


def durations(histogram: Histogram) -> Distribution:
    """How long the actions of a stage took.

    The sum takes each action for as long as its bucket's lower limit, so it is at most an eighth
    too small.
    """
    below = (0, *accumulate(histogram.counts))
    counts = (*(below[bucket] for bucket in DURATION_BUCKETS), below[-1])
    return Distribution(DURATION_LIMITS, counts, _sum(histogram.counts, _DURATION_FLOORS))


def put_times(lane: LaneStatistics) -> Iterator[Distribution]:
    """RocketMQ's distribution. The sum takes each put for as long as its bucket's lower limit."""
    if lane.put_times is not None:
        counts = tuple(lane.put_times.values())
        yield Distribution(PUT_TIME_LIMITS, tuple(accumulate(counts)), _sum(counts, _PUT_TIME_FLOORS))


def _sum(counts: Iterable[int], floors: Iterable[float]) -> float:
    return sum(count * floor for count, floor in zip(counts, floors, strict=True) if count)


# ---- what a metric is of -----------------------------------------------------------------------


def of_store(name: str, kind: Kind, meaning: str, value: Callable[[StoreSnapshot], float | None]) -> Metric:
    def samples(snapshot: StoreSnapshot) -> Iterator[Sample]:
        found = value(snapshot)
        if found is not None:
            yield (), found

    return Metric(name, kind, (), meaning, samples)


def of_retention(name: str, kind: Kind, meaning: str, value: Callable[[RetentionStatistics], float]) -> Metric:
    def of(snapshot: StoreSnapshot) -> float | None:
        return value(snapshot.statistics.retention) if snapshot.statistics.retention else None

    return of_store(name, kind, meaning, of)


def position(name: str, meaning: str, value: Callable[[LaneStatistics], float]) -> Metric:
    """A metric that a lane of a stopped store has too."""
    return Metric(
        name,
        "gauge",
        ("lane",),
        meaning,
        lambda snapshot: (((str(lane.lane),), value(lane)) for lane in snapshot.statistics.lanes),
    )


def of_lane(name: str, kind: Kind, meaning: str, value: Callable[[LaneStatistics], float | None]) -> Metric:
    """A metric that a lane has while there is a pool. Without a value there is no sample."""

    def samples(snapshot: StoreSnapshot) -> Iterator[Sample]:
        for lane in live_lanes(snapshot):
            found = value(lane)
            if found is not None:
                yield (str(lane.lane),), found

    return Metric(name, kind, ("lane",), meaning, samples)


def live_lanes(snapshot: StoreSnapshot) -> Iterator[LaneStatistics]:
    """The lanes that have counters: there is a pool."""
    return (lane for lane in snapshot.statistics.lanes if lane.put_times is not None)


def of_stage(name: str, kind: Kind, meaning: str, value: Callable[[StageStatistics], float | None]) -> Metric:
    """A metric of each stage. Without a value there is no sample."""

    def samples(snapshot: StoreSnapshot) -> Iterator[Sample]:
        for stage in snapshot.statistics.stages:
            found = value(stage)
            if found is not None:
                yield (stage.stage,), found

    return Metric(name, kind, ("stage",), meaning, samples)


def of_process(name: str, kind: Kind, meaning: str, value: Callable[[ProcessUsage], float]) -> Metric:
    return Metric(
        name,
        kind,
        ("stage",),
        meaning,
        lambda snapshot: (((stage,), value(usage)) for stage, usage in snapshot.usage.items()),
    )
