"""Stores of a benchmark, and what their stages cost."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

import commitlog
from commitlog.reading.view import StoreView
from commitlog.shm.layout import STAGES, Lane, Stage
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import Bench, Sample


def config_of(bench: Bench, **sections: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The bench's configuration with more keys: config_of(bench, store={"record_crc": False})."""
    base = bench.settings.store_config
    return {name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}}


@contextlib.contextmanager
def running_store(bench: Bench, **sections: Mapping[str, Any]) -> Iterator[commitlog.Store]:
    """A new store with its stages; removed afterwards."""
    with bench.room() as room, commitlog.Store.open(room / "store", config_of(bench, **sections)) as store:
        yield store


@contextlib.contextmanager
def warm_producer(store: commitlog.Store) -> Iterator[commitlog.Producer]:
    """A producer that has sent something: it knows its topic and has its segment and sockets."""
    producer = commitlog.Producer(store.path)
    try:
        producer.send(TOPIC, b"warm").wait("flushed", 30)
        producer.send_batch(TOPIC, [b"warm", b"up"])
        producer.flush(timeout=30)
        yield producer
    finally:
        producer.close()


class StageMeter:
    """CPU, memory and counters of a running store's stages."""

    def __init__(self, path: Path) -> None:
        self._view = StoreView(path)
        assert self._view.control
        self._control = self._view.control
        self._processes = {name: psutil.Process(self.pid(name)) for name in STAGES}
        self._before = self._cpu()

    def pid(self, stage: str) -> int:
        return self._control.stage_row(stage)[Stage.PID]

    def _cpu(self) -> dict[str, float]:
        return {name: sum(process.cpu_times()[:2]) for name, process in self._processes.items()}

    def restart(self) -> None:
        """Counts CPU from here on."""
        self._before = self._cpu()

    def cpu_seconds(self) -> dict[str, float]:
        """CPU of each stage since the last `restart`; the kernel counts in steps of 10 ms."""
        now = self._cpu()
        return {name: now[name] - self._before[name] for name in STAGES}

    def memory_bytes(self) -> int:
        """Private memory of the largest stage: the pool is not counted."""
        return max(private_bytes(process.pid) for process in self._processes.values())

    def lag_bytes(self) -> int:
        """How far the dispatcher is behind what is flushed, over all lanes."""
        table = self._control.lane_table()
        return int((table[:, Lane.FLUSHED] - table[:, Lane.DISPATCHED]).sum())

    def cpu_sample(self, messages: int) -> Sample:
        """`<stage> cpu`, seconds a million messages."""
        return {f"{name} cpu": seconds / messages * 1e6 for name, seconds in self.cpu_seconds().items()}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Stops the stages during the with-block: a producer works with nobody beside it."""
        try:
            for process in self._processes.values():
                os.kill(process.pid, signal.SIGSTOP)
            yield
        finally:
            for process in self._processes.values():
                os.kill(process.pid, signal.SIGCONT)

    def close(self) -> None:
        self._view.close()


def private_bytes(pid: int) -> int:
    """A process's share of anonymous memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    return 0


class PeakMemory:
    """The largest private memory of a process with its children, with a look every 10 ms."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ended.wait(0.01):
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):  # a child has ended
                pids = [self._process.pid, *(child.pid for child in self._process.children())]
                self.peak_bytes = max(self.peak_bytes, sum(map(private_bytes, pids)))

    def __enter__(self) -> PeakMemory:
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._looking.join()


@contextlib.contextmanager
def stage_meter(path: Path) -> Iterator[StageMeter]:
    meter = StageMeter(path)
    try:
        yield meter
    finally:
        meter.close()
