"""replicate: how fast messages leave the machine.

First a copy of the store (replicas.py). Then a backlog goes to Kafka by `commitlog forward`, beside
what confluent-kafka reaches with the same messages from memory. Both wait for all in-sync replicas
and commit transactions.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.benchmarks import kafka_broker, replicas
from scripts.benchmarks.floors import TOPIC, body_of
from scripts.benchmarks.harness import EACH, Bench, Metric, Sample, Stopwatch
from scripts.benchmarks.ours import running_store

FORWARD = (*EACH, Metric("broker", "µs of CPU a message, of the broker"))
MEMORY, OURS = "confluent-kafka, from memory", "commitlog forward"
_TRANSACTION_SECONDS = 0.5
"""As long as the forwarder's."""
_BATCH = 1000


def run(bench: Bench) -> None:
    replicas.run(bench)
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(kafka_broker.broker(bench))
        if broker is None:
            return
        for size in (100, 1024):
            _forward(bench, broker, size)


def _forward(bench: Bench, broker: kafka_broker.Broker, size: int) -> None:
    count = bench.settings.count(5_000_000 if size == 100 else 1_250_000, least=_BATCH, multiple=_BATCH)
    numbers = itertools.count()
    with running_store(bench) as store:
        bodies = [body_of(size) for _ in range(_BATCH)]
        with store.producer() as producer:
            for _ in range(count // _BATCH):
                producer.send_batch(TOPIC, bodies)
            producer.flush()
        bench.compare(
            f"forward, {size} B",
            FORWARD,
            MEMORY,
            {
                MEMORY: lambda: _from_memory(broker, bodies, count),
                OURS: lambda: _from_store(broker, store.path, count, f"bench-{size}-{next(numbers)}"),
            },
            messages=count,
            partitions=1,
            acks="all",
            transactions=f"of {_TRANSACTION_SECONDS:g} s",
        )


def _from_memory(broker: kafka_broker.Broker, bodies: list[bytes], count: int) -> Sample:
    """What a program gets that has the messages, with the forwarder's settings."""
    with broker.topic() as topic, _measured(broker, count) as sample:
        producer: Any = broker.client.Producer(
            {**broker.settings, "transactional.id": topic, "linger.ms": 5, "queue.buffering.max.kbytes": 65536}
        )
        producer.init_transactions(60)
        sent = 0
        while sent < count:
            producer.begin_transaction()
            until = time.monotonic() + _TRANSACTION_SECONDS
            while sent < count and time.monotonic() < until:
                _send(producer, topic, bodies)
                sent += _BATCH
            producer.commit_transaction(60)
    return sample


def _send(producer: Any, topic: str, bodies: list[bytes]) -> None:
    send = producer.produce
    for body in bodies:
        while True:
            try:
                send(topic, body, None, 0)
                break
            except BufferError:
                producer.poll(0.01)
    producer.poll(0)


def _from_store(broker: kafka_broker.Broker, path: Path, count: int, name: str) -> Sample:
    from commitlog.forwarding.forward_settings import settings_of
    from commitlog.forwarding.forwarder import Forwarder

    with broker.topic() as topic:
        settings = settings_of(path, f"kafka://{broker.address}", name=name, topic_map=[f"{TOPIC}={topic}"], once=True)
        with _measured(broker, count) as sample:
            Forwarder(settings, threading.Event()).run()
    return sample


@contextlib.contextmanager
def _measured(broker: kafka_broker.Broker, count: int) -> Iterator[Sample]:
    """Fills the sample that it gives when the with-block ends."""
    sample: Sample = {}
    before = broker.cpu_seconds()
    with Stopwatch() as watch:
        yield sample
    sample.update(watch.each(count))
    sample["broker"] = (broker.cpu_seconds() - before) / count * 1e6
