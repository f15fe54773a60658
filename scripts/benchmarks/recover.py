"""recover: how long until a store that was killed can be used again.

In the same boot its pool is adopted; otherwise the log is scanned.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from zlib_ng import zlib_ng

import commitlog
from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.errors import CommitLogError
from commitlog.native import VARIABLE, core
from commitlog.opening.recovery import recover_lane
from commitlog.opening.store_pool import open_pool
from commitlog.reading.view import StoreView
from commitlog.record.scan import scan
from commitlog.record.table import Stop
from commitlog.shm.layout import STAGES, Header, Stage
from scripts.benchmarks import floors
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import Bench, Metric, Sample, Stopwatch
from scripts.benchmarks.ours import PeakMemory, running_store
from scripts.benchmarks.workers import workers

SIZE = 1024
MIXED = tuple(round(10 * 400 ** (number * 37 % 100 / 99)) for number in range(100))
"""Sizes of bodies, from 10 B to 4 KB in no order. Half of them are below 200 B."""
MILLISECONDS = Metric("milliseconds", "ms, process start left out")
SCAN = (Metric("megabytes", "MB/s of the log", "higher"), Metric("cpu", "ms of CPU a MB"))
MEMORY = Metric("memory", "MB of private memory at the most")
_READ, _SCANNED = "read, and one CRC over it", "all flushed, nothing dispatched"
_WALKED = "scan() of the mapped files, with CRCs"


def run(bench: Bench) -> None:
    large = bench.settings.count(1 << 30, least=8 << 20)
    _same_boot(bench, large // 16, large)
    _full_scan(bench, f"{SIZE} B", [SIZE], large, lost=True)
    _full_scan(bench, "100 B", [100], large // 16)
    _full_scan(bench, "10 B to 4 KB", MIXED, large // 16)
    _side_by_side(bench, large // 64, large // 16)


def _fill(path: Path, total: int, sizes: Sequence[int] = (SIZE,), lanes: int = 1) -> None:
    """Sends messages of these sizes in turn until each lane's log has `total` bytes, flushed."""
    bodies = [floors.body_of(size) for _ in range(100 // len(sizes)) for size in sizes]
    with contextlib.ExitStack() as stack:
        for producer in [stack.enter_context(commitlog.Producer(path)) for _ in range(lanes)]:
            while producer.send_batch(TOPIC, bodies).end < total:
                pass
            producer.flush(timeout=120)


@dataclass
class Killed:
    """A store whose processes were all killed; its pool is there."""

    path: Path

    def adopt(self) -> Sample:
        """Does what a start does before its stages: checks the pool and takes it over."""
        with Stopwatch() as watch:
            directory = StoreDirectory(self.path)
            control, facts = open_pool(directory, directory.load(), DISK, lambda _: None)
            directory.save(facts)
        control.close()
        return {"milliseconds": watch.seconds * 1000}


@contextlib.contextmanager
def _killed(bench: Bench, total: int, unflushed: int) -> Iterator[Killed]:
    """Fills a store, has its last bytes accepted but not committed, and kills it.

    Afterwards it is drained and removed.
    """
    with bench.room() as room:
        store = commitlog.Store.open(room / "store", bench.settings.store_config)
        _fill(store.path, total)
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
    """The processes of a store, its supervisor first, so that it does not restart the others."""
    view = StoreView(path)
    assert view.control
    words, control = view.control.words, view.control
    found = {"supervisor": words[Header.SUPERVISOR_PID]}
    found |= {name: control.stage_row(name)[Stage.PID] for name in STAGES}
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


class StoppedLane:
    """A lane of a stopped store.

    Each recovery finds the same state: all flushed, nothing dispatched.
    """

    def __init__(self, lane_directory: LaneDirectory, segment_bytes: int) -> None:
        self._lane_directory, self._segment_bytes = lane_directory, segment_bytes
        last = PositionsFile(lane_directory, "", DISK).load()
        assert last
        self._last, self.bytes = last, last.flushed_where
        self.files = [lane_directory.segment_path(int(name)) for name in DISK.list(lane_directory.commitlog)]

    def forget(self, lost: bool = False) -> None:
        """Sets its recorded positions back to "nothing dispatched"; with `lost` removes them."""
        self._lane_directory.positions_file.unlink(missing_ok=True)
        if not lost:
            unclean = replace(self._last, dispatched_where=0, drained=False, entries=-1)
            PositionsFile(self._lane_directory, "", DISK).store(unclean)

    def scan(self, lost: bool) -> Sample:
        self.forget(lost)
        with Stopwatch() as watch:
            end = recover_lane(self._lane_directory, self._segment_bytes, DISK, lambda _: None).end
        self.check(end)
        return _speed(watch, end)

    def check(self, end: int) -> None:
        if end != self.bytes:
            raise RuntimeError(f"recovery ended at {end}, the log at {self.bytes}")


class StoppedStore:
    def __init__(self, path: Path) -> None:
        directory = StoreDirectory(path)
        size = directory.load().segment_bytes
        self.path, self.lanes = path, [StoppedLane(directory.lane_directory(n), size) for n in directory.lane_numbers()]
        self.bytes = sum(lane.bytes for lane in self.lanes)

    def recover(self) -> Sample:
        """Recovers all lanes in a process of its own, as a start does."""
        for lane in self.lanes:
            lane.forget()
        job = {"kind": "recover", "path": str(self.path)}
        with workers([job]) as running, PeakMemory(running.processes[0].pid) as memory:
            (answer,) = running.go()
        for lane, end in zip(self.lanes, answer["ends"], strict=True):
            lane.check(end)
        return {"memory": memory.peak_bytes / 1e6, "megabytes": self.bytes / answer["seconds"] / 1e6}

    def scan_in_python(self) -> Sample:
        """The same without the native core, in a process of its own."""
        for lane in self.lanes:
            lane.forget()
        job = {"kind": "recover", "path": str(self.path)}
        with workers([job], {VARIABLE: "off"}) as running:
            (answer,) = running.go()
        megabytes = self.bytes / 1e6
        return {"megabytes": megabytes / answer["seconds"], "cpu": answer["cpu_seconds"] * 1000 / megabytes}


@contextlib.contextmanager
def _stopped(bench: Bench, total: int, sizes: Sequence[int], lanes: int = 1) -> Iterator[StoppedStore]:
    with running_store(bench) as store:
        _fill(store.path, total, sizes, lanes)
        store.close()
        yield StoppedStore(store.path)


def _full_scan(bench: Bench, name: str, sizes: Sequence[int], total: int, lost: bool = False) -> None:
    """Times the full scan of a log.

    With `lost` the lane's positions are missing too: then recovery writes and syncs the log again.
    """
    with _stopped(bench, total, sizes) as store:
        (lane,) = store.lanes
        contestants = {
            _READ: partial(_read, lane.files, lane.bytes),
            _SCANNED: partial(lane.scan, False),
            _WALKED: partial(_walk, lane.files, lane.bytes),
        }
        if core is not None:
            contestants[f"{_SCANNED}, Python core"] = store.scan_in_python
        if lost:
            contestants["positions lost: scanned, written again, synced"] = partial(lane.scan, True)
        bench.compare(
            f"full scan, {name}",
            SCAN,
            _READ,
            contestants,
            megabytes=round(lane.bytes / 1e6, 1),
            body=name,
            checked="every record's CRCs",
            cache="the files are in memory",
        )


def _side_by_side(bench: Bench, small: int, large: int) -> None:
    """A start that scans more than one lane: its memory must not grow with the logs."""
    with _stopped(bench, small, [100], lanes=2) as few, _stopped(bench, large, [100], lanes=2) as many:
        bench.compare(
            "two lanes side by side",
            (MEMORY, SCAN[0]),
            "small logs",
            {"small logs": few.recover, "large logs": many.recover},
            small_megabytes=round(few.bytes / 1e6, 1),
            large_megabytes=round(many.bytes / 1e6, 1),
            body="100 B",
            memory="of the process that recovers and of its children, seen every 10 ms",
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


def _walk(files: list[Path], total: int) -> Sample:
    """Every record of the log as rows, its CRCs checked, as a reader does it in one process."""
    scanned, records = 0, 0
    with Stopwatch() as watch:
        for path in files:
            start = int(path.name)
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                where, end = 0, min(len(data), total - start)
                while where < end:
                    table = scan(data, where, end, start, None, check_crc=True)
                    where, records = table.stop_position, records + len(table)
                    scanned = start + where
                    stop = table.stop
                    del table  # its views would keep the file mapped
                    if stop is not Stop.FULL:
                        break
    if not records or scanned > total:
        raise RuntimeError(f"{records} records up to {scanned}, the log ends at {total}")
    return _speed(watch, total)
