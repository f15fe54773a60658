"""Parquet files of rows that come in Real-Time Mode: the function of `commitlog.spark.foreach`.

It runs in a process of a Spark task. Rows gather for half a second at most, then they are a file,
`OUT/batch=<process>-<number>/rows.parquet`. Beside it is how old each message was when it came.
Names that begin with `_` are none of a table's files. The query's process looks for new ones.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from commitlog.disk.file_channel import DISK
from commitlog.ingest.latency import Latencies
from commitlog.ingest.producer_loop import WARM_UP
from commitlog.system.threads import Background

GATHER_SECONDS = 0.5
ROWS_MOST = 200_000
_LATENCIES = "_latencies.json"
_FILE = "rows.parquet"


class RealTimeTable:
    """Writes rows to `out`, and those of the warm-up to `warm_up`.

    It is pickled to get to its process.
    """

    def __init__(self, out: Path, warm_up: Path) -> None:
        self._places = {False: out, True: warm_up}
        self._lock: threading.Lock | None = None

    def _begin(self) -> threading.Lock:
        """In the process of the task: a lock can't be pickled."""
        if self._lock is None:
            self._lock = threading.Lock()
            self._gathered: dict[bool, list[pa.RecordBatch]] = {False: [], True: []}
            self._latencies = {False: Latencies(), True: Latencies()}
            self._files = 0
            self._failure: BaseException | None = None
            Background(self._write_now_and_then, "commitlog-real-time-table")
        return self._lock

    def __call__(self, batch: pa.RecordBatch) -> None:
        """Takes rows. Raises what a write since the last call has raised."""
        now_ms = time.time() * 1000
        is_warm_up = pc.ends_with(batch.column("run"), pattern=f".{WARM_UP}")
        with self._begin():
            self._check()
            for flag in (False, True):
                rows = batch.filter(pc.equal(is_warm_up, flag))
                if rows.num_rows:
                    self._gathered[flag].append(rows)
                    stored_ms = pc.cast(rows.column("stored_at"), pa.int64()).to_numpy() / 1000
                    self._latencies[flag].add(np.maximum(now_ms - stored_ms, 0))
            if sum(rows.num_rows for rows in self._gathered[False]) >= ROWS_MOST:
                self._write()

    def flush(self) -> None:
        """Called before Spark notes a position."""
        with self._begin():
            self._write()
            self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _write_now_and_then(self) -> None:
        lock = self._begin()
        while self._failure is None:
            time.sleep(GATHER_SECONDS)
            with lock:
                try:
                    self._write()
                except (OSError, pa.ArrowException) as error:  # the next call says so
                    self._failure = error

    def _write(self) -> None:
        """Puts what has gathered into files, each whole or not at all."""
        for flag, batches in self._gathered.items():
            if not batches:
                continue
            name = f"batch={os.getpid()}-{self._files}"
            made, place = self._places[flag] / f"_{name}", self._places[flag] / name
            made.mkdir(parents=True)
            pq.write_table(pa.Table.from_batches(batches), made / _FILE)
            DISK.replace_file(made / _LATENCIES, json.dumps(self._latencies[flag].to_json()).encode())
            DISK.rename(made, place)
            self._files += 1
            self._gathered[flag], self._latencies[flag] = [], Latencies()


@dataclass(frozen=True)
class NewFiles:
    """A directory that the function has made, and how old its messages were when they came."""

    directory: Path
    finished_ms: float
    latencies: Latencies


def new_files(place: Path, known: set[str]) -> list[NewFiles]:
    """The directories that are there now and were not known before. They are known from now on."""
    found = []
    for directory in place.glob("batch=*"):
        if directory.name not in known:
            known.add(directory.name)
            latencies = Latencies()
            latencies.merge(json.loads(DISK.read_file(directory / _LATENCIES)))
            found.append(NewFiles(directory, directory.stat().st_mtime * 1000, latencies))
    return sorted(found, key=lambda files: files.finished_ms)
