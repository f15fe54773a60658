"""The live table: sums over what each batch wrote, read back from its Parquet files with Arrow.

Spark has just written these files, so they are in the page cache, and Arrow reads the few columns
that are needed in some milliseconds. If Spark made the same sums, it would read the log a second
time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from commitlog.ingest.grid import Grid
from commitlog.ingest.latency import Latencies
from commitlog.ingest.verdict import parquet_files_of

PROCESSES_SHOWN, SECONDS_SHOWN, SOURCES_SHOWN = 8, 8, 8
_FORGET_SECONDS = 5.0
_SMOOTHING = 0.4
_MACHINE = (
    "kind", "name", "pid", "cpu_percent", "memory_bytes", "in_bytes_per_second", "out_bytes_per_second"
)  # fmt: skip


@dataclass
class BatchFacts:
    """What one batch wrote: rows, where each lane stands after it, how old its messages were."""

    rows: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    latencies: Latencies = field(default_factory=Latencies)


class LiveTable:
    """Sums of the machine's samples, or of lines.

    It keeps only the last seconds and the last processes.
    """

    def __init__(self, *, machine: bool) -> None:
        self.machine = machine
        self._processes: dict[int, tuple[str, float, int, float]] = {}
        self._sources: dict[str, tuple[int, int]] = {}
        self._seconds: dict[int, dict[str, tuple[float, int]]] = {}

    def add(self, directory: Path, finished_ms: float) -> BatchFacts:
        """Takes in the files of one batch, which was finished at `finished_ms`."""
        columns = ["lane", "offset", "stored_at", *(_MACHINE if self.machine else ("source", "bytes"))]
        facts = BatchFacts()
        for path in parquet_files_of(directory):
            table = pq.read_table(path, columns=columns, read_dictionary=["kind", "name", "source"], partitioning=None)
            self._take(table, facts, finished_ms)
        return facts

    def _take(self, table: pa.Table, facts: BatchFacts, finished_ms: float) -> None:
        if not table.num_rows:
            return
        facts.rows += table.num_rows
        for row in table.group_by("lane").aggregate([("offset", "max")]).to_pylist():
            facts.ends[row["lane"]] = max(facts.ends.get(row["lane"], 0), row["offset_max"] + 1)
        stored_us = pc.cast(table["stored_at"], pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
        stored_ms, amounts = np.unique(stored_us // 1000, return_counts=True)
        facts.latencies.add(np.maximum(finished_ms - stored_ms, 0), amounts)
        table = table.append_column("second", pa.array(stored_us // 1_000_000))
        if self.machine:
            self._take_samples(table)
        else:
            self._take_lines(table)
        for second in sorted(self._seconds)[:-SECONDS_SHOWN]:
            del self._seconds[second]

    def _add_to_second(self, second: int, name: str, amount: float | None, count: int) -> None:
        sums = self._seconds.setdefault(second, {})
        before, times = sums.get(name, (0.0, 0))
        sums[name] = (before + (amount or 0.0), times + count)

    # ---- the machine ----------------------------------------------------------------------------

    def _take_samples(self, table: pa.Table) -> None:
        of_process = pc.equal(table["kind"].cast(pa.string()), "process")
        now = time.monotonic()
        means = table.filter(of_process).group_by(["pid", "name"]).aggregate(
            [("cpu_percent", "mean"), ("memory_bytes", "max")]
        )  # fmt: skip
        for row in means.to_pylist():
            _, smooth, _, _ = self._processes.get(row["pid"], ("", row["cpu_percent_mean"], 0, 0.0))
            smooth += (row["cpu_percent_mean"] - smooth) * _SMOOTHING
            self._processes[row["pid"]] = (row["name"], smooth, row["memory_bytes_max"], now)
        self._processes = {p: facts for p, facts in self._processes.items() if now - facts[3] < _FORGET_SECONDS}
        for row in table.group_by("second").aggregate([([], "count_all")]).to_pylist():
            self._add_to_second(row["second"], "messages", 0, row["count_all"])
        values = ["cpu_percent", "memory_bytes", "in_bytes_per_second", "out_bytes_per_second"]
        sums = table.filter(pc.invert(of_process)).group_by(["second", "kind", "name"]).aggregate(
            [*((value, "sum") for value in values), ([], "count_all")]
        )  # fmt: skip
        for row in sums.to_pylist():
            for value in values:
                if row[f"{value}_sum"] is not None:
                    name = f"{row['kind']}/{row['name']}/{value}"
                    self._add_to_second(row["second"], name, row[f"{value}_sum"], row["count_all"])

    def _machine_grids(self) -> list[Grid]:
        busiest = sorted(self._processes.items(), key=lambda item: -item[1][1])[:PROCESSES_SHOWN]
        rows = tuple((name, str(pid), f"{cpu:.0f}", f"{memory / 1e6:,.0f}") for pid, (name, cpu, memory, _) in busiest)
        seconds = []
        for second, sums in sorted(self._seconds.items(), reverse=True):
            cores = [total / count for name, (total, count) in sums.items() if name.startswith("cpu/") and count]
            seconds.append(
                (
                    time.strftime("%H:%M:%S", time.localtime(second)),
                    f"{sums.get('messages', (0, 0))[1]:,}",
                    f"{sum(cores) / len(cores):.0f}" if cores else "",
                    f"{_sum_of_means(sums, 'memory/memory') / 1e6:,.0f}",
                    f"{_sum_of_means(sums, 'disk/') / 1e6:,.1f}",
                    f"{_sum_of_means(sums, 'network/') / 1e6:,.1f}",
                )
            )
        return [
            Grid("Busiest processes", ("process", "pid", "CPU %", "memory MB"), rows),
            Grid("Seconds", ("time", "messages", "CPU %", "memory MB", "disk MB/s", "network MB/s"), tuple(seconds)),
        ]

    # ---- lines ----------------------------------------------------------------------------------

    def _take_lines(self, table: pa.Table) -> None:
        sums = [("bytes", "sum"), ([], "count_all")]
        for row in table.group_by("source").aggregate(sums).to_pylist():
            lines, amount = self._sources.get(row["source"], (0, 0))
            self._sources[row["source"]] = (lines + row["count_all"], amount + row["bytes_sum"])
        for row in table.group_by("second").aggregate(sums).to_pylist():
            self._add_to_second(row["second"], "lines", row["bytes_sum"], row["count_all"])

    def _line_grids(self) -> list[Grid]:
        most = sorted(self._sources.items(), key=lambda item: -item[1][0])[:SOURCES_SHOWN]
        seconds = tuple(
            (time.strftime("%H:%M:%S", time.localtime(second)), f"{lines:,}", f"{amount / 1e6:,.2f}")
            for second, sums in sorted(self._seconds.items(), reverse=True)
            for amount, lines in (sums.get("lines", (0, 0)),)
        )
        rows = tuple((Path(name).name or name, f"{lines:,}", f"{amount / 1e6:,.2f}") for name, (lines, amount) in most)
        return [
            Grid("Sources", ("source", "lines", "MB"), rows),
            Grid("Seconds", ("time", "lines", "MB"), seconds),
        ]

    def grids(self) -> list[Grid]:
        """What to show now."""
        return self._machine_grids() if self.machine else self._line_grids()


def _sum_of_means(sums: dict[str, tuple[float, int]], prefix: str) -> float:
    return sum(total / count for name, (total, count) in sums.items() if name.startswith(prefix) and count)
