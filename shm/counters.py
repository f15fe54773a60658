"""Counters and histograms in shared memory: any process may read them, also while the stages hang.

A histogram has 192 buckets of microseconds: one for each number up to 15, then eight to a power of
two. So a percentile is within 12.5 % (the idea of HdrHistogram). One process writes each histogram.
A reader takes the counts as they are: a count may be one behind, and is never torn.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import IntFlag

from commitlog.shm.layout import (
    HISTOGRAM_BUCKETS,
    LANE_ROW_WORDS,
    LANE_ROWS,
    LANES_AT,
    PUT_TIME_BUCKETS,
    SAMPLE_WORDS,
    SAMPLES,
    Header,
    Lane,
)
from commitlog.shm.memory_order import observe, publish


def bucket_of(microseconds: int) -> int:
    """Index of the bucket that counts a duration."""
    if microseconds < 16:
        return max(microseconds, 0)
    exponent = microseconds.bit_length() - 1
    return min(16 + (exponent - 4) * 8 + ((microseconds >> (exponent - 3)) & 7), HISTOGRAM_BUCKETS - 1)


def bucket_floor(bucket: int) -> int:
    """The smallest duration, in microseconds, that a bucket counts."""
    if bucket < 16:
        return bucket
    exponent, step = divmod(bucket - 16, 8)
    return (8 + step) << (exponent + 1)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A snapshot of the 192 counts. The difference of two is what happened in between."""

    counts: tuple[int, ...]

    @classmethod
    def load(cls, row: memoryview, at: int) -> Histogram:
        """Reads the histogram whose first word is word `at` of a row."""
        return cls(tuple(row[at : at + HISTOGRAM_BUCKETS].tolist()))

    def __sub__(self, earlier: Histogram) -> Histogram:
        return Histogram(tuple(max(a - b, 0) for a, b in zip(self.counts, earlier.counts, strict=True)))

    @property
    def total(self) -> int:
        return sum(self.counts)

    def percentile(self, fraction: float) -> float | None:
        """The duration, in microseconds, that this fraction (0 to 1) of the durations stayed below.

        None where there are no durations.
        """
        left = self.total * fraction
        if left <= 0:
            return None if self.total == 0 else float(bucket_floor(next(i for i, n in enumerate(self.counts) if n)))
        for bucket, count in enumerate(self.counts):
            left -= count
            if count and left <= 0:
                return (bucket_floor(bucket) + bucket_floor(bucket + 1)) / 2
        return float(bucket_floor(HISTOGRAM_BUCKETS - 1))


def record_duration(row: memoryview, at: int, nanoseconds: int) -> None:
    """Counts a duration in the histogram at word `at` of a row. For its one writer only."""
    row[at + bucket_of(nanoseconds // 1000)] += 1


class RetentionFlag(IntFlag):
    """What hinders retention: the flags in the control region."""

    CLOCK_JUMPED = 1
    HELD_BY_READER = 2
    DISK_HIGH = 4
    DISK_FORCES = 8
    DISK_REFUSES = 16
    NOT_DELETED = 32


PUT_TIME_LIMITS_MS = (0, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
"""Limits of RocketMQ's distribution of put times, in ms: 0, below 10, below 50, …, 10 s or more."""
PUT_TIME_NAMES = (
    "<=0ms",
    *(f"<{ms}ms" for ms in PUT_TIME_LIMITS_MS[1:6]),
    "<1s",
    "<2s",
    "<3s",
    "<4s",
    "<5s",
    "<10s",
    ">=10s",
)
assert len(PUT_TIME_NAMES) == len(PUT_TIME_LIMITS_MS) + 1 == PUT_TIME_BUCKETS


def record_put_time(row: memoryview, nanoseconds: int) -> None:
    """Counts a put of a lane that had to wait. Only the lane's lessee calls it.

    Puts that did not wait are not counted one by one: they are the rest of the lane's messages.
    """
    milliseconds = nanoseconds // 1_000_000
    row[Lane.PUT_TIMES + (bisect_right(PUT_TIME_LIMITS_MS, milliseconds) if milliseconds else 0)] += 1


def record_wait(row: memoryview, nanoseconds: int) -> None:
    """Adds a wait for a write buffer of a lane. Only the lane's lessee calls it."""
    row[Lane.BUFFER_WAIT_NS] += nanoseconds
    row[Lane.BUFFER_WAIT_NS_MAX] = max(nanoseconds, row[Lane.BUFFER_WAIT_NS_MAX])


def put_times(row: memoryview) -> tuple[int, ...]:
    """The counts of a lane's puts by duration, in the order of PUT_TIME_NAMES.

    Puts that ended in NoBufferAvailable are counted too.
    """
    counts = row[Lane.PUT_TIMES : Lane.PUT_TIMES + PUT_TIME_BUCKETS].tolist()
    counts[0] = max(row[Lane.MESSAGES] + row[Lane.BUFFER_TIMEOUTS] - sum(counts[1:]), 0)
    return tuple(counts)


# ---- throughput --------------------------------------------------------------------------------

SAMPLE_NS = 5_000_000_000
WINDOWS_SECONDS = (10, 60, 600)
"""RocketMQ's windows."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """The throughput of all lanes, per second.

    `window_seconds` is the window that was asked for, and `over_seconds` is the time that was
    measured.
    """

    window_seconds: int
    over_seconds: float
    messages_per_second: float
    bytes_per_second: float


def _totals(words: memoryview) -> tuple[int, int]:
    """Messages and bytes of all lanes so far."""
    starts = range(LANES_AT, LANES_AT + LANE_ROWS * LANE_ROW_WORDS, LANE_ROW_WORDS)
    messages = sum(words[start + Lane.MESSAGES] for start in starts)
    return messages, sum(observe(words, start + Lane.WROTE) for start in starts)


def take_sample(words: memoryview, now_ns: int) -> None:
    """Notes how many messages and bytes all lanes have taken, if the last note is old enough.

    Only the supervisor calls it. `words` are those of the whole control region.
    """
    taken = observe(words, Header.SAMPLES_TAKEN)
    if taken and now_ns - words[_sample_at(taken - 1)] < SAMPLE_NS:
        return
    at = _sample_at(taken)
    words[at], (words[at + 1], words[at + 2]) = now_ns, _totals(words)
    publish(words, Header.SAMPLES_TAKEN, taken + 1)


def _sample_at(number: int) -> int:
    return Header.SAMPLES + number % SAMPLES * SAMPLE_WORDS


def throughput(words: memoryview, now_ns: int) -> tuple[Throughput, ...]:
    """The throughput of each window, which begins with the youngest sample of at least its age.

    A window that a young store has not filled yet is left out, as RocketMQ leaves it blank. Only
    the shortest window is always there: in a young store it begins with the oldest sample.
    """
    taken = observe(words, Header.SAMPLES_TAKEN)
    samples = [
        tuple(words[_sample_at(n) : _sample_at(n) + SAMPLE_WORDS].tolist())
        for n in range(max(taken - SAMPLES, 0), taken)
    ]
    messages, size = _totals(words)
    found = []
    for window in WINDOWS_SECONDS:
        old = [sample for sample in samples if now_ns - sample[0] >= window * 1_000_000_000]
        if not old and (window == WINDOWS_SECONDS[0] or taken >= SAMPLES):
            old = samples[:1]
        start = max(old, default=None)
        if start is None or now_ns <= start[0]:
            continue
        seconds = (now_ns - start[0]) / 1e9
        found.append(Throughput(window, seconds, (messages - start[1]) / seconds, (size - start[2]) / seconds))
    return tuple(found)
