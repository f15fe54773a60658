"""Streams that wait for rows: how soon a message is in foreachBatch, and the cost of an idle query.

It belongs to part `spark`. The floor is Spark's own socket source: it stores nothing and needs no
Python.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from scripts.benchmarks import kafka_broker
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import Bench, Metric, Sample, Turn, percentiles
from scripts.benchmarks.ours import running_store, stage_meter, warm_producer

BODY_BYTES, RATE = 100, 50
FIRST_WARM_UP_SECONDS, WARM_UP_SECONDS = 60, 5
"""Java compiles what it has run often: the first query of a source gets faster for a minute, later
ones are fast from their start.
"""
REPEATS, DEFAULT_REPEATS = 3, 4
"""There are fewer rounds than elsewhere: a turn takes seconds to start a query and warm it up."""
LATENCY = (Metric("p50", "ms from send to foreachBatch, p50"), Metric("p99", "ms from send to foreachBatch, p99"))
IDLE = (Metric("query", "of a core, an idle query"), Metric("source", "of a core, what it reads from, idle"))
_PATIENCE_SECONDS = 60.0


@dataclass
class Live:
    """A stream, and the function that sends what it reads.

    Column `value` has it as bytes or text. `cpu_seconds` are those of whatever is between the two;
    `place` is the store's, where there is one.
    """

    frame: Any
    send: Callable[[bytes], object]
    cpu_seconds: Callable[[], float] = lambda: 0.0
    place: str = ""


LiveSource = Callable[[], contextlib.AbstractContextManager[Live]]


def run(bench: Bench, session: Any, broker: kafka_broker.Broker | None) -> None:
    """Runs in the session that `commitlog.spark.session` gave."""
    sources: dict[str, LiveSource] = {
        "Spark's socket source": partial(_socket, session),
        "commitlog": partial(_ours, bench, session),
    }
    if broker is not None:
        sources["Kafka"] = partial(kafka_stream, session, broker)
    compare(bench, session, "commitlog's session", sources, REPEATS, idle_seconds=1)


def run_with_defaults(bench: Bench, session: Any, broker: kafka_broker.Broker) -> None:
    """Runs in a session with Spark's own settings."""
    sources: dict[str, LiveSource] = {
        "Kafka": partial(kafka_stream, session, broker),
        "commitlog": partial(_ours, bench, session),
    }
    compare(bench, session, "Spark's defaults", sources, DEFAULT_REPEATS)


def compare(
    bench: Bench, session: Any, settings: str, sources: dict[str, LiveSource], repeats: int, idle_seconds: float = 0
) -> None:
    """Compares how soon messages arrive; with `idle_seconds`, also what idle queries cost."""
    seconds, idle = bench.settings.seconds(10, least=0.2), bench.settings.seconds(idle_seconds, least=0)
    first, later = (bench.settings.seconds(each, least=0) for each in (FIRST_WARM_UP_SECONDS, WARM_UP_SECONDS))
    turns: dict[str, Turn] = {}
    for name, source in sources.items():
        warm_ups = itertools.chain([first], itertools.repeat(later))
        turns[name] = partial(_turn, bench, session, source, warm_ups, seconds, idle)
    bench.compare(
        f"stream, {RATE} messages/s, {settings}",
        (*LATENCY, *IDLE) if idle_seconds else LATENCY,
        next(iter(turns)),
        turns,
        repeats=min(repeats, bench.settings.repeats),
        seconds=seconds,
        seconds_to_warm_up=f"{first:g} once, then {later:g}",
        body=f"{BODY_BYTES} B",
        trigger="default: at once",
        query="foreachBatch, collect",
        cores=session.sparkContext.defaultParallelism,
    )


def _turn(
    bench: Bench, session: Any, source: LiveSource, warm_ups: Iterator[float], seconds: float, idle_seconds: float
) -> Sample:
    arrivals, warm_up = Arrivals(), max(int(next(warm_ups) * RATE), 1)
    with bench.room() as room, source() as live:
        writer = live.frame.writeStream.foreachBatch(arrivals).option("checkpointLocation", str(room / "checkpoint"))
        query = writer.start()
        try:
            await_rows(query, lambda: send_stamp(live) > 0 and len(arrivals.found) > 20)  # some batches to warm up
            _send_and_await(query, live, arrivals, warm_up)
            began = time.monotonic_ns()
            _send_and_await(query, live, arrivals, max(int(seconds * RATE), 1))
            took = [now - stamp for stamp, now in arrivals.found if stamp >= began]
            sample = {name: value / 1000 for name, value in percentiles(took).items()}
            sample |= _idle(session, live, idle_seconds) if idle_seconds else {}
            query.processAllAvailable()  # Spark logs an error for a batch that is interrupted
            return sample
        finally:
            query.stop()


class Arrivals:
    """The function of a foreachBatch: notes for each message when it was sent and when it arrived.

    Times are monotonic ns.
    """

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []
        self.newest = 0

    def __call__(self, frame: Any, _: int) -> None:
        values = frame.select("value").collect()
        now = time.monotonic_ns()
        self.found += [(int(row.value), now) for row in values]
        self.newest = max((stamp for stamp, _ in self.found), default=0)


def send_stamp(live: Live) -> int:
    """Sends a message whose text is the time when it was sent."""
    stamp = time.monotonic_ns()
    live.send(b"%-*d" % (BODY_BYTES, stamp))
    return stamp


def send_steadily(live: Live, rate: int, count: int) -> list[int]:
    """Sends so many messages, `rate` a second, and returns their stamps."""
    stamps, next_at = [], time.monotonic()
    for _ in range(count):
        time.sleep(max(next_at - time.monotonic(), 0))
        stamps.append(send_stamp(live))
        next_at += 1 / rate
    return stamps


def _send_and_await(query: Any, live: Live, arrivals: Arrivals, count: int) -> None:
    """Sends steadily, and returns when the last message has arrived.

    Rows of one batch may come in any order (Spark's socket source deals them out to its tasks);
    batches keep theirs. Raises RuntimeError where a message did not come exactly once.
    """
    stamps = send_steadily(live, RATE, count)
    await_rows(query, lambda: arrivals.newest >= stamps[-1])
    if sorted(stamp for stamp, _ in arrivals.found if stamp >= stamps[0]) != stamps:
        raise RuntimeError("the query did not get every message once")


def await_rows(query: Any, condition: Callable[[], bool]) -> None:
    """Waits until a condition is true. Raises what the query has ended with, and RuntimeError."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if error := query.exception():
            raise error
        if time.monotonic() > end:
            raise RuntimeError(f"the query did not get its rows in {_PATIENCE_SECONDS:.0f} s")
        time.sleep(1 / RATE)


def _idle(session: Any, live: Live, seconds: float) -> Sample:
    """CPU of Spark's JVM with its Python workers, and of the source of the rows."""
    spark = psutil.Process(session.sparkContext._gateway.proc.pid)
    time.sleep(min(seconds, 0.3))  # the last batch is over
    before, source_before, began = cpu_seconds_of(spark), live.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    return {
        "query": spent_since(before, spark) / elapsed,
        "source": (live.cpu_seconds() - source_before) / elapsed,
    }


def spent_since(before: dict[psutil.Process, float], process: psutil.Process) -> float:
    """The CPU seconds of a process and its descendants since `cpu_seconds_of` gave `before`."""
    return sum(now - before.get(one, 0.0) for one, now in cpu_seconds_of(process).items())


def cpu_seconds_of(process: psutil.Process) -> dict[psutil.Process, float]:
    """CPU of a process and of each of its present descendants."""
    found = {}
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found[one] = sum(one.cpu_times()[:2])
    return found


# ---- where the rows come from ------------------------------------------------------------------


@contextlib.contextmanager
def _ours(bench: Bench, session: Any) -> Iterator[Live]:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(running_store(bench))
        meter = stack.enter_context(stage_meter(store.path))
        producer = stack.enter_context(warm_producer(store))
        frame = session.readStream.format("commitlog").option("subscribe", TOPIC).load(str(store.path))
        yield Live(frame, lambda body: producer.send(TOPIC, body), lambda: sum(meter.cpu_seconds().values()))


@contextlib.contextmanager
def kafka_stream(session: Any, broker: kafka_broker.Broker) -> Iterator[Live]:
    with broker.topic() as topic:
        producer = broker.producer(topic, **{"linger.ms": 0})
        reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)

        def send(body: bytes) -> None:
            producer.produce(topic, body)
            producer.poll(0)

        yield Live(reader.option("subscribe", topic).load(), send, broker.cpu_seconds)
        producer.flush(timeout=30)


@contextlib.contextmanager
def _socket(session: Any) -> Iterator[Live]:
    """Sends lines to each client that connects; without a connection it sends nothing."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.setblocking(False)
        peers: list[socket.socket] = []

        def send(body: bytes) -> None:
            with contextlib.suppress(BlockingIOError):
                peers.append(stack.enter_context(server.accept()[0]))
            for peer in peers:
                peer.sendall(body + b"\n")

        reader = session.readStream.format("socket").option("host", "127.0.0.1")
        yield Live(reader.option("port", server.getsockname()[1]).load(), send)
