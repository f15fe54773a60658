"""Turns, repeats, ratios: contestants take turns (A B C A B C …).

So a busy minute of the machine hits all of them. A contestant is a name and a function that does
its work once and returns a sample, {metric: value}. The first round warms up and does not count.
The floor is the contestant that the others are compared with, in the same round of the same run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.benchmarks.settings import Settings

Sample = dict[str, float]
Turn = Callable[[], Sample]


@dataclass(frozen=True)
class Metric:
    """What is measured: its name in samples, its unit, and whether less or more is better."""

    name: str
    unit: str
    better: str = "lower"


@dataclass
class Group:
    """One comparison of contestants that did the same work.

    `samples`: contestant → a sample for each round.
    """

    name: str
    metrics: tuple[Metric, ...]
    floor: str
    settings: dict[str, Any]
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def values(self, contestant: str, metric: str) -> list[float]:
        return [sample[metric] for sample in self.samples.get(contestant, []) if metric in sample]

    def median(self, contestant: str, metric: str) -> float | None:
        values = self.values(contestant, metric)
        return statistics.median(values) if values else None

    def summary(self, contestant: str, metric: str) -> dict[str, float] | None:
        """Min, median and max, and the ratio of the median to the floor's.

        The least and the greatest ratio of one round are added.
        """
        values, floor = self.values(contestant, metric), self.values(self.floor, metric)
        if not values:
            return None
        found = {"min": min(values), "median": statistics.median(values), "max": max(values)}
        if floor and statistics.median(floor) > 0:
            ratios = [value / base for value, base in zip(values, floor, strict=False) if base > 0]
            found["ratio"] = found["median"] / statistics.median(floor)
            found["ratio_min"], found["ratio_max"] = min(ratios), max(ratios)
        return found

    def to_json(self) -> dict[str, Any]:
        contestants = []
        for name, samples in self.samples.items():
            measured = {metric.name: self.summary(name, metric.name) for metric in self.metrics}
            found = {key: value for key, value in measured.items() if value is not None}
            contestants.append({"name": name, "measured": found, "samples": samples})
        return {
            "name": self.name,
            "floor": self.floor,
            "settings": self.settings,
            "metrics": [vars(metric) for metric in self.metrics],
            "contestants": contestants,
        }


@dataclass
class Part:
    """One part of a run, and its results."""

    name: str
    groups: list[Group] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "groups": [group.to_json() for group in self.groups],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped.items()],
            "failed": [{"name": name, "reason": reason} for name, reason in self.failed.items()],
            "load": self.load,
            "seconds": self.seconds,
        }


class Bench:
    """Runs the turns of one part. `show` prints a group that is complete."""

    def __init__(self, part: str, settings: Settings, show: Callable[[str, Group], None]) -> None:
        self.settings, self.part, self._show = settings, Part(part), show
        self._rooms = 0
        self._directory = Path(tempfile.mkdtemp(prefix=f"commitlog-bench-{part}-", dir=settings.directory))

    @contextlib.contextmanager
    def clock(self) -> Iterator[Part]:
        """Runs the part from start to end, and removes afterwards what it has left on the disk."""
        began = time.monotonic()
        self.part.load.append(os.getloadavg()[0])
        try:
            yield self.part
        finally:
            self.part.load.append(os.getloadavg()[0])
            self.part.seconds = time.monotonic() - began
            shutil.rmtree(self._directory, ignore_errors=True)

    @contextlib.contextmanager
    def room(self) -> Iterator[Path]:
        """A new directory, removed afterwards."""
        self._rooms += 1
        path = self._directory / str(self._rooms)
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def skip(self, name: str, reason: str) -> None:
        """Notes and prints that a contestant is not there."""
        if name not in self.part.skipped:
            self.part.skipped[name] = reason
            say(f"{self.part.name}: skipped: {name}: {reason}")

    def wants(self, name: str) -> bool:
        """Whether `--against` names a contestant that does not take part in every run."""
        if name not in self.settings.against:
            self.skip(name, f"only with --against {name}")
            return False
        return True

    def compare(
        self,
        name: str,
        metrics: tuple[Metric, ...],
        floor: str,
        contestants: Mapping[str, Turn],
        repeats: int = 0,
        **settings: Any,
    ) -> Group:
        """Runs one round to warm up, then the repeats.

        A contestant that raises is out and is named with its error; the others go on. `repeats`
        replaces the run's number of rounds, and then there is no round to warm up. This is for
        turns that take long and warm up by themselves.
        """
        warm_ups, repeats = (0, repeats) if repeats else (self.settings.warm_ups, self.settings.repeats)
        group = Group(name, metrics, floor, {**settings, "repeats": repeats})
        group.samples = {contestant: [] for contestant in contestants}
        running = dict(contestants)
        for number in range(1 - warm_ups, 1 + repeats):
            what = f"round {number} of {repeats}" if number else "warming up"
            say(f"{self.part.name}: {name}: {what}", passing=True)
            for contestant, turn in list(running.items()):
                try:
                    sample = turn()
                except Exception as error:
                    traceback.print_exc()
                    self.part.failed[f"{contestant} ({name})"] = f"{type(error).__name__}: {error}"
                    del running[contestant], group.samples[contestant]
                    continue
                if number:
                    group.samples[contestant].append(sample)
        self.part.groups.append(group)
        self._show(self.part.name, group)
        return group


def say(text: str, passing: bool = False) -> None:
    """Prints a line on standard error.

    A passing line is overwritten by the next one, and left out where there is no terminal.
    """
    if not sys.stderr.isatty():
        if not passing:
            print(f"bench: {text}", file=sys.stderr, flush=True)
        return
    print(f"\r\033[Kbench: {text}", end="" if passing else "\n", file=sys.stderr, flush=True)


class Stopwatch:
    """Wall and CPU time of a with-block; the CPU time is that of all threads of this process."""

    def __enter__(self) -> Stopwatch:
        self._wall, self._cpu = time.perf_counter_ns(), time.process_time_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = (time.perf_counter_ns() - self._wall) / 1e9
        self.cpu_seconds = (time.process_time_ns() - self._cpu) / 1e9

    def each(self, count: int) -> Sample:
        """Microseconds a message, of the clock and of this process's CPU; messages a second."""
        return {
            "wall": self.seconds / count * 1e6,
            "cpu": self.cpu_seconds / count * 1e6,
            "rate": count / self.seconds,
        }


EACH = (
    Metric("wall", "µs a message"),
    Metric("cpu", "µs of CPU a message"),
    Metric("rate", "messages/s", "higher"),
)
"""The metrics of `Stopwatch.each`."""


def percentiles(nanoseconds: list[int]) -> Sample:
    """p50, p99 and p99.9 in microseconds."""
    ordered = sorted(nanoseconds)
    last = len(ordered) - 1
    return {
        name: ordered[min(int(share * len(ordered)), last)] / 1000
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    }


PERCENTILES = (Metric("p50", "µs, p50"), Metric("p99", "µs, p99"), Metric("p99.9", "µs, p99.9"))
