"""How soon the stages answer: a sleeping committer that is rung, and a stage that was killed.

It belongs to part `stages`, but here all stages run.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import zmq

import commitlog
from commitlog.reading.view import StoreView
from commitlog.shm.layout import STAGES, Lane, Stage
from commitlog.shm.memory_order import observe
from scripts.benchmarks import floors
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import PERCENTILES, Bench, Metric, Sample, Stopwatch, percentiles
from scripts.benchmarks.ours import running_store, warm_producer
from scripts.benchmarks.workers import workers

SEGMENT_BYTES, ROLLS = 1 << 20, 6  # more segments than there are buffers, and files ahead
REST_SECONDS = 0.013
_ASLEEP_SECONDS = 0.003  # a stage that goes to sleep looks once more after a millisecond
_ROUNDS_OF_A_LIFE = 5  # the supervisor is slow to restart a stage that died in its first rounds
_PATIENCE_SECONDS = 120.0
_FLOOR, _IMPORT = "a frame to a process, a word back", "Python starts, imports a stage"
_WORDS = {
    "committer": Lane.COMMITTED,
    "flusher": Lane.FLUSHED,
    "allocator": Lane.FLUSHED,
    "dispatcher": Lane.DISPATCHED,
}
"""The position that stands still without the stage."""


def run(bench: Bench) -> None:
    count = bench.settings.count(60, least=3)
    with _pipeline(bench) as pipeline:
        bench.compare(
            "committer, from send to committed",
            PERCENTILES[:2],
            _FLOOR,
            {
                _FLOOR: partial(_frames, bench, count),
                "asleep, and rung": partial(_committed, pipeline, pipeline.await_sleep, count),
                "awake, at rest after a small step": partial(_committed, pipeline, pipeline.await_rest, count),
            },
            messages=count,
            body="100 B",
            cores="the sender has one, who answers the other",
            rest=f"{REST_SECONDS * 1000:.0f} ms at the most; none while somebody waits for a flush",
        )
    with _pipeline(bench, store={"segment_bytes": SEGMENT_BYTES}) as pipeline:
        bench.compare(
            "kill -9 of a stage, until data moves again",
            (Metric("milliseconds", "ms"),),
            _IMPORT,
            {_IMPORT: _import, **{name: partial(_restarted, pipeline, name) for name in STAGES}},
            repeats=bench.settings.repeats,  # no round to warm up: it would warm nothing
            body="1 KB",
            allocator=f"until {ROLLS} segments of {SEGMENT_BYTES >> 20} MiB are flushed; the others: a message",
        )


class Pipeline:
    """A running store, a producer, and the stages' words in shared memory."""

    def __init__(self, producer: commitlog.Producer, view: StoreView) -> None:
        assert view.control
        self.producer, self._control = producer, view.control

    def word(self, stage: str, word: int) -> int:
        return self._control.stage_row(stage)[word]

    def passed(self, stage: str, where: int) -> bool:
        """Whether the position that the stage moves has reached `where`."""
        return observe(self._control.row(self.producer.lane), _WORDS[stage]) >= where

    def await_sleep(self, _: float = 0.0, stage: str = "committer") -> None:
        """Waits until the stage sleeps for good, without a last look."""
        seen, since = 0, 0.0

        def asleep() -> bool:
            nonlocal seen, since
            now, before, seen = time.monotonic(), seen, self.word(stage, Stage.SLEEP)
            since = since if seen == before else now
            return seen % 2 == 1 and now - since > _ASLEEP_SECONDS

        _wait_for(asleep)

    def await_rest(self, share: float) -> None:
        """Gives the committer a step to do, and waits until that share of its rest has passed."""
        while True:
            self.await_sleep()
            asleep_again = self.word("committer", Stage.SLEEP) + 2
            self.producer.send(TOPIC, b"a small step")
            _wait_for(partial(self._is_resting_or_missed, asleep_again), poll=0.0001)
            time.sleep(share * REST_SECONDS)
            if self._is_resting():  # else this process came too late, and tries again
                return

    def _is_resting(self) -> bool:
        return self.word("committer", Stage.LINGERING) == 1

    def _is_resting_or_missed(self, asleep_again: int) -> bool:
        return self._is_resting() or self.word("committer", Stage.SLEEP) >= asleep_again


@contextlib.contextmanager
def _pipeline(bench: Bench, **sections: dict[str, int]) -> Iterator[Pipeline]:
    with contextlib.ExitStack() as stack:
        patience = {"buffer_wait_ms": int(_PATIENCE_SECONDS * 1000)}  # a killed stage takes a while to come back
        store = stack.enter_context(running_store(bench, producer=patience, **sections))
        producer = stack.enter_context(warm_producer(store))
        yield Pipeline(producer, stack.enter_context(contextlib.closing(StoreView(store.path))))


def _wait_for(condition: Callable[[], bool], poll: float = 0.0005) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"the condition did not hold within {_PATIENCE_SECONDS:.0f} s")
        time.sleep(poll)


def _committed(pipeline: Pipeline, ready: Callable[[float], None], count: int) -> Sample:
    """From the end of `send` to the committed message; the sender looks for it without a pause."""
    took, body, clock = [], floors.body_of(100), time.perf_counter_ns
    with _on_own_core(pipeline.word("committer", Stage.PID)):
        for number in range(count):
            ready((number + 0.5) / count)
            receipt = pipeline.producer.send(TOPIC, body)
            began = clock()
            while not receipt.done("committed"):
                pass
            took.append(clock() - began)
    return percentiles(took)


@contextlib.contextmanager
def _on_own_core(pid: int) -> Iterator[None]:
    """Puts this thread on one core, and the threads of another process on the other cores.

    A thread that is woken on the core of a spinning one waits for the end of its time slice, 3 ms.
    """
    cores = os.sched_getaffinity(0)
    mine = {min(cores)}
    others = cores - mine or mine
    threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
    os.sched_setaffinity(0, mine)
    for thread in threads:
        os.sched_setaffinity(thread, others)
    try:
        yield
    finally:
        for thread in (0, *threads):
            os.sched_setaffinity(thread, cores)


def _frames(bench: Bench, count: int) -> Sample:
    """The time there and back alone: by ZeroMQ to a process that sleeps, back by shared memory."""
    took, clock = [], time.perf_counter_ns
    with bench.room() as room, contextlib.ExitStack() as stack:
        address, path = f"ipc://@commitlog-bench-{os.getpid()}", room / "word"
        path.write_bytes(bytes(mmap.PAGESIZE))
        running = stack.enter_context(workers([{"kind": "answer_frames", "path": str(path), "address": address}]))
        word = stack.enter_context(floors.shared_word(path))
        bell = stack.enter_context(stack.enter_context(zmq.Context()).socket(zmq.PUSH))
        bell.linger = 0
        bell.connect(address)
        running.let_go()
        with _on_own_core(running.processes[0].pid):
            for number in range(1, count + 2):  # the first one finds out whether the other process is there
                time.sleep(_ASLEEP_SECONDS)
                began = clock()
                bell.send(b"ring")
                while word[0] < number:
                    pass
                took.append(clock() - began)
        bell.send(b"")
        running.answers()
    return percentiles(took[1:])


# ---- kill -9 -----------------------------------------------------------------------------------


def _import() -> Sample:
    with Stopwatch() as watch:
        subprocess.run([sys.executable, "-P", "-c", "import commitlog.stages.committer"], check=True)
    return {"milliseconds": watch.seconds * 1000}


def _restarted(pipeline: Pipeline, stage: str) -> Sample:
    """From the kill until something that was sent after it has passed the stage."""
    producer, bodies = pipeline.producer, [floors.body_of(1024)] * 500
    producer.flush(timeout=_PATIENCE_SECONDS)
    pipeline.await_sleep(stage=stage)
    pid, rounds = pipeline.word(stage, Stage.PID), pipeline.word(stage, Stage.ROUNDS)
    with _silent(), Stopwatch() as watch:
        os.kill(pid, signal.SIGKILL)
        end = producer.send(TOPIC, bodies[0]).end
        until = end + ROLLS * SEGMENT_BYTES if stage == "allocator" else end
        while end < until:
            end = producer.send_batch(TOPIC, bodies).end
        _wait_for(lambda: pipeline.passed(stage, end))
    if pipeline.word(stage, Stage.PID) == pid:
        raise RuntimeError(f"the {stage} was killed, and data moved all the same")
    while pipeline.word(stage, Stage.ROUNDS) < rounds + _ROUNDS_OF_A_LIFE:
        producer.send_batch(TOPIC, bodies).wait("flushed", _PATIENCE_SECONDS)
    return {"milliseconds": watch.seconds * 1000}


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silences the store's warning that a stage died: here that is intended."""
    log = logging.getLogger("commitlog.client.store")
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False
