"""Streams in Real-Time Mode: how soon a message is in a Python function, and what that costs Spark.

It belongs to part `spark`. `commitlog.spark.foreach` takes the rows, also those of Spark's Kafka
source, which is the floor. In one turn a class in Java takes them (NotingRows.java): what the
function and its process add is the difference. In another one they go back into the log, and a
`Reader` of another process takes them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import commitlog.spark
from commitlog.spark.launching.format_jar import compile_java
from commitlog.spark.launching.spark_home import spark_home
from scripts.benchmarks import kafka_broker
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import Bench, Metric, Sample, Turn, percentiles
from scripts.benchmarks.live import (
    BODY_BYTES,
    Live,
    await_rows,
    cpu_seconds_of,
    kafka_stream,
    send_stamp,
    send_steadily,
    spent_since,
)
from scripts.benchmarks.ours import running_store, stage_meter, warm_producer

RATES = (50, 1000)
LEVELS = ("accepted", "committed", "flushed")
COPIES = "copies"
WARM_UP_SECONDS = 12
"""For so long Java compiles what runs."""
METRICS = (
    Metric("p50", "ms from send to the function, p50"),
    Metric("p99", "ms from send to the function, p99"),
    Metric("query", "of a core, Spark and the function"),
    Metric("source", "of a core, what it reads from"),
    Metric("idle", "of a core, Spark and the function, idle"),
)


def run(bench: Bench, session: Any, broker: kafka_broker.Broker | None) -> None:
    with bench.room() as classes:
        in_java = _writer_in_java(session, classes)
        for rate in RATES:
            turns: dict[str, Turn] = {}
            if broker is not None:
                turns["Kafka"] = partial(_turn, bench, session, rate, partial(kafka_stream, session, broker))
            for level in LEVELS:
                turns[f"commitlog, {level}"] = partial(
                    _turn, bench, session, rate, partial(_ours, bench, session, level)
                )
            source = partial(_ours, bench, session, "accepted")
            turns["commitlog, accepted, to Java"] = partial(_turn, bench, session, rate, source, in_java)
            turns["commitlog, accepted, log to log to Reader"] = partial(
                _turn, bench, session, rate, source, _writer_to_log
            )
            bench.compare(
                f"Real-Time Mode, {rate} messages/s",
                METRICS,
                next(iter(turns)),
                turns,
                repeats=min(3, bench.settings.repeats),
                seconds=bench.settings.seconds(10, least=0.2),
                seconds_to_warm_up=bench.settings.seconds(WARM_UP_SECONDS, least=0.2),
                body=f"{BODY_BYTES} B",
                query="commitlog.spark.foreach",
                cores=session.sparkContext.defaultParallelism,
            )


class Noting:
    """The function: appends for each message when it was sent and when it came (monotonic ns)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, batch: Any) -> None:
        now = time.monotonic_ns()
        with (self.directory / f"{os.getpid()}.seen").open("a") as file:
            file.write("".join(f"{int(value)} {now}\n" for value in batch.column(0).to_pylist()))

    def found(self) -> list[tuple[int, int]]:
        lines = [line.split() for file in self.directory.glob("*.seen") for line in file.read_text().splitlines()]
        return [(int(line[0]), int(line[1])) for line in lines if len(line) == 2]


Writer = Callable[[Live, Path, contextlib.ExitStack], Any]
"""Makes the writer of a stream whose rows are noted in a directory. The stack ends what starts."""


def _writer_in_python(live: Live, room: Path, _: contextlib.ExitStack) -> Any:
    return commitlog.spark.foreach(live.frame.select("value"), Noting(room))


_READER = """
import sys, time
import commitlog
path, topic, seen = sys.argv[1:]
with commitlog.Reader(path, topic, follow=True, start="latest", isolation="accepted") as reader, open(seen, "a") as file:
    print("ready", flush=True)
    for message in reader:
        now = time.monotonic_ns()
        print(int(message.value), now, file=file, flush=True)
"""


def _writer_to_log(live: Live, room: Path, stack: contextlib.ExitStack) -> Any:
    """Rows go to another topic of the store."""
    words = [sys.executable, "-P", "-c", _READER, live.place, COPIES, str(room / "reader.seen")]
    process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
    stack.callback(process.kill)
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError("the reader of the copies did not start")
    return commitlog.spark.write_real_time(live.frame.select("value"), live.place, COPIES)


def _writer_in_java(session: Any, classes: Path) -> Writer:
    """Compiles the class into a directory, and has the session's JVM load it."""
    jvm = session._jvm
    java = Path(jvm.java.lang.System.getProperty("java.home"))
    compile_java(java, spark_home(), [Path(__file__).with_name("NotingRows.java")], classes)
    jvm.java.lang.Thread.currentThread().getContextClassLoader().addURL(jvm.java.io.File(str(classes)).toURI().toURL())

    def writer(live: Live, room: Path, _: contextlib.ExitStack) -> Any:
        made = live.frame.select("value").writeStream
        made._jwrite.foreach(jvm.commitlog.benchmarks.NotingRows(str(room)))
        return made

    return writer


def _turn(
    bench: Bench,
    session: Any,
    rate: int,
    source: Callable[[], contextlib.AbstractContextManager[Live]],
    writer_of: Writer = _writer_in_python,
) -> Sample:
    seconds, warm_up = bench.settings.seconds(10, least=0.2), bench.settings.seconds(WARM_UP_SECONDS, least=0.2)
    with bench.room() as room, source() as live, contextlib.ExitStack() as stack:
        noting = Noting(room)
        writer = writer_of(live, room, stack)
        writer = writer.option("checkpointLocation", str(room / "checkpoint")).outputMode("update")
        query = writer.trigger(realTime="10 minutes").start()
        try:
            await_rows(query, lambda: send_stamp(live) > 0 and len(noting.found()) > 2)
            _send_andawait_rows(query, live, noting, rate, warm_up)
            spark = psutil.Process(session.sparkContext._gateway.proc.pid)
            before, source_before, began = cpu_seconds_of(spark), live.cpu_seconds(), time.monotonic_ns()
            stamps = _send_andawait_rows(query, live, noting, rate, seconds)
            elapsed = (time.monotonic_ns() - began) / 1e9
            sample = {
                "query": spent_since(before, spark) / elapsed,
                "source": (live.cpu_seconds() - source_before) / elapsed,
            }
            arrived = dict(noting.found())
            sample |= {name: value / 1000 for name, value in percentiles([arrived[at] - at for at in stamps]).items()}
            before, began = cpu_seconds_of(spark), time.monotonic_ns()
            time.sleep(seconds / 2)
            idle = spent_since(before, spark)
            return sample | {"idle": idle / ((time.monotonic_ns() - began) / 1e9)}
        finally:
            query.stop()


def _send_andawait_rows(query: Any, live: Live, noting: Noting, rate: int, seconds: float) -> list[int]:
    """Sends steadily, and returns the stamps when all messages have come.

    Raises RuntimeError where one did not come exactly once.
    """
    stamps = send_steadily(live, rate, max(int(seconds * rate), 1))
    wanted = set(stamps)
    await_rows(query, lambda: len([1 for stamp, _ in noting.found() if stamp in wanted]) >= len(stamps))
    if sorted(stamp for stamp, _ in noting.found() if stamp in wanted) != stamps:
        raise RuntimeError("the query did not get every message once")
    return stamps


@contextlib.contextmanager
def _ours(bench: Bench, session: Any, level: str) -> Iterator[Live]:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(running_store(bench))
        meter = stack.enter_context(stage_meter(store.path))
        producer = stack.enter_context(warm_producer(store))
        producer.send(COPIES, b"the topic is there", wait=True)
        reader = session.readStream.format("commitlog").option("subscribe", TOPIC).option("isolation", level)
        yield Live(
            reader.load(str(store.path)),
            lambda body: producer.send(TOPIC, body),
            lambda: sum(meter.cpu_seconds().values()),
            str(store.path),
        )
