"""Counters and histograms in shared memory, which anyone may read at any time, also while the stages hang.

A histogram has 192 buckets of microseconds: one each up to 15, then eight to a power of two, so that a percentile is
within 12.5 % (the idea of HdrHistogram). Each is written by one process; a reader takes what it sees: a count may be one
behind, never torn.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

from shm.layout import HISTOGRAM_BUCKETS


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
    """A snapshot of counts, 192 of them. The difference of two is what happened in between."""

    counts: tuple[int, ...]

    @classmethod
    def load(cls, words: memoryview, at: int) -> Histogram:
        """Reads the histogram that starts at word index `at`."""
        return cls(tuple(words[at : at + HISTOGRAM_BUCKETS].tolist()))

    def __sub__(self, earlier: Histogram) -> Histogram:
        return Histogram(tuple(max(a - b, 0) for a, b in zip(self.counts, earlier.counts, strict=True)))

    @property
    def total(self) -> int:
        return sum(self.counts)

    def percentile(self, fraction: float) -> float | None:
        """Microseconds below which that fraction (0 to 1) of the durations lay; None when there are none."""
        left = self.total * fraction
        if left <= 0:
            return None if self.total == 0 else float(bucket_floor(next(i for i, n in enumerate(self.counts) if n)))
        for bucket, count in enumerate(self.counts):
            left -= count
            if count and left <= 0:
                return (bucket_floor(bucket) + bucket_floor(bucket + 1)) / 2
        return float(bucket_floor(HISTOGRAM_BUCKETS - 1))


def record_duration(words: memoryview, at: int, nanoseconds: int) -> None:
    """Counts one duration in the histogram at word index `at`. Only its one writer may call this."""
    index = at + bucket_of(nanoseconds // 1000)
    words[index] += 1


class RetentionFlag(IntFlag):
    """What retention is up against, as it stands in the control region."""

    CLOCK_JUMPED = 1
    HELD_BY_READER = 2
    DISK_HIGH = 4
    DISK_FORCES = 8
    DISK_REFUSES = 16
