"""The live table adds up what each batch wrote, and forgets what is old."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from commitlog.ingest.grid import Grid
from commitlog.ingest.livetable import SECONDS_SHOWN, LiveTable

NOON = 1_700_000_000
STORED = pa.timestamp("us", "UTC")


def at(second: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(NOON + second, datetime.UTC)


def write(directory: Path, rows: list[dict[str, Any]], columns: dict[str, pa.DataType]) -> Path:
    """One batch as the query writes it."""
    directory.mkdir(parents=True)
    kinds = {**columns, "lane": pa.int32(), "offset": pa.int64(), "stored_at": STORED}
    arrays = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()}
    pq.write_table(pa.table(arrays), directory / "part-0.parquet")
    return directory


SAMPLE = {
    "kind": pa.string(),
    "name": pa.string(),
    "pid": pa.int32(),
    "cpu_percent": pa.float64(),
    "memory_bytes": pa.int64(),
    "in_bytes_per_second": pa.int64(),
    "out_bytes_per_second": pa.int64(),
}
LINE = {"source": pa.string(), "bytes": pa.int32()}


def grids(table: LiveTable) -> dict[str, Grid]:
    return {grid.title: Grid.from_json(grid.to_json()) for grid in table.grids()}


def test_the_busiest_processes_and_the_seconds(tmp_path: Path) -> None:
    """Processes by CPU; a second's cores are averaged, its disks added up."""
    rows = [
        {"kind": "process", "name": "idle", "pid": 1, "cpu_percent": 1.0, "memory_bytes": 5_000_000},
        {"kind": "process", "name": "busy", "pid": 2, "cpu_percent": 80.0, "memory_bytes": 7_000_000},
        {"kind": "process", "name": "busy", "pid": 2, "cpu_percent": 90.0, "memory_bytes": 9_000_000},
        {"kind": "cpu", "name": "cpu0", "cpu_percent": 100.0},
        {"kind": "cpu", "name": "cpu1", "cpu_percent": 50.0},
        {"kind": "memory", "name": "memory", "memory_bytes": 2_000_000_000},
        {"kind": "disk", "name": "a", "in_bytes_per_second": 1_000_000, "out_bytes_per_second": 2_000_000},
        {"kind": "disk", "name": "b", "in_bytes_per_second": 0, "out_bytes_per_second": 4_000_000},
    ]
    for number, row in enumerate(rows):
        row |= {"lane": number % 2, "offset": 10 + number, "stored_at": at(0.5)}
    table = LiveTable(machine=True)
    facts = table.add(write(tmp_path / "batch=0", rows, SAMPLE), (NOON + 0.75) * 1000)
    assert facts.rows == 8
    assert facts.ends == {0: 17, 1: 18}
    assert facts.latencies.total == 8
    assert 245 <= (facts.latencies.percentile(0.5) or 0) <= 255
    shown = grids(table)
    assert shown["Busiest processes"].rows == (("busy", "2", "85", "9"), ("idle", "1", "1", "5"))
    assert shown["Seconds"].rows[0][1:] == ("8", "75", "2,000", "7.0", "0.0")


def test_lines_by_source(tmp_path: Path) -> None:
    """Counts and bytes grow from batch to batch; only the last seconds are kept."""
    table = LiveTable(machine=False)
    for batch in range(20):
        rows = [
            {"source": "/var/log/a", "bytes": 100_000, "lane": 0, "offset": batch, "stored_at": at(batch)},
            {"source": "/var/log/b", "bytes": 1, "lane": 1, "offset": batch, "stored_at": at(batch)},
        ]
        table.add(write(tmp_path / f"batch={batch}", rows[: 2 if batch % 2 else 1], LINE), (NOON + batch) * 1000)
    shown = grids(table)
    assert shown["Sources"].rows == (("a", "20", "2.00"), ("b", "10", "0.00"))
    assert len(shown["Seconds"].rows) == SECONDS_SHOWN
    assert shown["Seconds"].rows[0][1:] == ("2", "0.10")


def test_an_empty_batch(tmp_path: Path) -> None:
    """The first one often is."""
    for machine, columns in ((True, SAMPLE), (False, LINE)):
        table = LiveTable(machine=machine)
        facts = table.add(write(tmp_path / str(machine) / "batch=0", [], columns), 0.0)
        assert (facts.rows, facts.ends) == (0, {})
        assert all(grid.rows == () for grid in table.grids())
