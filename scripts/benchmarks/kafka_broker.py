"""A real Kafka: one broker (KRaft) on this machine, paused while others have their turn.

Maven fetches its jars.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from scripts.benchmarks.harness import Bench, Sample, Stopwatch
from scripts.benchmarks.rivals import INSTALL, module_or_skip, wait_for

NAME = "Kafka"
HERE = Path(__file__).parent / "kafka"
FETCH_SECONDS = 900
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


def jars(project: str, fetch: bool = False) -> str | None:
    """The class path of a POM in kafka/; None where its jars are not here.

    With `fetch` they are fetched first.
    """
    pom = HERE / f"{project}.xml"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "commitlog-benchmarks"
    known = cache / f"{project}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if known.exists() and all(Path(jar).exists() for jar in known.read_text().split(":")):
        return known.read_text()
    if not fetch:
        return None
    cache.mkdir(parents=True, exist_ok=True)
    draft = known.with_name(f"{known.name}.{os.getpid()}")
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath", "-DincludeScope=runtime"]
    subprocess.run([*command, f"-Dmdep.outputFile={draft}"], check=True, timeout=FETCH_SECONDS)
    draft.rename(known)
    return known.read_text()


def why_not(project: str) -> str:
    """Why the jars of a POM are not here, and what to do about it."""
    if not shutil.which("java"):
        return "no java on PATH; on Debian or Ubuntu: apt install default-jre-headless"
    if jars(project) is None:
        tools = "" if shutil.which("mvn") else ", which needs Maven (apt install maven)"
        return f"its jars are not here: {INSTALL}{tools}"
    return ""


def version() -> str:
    """The broker's version; empty where its jars are not here."""
    names = [Path(jar).stem for jar in (jars("broker") or "").split(":")]
    return next((name.rpartition("-")[2] for name in names if name.startswith("kafka_2.13-")), "")


class Broker:
    """A running broker, or a cluster of two. `address` is what clients connect to."""

    def __init__(self, client: Any, processes: list[subprocess.Popen[bytes]], port: int) -> None:
        self.client = client
        self.address = f"127.0.0.1:{port}"
        self._processes = processes
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
            name, num_partitions=partitions, replication_factor=len(self._processes), config=config or {}
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
        for process in self._processes:
            os.kill(process.pid, signal.SIGCONT)
        self.admin().list_topics(timeout=60)

    def cpu_seconds(self) -> float:
        """CPU time of the broker so far."""
        return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in self._processes)

    def pause(self) -> None:
        for process in self._processes:
            os.kill(process.pid, signal.SIGSTOP)

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
    reason = why_not("broker")
    if client is None or reason:
        if client is not None:
            bench.skip(NAME, reason)
        yield None
        return
    port, second, controller = free_ports(3)
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        try:
            processes.append(_start(stack.enter_context(bench.room()), _FIRST, port, controller))
            if replicated:
                processes.append(_start(stack.enter_context(bench.room()), _SECOND, second, controller))
            running = Broker(client, processes, port)
            _await_brokers(running.admin(), processes)
            running.pause()
            yield running
        finally:
            for process in processes:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
                process.wait()


def _await_brokers(admin: Any, processes: list[subprocess.Popen[bytes]]) -> None:
    wait_for(lambda: len(admin.list_topics(timeout=60).brokers) == len(processes), processes[-1], 120)


def _start(room: Path, role: str, port: int, controller: int) -> subprocess.Popen[bytes]:
    properties = room / "server.properties"
    properties.write_text((role + _PROPERTIES).format(port=port, controller=controller, data=room / "data"))
    java = ["java", "-Xmx1g", "-Xms1g", f"-Duser.home={room}", "-cp", jars("broker") or ""]
    output: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    format_ = [*java, "kafka.tools.StorageTool", "format", "-t", "YmVuY2htYXJrLW9uLW9uZQ", "-c", str(properties)]
    subprocess.run(format_, check=True, timeout=120, **output)
    process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], **output)
    try:
        wait_for(lambda: _listens(port), process, 120)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


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
