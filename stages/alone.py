"""One stage alone, on prepared input, with no other process running: for benchmarks, and to see
where its time goes.

`python -P -m commitlog.stages.alone STAGE DIRECTORY [SEGMENT_BYTES [BODY_BYTES]]` makes a small
store in a new DIRECTORY and fills a lane's buffers. Then it obeys lines of its standard input, each
answered by one JSON object: `prepare` sets the stage's input back to untouched, `go` turns the
stage's rounds until nothing is left and says what that took. At the end of its input it removes the
store and its pool.

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
from commitlog.clock import SYSTEM_CLOCK
from commitlog.config import Config
from commitlog.config_file import load_config
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError
from commitlog.shm.layout import HISTOGRAM_BUCKETS, STAGES, Header, Lane, Stage
from commitlog.shm.statistics import Histogram
from commitlog.stages.service_thread import ServiceThread
from commitlog.stages.supervisor import StageProcess, Supervisor

TOPIC = "alone"
_BATCH = 1000
_STUCK_ROUNDS = 100
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, -1
_CLASSES = {
    "committer": "CommitRealTimeService",
    "flusher": "FlushRealTimeService",
    "allocator": "AllocateMappedFileService",
    "dispatcher": "ReputMessageService",
}


class _Locks(Supervisor):
    """Takes the locks and makes the pool as ever, and starts nothing."""

    def _launch(self, name: str, before: StageProcess | None = None) -> Any:
        return None

    def _wait_until_up(self) -> None:
        pass

    def _warn(self, text: str) -> None:
        print(text, file=sys.stderr)


class Alone:
    """A store of one filled lane, and one stage of it in this process. `input_bytes`: of the lane's
    log.
    """

    def __init__(self, name: str, path: Path, segment_bytes: int, body_bytes: int) -> None:
        self.name, self.path, self.segment_bytes = name, path, segment_bytes
        config: Config = load_config(  # the allocator makes segments and keeps no house
            {
                "store": {"segment_bytes": segment_bytes, "lock_memory": False},
                "allocator": {"lane_idle_ms": 86_400_000},
            }
        )
        self._slots, self._ahead = config.store.buffers_per_lane, config.allocator.segments_ahead
        self._locks = _Locks(path, config)
        self._locks.start()
        assert self._locks.control
        assert self._locks.facts
        assert self._locks.facts.pool
        self.control, self.words = self._locks.control, self._locks.control.words
        self._pool = Path(self._locks.facts.pool.directory)
        self._base = self.control.lane_base(0)
        self._lane = StoreDirectory(path).lane(0)
        self._stage: ServiceThread | None = None
        try:
            self.messages = self._fill(body_bytes)
            self.input_bytes = self.words[self._base + Lane.WROTE]
            self._turn("allocator")
            if name == "dispatcher":
                self._commit_and_flush()
        except BaseException:
            self.close()
            raise

    def _fill(self, body_bytes: int) -> int:
        """Sends until the last buffer holds no further batch; how many messages that were."""
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

    def _make(self, name: str) -> ServiceThread:
        kind = getattr(importlib.import_module(f"commitlog.stages.{name}"), _CLASSES[name])
        self.words[Header.SUPERVISOR_HEARTBEAT] = SYSTEM_CLOCK.monotonic_ns()
        stage: ServiceThread = kind(self.path)
        stage.beat()
        stage.on_start()
        return stage

    @staticmethod
    def _end(stage: ServiceThread) -> None:
        stage.on_stop()
        stage._close()

    def _turn(self, name: str) -> None:
        """A stage's whole work, in between."""
        stage = self._make(name)
        while stage.work():
            pass
        self._end(stage)

    def _set(self, *words: int, to: int = 0) -> None:
        for word in words:
            self.words[self._base + word] = to

    def _commit_and_flush(self) -> None:
        flusher = self._make("flusher")
        self._turn("committer")
        while flusher.work():
            pass
        self._end(flusher)

    # ---- a pass ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Sets the stage's input back, and makes the stage."""
        self.finish()
        getattr(self, f"_prepare_{self.name}")()
        row = self.control.stage_base(self.name)
        for word in range(row + Stage.HISTOGRAM, row + Stage.HISTOGRAM + HISTOGRAM_BUCKETS):
            self.words[word] = 0

    def _prepare_committer(self) -> None:
        self._set(Lane.COMMITTED, Lane.FLUSHED)
        flusher = self._make("flusher")
        flusher.work()
        self._end(flusher)
        self._stage = self._make("committer")

    def _prepare_flusher(self) -> None:
        self._set(Lane.COMMITTED, Lane.FLUSHED)
        self._stage = self._make("flusher")
        self._turn("committer")

    def _prepare_dispatcher(self) -> None:
        self._set(Lane.DISPATCHED, Lane.DISPATCH_SYNCED)
        queue = self._lane.queue(TOPIC)
        for name in DISK.list(queue):
            DISK.unlink(queue / name)
        self._stage = self._make("dispatcher")

    def _prepare_allocator(self) -> None:
        for name in DISK.list(self._lane.commitlog):
            DISK.unlink(self._lane.commitlog / name)
        self._set(Lane.ALLOCATED, Lane.OPENED)
        self._stage = self._make("allocator")

    def go(self) -> dict[str, Any]:
        """The rounds, as the stage's own loop turns them, without its waits; and what they took."""
        stage = self._stage
        assert stage
        row = self.control.stage_base(self.name)
        before, before_actions, began = _usage(), self.words[row + Stage.ACTIONS], time.perf_counter_ns()
        rounds = self._rounds(stage)
        seconds = (time.perf_counter_ns() - began) / 1e9
        user, system, switches = (now - then for now, then in zip(_usage(), before, strict=True))
        durations = Histogram.load(self.words, row + Stage.HISTOGRAM)
        return {
            "seconds": seconds,
            "user_seconds": user,
            "system_seconds": system,
            "switches": switches,
            "rounds": rounds,
            "actions": self.words[row + Stage.ACTIONS] - before_actions,
            "p50_us": durations.percentile(0.5),
            "p99_us": durations.percentile(0.99),
            **self._amount(),
        }

    def _rounds(self, stage: ServiceThread) -> int:
        """Its name marks the samples of a profile that belong to the pass."""
        rounds = idle = 0
        while self._has_work(stage) and idle < _STUCK_ROUNDS:
            idle = 0 if stage.work() else idle + 1
            stage.beat()
            stage.on_wait_end()
            rounds += 1
        if idle:
            raise RuntimeError(f"the {self.name} does not go on alone; {stage.left():,} left")
        return rounds

    def _has_work(self, stage: ServiceThread) -> bool:
        if self.name == "allocator":
            size = self.segment_bytes
            wanted = (self.words[self._base + Lane.WROTE] // size + 1 + self._ahead) * size
            return self.words[self._base + Lane.ALLOCATED] < wanted
        return stage.left() > 0

    def _amount(self) -> dict[str, int]:
        if self.name == "allocator":
            allocated = self.words[self._base + Lane.ALLOCATED]
            return {"bytes": allocated, "units": allocated // self.segment_bytes}
        return {"bytes": self.input_bytes, "units": self.messages}

    def finish(self) -> None:
        """The stage of the last pass leaves."""
        if self._stage is not None:
            self._end(self._stage)
            self._stage = None

    def close(self) -> None:
        """Removes the store and its pool: nothing in them is of use to anybody."""
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
    """Where Yama lets only parents trace, a profiler that is a sibling of this process is asked in
    by it.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def _say(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Entry of the process."""
    name, path, *sizes = sys.argv[1:]
    assert name in STAGES
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
                _say(alone.go())
    finally:
        alone.close()


if __name__ == "__main__":
    main()
