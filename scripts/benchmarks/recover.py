"""recover: how long until a store that was killed may go on. In the same boot its pool is
adopted; else the log is scanned."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zlib_ng import zlib_ng

import commitlog
from commitlog.adoption import open_pool
from commitlog.checkpoint import Positions, PositionsFile
from commitlog.errors import CommitLogError
from commitlog.file_channel import DISK
from commitlog.recovery import recover_lane
from commitlog.store_directory import StoreDirectory
from commitlog.view import StoreView
from scripts.benchmarks import floors
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import Bench, Metric, Sample, Stopwatch
from scripts.benchmarks.ours import running_store
from shm.layout import STAGES, Header, Stage

SIZE = 1024
MILLISECONDS = Metric("milliseconds", "ms, process start left out")
SCAN = (Metric("megabytes", "MB/s of the log", "higher"), Metric("cpu", "ms of CPU a MB"))


def run(bench: Bench) -> None:
    large = bench.settings.count(1 << 30, least=8 << 20)
    _same_boot(bench, large // 16, large)
    _full_scan(bench, large)


def _fill(store: commitlog.Store, total: int) -> None:
    """Messages of 1 KB until the log has so many bytes, all flushed."""
    with commitlog.Producer(store.path) as producer:
        bodies, where = [floors.body_of(SIZE) for _ in range(100)], 0
        while where < total:
            where = producer.send_batch(TOPIC, bodies).end
        producer.flush(120)


@dataclass
class Killed:
    """A store of which every process was killed; its pool is there."""

    path: Path

    def adopt(self) -> Sample:
        """What a start does before it starts its stages: checks the pool, raises the generation, saves both."""
        with Stopwatch() as watch:
            directory = StoreDirectory(self.path)
            control, facts = open_pool(directory, directory.load(), DISK, lambda _: None)
            directory.save(facts)
        control.close()
        return {"milliseconds": watch.seconds * 1000}


@contextlib.contextmanager
def _killed(bench: Bench, total: int, unflushed: int) -> Iterator[Killed]:
    """Fills a store, has its last bytes accepted and no more, and kills it. Afterwards it is drained and removed."""
    with bench.room() as room:
        store = commitlog.Store.open(room / "store", bench.settings.store_config)
        _fill(store, total)
        pids = _pids(store.path)
        with commitlog.Producer(store.path) as producer:
            os.kill(pids["committer"], signal.SIGSTOP)
            bodies, accepted = [floors.body_of(SIZE)] * 100, 0
            while accepted < unflushed:
                receipt = producer.send_batch(TOPIC, bodies)
                accepted += receipt.end - receipt.physical_offset
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(CommitLogError):
            store.close()
        try:
            yield Killed(store.path)
        finally:
            commitlog.Store.open(store.path, bench.settings.store_config).close()


def _pids(path: Path) -> dict[str, int]:
    """The supervisor first, so that it starts nobody again."""
    view = StoreView(path)
    assert view.control
    words, control = view.control.words, view.control
    found = {"supervisor": words[Header.SUPERVISOR_PID]}
    found |= {name: words[control.stage_base(name) + Stage.PID] for name in STAGES}
    view.close()
    return found


def _same_boot(bench: Bench, small: int, large: int) -> None:
    unflushed = min(bench.settings.segment_bytes // 2, large)
    names = [f"log of {total / 1e6:,.0f} MB" for total in (small, large)]
    with _killed(bench, small, unflushed) as first, _killed(bench, large, unflushed) as second:
        bench.compare(
            "same boot, everything killed",
            (MILLISECONDS,),
            names[0],
            {names[0]: first.adopt, names[1]: second.adopt},
            unflushed_megabytes=round(unflushed / 1e6, 1),
            killed="supervisor and stages by SIGKILL, committer stopped before",
        )


def _full_scan(bench: Bench, total: int) -> None:
    with running_store(bench) as store:
        _fill(store, total)
        store.close()
        directory = StoreDirectory(store.path)
        lane, facts = directory.lane(0), directory.load()
        last = PositionsFile(lane.positions_file, DISK).load()
        assert last

        def scan(positions: Positions | None) -> Sample:
            DISK.unlink(lane.positions_file)
            if positions:
                PositionsFile(lane.positions_file, DISK).store(positions)
            with Stopwatch() as watch:
                end = recover_lane(lane, facts.segment_bytes, DISK, lambda _: None)
            if end.end != last.flushed_where:
                raise RuntimeError(f"recovery ended at {end.end}, the log at {last.flushed_where}")
            PositionsFile(lane.positions_file, DISK).store(last)
            return _speed(watch, end.end)

        unclean = Positions(last.generation, last.flushed_where, 0, last.first_where, last.last_store_timestamp, False)
        files = [lane.segment(int(name)) for name in DISK.list(lane.commitlog)]
        bench.compare(
            "full scan",
            SCAN,
            "read, and one CRC over it",
            {
                "read, and one CRC over it": lambda: _read(files, last.flushed_where),
                "all flushed, nothing dispatched": lambda: scan(unclean),
                "positions lost: scanned, written again, synced": lambda: scan(None),
            },
            megabytes=round(last.flushed_where / 1e6, 1),
            body=f"{SIZE} B",
            cache="the files are in memory",
        )


def _speed(watch: Stopwatch, total: int) -> Sample:
    return {"megabytes": total / watch.seconds / 1e6, "cpu": watch.cpu_seconds * 1000 / (total / 1e6)}


def _read(files: list[Path], total: int) -> Sample:
    crc, left = 0, total
    with Stopwatch() as watch:
        for path in files:
            with open(path, "rb", buffering=0) as file:
                while left > 0 and (data := file.read(1 << 20)):
                    crc = zlib_ng.crc32(data[:left], crc)
                    left -= len(data)
    return _speed(watch, total)
