"""A real Kafka broker (KRaft) for tests: one JVM a worker."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import maven
from tests.ports import free_ports
from tests.waiting import PATIENCE_SECONDS, wait_until

POM = Path(__file__).parents[2] / "scripts/benchmarks/kafka/broker.xml"
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
log.cleaner.dedupe.buffer.size=4194304
num.partitions=2
# hand-made stores have old times
log.retention.ms=-1
# a busy machine is no dead broker
broker.session.timeout.ms={session_timeout_ms}
"""

_SECURED = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},SASL_SSL://127.0.0.1:{secured}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secured}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\\
  org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={pem}
"""
_RIGHTS = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""
USER, PASSWORD = "forwarder", "a-secret-of-the-tests"


class Broker:
    """A broker with a directory of its own. `address` is what clients connect to.

    With `certificate`, a file in PEM with its key, clients may also come to `secured` over TLS, and
    give USER and PASSWORD by SCRAM.
    """

    def __init__(
        self, room: Path, session_timeout_ms: int, certificate: Path | None = None, *, rights: bool = False
    ) -> None:
        self._port, controller, secured = free_ports(3)
        self.address, self.secured = f"127.0.0.1:{self._port}", f"127.0.0.1:{secured}"
        self._numbers = itertools.count()
        self._file = room / "server.properties"
        properties = _PROPERTIES.format(
            port=self._port, controller=controller, data=room / "data", session_timeout_ms=session_timeout_ms
        )
        options = []
        if rights:
            properties += _RIGHTS
        if certificate is not None:
            properties += _SECURED.format(port=self._port, controller=controller, secured=secured, pem=certificate)
            options = ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"]
        self._file.write_text(properties)  # of two settings of a name the last one counts
        jars = maven.class_path(POM, "a real Kafka")
        heap = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        self._java = ["java", *heap, f"-Duser.home={room}", "-cp", jars]
        self._run(
            "kafka.tools.StorageTool", "format", "-t", "dGVzdHMtdGVzdHMtdGVzdA", "-c", str(self._file), *options
        ).wait(120)
        self.start()

    def _run(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self._java, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start(self) -> None:
        """Starts it, with the files that it has."""
        self._process = self._run("kafka.Kafka", str(self._file))
        wait_until(self._listens, "the broker listens", patience=120)

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It stands still within the with-block: connections stay, and nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _listens(self) -> bool:
        assert self._process.poll() is None, "the broker has ended"
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    def new_name(self) -> str:
        """A topic's name that no other test has."""
        return f"topic-{os.getpid()}-{next(self._numbers)}"

    def admin(self) -> Any:
        """A client that asks and makes. Keep it in a variable: without it answers never come."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address})

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Makes a topic that is ready then; `max_message_bytes="1"` is max.message.bytes."""
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        settings = {name.replace("_", "."): value for name, value in config.items()}
        admin = self.admin()
        admin.create_topics([NewTopic(topic, partitions, config=settings)])[topic].result(60)
        self._ends(topic, partitions)

    def delete(self, topic: str) -> None:
        """Removes a topic, and waits until it is gone."""
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(60)
        wait_until(lambda: topic not in admin.list_topics(timeout=60).topics, "the topic is gone")

    def grow(self, topic: str, partitions: int) -> None:
        """Adds partitions to a topic, and waits until they are ready."""
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

        admin = self.admin()
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)
        self._ends(topic, partitions)

    def alter(self, topic: str, **config: str) -> None:
        """Sets the topic's configuration, as `create` does."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin = self.admin()
        admin.incremental_alter_configs([resource])[resource].result(60)

    @contextmanager
    def denied(self, topic: str, *operations: str) -> Iterator[None]:
        """Within the with-block everybody may do all with a topic but this."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            AclBinding,
            AclBindingFilter,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        about = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:*", "*")
        rules = [AclBinding(*about, AclOperation.ALL, AclPermissionType.ALLOW)]
        rules += [AclBinding(*about, AclOperation[name], AclPermissionType.DENY) for name in operations]
        admin = self.admin()
        for made in admin.create_acls(rules).values():
            made.result(60)
        try:
            yield
        finally:
            every = AclBindingFilter(*about, AclOperation.ANY, AclPermissionType.ANY)
            for gone in admin.delete_acls([every]).values():
                gone.result(60)

    def partitions(self, topic: str) -> int:
        return len(self.admin().list_topics(topic, timeout=60).topics[topic].partitions)

    def read(self, topic: str, isolation: str = "read_committed") -> dict[int, list[Any]]:
        """All messages of a topic that consumers of this isolation level see, by partition.

        A commit has returned before its markers are in the partitions. So this waits until no
        transaction hides an end.
        """
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        count = self.partitions(topic)
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "tests",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        found: dict[int, list[Any]] = {number: [] for number in range(count)}
        ends = self._ends(topic, count)
        ended: set[int] = set()
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in found])
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(ended) < count:
                assert time.monotonic() < deadline, f"{topic}: the end is not reached"
                for message in consumer.consume(1000, timeout=0.1):
                    error, number = message.error(), message.partition() or 0
                    if error is None:
                        found[number].append(message)
                        continue
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    if (message.offset() or 0) >= ends[number]:
                        ended.add(number)
        finally:
            consumer.close()
        return found

    def _ends(self, topic: str, count: int) -> dict[int, int]:
        """The offset behind the last record of each partition, committed or not.

        A broker that has just made a topic, or has started, may not have a leader for a partition
        yet, or know that leader's epoch. So this asks until there is an answer.
        """
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(count)}
        admin = self.admin()

        def ask() -> dict[int, int]:
            found = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED)
            try:
                return {partition.partition: future.result(60).offset for partition, future in found.items()}
            except KafkaException:
                return {}

        return wait_until(ask, f"{topic}: each partition has its leader and tells its end")

    def values(self, topic: str) -> dict[int, list[bytes]]:
        """The values that read_committed consumers see, in order, of each partition with any."""
        return {number: [one.value() for one in found] for number, found in self.read(topic).items() if found}


@contextmanager
def running_broker(
    room: Path, session_timeout_ms: int = 60_000, certificate: Path | None = None, *, rights: bool = False
) -> Iterator[Broker]:
    """A broker, which is gone afterwards.

    After a kill it starts again when its session is over. With `rights` it knows who may do what.
    """
    broker = Broker(room, session_timeout_ms, certificate, rights=rights)
    try:
        yield broker
    finally:
        broker.kill()
