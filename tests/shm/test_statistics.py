"""Histograms keep durations within an eighth of themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shm.layout import HISTOGRAM_BUCKETS
from shm.statistics import Histogram, bucket_floor, bucket_of, record_duration


@given(st.integers(0, 1 << 25))
def test_a_duration_is_within_its_bucket(microseconds: int) -> None:
    """Its bucket begins at or below it, and not more than an eighth below."""
    bucket = bucket_of(microseconds)
    assert bucket_floor(bucket) <= microseconds < bucket_floor(bucket + 1)
    assert microseconds - bucket_floor(bucket) <= microseconds / 8


def test_longer_than_the_last_bucket_counts_in_the_last() -> None:
    """Minutes do not fall off the end, and time that went backwards not off the beginning."""
    assert bucket_of(1 << 40) == HISTOGRAM_BUCKETS - 1
    assert bucket_of(-5) == 0


@given(st.lists(st.integers(0, 1_000_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_percentiles_are_those_of_the_durations(durations: list[int], fraction: float) -> None:
    """Within one bucket of the exact answer."""
    words = memoryview(bytearray(HISTOGRAM_BUCKETS * 8)).cast("Q")
    for microseconds in durations:
        record_duration(words, 0, microseconds * 1000)
    histogram = Histogram.load(words, 0)
    exact = sorted(durations)[max(-(-int(len(durations) * fraction * 1000) // 1000) - 1, 0)]
    found = histogram.percentile(fraction)
    assert histogram.total == len(durations)
    assert found is not None
    assert abs(bucket_of(int(found)) - bucket_of(exact)) <= 1


def test_differences_are_what_happened_in_between() -> None:
    """Nothing happened: no percentile."""
    words = memoryview(bytearray(HISTOGRAM_BUCKETS * 8)).cast("Q")
    record_duration(words, 0, 5_000)
    earlier = Histogram.load(words, 0)
    assert (Histogram.load(words, 0) - earlier).percentile(0.5) is None
    record_duration(words, 0, 9_000_000)
    assert (Histogram.load(words, 0) - earlier).total == 1
