"""Jobs of worker processes: context managers that prepare, and give the function to time."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zmq

import commitlog
from commitlog.disk.consume_queue import FILE_BYTES
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory
from commitlog.opening.parallel_recovery import recover_lanes
from scripts.benchmarks import floors
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import Stopwatch
from scripts.benchmarks.sends import send_all, send_batches

Turn = Callable[[], dict[str, Any]]


def _answer(watch: Stopwatch, messages: int) -> dict[str, Any]:
    """What a job answers. `ended` is on the monotonic clock, which all processes share."""
    ended = time.monotonic()
    return {"messages": messages, "seconds": watch.seconds, "cpu_seconds": watch.cpu_seconds, "ended": ended}


@contextlib.contextmanager
def send(
    path: Path, size: int, count: int = 0, seconds: float = 0.0, batch: int = 1, flush: bool = True
) -> Iterator[Turn]:
    """Sends `count` messages, or for `seconds`; in batches if `batch` > 1.

    With `flush` it returns when all are flushed.
    """
    with commitlog.Producer(path) as producer:
        producer.send(TOPIC, b"warm")
        producer.flush(timeout=30)
        bodies = [floors.body_of(size) for _ in range(batch)]

        def turn() -> dict[str, Any]:
            sent = 0
            with Stopwatch() as whole:
                with Stopwatch() as appending:
                    end = time.perf_counter() + seconds
                    for number in itertools.count() if seconds else range(count // batch):
                        if batch > 1:
                            producer.send_batch(TOPIC, bodies)
                        else:
                            producer.send(TOPIC, bodies[0])
                        sent += batch
                        if seconds and number & 31 == 0 and time.perf_counter() > end:
                            break
                if flush:
                    producer.flush(timeout=120)
            return {**_answer(whole, sent), "append_seconds": appending.seconds}

        yield turn


@contextlib.contextmanager
def append(path: Path, size: int, count: int, batch: int = 1) -> Iterator[Turn]:
    """Sends as the part `append` does, and answers with its sample."""
    with commitlog.Producer(path) as producer:
        producer.send(TOPIC, b"warm").wait("flushed", 30)
        bodies = [floors.body_of(size) for _ in range(batch)]
        yield lambda: send_all(producer, bodies[0], count) if batch == 1 else send_batches(producer, bodies, count)


@contextlib.contextmanager
def os_write(path: Path, size: int, seconds: float) -> Iterator[Turn]:
    """Writes the same bytes by os.write into a file of its own, for `seconds`."""
    record = floors.record_of(size)
    with floors.new_file(path) as fd:

        def turn() -> dict[str, Any]:
            sent, end = 0, time.perf_counter() + seconds
            with Stopwatch() as watch:
                for number in itertools.count():
                    os.write(fd, record)
                    sent += 1
                    if number & 31 == 0 and time.perf_counter() > end:
                        break
            return _answer(watch, sent)

        yield turn


@contextlib.contextmanager
def overlapped(path: Path, total_bytes: int, segment_bytes: int, made_before: bool = False) -> Iterator[Turn]:
    """The pipeline's floor."""
    path.mkdir()
    floor = floors.Overlapped(path, total_bytes, segment_bytes, made_before)

    def turn() -> dict[str, Any]:
        with Stopwatch() as watch:
            floor.run()
        return _answer(watch, 0)

    try:
        yield turn
    finally:
        floor.close()


@contextlib.contextmanager
def recover(path: Path) -> Iterator[Turn]:
    """Recovers every lane of a stopped store, as the supervisor does without a pool."""
    directory = StoreDirectory(path)
    lane_directories = [directory.lane_directory(number) for number in directory.lane_numbers()]
    facts = directory.load()

    def turn() -> dict[str, Any]:
        with Stopwatch() as watch:
            ends = recover_lanes(
                lane_directories, facts.segment_bytes, DISK, lambda _: None, queue_file_bytes=FILE_BYTES
            )
        return {**_answer(watch, 0), "ends": [ends[number].end for number in directory.lane_numbers()]}

    yield turn


@contextlib.contextmanager
def answer_frames(path: Path, address: str) -> Iterator[Turn]:
    """Sleeps until a ZeroMQ frame comes, and counts it in a shared word; an empty one is last."""
    with zmq.Context() as context, context.socket(zmq.PULL) as bell, floors.shared_word(path) as word:
        bell.linger = 0
        bell.bind(address)

        def turn() -> dict[str, Any]:
            with Stopwatch() as watch:
                while bell.recv():
                    word[0] += 1
            return _answer(watch, word[0])

        yield turn
