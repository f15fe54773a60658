"""What one turn of the part append sends, in the bench's own process and in a worker."""

from __future__ import annotations

from typing import Any

import commitlog
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import Sample, Stopwatch


def send_all(producer: commitlog.Producer, body: bytes, count: int, key: str | None = None) -> Sample:
    """The loop that a user would write, while the stages work.

    What is not flushed at its end is flushed outside the clock.
    """
    append = producer.send
    with Stopwatch() as watch:
        if key is None:
            for _ in range(count):
                append(TOPIC, body)
        else:
            for _ in range(count):
                append(TOPIC, body, key=key)
    producer.flush(timeout=120)
    return watch.each(count)


def send_batches(producer: commitlog.Producer, bodies: Any, count: int) -> Sample:
    """The same with batches; `bodies` is one batch."""
    append, each = producer.send_batch, len(bodies)
    with Stopwatch() as watch:
        for _ in range(count // each):
            append(TOPIC, bodies)
    producer.flush(timeout=120)
    return watch.each(count // each * each)
