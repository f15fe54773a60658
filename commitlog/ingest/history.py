"""What a run remembers for its report: counts over time, latencies, events.

Its size is bounded, however long the run takes.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from typing import Any

from commitlog.ingest.dashboard import BatchLine, StepLine
from commitlog.ingest.grid import Grid
from commitlog.ingest.latency import Latencies
from commitlog.ingest.meter import STEPS, Reading, Series
from commitlog.ingest.resources import GROUPS, Usage

WINDOW_SECONDS = 1.6
_EVENTS_MAX = 200
_SHOWN_AS = {"sent": "wrote"}


class History:
    """The job fills it during a run. Times are seconds since the first message was allowed."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.steps = Series(STEPS)
        self.spark = Series(("messages",), interval=0)
        self.batches = Series(("rows", "seconds", "p50_ms", "p99_ms"), interval=0)
        self.resources = Series((*(f"{g}_cores" for g in GROUPS), *(f"{g}_bytes" for g in GROUPS), "pool_bytes"), 1.0)
        self.flushed_latencies, self.spark_latencies = Latencies(), Latencies()
        self.events: list[str] = []
        self.reading: Reading | None = None
        self.spark_rows = 0
        self.batch_count = 0
        self.last_batch: BatchLine | None = None
        self.last_progress = time.monotonic()
        self.grids: tuple[Grid, ...] = ()
        self.cores: dict[str, float] = {}
        self.memory: dict[str, int] = {}
        self._window: deque[Reading] = deque()
        self._batch_ends: deque[tuple[float, int]] = deque([(0.0, 0)])  # when each batch ended, rows until then
        self._cpu_seconds: dict[str, float] = {}
        self._looked_at = 0.0

    def start_clock(self) -> None:
        """Sets the run's time zero, and forgets what an empty batch has reported before that."""
        self.began = time.monotonic()
        self.spark = Series(("messages",), interval=0)
        self.spark.add(0.0, 0)
        self.batches = Series(("rows", "seconds", "p50_ms", "p99_ms"), interval=0)
        self.batch_count = 0
        self.last_batch = None
        self._batch_ends = deque([(0.0, 0)])

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def event(self, text: str) -> None:
        """Notes something that is worth a line in the report. The same text is noted once."""
        if len(self.events) < _EVENTS_MAX and not any(said.endswith(text) for said in self.events[-20:]):
            self.events.append(f"{self.elapsed:.1f} s: {text}")

    def add_reading(self, reading: Reading) -> None:
        previous = self.reading
        self.reading = reading
        self.steps.add(reading.at, *(reading.messages[step] for step in STEPS))
        self._window.append(reading)
        while len(self._window) > 2 and reading.at - self._window[0].at > WINDOW_SECONDS:
            self._window.popleft()
        if previous is None:
            return
        for stage, count in reading.restarts.items():
            if count > previous.restarts[stage]:
                self.event(f"the {stage} had died and was started again")
        for place, number in reading.faults.items():
            if number and not previous.faults.get(place):
                self.event(f"{place} can't go on: {errno.errorcode.get(number, number)}, {os.strerror(number)}")

    def add_batch(self, message: dict[str, Any]) -> None:
        """Takes in what the query reports after each batch."""
        now = self.elapsed
        if self.spark.points and now - message["seconds"] > self.spark.points[-1][0]:
            self.spark.add(now - message["seconds"], self.spark_rows)  # Spark stood still until this batch began
        self.spark_rows = message["total"]
        self.spark.add(now, self.spark_rows)
        self._batch_ends.append((now, self.spark_rows))
        while len(self._batch_ends) > 2 and now - self._batch_ends[1][0] >= WINDOW_SECONDS:
            self._batch_ends.popleft()
        self.batch_count += 1
        self.last_batch = BatchLine(
            message["id"], message["rows"], message["seconds"], message["p50_ms"], message["p99_ms"]
        )
        self.batches.add(now, message["rows"], message["seconds"], message["p50_ms"] or 0, message["p99_ms"] or 0)
        self.spark_latencies.merge(message["latencies"])
        self.grids = tuple(Grid.from_json(grid) for grid in message["grids"])
        self.last_progress = time.monotonic()

    def add_usage(self, usage: dict[str, Usage], pool_bytes: int) -> None:
        now = self.elapsed
        passed = now - self._looked_at
        self.cores = {
            group: max(used.cpu_seconds - self._cpu_seconds.get(group, 0.0), 0.0) / passed if passed > 0 else 0.0
            for group, used in usage.items()
        }
        self._cpu_seconds = {group: used.cpu_seconds for group, used in usage.items()}
        self._looked_at = now
        self.memory = {group: used.memory_bytes for group, used in usage.items()} | {"pool": pool_bytes}
        self.resources.add(now, *self.cores.values(), *self.memory.values())

    # ---- the last seconds -----------------------------------------------------------------------

    def step_lines(self) -> tuple[StepLine, ...]:
        """The stages as the dashboard shows them, Spark last."""
        if not self._window:
            return ()
        first, last, rows = self._window[0], self._window[-1], self.spark_rows
        passed = max(last.at - first.at, 1e-9) if last is not first else 0.0
        lines: list[StepLine] = []
        before: str | None = None
        for step in STEPS:
            lines.append(
                StepLine(
                    _SHOWN_AS.get(step, step),
                    round(last.messages[step]),
                    (last.messages[step] - first.messages[step]) / passed if passed else 0.0,
                    (last.bytes[step] - first.bytes[step]) / passed / 1e6 if passed else 0.0,
                    max(round(last.messages[before] - last.messages[step]), 0) if before else None,
                    max(last.bytes[before] - last.bytes[step], 0) if before else None,
                )
            )
            before = step
        per_message = last.bytes["sent"] / last.messages["sent"] if last.messages["sent"] else 0.0
        speed = self.spark_rate()
        behind = max(round(last.messages["flushed"] - rows), 0)  # Spark also reads what is flushed and not dispatched
        lines.append(
            StepLine("read by Spark", rows, speed, speed * per_message / 1e6, behind, round(behind * per_message))
        )
        return tuple(lines)

    def spark_rate(self) -> float:
        """Rows a second over Spark's last batches.

        Rows come at the end of a batch, so the time goes from one end to another. Between two
        batches the rate stays as it is; it falls only when Spark pauses for longer than that time.
        """
        (first_at, first_rows), (last_at, rows) = self._batch_ends[0], self._batch_ends[-1]
        passed = max(last_at - first_at, self.elapsed - last_at)
        return (rows - first_rows) / passed if passed > 0 else 0.0

    def sync_facts(self) -> tuple[float, float | None, float | None]:
        """fsyncs a second in the last seconds, and p50 and p99 of their durations.

        If there were few fsyncs, the durations are those of the whole run.
        """
        if not self._window:
            return 0.0, None, None
        first, last = self._window[0], self._window[-1]
        recent = last.syncs - first.syncs
        chosen = recent if recent.total >= 20 else last.syncs
        p50, p99 = chosen.percentile(0.5), chosen.percentile(0.99)
        passed = last.at - first.at
        return (
            recent.total / passed if passed > 0 else 0.0,
            None if p50 is None else p50 / 1000,
            None if p99 is None else p99 / 1000,
        )
