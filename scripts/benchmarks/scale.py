"""scale: 1 to 16 producers at the same time, each a process: messages a second, and fairness."""

from __future__ import annotations

from functools import partial
from typing import Any

from scripts.benchmarks.harness import Bench, Metric, Sample
from scripts.benchmarks.ours import running_store
from scripts.benchmarks.workers import workers

PRODUCERS, QUICK_PRODUCERS = (1, 2, 4, 8, 16), (1, 2)
SIZE = 100
METRICS = (
    Metric("rate", "messages/s in all", "higher"),
    Metric("fairness", "slowest producer, of the fastest", "higher"),
)


def run(bench: Bench) -> None:
    seconds = bench.settings.seconds(1.5, least=0.1)
    segment = min(bench.settings.segment_bytes, 1 << 24)
    for producers in QUICK_PRODUCERS if bench.settings.quick else PRODUCERS:
        bench.compare(
            f"{producers} producer{'s' if producers > 1 else ''}",
            METRICS,
            "os.write, a file each",
            {
                "os.write, a file each": partial(_os_write, bench, producers, seconds),
                "commitlog": partial(_ours, bench, producers, seconds, segment),
            },
            seconds=seconds,
            body=f"{SIZE} B by send, CRC on",
            sync="none within the clock; the stages work beside it",
            segments=f"{segment >> 20} MiB, 3 buffers a lane",
        )


def _sample(answers: list[dict[str, Any]]) -> Sample:
    """All messages, by the time from the first producer's begin to the last one's end."""
    messages = [answer["messages"] for answer in answers]
    began = min(answer["ended"] - answer["seconds"] for answer in answers)
    ended = max(answer["ended"] for answer in answers)
    return {"rate": sum(messages) / (ended - began), "fairness": min(messages) / max(messages)}


def _os_write(bench: Bench, producers: int, seconds: float) -> Sample:
    with bench.room() as room:
        jobs = [
            {"kind": "os_write", "path": str(room / str(number)), "size": SIZE, "seconds": seconds}
            for number in range(producers)
        ]
        with workers(jobs) as running:
            return _sample(running.go())


def _ours(bench: Bench, producers: int, seconds: float, segment: int) -> Sample:
    with running_store(bench, store={"segment_bytes": segment}, producer={"buffer_wait_ms": 60_000}) as store:
        job = {"kind": "send", "path": str(store.path), "size": SIZE, "seconds": seconds, "flush": False}
        with workers([job] * producers) as running:
            return _sample(running.go())
