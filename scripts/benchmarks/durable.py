"""durable: a message is sent, and its sender waits until it would survive a power cut.

First one message at a time, then 16 and 1,000 outstanding, so that one sync may serve many.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any

import commitlog
from scripts.benchmarks import floors, kafka_broker, rivals
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import PERCENTILES, Bench, Metric, Sample, Stopwatch, Turn, percentiles
from scripts.benchmarks.ours import running_store, warm_producer

ANSWERS = Metric("answers", "answers/s", "higher")
SIZE = 1024


def run(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        room = stack.enter_context(bench.room())
        broker = stack.enter_context(kafka_broker.broker(bench))
        producer = stack.enter_context(warm_producer(stack.enter_context(running_store(bench))))
        for waiting, full in ((1, 2000), (16, 30_000), (1000, 200_000)):
            count = bench.settings.count(full, least=max(2 * waiting, 50))
            contestants = {
                f"{waiting} × pwrite + fdatasync": _floor(room / "file", count, waiting),
                "commitlog": _ours(producer, count, waiting),
            }
            fewer = count if waiting == 1 else max(count // 10, 20)
            if waiting < 1000:
                contestants |= _rivals(bench, broker, fewer, waiting)
            name = "one at a time" if waiting == 1 else f"{waiting:,} outstanding"
            bench.compare(
                f"1 KB, {name}",
                (*PERCENTILES, ANSWERS),
                f"{waiting} × pwrite + fdatasync",
                contestants,
                messages=count if waiting in (1, 1000) else f"{count} (the others: {fewer})",
                sync="each answer means: synced",
                Kafka="flush.messages=1, acks=all, linger 0",
                SQLite="WAL, FULL, a transaction a message; a thread and a connection for each that waits",
            )


def _floor(file: Any, count: int, waiting: int) -> Turn:
    record = floors.record_of(SIZE)

    def turn() -> Sample:
        steps = max(count // waiting, 10)
        took = floors.durable_writes(file, record, steps, waiting)
        return {**percentiles(took), "answers": steps * waiting / (sum(took) / 1e9)}

    return turn


def _ours(producer: commitlog.Producer, count: int, waiting: int) -> Turn:
    """One producer with `waiting` receipts outstanding.

    It waits for the oldest, and takes all others that became durable with it.
    """
    body, clock = floors.body_of(SIZE), time.perf_counter_ns

    def turn() -> Sample:
        outstanding: deque[tuple[commitlog.Receipt, int]] = deque()
        took: list[int] = []
        with Stopwatch() as watch:
            sent = 0
            while sent < count or outstanding:
                while sent < count and len(outstanding) < waiting:
                    began = clock()
                    outstanding.append((producer.send(TOPIC, body), began))
                    sent += 1
                outstanding[0][0].wait("flushed")
                now = clock()
                while outstanding and outstanding[0][0].done("flushed"):
                    took.append(now - outstanding.popleft()[1])
        return {**percentiles(took), "answers": count / watch.seconds}

    return turn


def _rivals(bench: Bench, broker: Any, count: int, waiting: int) -> dict[str, Turn]:
    found: dict[str, Turn] = {"SQLite": lambda: _sqlite(bench, count, waiting)}
    if broker is not None:
        found["Kafka"] = lambda: _kafka(broker, count, waiting)
    if bench.wants("lmdb") and (package := rivals.module_or_skip(bench, "LMDB", "lmdb")) is not None:
        found["LMDB"] = lambda: _lmdb(bench, package, count, waiting)
    if bench.wants("redis"):
        found["Redis"] = lambda: _redis(bench, count, waiting)
        with bench.room() as room, rivals.redis_stream(bench, room) as add:
            if add is None:
                del found["Redis"]
    return found


def _kafka(broker: kafka_broker.Broker, count: int, waiting: int) -> Sample:
    seconds, took = kafka_broker.durable(broker, floors.body_of(SIZE), count, waiting)
    return {**percentiles(took), "answers": count / seconds}


def _sqlite(bench: Bench, count: int, waiting: int) -> Sample:
    with bench.room() as room, rivals.sqlite(room / "db"):

        @contextlib.contextmanager
        def writer() -> Any:
            with contextlib.closing(rivals.sqlite_connection(room / "db")) as connection:
                yield lambda body: connection.execute("INSERT INTO log (body) VALUES (?)", (body,))

        return _threads(writer, count, waiting)


def _lmdb(bench: Bench, package: Any, count: int, waiting: int) -> Sample:
    with bench.room() as room, rivals.lmdb(package, room, sync=True) as put:
        lock = threading.Lock()  # LMDB lets one writer in at a time anyway; keys stay in order

        @contextlib.contextmanager
        def writer() -> Any:
            def insert(body: bytes) -> None:
                with lock:
                    put([body])

            yield insert

        return _threads(writer, count, waiting)


def _redis(bench: Bench, count: int, waiting: int) -> Sample:
    """One client; with many messages outstanding, pipelines of as many."""
    body, clock, took = floors.body_of(SIZE), time.perf_counter_ns, []
    with bench.room() as room, rivals.redis_stream(bench, room) as add:
        assert add is not None
        add([body])
        with Stopwatch() as watch:
            for _ in range(max(count // waiting, 1)):
                began = clock()
                add([body] * waiting)
                took.append(clock() - began)
    return {**percentiles(took), "answers": len(took) * waiting / watch.seconds}


def _threads(writer: Any, count: int, waiting: int) -> Sample:
    """Each of `waiting` threads inserts its share, one message after the other."""
    body, took, clock = floors.body_of(SIZE), list[int](), time.perf_counter_ns
    each = max(count // waiting, 2)
    ready = threading.Barrier(waiting + 1)

    def work() -> None:
        with writer() as insert:
            ready.wait()
            for _ in range(each):
                began = clock()
                insert(body)
                took.append(clock() - began)

    threads = [threading.Thread(target=work) for _ in range(waiting)]
    for thread in threads:
        thread.start()
    ready.wait()
    with Stopwatch() as watch:
        for thread in threads:
            thread.join()
    if len(took) != each * waiting:
        raise RuntimeError("a writer ended with an error")
    return {**percentiles(took), "answers": len(took) / watch.seconds}
