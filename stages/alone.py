"""One stage alone, on prepared input: for benchmarks, and to see where the stage's time goes.

`python -P -m commitlog.stages.alone STAGE DIRECTORY [SEGMENT_BYTES [BODY_BYTES]]` makes a small
store in a new DIRECTORY and fills a lane's buffers. Then it obeys the lines of its standard input,
and answers each with one JSON object. `prepare` sets the stage's input back to untouched. `go`
turns the stage's rounds until nothing is left, and reports the time and the amount. At the end of
its input it removes the store and its pool. No other process runs.

| stage | input of a pass |
| --- | --- |
| committer | a full pool, segment files made and open |
| flusher | the same segments, just written, not synced |
| dispatcher | a finished log, no consume queues |
| allocator | as many segments asked for as the pool has slots, and those ahead |
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import orjson

import commitlog
from commitlog.config import Config
from commitlog.config_file import load_config
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError
from commitlog.shm.counters import Histogram
from commitlog.shm.layout import HISTOGRAM_BUCKETS, STAGES, Header, Lane, Stage
from commitlog.shm.memory_order import observe
from commitlog.stages.base_stage import BaseStage
from commitlog.stages.supervising.starting import StoreOpening
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.system.process_title import set_process_title

TOPIC = "alone"
_BATCH = 1000
_STUCK_ROUNDS = 100
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, -1
_CLASSES = {name: name.capitalize() for name in STAGES}


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


class Alone:
    """A store of one filled lane, and one stage of it in this process.

    Attributes: `input_bytes`, the length of the lane's log; `messages`, how many are in it.
    """

    def __init__(self, name: str, path: Path, segment_bytes: int, body_bytes: int) -> None:
        self.name, self.path, self.segment_bytes = name, path, segment_bytes
        config: Config = load_config(  # the allocator makes segments, and does no house-keeping
            {
                "store": {"segment_bytes": segment_bytes, "lock_memory": False},
                "allocator": {"lane_idle_ms": 86_400_000},
            }
        )
        self._slots, self._ahead = config.store.buffers_per_lane, config.allocator.segments_ahead
        self._opening = StoreOpening(path, config, report=_warn)  # it has the locks
        self.control = self._opening.run().control
        self.words = self.control.words
        self._pool = self.control.region.path.parent
        self._row = self.control.row(0)
        self._lane_directory = StoreDirectory(path).lane_directory(0)
        self._stage: BaseStage | None = None
        try:
            self.messages = self._fill(body_bytes)
            self.input_bytes = observe(self._row, Lane.WROTE)
            self._run_to_end("allocator")
            if name == "dispatcher":
                self._commit_and_flush()
        except BaseException:
            self.close()
            raise

    def _fill(self, body_bytes: int) -> int:
        """Sends until the last buffer has no room for another batch. Returns how many messages."""
        self.words[Header.SUPERVISOR_HEARTBEAT] = SYSTEM_CLOCK.monotonic_ns()
        sent, most, end = 0, 0, self._slots * self.segment_bytes
        with commitlog.Producer(self.path) as producer:
            few = min(_BATCH, max(self.segment_bytes // 4 // (body_bytes + 200), 1))
            bodies = [os.urandom(body_bytes) for _ in range(few)]
            where = 0
            while where + most < end - self.segment_bytes // 16:
                receipt = producer.send_batch(TOPIC, bodies)
                most, where = max(most, receipt.end - receipt.physical_offset), receipt.end
                sent += len(bodies)
        return sent

    def _make(self, name: str) -> BaseStage:
        kind = getattr(importlib.import_module(f"commitlog.stages.{name}"), _CLASSES[name])
        self.words[Header.SUPERVISOR_HEARTBEAT] = SYSTEM_CLOCK.monotonic_ns()
        stage: BaseStage = kind(self.path)
        stage.beat()
        stage.on_start()
        return stage

    @staticmethod
    def _end(stage: BaseStage) -> None:
        stage.on_stop()
        stage.let_go()

    def _run_to_end(self, name: str) -> None:
        """Makes a stage, lets it do all its work, and ends it."""
        stage = self._make(name)
        while stage.work():
            pass
        self._end(stage)

    def _clear(self, *words: int) -> None:
        for word in words:
            self._row[word] = 0

    def _commit_and_flush(self) -> None:
        flusher = self._make("flusher")
        self._run_to_end("committer")
        while flusher.work():
            pass
        self._end(flusher)

    # ---- a pass ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Sets the stage's input back to untouched, and makes the stage."""
        self.finish()
        getattr(self, f"_prepare_{self.name}")()
        row = self.control.stage_row(self.name)
        for word in range(Stage.HISTOGRAM, Stage.HISTOGRAM + HISTOGRAM_BUCKETS):
            row[word] = 0

    def _prepare_committer(self) -> None:
        self._clear(Lane.COMMITTED, Lane.FLUSHED)
        flusher = self._make("flusher")
        flusher.work()
        self._end(flusher)
        self._stage = self._make("committer")

    def _prepare_flusher(self) -> None:
        self._clear(Lane.COMMITTED, Lane.FLUSHED)
        self._stage = self._make("flusher")
        self._run_to_end("committer")

    def _prepare_dispatcher(self) -> None:
        self._clear(Lane.DISPATCHED, Lane.DISPATCH_SYNCED)
        queue_path = self._lane_directory.queue_path(TOPIC)
        for name in DISK.list(queue_path):
            DISK.unlink(queue_path / name)
        self._stage = self._make("dispatcher")

    def _prepare_allocator(self) -> None:
        commitlog_path = self._lane_directory.commitlog
        for name in DISK.list(commitlog_path):
            DISK.unlink(commitlog_path / name)
        self._clear(Lane.ALLOCATED, Lane.OPENED)
        self._stage = self._make("allocator")

    def run_pass(self) -> dict[str, Any]:
        """Turns rounds as the stage's own loop does, but without waits. Returns what it took."""
        stage = self._stage
        assert stage
        row = self.control.stage_row(self.name)
        before, before_actions, began = _usage(), observe(row, Stage.ACTIONS), time.perf_counter_ns()
        rounds = self._rounds(stage)
        seconds = (time.perf_counter_ns() - began) / 1e9
        user, system, switches = (now - then for now, then in zip(_usage(), before, strict=True))
        durations = Histogram.load(row, Stage.HISTOGRAM)
        return {
            "seconds": seconds,
            "user_seconds": user,
            "system_seconds": system,
            "switches": switches,
            "rounds": rounds,
            "actions": observe(row, Stage.ACTIONS) - before_actions,
            "p50_us": durations.percentile(0.5),
            "p99_us": durations.percentile(0.99),
            **self._amount(),
        }

    def _rounds(self, stage: BaseStage) -> int:
        """Turns rounds until nothing is left, and returns how many.

        A profile finds the samples of a pass by the name of this function.
        """
        rounds = idle = 0
        while self._has_work(stage) and idle < _STUCK_ROUNDS:
            idle = 0 if stage.work() else idle + 1
            stage.beat()
            stage.on_wait_end()
            rounds += 1
        if idle:
            raise RuntimeError(f"the {self.name} does not go on alone; {stage.left():,} left")
        return rounds

    def _has_work(self, stage: BaseStage) -> bool:
        if self.name == "allocator":
            size = self.segment_bytes
            wanted = (observe(self._row, Lane.WROTE) // size + 1 + self._ahead) * size
            return observe(self._row, Lane.ALLOCATED) < wanted
        return stage.left() > 0

    def _amount(self) -> dict[str, int]:
        if self.name == "allocator":
            allocated = observe(self._row, Lane.ALLOCATED)
            return {"bytes": allocated, "units": allocated // self.segment_bytes}
        return {"bytes": self.input_bytes, "units": self.messages}

    def finish(self) -> None:
        """Ends the stage of the last pass."""
        if self._stage is not None:
            self._end(self._stage)
            self._stage = None

    def close(self) -> None:
        """Removes the store and its pool: nobody needs what is in them."""
        self.finish()
        self.control.close()
        for directory in (self._pool, self.path):
            _remove(directory)


def _remove(directory: Path) -> None:
    for name in DISK.list(directory):
        entry = directory / name
        if entry.is_dir():
            _remove(entry)
        else:
            DISK.unlink(entry)
    DISK.remove_directory(directory)


def _usage() -> tuple[float, float, int]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime, used.ru_nvcsw


def _let_profilers_in() -> None:
    """Lets a profiler that is not the parent trace this process: Yama forbids it otherwise."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def _say(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Runs the process."""
    name, path, *sizes = sys.argv[1:]
    assert name in STAGES
    set_process_title(name, path)
    segment_bytes, body_bytes = [*map(int, sizes), *(1 << 26, 100)[len(sizes) :]]
    _let_profilers_in()
    try:
        alone = Alone(name, Path(path), segment_bytes, body_bytes)
    except CommitLogError as error:
        sys.exit(f"commitlog.stages.alone: {error}")
    try:
        _say({"ready": True, "pid": os.getpid(), "bytes": alone.input_bytes, "messages": alone.messages})
        for line in sys.stdin.buffer:
            if line == b"prepare\n":
                alone.prepare()
                _say({"prepared": True})
            else:
                _say(alone.run_pass())
    except CommitLogError as error:
        sys.exit(f"commitlog.stages.alone: {error}")
    finally:
        alone.close()


if __name__ == "__main__":
    main()
