"""Histograms keep durations within an eighth of themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.shm.counters import (
    PUT_TIME_NAMES,
    Histogram,
    Throughput,
    bucket_floor,
    bucket_of,
    put_times,
    record_duration,
    record_put_time,
    record_wait,
    take_sample,
    throughput,
)
from commitlog.shm.layout import CONTROL_WORDS, HISTOGRAM_BUCKETS, LANE_ROW_WORDS, LANES_AT, Lane


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


def control_words() -> memoryview:
    return memoryview(bytearray(CONTROL_WORDS * 8)).cast("Q")


def lane_row() -> memoryview:
    return memoryview(bytearray(LANE_ROW_WORDS * 8)).cast("Q")


@pytest.mark.parametrize(
    ("milliseconds", "name"),
    [
        (0, "<=0ms"), (1, "<10ms"), (9, "<10ms"), (10, "<50ms"), (49, "<50ms"), (99, "<100ms"), (100, "<200ms"),
        (499, "<500ms"), (500, "<1s"), (1_999, "<2s"), (2_000, "<3s"), (3_999, "<4s"), (4_000, "<5s"), (5_000, "<10s"),
        (9_999, "<10s"), (10_000, ">=10s"), (10**7, ">=10s"),
    ],
)  # fmt: skip
def test_put_times_are_rocketmqs_buckets(milliseconds: int, name: str) -> None:
    """Of 100 messages one waited; the others took no time."""
    row = lane_row()
    row[Lane.MESSAGES] = 100
    record_put_time(row, milliseconds * 1_000_000 + 999_999)
    counts = dict(zip(PUT_TIME_NAMES, put_times(row), strict=True))
    assert sum(counts.values()) == 100
    assert counts[name] == (100 if milliseconds == 0 else 1)


def test_the_longest_wait_is_kept() -> None:
    row = lane_row()
    for nanoseconds in (5, 90, 7):
        record_wait(row, nanoseconds)
    assert row[Lane.BUFFER_WAIT_NS_MAX] == 90
    assert row[Lane.BUFFER_WAIT_NS] == 102


def test_throughput_over_ten_seconds_a_minute_and_ten() -> None:
    """Two lanes take 100 messages and 1,000 bytes a second for 20 minutes, then nothing for 5."""
    words, second = control_words(), 1_000_000_000
    for now in range(20 * 60):
        for lane in (0, 7):
            words[LANES_AT + lane * LANE_ROW_WORDS + Lane.MESSAGES] = now * 50
            words[LANES_AT + lane * LANE_ROW_WORDS + Lane.WROTE] = now * 500
        take_sample(words, (now + 10) * second)
    found = throughput(words, (20 * 60 + 9) * second)
    assert [rate.window_seconds for rate in found] == [10, 60, 600]
    assert all(rate.window_seconds <= rate.over_seconds < rate.window_seconds + 5 for rate in found[:2])
    assert all(rate.messages_per_second == 100 and rate.bytes_per_second == 1000 for rate in found)
    for now in range(20 * 60, 25 * 60):
        take_sample(words, (now + 10) * second)
    quiet = throughput(words, (25 * 60 + 9) * second)
    assert [round(rate.messages_per_second) for rate in quiet] == [0, 0, 50]


def test_a_young_store_measures_what_it_can() -> None:
    """Before the first sample there is nothing.

    Then there is the shortest window from the start on, and the others when they are full.
    """
    words, second = control_words(), 1_000_000_000
    assert throughput(words, 5 * second) == ()
    take_sample(words, 5 * second)
    words[LANES_AT + Lane.MESSAGES] = 30
    assert throughput(words, 8 * second) == (Throughput(10, 3.0, 10.0, 0.0),)
    for now in range(10, 70, 5):
        take_sample(words, now * second)
        assert [rate.window_seconds for rate in throughput(words, (now + 1) * second)] == [10] + [60] * (now >= 65)
