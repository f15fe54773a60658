"""read: what a message costs its reader in Python, and how soon a reader that follows has it.

The floor of the costs is to iterate over the lines of a file, which are bytes, too. Readers by URL
and Kafka's consumer fetch over a socket of this machine. CPU is that of all threads of this process
(and so not of a server or a broker).
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

import commitlog
from scripts.benchmarks import kafka_broker, spark
from scripts.benchmarks.floors import TOPIC, body_of, new_file
from scripts.benchmarks.harness import EACH, Bench, Metric, Sample, Stopwatch, Turn, percentiles
from scripts.benchmarks.ours import running_store, warm_producer
from scripts.benchmarks.serve import served

LINES = "lines of a file"
SIZES = (100, 1024)
RATES = (50, 1000)
FOLLOWERS: dict[str, dict[str, Any]] = {
    "accepted": {"isolation": "accepted"},
    "committed, in a hurry": {"isolation": "committed", "hurry": True},
    "flushed, in a hurry": {"hurry": True},
    "flushed": {},
}
LATENCY = (
    Metric("p50", "µs from send to the reader, p50"),
    Metric("p99", "µs from send to the reader, p99"),
    Metric("cpu", "of a core, the reader"),
    Metric("idle", "of a core, the reader, idle"),
)
_STAMP_BYTES = 20
_SETTLE_SECONDS = 3
"""A reader rests longer after two seconds without a message."""


def run(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(kafka_broker.broker(bench))
        for size in SIZES:
            _costs(bench, broker, size)
        _there_and_back(bench)
        for rate in RATES:
            _latency(bench, rate)


# ---- what a message costs ------------------------------------------------------------------------


def _costs(bench: Bench, broker: kafka_broker.Broker | None, size: int) -> None:
    count = bench.settings.count(1_000_000, least=4000, multiple=4000)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(running_store(bench))
        bodies = [body_of(size) for _ in range(1000)]
        with store.producer() as producer:
            for _ in range(count // 1000):
                producer.send_batch(TOPIC, bodies, key="some-key", headers={"source": "web"})
            producer.flush(timeout=120)
        file = stack.enter_context(bench.room()) / "lines"
        file.write_bytes(b"\n".join([b"x" * size] * count))
        url = str(stack.enter_context(served(store.path)).address(store.path.name))
        path = str(store.path)
        turns: dict[str, Turn] = {
            LINES: partial(_measured, count, partial(_lines, file)),
            "Reader, value and offset": partial(_measured, count, partial(_one_by_one, path)),
            "Reader, key and headers too": partial(_measured, count, partial(_whole, path)),
            "Reader.batches": partial(_measured, count, partial(_batches, path)),
            "read_arrow": partial(_measured, count, partial(_arrow, path)),
            "Reader by URL, batches": partial(_measured, count, partial(_batches, url)),
        }
        if broker is not None:
            topic = stack.enter_context(broker.topic())
            spark.fill_topic(broker, topic, bodies, count)
            for name, most in (("Kafka's consumer, one by one", 1), ("Kafka's consumer, consume(1000)", 1000)):
                turns[name] = partial(_measured, count, partial(_kafka, broker, topic, count, most))
        bench.compare(f"{size} B", EACH, LINES, turns, messages=count, lanes=1, properties="a key and one header")


def _measured(count: int, read: Callable[[], int]) -> Sample:
    with Stopwatch() as watch:
        found = read()
    if found != count:
        raise RuntimeError(f"{found:,} messages came, {count:,} were written")
    return watch.each(count)


def _lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def _one_by_one(path: str) -> int:
    count = 0
    with commitlog.Reader(path, TOPIC) as reader:
        for message in reader:
            message.value, message.offset  # noqa: B018 - they are made when they are asked for
            count += 1
    return count


def _whole(path: str) -> int:
    count = 0
    with commitlog.Reader(path, TOPIC) as reader:
        for message in reader:
            message.value, message.offset, message.key, message.headers  # noqa: B018
            count += 1
    return count


def _batches(path: str) -> int:
    count = 0
    with commitlog.Reader(path, TOPIC) as reader:
        for messages in reader.batches():
            for message in messages:
                message.value, message.offset  # noqa: B018
            count += len(messages)
    return count


def _arrow(path: str) -> int:
    return sum(batch.num_rows for batch in commitlog.read_arrow(path, TOPIC, columns=("value", "offset")))


def _kafka(broker: kafka_broker.Broker, topic: str, count: int, most: int) -> int:
    settings = {"group.id": "bench", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    found = 0
    with broker.awake():
        consumer = broker.client.Consumer({**broker.settings, **settings})
        try:
            consumer.assign([broker.client.TopicPartition(topic, 0, 0)])
            while found < count:
                messages = [consumer.poll(60)] if most == 1 else consumer.consume(most, 60)
                if not messages or messages[0] is None:
                    break
                for message in messages:
                    message.value(), message.offset()
                found += len(messages)
        finally:
            consumer.close()
    return min(found, count)  # one more was sent to learn the leader


# ---- there and back ------------------------------------------------------------------------------


def _there_and_back(bench: Bench) -> None:
    count = bench.settings.count(500_000, least=2000, multiple=1000)
    bench.compare(
        "100 B, sent and read",
        EACH,
        "send, then Reader",
        {
            "send, then Reader": partial(_sent_and_read, bench, count, _one_by_one),
            "send, then Reader.batches": partial(_sent_and_read, bench, count, _batches),
        },
        messages=count,
    )


def _sent_and_read(bench: Bench, count: int, read: Callable[[str], int]) -> Sample:
    body = body_of(100)
    with running_store(bench) as store, store.producer() as producer:
        with Stopwatch() as sending:
            for _ in range(count):
                producer.send(TOPIC, body)
        producer.flush(timeout=120)
        with Stopwatch() as reading:
            found = read(str(store.path))
    if found != count:
        raise RuntimeError(f"{found:,} messages came, {count:,} were sent")
    one, other = sending.each(count), reading.each(count)
    both = {name: one[name] + other[name] for name in ("wall", "cpu")}
    return both | {"rate": 1e6 / both["wall"]}


# ---- how soon ------------------------------------------------------------------------------------

_FOLLOWER = """
import sys, time
import commitlog
path, topic, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
with commitlog.Reader(path, topic, follow=True, start="latest", **options) as reader:
    print("ready", flush=True)
    took = []
    for message in reader:
        now = time.monotonic_ns()
        if message.value == b"the end":
            break
        took.append(now - int(message.value))
    print(*took, flush=True)
"""


def _latency(bench: Bench, rate: int) -> None:
    seconds = bench.settings.seconds(8, least=0.5)
    bench.compare(
        f"a reader that follows, {rate} messages/s",
        LATENCY,
        "accepted",
        {
            **{name: partial(_followed, bench, rate, seconds, options) for name, options in FOLLOWERS.items()},
            "the disk alone": partial(_synced, bench, rate, seconds),
        },
        repeats=min(3, bench.settings.repeats),
        seconds=seconds,
        body=f"{_STAMP_BYTES} B",
    )


def _followed(bench: Bench, rate: int, seconds: float, options: dict[str, Any]) -> Sample:
    with running_store(bench) as store, warm_producer(store) as producer, _follower(store.path, options) as child:
        process = psutil.Process(child.pid)
        _send_steadily(producer, rate, seconds / 4)
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        _send_steadily(producer, rate, seconds)
        cpu = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
        time.sleep(min(_SETTLE_SECONDS, seconds))
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds)
        idle = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
        producer.send(TOPIC, b"the end")
        assert child.stdout is not None
        took = [int(number) for number in child.stdout.readline().split()]
    return percentiles(took[int(len(took) / 5) :]) | {"cpu": cpu, "idle": idle}


def _synced(bench: Bench, rate: int, seconds: float) -> Sample:
    """How long pwrite and fdatasync take at this rate: nothing that is flushed can come sooner."""
    process, took = psutil.Process(), []
    with bench.room() as room, new_file(room / "file", allocate=1 << 20) as fd:
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        for number in _steadily(rate, seconds):
            start = time.monotonic_ns()
            os.pwrite(fd, bytes(_STAMP_BYTES), number * _STAMP_BYTES)
            os.fdatasync(fd)
            took.append(time.monotonic_ns() - start)
        cpu = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
    return percentiles(took) | {"cpu": cpu, "idle": 0}


def _send_steadily(producer: commitlog.Producer, rate: int, seconds: float) -> None:
    for _ in _steadily(rate, seconds):
        producer.send(TOPIC, b"%d" % time.monotonic_ns())


def _steadily(rate: int, seconds: float) -> Iterator[int]:
    due = time.monotonic()
    for number in range(max(int(rate * seconds), 3)):
        yield number
        due += 1 / rate
        time.sleep(max(due - time.monotonic(), 0))


@contextlib.contextmanager
def _follower(path: Path, options: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-P", "-c", _FOLLOWER, str(path), TOPIC, repr(options)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            yield child
        finally:
            child.kill()
