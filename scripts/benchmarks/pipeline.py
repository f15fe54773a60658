"""pipeline: from the first message until all are synced to the disk, and the cost of the stages."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import commitlog
from commitlog.shm.layout import STAGES
from scripts.benchmarks import floors, rivals
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import Bench, Metric, Sample, Stopwatch, Turn, percentiles
from scripts.benchmarks.ours import StageMeter, running_store, stage_meter, warm_producer
from scripts.benchmarks.workers import workers

RATE = Metric("rate", "messages/s, until all is synced", "higher")
BODIES = Metric("bodies", "MB/s of bodies", "higher")
COSTS = (
    Metric("producers cpu", "producers: CPU seconds a million messages"),
    *(Metric(f"{name} cpu", f"{name}: CPU seconds a million messages") for name in STAGES),
    Metric("share", "committer's and flusher's CPU, of the producers'"),
    Metric("memory", "largest stage, MB of private memory"),
    Metric("lag", "dispatcher behind flushed at the end, MB"),
)


def run(bench: Bench) -> None:
    for producers in (1, 2):
        _batches(bench, producers)
    _single_messages(bench)
    _at_rest(bench)


def _rates(seconds: float, messages: int, size: int) -> Sample:
    return {"rate": messages / seconds, "bodies": messages * size / seconds / 1e6}


def _batches(bench: Bench, producers: int) -> None:
    """1 KB bodies in batches of 1,000."""
    size, settings = 1024, bench.settings
    count = settings.count(800_000 // producers, least=2000, multiple=1000)
    messages, record_bytes = count * producers, len(floors.record_of(size))
    bodies = [floors.body_of(size) for _ in range(1000)]

    def floor(made_before: bool) -> Sample:
        job = {"kind": "overlapped", "total_bytes": count * record_bytes, "segment_bytes": settings.segment_bytes}
        with bench.room() as room:
            jobs = [{**job, "path": str(room / str(n)), "made_before": made_before} for n in range(producers)]
            with workers(jobs) as running, Stopwatch() as watch:
                running.go()
        return _rates(watch.seconds, messages, size)

    contestants: dict[str, Turn] = {
        "pwrite + fdatasync, overlapped": lambda: floor(False),
        "the same, segments made before": lambda: floor(True),
        "commitlog": lambda: _ours(bench, producers, count, size, batch=1000),
    }
    done = f"{messages}"
    if producers == 1:
        few = max(messages // 20 // 1000 * 1000, 1000)
        done += f" (SQLite: {few}, LMDB: {few * 5})"
        contestants["SQLite FULL, transactions of 1,000"] = lambda: _sqlite(bench, bodies, few)
        if bench.wants("lmdb") and (package := rivals.module_or_skip(bench, "LMDB", "lmdb")) is not None:
            contestants["LMDB not synced, transactions of 1,000"] = lambda: _lmdb(
                bench, package, bodies, few * 5, False
            )
            contestants["LMDB synced, transactions of 1,000"] = lambda: _lmdb(bench, package, bodies, few * 5, True)
    bench.compare(
        f"1 KB in batches of 1,000, {_producers(producers)}",
        (RATE, BODIES, *COSTS),
        "pwrite + fdatasync, overlapped",
        contestants,
        messages=done,
        sync="fdatasync, all within the clock; LMDB not synced: none",
        written="the floor: a process a producer; segments allocated, written in 4 MiB, synced beside it; "
        "commitlog has its first segments before the clock starts",
    )


def _producers(count: int) -> str:
    return "one producer" if count == 1 else f"{count} producers"


def _ours(bench: Bench, producers: int, count: int, size: int, batch: int) -> Sample:
    with running_store(bench) as store, stage_meter(store.path) as meter:
        job = {"kind": "send", "path": str(store.path), "size": size, "count": count, "batch": batch}
        with workers([job] * producers) as running:
            meter.restart()
            with Stopwatch() as watch:
                answers = running.go()
            messages = sum(answer["messages"] for answer in answers)
            appended = sum(answer["messages"] / answer["append_seconds"] for answer in answers)
            sample = _rates(watch.seconds, messages, size) | {"append rate": appended}
            sample |= _costs(meter, messages, sum(answer["cpu_seconds"] for answer in answers))
    return sample


def _costs(meter: StageMeter, messages: int, producers_cpu: float) -> Sample:
    stages = meter.cpu_sample(messages)
    found = {"producers cpu": producers_cpu / messages * 1e6, **stages}
    found["share"] = (stages["committer cpu"] + stages["flusher cpu"]) / found["producers cpu"]
    return found | {"memory": meter.memory_bytes() / 1e6, "lag": meter.lag_bytes() / 1e6}


def _sqlite(bench: Bench, bodies: list[bytes], count: int) -> Sample:
    with bench.room() as room, rivals.sqlite(room / "db") as insert:
        return _inserted(insert, bodies, count)


def _lmdb(bench: Bench, package: Any, bodies: list[bytes], count: int, sync: bool) -> Sample:
    with bench.room() as room, rivals.lmdb(package, room, sync) as put:
        return _inserted(put, bodies, count)


def _inserted(insert: Any, bodies: list[bytes], count: int) -> Sample:
    with Stopwatch() as watch:
        for _ in range(count // len(bodies)):
            insert(bodies)
    return _rates(watch.seconds, count, len(bodies[0]))


def _single_messages(bench: Bench) -> None:
    """100 B, one `send` for each message: do the stages hold the producer back?"""
    size = 100
    most = 2 * bench.settings.segment_bytes // len(floors.record_of(size))  # what the buffers hold without stages
    count = min(bench.settings.count(500_000, least=1000), most)
    appends = Metric("append rate", "messages/s, until send has returned", "higher")
    bench.compare(
        "100 B by send, one producer",
        (appends, RATE, BODIES, *COSTS),
        "append alone, the stages held",
        {
            "append alone, the stages held": lambda: _append_alone(bench, count, size),
            "commitlog": lambda: _ours(bench, 1, count, size, batch=1),
        },
        messages=count,
        sync="fdatasync, all within the clock of the second table",
        held="SIGSTOP to every stage: the buffers take it all",
    )


def _append_alone(bench: Bench, count: int, size: int) -> Sample:
    with running_store(bench) as store, stage_meter(store.path) as meter:
        job = {"kind": "send", "path": str(store.path), "size": size, "count": count, "flush": False}
        with workers([job]) as running, meter.held():
            (answer,) = running.go()
    return {"append rate": answer["messages"] / answer["append_seconds"]}


def _at_rest(bench: Bench) -> None:
    """What the stages cost while there is nothing, or little, to do."""
    seconds = bench.settings.seconds(5, least=0.3)
    cores = Metric("cores", "of a core, all stages together")
    bench.compare(
        "at rest",
        (cores, Metric("p50", "µs from send to flushed, p50"), Metric("p99", "µs from send to flushed, p99")),
        "idle",
        {
            "idle": lambda: _idle(bench, seconds),
            "1,000 messages/s": lambda: _trickle(bench, seconds),
        },
        seconds=seconds,
        body="100 B",
    )


def _idle(bench: Bench, seconds: float) -> Sample:
    with running_store(bench) as store, stage_meter(store.path) as meter:
        time.sleep(min(seconds, 1))
        meter.restart()
        time.sleep(seconds)
        return {"cores": sum(meter.cpu_seconds().values()) / seconds}


def _trickle(bench: Bench, seconds: float) -> Sample:
    """Sends a message each millisecond, and looks each half millisecond whether it is flushed.

    Nobody asks for a flush.
    """
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(running_store(bench))
        meter = stack.enter_context(stage_meter(store.path))
        producer = stack.enter_context(warm_producer(store))
        waiting: list[tuple[commitlog.Receipt, int]] = []
        took: list[int] = []
        clock, body = time.perf_counter_ns, floors.body_of(100)
        meter.restart()
        began = next_at = clock()
        while (now := clock()) - began < seconds * 1e9 or waiting:
            while waiting and waiting[0][0].done("flushed"):
                took.append(now - waiting.pop(0)[1])
            if now >= next_at and now - began < seconds * 1e9:
                waiting.append((producer.send(TOPIC, body), now))
                next_at += 1_000_000
            time.sleep(0.0005)
        elapsed = (clock() - began) / 1e9
        return {"cores": sum(meter.cpu_seconds().values()) / elapsed, **percentiles(took)}
