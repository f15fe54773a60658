"""A real Kafka: one broker (KRaft) on this machine, or two, paused while others have their turn."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.benchmarks.harness import Bench, Sample, Stopwatch
from scripts.benchmarks.java_servers import HERE, Servers, free_ports, jars, servers, why_not
from scripts.benchmarks.rivals import module_or_skip, wait_for

NAME = "Kafka"
POM = HERE / "kafka" / "broker.xml"
_FIRST = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
"""
_SECOND = """
process.roles=broker
node.id=2
listeners=PLAINTEXT://127.0.0.1:{port}
"""
_PROPERTIES = """
controller.quorum.voters=1@127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=1
# it is paused between its turns, and must not take that for a failure
broker.session.timeout.ms=3600000
"""


class Broker:
    """A running broker, or a cluster of two. `address` is what clients connect to."""

    def __init__(self, client: Any, servers: Servers, port: int) -> None:
        self.client = client
        self.address = f"127.0.0.1:{port}"
        self._servers = servers
        self._admin: Any = None
        self._topics = 0

    @property
    def settings(self) -> dict[str, str]:
        return {"bootstrap.servers": self.address, "log_level": "0"}

    def admin(self) -> Any:
        if self._admin is None:
            self._admin = _admin_module().AdminClient(self.settings)
        return self._admin

    @contextlib.contextmanager
    def topic(self, partitions: int = 1, config: dict[str, str] | None = None) -> Iterator[str]:
        """A new topic, deleted afterwards.

        Meanwhile the broker runs; before and after it is paused.
        """
        self._topics += 1
        name = f"bench-{self._topics}"
        wanted = _admin_module().NewTopic(
            name, num_partitions=partitions, replication_factor=len(self._servers), config=config or {}
        )
        self._wake()
        try:
            self.admin().create_topics([wanted])[name].result(60)
            yield name
            self._wake()
            self.admin().delete_topics([name])[name].result(60)
        finally:
            self.pause()

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Lets the broker run during the with-block."""
        self._wake()
        try:
            yield
        finally:
            self.pause()

    def _wake(self) -> None:
        self._servers.wake()
        self.admin().list_topics(timeout=60)

    def cpu_seconds(self) -> float:
        """CPU time of the broker so far."""
        return self._servers.cpu_seconds()

    def pause(self) -> None:
        self._servers.pause()

    def producer(self, topic: str, **settings: Any) -> Any:
        """A producer that already knows the topic's leader."""
        producer = self.client.Producer({**self.settings, **settings})
        producer.produce(topic, b"warm")
        producer.flush(60)
        return producer


def _admin_module() -> Any:
    """The admin module of confluent_kafka, which may be missing and has few types."""
    return importlib.import_module("confluent_kafka.admin")


@contextlib.contextmanager
def broker(bench: Bench, *, replicated: bool = False) -> Iterator[Broker | None]:
    """A broker with an empty log in the bench's directory, paused.

    `replicated`: a second one follows it.

    Where there can't be one it gives None and says why.
    """
    client = module_or_skip(bench, NAME, "confluent_kafka")
    reason = why_not(POM)
    if client is None or reason:
        if client is not None:
            bench.skip(NAME, reason)
        yield None
        return
    port, second, controller = free_ports(3)
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(servers())
        last = _start(started, stack.enter_context(bench.room()), _FIRST, port, controller)
        if replicated:
            last = _start(started, stack.enter_context(bench.room()), _SECOND, second, controller)
        running = Broker(client, started, port)
        wait_for(lambda: len(running.admin().list_topics(timeout=60).brokers) == len(started), last, 120)
        started.pause()
        yield running


def _start(started: Servers, room: Path, role: str, port: int, controller: int) -> subprocess.Popen[bytes]:
    properties = room / "server.properties"
    properties.write_text((role + _PROPERTIES).format(port=port, controller=controller, data=room / "data"))
    java = ["java", "-Xmx1g", "-Xms1g", f"-Duser.home={room}", "-cp", jars(POM) or ""]
    format_ = [*java, "kafka.tools.StorageTool", "format", "-t", "YmVuY2htYXJrLW9uLW9uZQ", "-c", str(properties)]
    subprocess.run(format_, check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return started.start([*java, "kafka.Kafka", str(properties)], port)


def produce(broker: Broker, body: bytes, count: int, delivered: bool = False, **settings: Any) -> Sample:
    """produce() of each message.

    With `delivered` the clock runs until the broker has confirmed all of them.
    """
    with broker.topic() as topic:
        producer = broker.producer(topic, **settings)
        with Stopwatch() as watch:
            send_all(producer, topic, body, count)
            if delivered:
                producer.flush(300)
        producer.flush(300)
        return watch.each(count)


def send_all(producer: Any, topic: str, body: bytes, count: int) -> None:
    """Sends as librdkafka's manual says.

    It serves callbacks now and then, and waits a little where the queue is full.
    """
    send, poll = producer.produce, producer.poll
    for number in range(count):
        while True:
            try:
                send(topic, body)
                break
            except BufferError:
                poll(0.01)
        if number & 1023 == 0:
            poll(0)


def durable(
    broker: Broker, body: bytes, count: int, waiting: int, config: dict[str, str] | None = None
) -> tuple[float, list[int]]:
    """Sends messages that the broker syncs one by one, with `waiting` of them outstanding.

    The settings are flush.messages=1, acks=all, linger 0; `config` has more of the topic's. Returns
    the seconds in all, and for each message the nanoseconds from produce() to its answer.
    """
    took: list[int] = []
    with broker.topic(config={"flush.messages": "1", **(config or {})}) as topic:
        producer = broker.producer(topic, **{"linger.ms": 0, "acks": "all"})
        clock = time.perf_counter_ns

        def send() -> None:
            began = clock()
            producer.produce(topic, body, on_delivery=lambda *_: took.append(clock() - began))

        with Stopwatch() as watch:
            for sent in range(count):
                while sent - len(took) >= waiting:
                    producer.poll(1)
                send()
            producer.flush(300)
    return watch.seconds, took
