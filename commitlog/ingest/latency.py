"""Latencies of millions of messages in a few kilobytes: a histogram with buckets 2 % wide."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_STEP = math.log(1.02)
_BUCKETS = 1_200
"""Bucket 0 is up to a microsecond, the last one above 5 hours."""


class Latencies:
    """Counts durations in milliseconds, each with a weight.

    Another process's counts can be added: they travel as plain lists.
    """

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(_BUCKETS, dtype=np.int64)
        self.highest_ms = 0.0

    def add(self, durations_ms: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> None:
        """Counts each duration, `weights` times where given."""
        durations = np.atleast_1d(np.asarray(durations_ms, dtype=np.float64))
        if not durations.size:
            return
        buckets = (np.log(np.maximum(durations * 1000, 1.0)) / _STEP).astype(np.int64)
        amounts = np.ones(durations.size, np.int64) if weights is None else np.atleast_1d(np.asarray(weights, np.int64))
        np.add.at(self.counts, np.minimum(buckets, _BUCKETS - 1), amounts)
        self.highest_ms = max(self.highest_ms, float(durations.max()))

    def to_json(self) -> dict[str, Any]:
        """The counts for another process, which merges them into its own."""
        used = np.flatnonzero(self.counts)
        return {"buckets": used.tolist(), "counts": self.counts[used].tolist(), "highest_ms": self.highest_ms}

    def merge(self, other: dict[str, Any]) -> None:
        """Adds what another process has counted."""
        self.counts[other["buckets"]] += np.asarray(other["counts"], np.int64)
        self.highest_ms = max(self.highest_ms, other["highest_ms"])

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def percentile(self, fraction: float) -> float | None:
        """The duration (ms) that this fraction of all durations is below, or None without any."""
        total = self.total
        if not total:
            return None
        bucket = int(np.searchsorted(np.cumsum(self.counts), max(fraction * total, 1)))
        return round(min(math.exp((bucket + 0.5) * _STEP) / 1000, self.highest_ms), 3)

    def curve(self) -> tuple[list[float], list[float]]:
        """Durations (ms), and the share of messages at or below each, for a cumulative plot."""
        used = np.flatnonzero(self.counts)
        if not used.size:
            return [], []
        shares = np.cumsum(self.counts)[used] / self.total
        return [math.exp((bucket + 0.5) * _STEP) / 1000 for bucket in used.tolist()], shares.tolist()

    def summary(self) -> dict[str, float | int | None]:
        """The latencies as they stand in the report."""
        return {
            "p50": self.percentile(0.5),
            "p90": self.percentile(0.9),
            "p99": self.percentile(0.99),
            "max": round(self.highest_ms, 3) if self.total else None,
            "measured": self.total,
        }
