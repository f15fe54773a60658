"""The Kafka cluster that a forwarder feeds: its topics, and the meaning of its errors.

librdkafka sorts errors into three kinds: retriable, those that end a transaction, and fatal ones. A
forwarder needs fewer: it begins anew after every error that may pass (forwarder.py), and stops at
those that only a person can mend. So this module names the latter.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ does not list them
    AclOperation,
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from commitlog.errors import ForwardError, TargetRefused, TargetUnavailable
from commitlog.forwarding.forward_settings import POSITIONS_PREFIX, ForwardSettings
from commitlog.forwarding.kafka_properties import without_secrets
from commitlog.forwarding.refusals import is_of_a_topic, refused_by_kafka
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock
from commitlog.system.threads import check_startable
from commitlog.text.quantities import counted

T = TypeVar("T")

CALL_SECONDS = 15.0
"""How long one question to the cluster may take."""
_CONNECT_SECONDS = 5.0
STEP_SECONDS = 0.2
"""A wait for an answer looks in these intervals whether the forwarder is to stop."""
_CLIENT_THREADS = 8
"""More than a new client starts. librdkafka ends the process where it gets none."""
_PROBE_SECONDS = 1.0
"""How often Kafka is asked whether it is there, while nothing is to be forwarded."""
SILENT_SECONDS = 5.0
"""If a cluster has not answered for this time, it is reported as silent."""
QUEUE_KIBIBYTES = 65_536
"""librdkafka's own queue holds at most this much. Its option counts in KiB."""
BATCH_BYTES_MOST = 1_000_000
"""librdkafka's default of batch.size, which is below the brokers' default of message.max.bytes."""
REFUSED = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""Only a person can mend these: the cluster does not let the forwarder do its work. What it refuses
of one topic is in refusals.py."""
FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}

log = logging.getLogger(__name__)
_quiet = logging.getLogger(f"{__name__}.librdkafka")
"""librdkafka repeats itself; what matters of it comes as errors. DEBUG shows it all."""
_quiet.addFilter(lambda record: _quiet.isEnabledFor(logging.DEBUG))


def error_of(error: KafkaException) -> KafkaError:
    """Returns librdkafka's error in an exception."""
    found = error.args[0]
    assert isinstance(found, KafkaError)
    return found


class _NotReady(KafkaException):
    """A topic was just made, and has no leader yet."""


@dataclass(frozen=True)
class KafkaTopic:
    """A topic as it is in the cluster now. `id` tells it from one that was there before."""

    name: str
    id: str
    partitions: int
    batch_bytes_max: int


class Cluster:
    """Asks the cluster, and makes topics. `close` is not needed: a client ends with its object.

    `on_wait` is called again and again while Kafka owes an answer, and ends the wait if it raises.
    """

    def __init__(
        self, settings: ForwardSettings, clock: Clock = SYSTEM_CLOCK, on_wait: Callable[[], None] = lambda: None
    ) -> None:
        self.settings, self._clock, self.on_wait = settings, clock, on_wait
        self.last_error = ""
        """What librdkafka said of a connection since Kafka has answered last.

        A timeout alone would not tell why.
        """
        self._asked_ns: int | None = None
        """Since when somebody waits for Kafka's answer."""
        self._probe: Future[Any] | None = None
        self._probed_ns = LONG_AGO_NS
        self._unanswered_ns: int | None = None
        """When the first probe was sent that was not answered."""
        self._admin = self._made(AdminClient, {})

    # ---- clients --------------------------------------------------------------------------------

    def producer(self, transactional_id: str, batch_bytes: int, on_delivery: Callable[[Any, Any], None]) -> Producer:
        """A producer whose messages count only in transactions."""
        return self._made(
            Producer,
            {
                "linger.ms": "5",
                "queue.buffering.max.messages": "500000",
                "queue.buffering.max.kbytes": str(QUEUE_KIBIBYTES),
                "message.max.bytes": "67108864",  # the broker says what is too large
                "batch.size": str(batch_bytes),
                "partitioner": "murmur2_random",  # as Java's clients do it
            },
            {
                "transactional.id": transactional_id,
                "acks": "all",
                "enable.idempotence": "true",
                "delivery.report.only.error": True,
                "on_delivery": on_delivery,
            },
        )

    def consumer(self) -> Consumer:
        """A consumer that sees committed transactions only, and is in no group."""
        return self._made(
            Consumer,
            {},
            {
                "group.id": "commitlog-forward",
                "enable.auto.commit": "false",
                "isolation.level": "read_committed",
                "enable.partition.eof": "true",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": "20",  # the end is told after this time
            },
        )

    def _made(self, kind: Callable[..., T], defaults: dict[str, Any], fixed: dict[str, Any] | None = None) -> T:
        check_startable(_CLIENT_THREADS, "a client of Kafka")
        own = {"bootstrap.servers": self.settings.servers, "error_cb": self._note}
        try:
            return kind({**defaults, **self.settings.properties, **own, **(fixed or {})}, logger=_quiet)
        except (KafkaException, ValueError, TypeError) as error:
            text = error_of(error).str() if isinstance(error, KafkaException) else str(error)
            raise ForwardError(
                f"a setting for Kafka is not possible: {self.shown(text).rstrip('.')}; names and values are librdkafka's: "
                "https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md"
            ) from None

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # it says less than what came before
            self.last_error = self.shown(error.str())
        if error.code() in REFUSED:
            self._refusal = error

    _refusal: KafkaError | None = None

    def note_success(self) -> None:
        """Forgets what a broker has refused: the cluster has done what it was asked."""
        self._admin.poll(0)  # tells what was refused until now
        self._refusal = None

    # ---- whether Kafka answers ------------------------------------------------------------------

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Within the with-block Kafka owes an answer, and at its end it has given one."""
        outer = self._asked_ns
        if outer is None:
            self._asked_ns = self._clock.monotonic_ns()
        try:
            yield
        finally:
            self._asked_ns = outer
        if outer is None:
            self._has_answered()

    def probe(self) -> None:
        """Asks now and then whether Kafka is there, and waits for nothing."""
        now = self._clock.monotonic_ns()
        self._admin.poll(0)  # tells of connections
        if self._probe is None:
            if now - self._probed_ns >= _PROBE_SECONDS * 1e9:
                self._probed_ns = now
                self._unanswered_ns = now if self._unanswered_ns is None else self._unanswered_ns
                self._probe = self._admin.describe_cluster(request_timeout=CALL_SECONDS)
        elif self._probe.done():
            if self._probe.exception() is None:
                self._has_answered()
            self._probe = None

    def _has_answered(self) -> None:
        self._unanswered_ns, self.last_error = None, ""

    def silence(self) -> str:
        """Says that Kafka does not answer, and why; empty if it answers, or was asked just now."""
        since = min((at for at in (self._asked_ns, self._unanswered_ns) if at is not None), default=None)
        if since is None or self._clock.monotonic_ns() - since < SILENT_SECONDS * 1e9:
            return ""
        why = f" ({self.last_error})" if self.last_error else ""
        return f"{self.settings.url}: Kafka does not answer{why}; waiting for it"

    def _answer(self, future: Future[T]) -> T:
        """Waits for Kafka's answer. Raises KafkaException, and what `on_wait` raises."""
        with self.asking():
            while not future.done():
                wait([future], STEP_SECONDS)
                self.on_wait()
            return future.result()

    # ---- errors ---------------------------------------------------------------------------------

    def shown(self, text: str) -> str:
        """Returns a text of librdkafka without secrets."""
        return without_secrets(" ".join(text.split()), self.settings.properties)

    def check(self, error: KafkaError) -> None:
        """Raises TargetRefused for an error that does not pass by itself."""
        refusal = error if error.code() in REFUSED else self._refusal
        if refusal is not None:
            raise TargetRefused(
                f"{self.settings.url}: {self.shown(refusal.str())}; check the credentials in the --config file, and that "
                "they may create, describe and write topics and use the transactional id"
            )

    def check_topic(self, name: str, error: KafkaError) -> None:
        """Raises TopicRefused for what Kafka refuses of this topic, and what `check` raises."""
        if is_of_a_topic(error):
            raise refused_by_kafka(name, error, self.shown(error.str())) from None
        self.check(error)

    def unavailable(self, error: KafkaError) -> TargetUnavailable:
        """The error of a cluster that does not answer."""
        why = self.last_error or self.shown(error.str())
        return TargetUnavailable(
            f"{self.settings.url}: no broker answers ({why}); check the address, or wait for it with --wait"
        )

    # ---- topics ---------------------------------------------------------------------------------

    def check_is_there(self) -> None:
        """Raises KafkaException if no broker answers, TargetRefused."""
        try:
            self._answer(self._admin.describe_cluster(request_timeout=min(_CONNECT_SECONDS, CALL_SECONDS)))
        except KafkaException as error:
            self._admin.poll(0)  # says why
            self.check(error_of(error))
            raise
        self.note_success()

    def find(self, names: Iterable[str], seconds: float = CALL_SECONDS) -> dict[str, KafkaTopic]:
        """Returns the topics that exist, by name.

        Raises KafkaException, TargetRefused, TopicRefused.
        """
        wanted = list(names)
        if not wanted:
            return {}
        described = self._admin.describe_topics(
            TopicCollection(wanted), include_authorized_operations=True, request_timeout=seconds
        )
        found = {}
        for name, future in described.items():
            try:
                about = self._answer(future)
            except KafkaException as error:
                if error_of(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                self.check_topic(name, error_of(error))
                raise
            # A transaction would be refused as a whole, and nobody would say for which topic.
            if lacks := _lacks(name, about.authorized_operations):
                denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
                raise refused_by_kafka(name, denied, f"the forwarder's user may not {lacks} it")
            if not all(partition.leader for partition in about.partitions):
                raise _NotReady(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, f"topic {name} has no leader"))
            found[name] = KafkaTopic(name, str(about.topic_id), len(about.partitions), BATCH_BYTES_MOST)
        limits = self._batch_bytes_max(found, seconds)
        return {name: replace(about, batch_bytes_max=limits[name]) for name, about in found.items()}

    def _batch_bytes_max(self, names: Iterable[str], seconds: float) -> dict[str, int]:
        """The size of a batch that each topic takes; the default where we may not ask."""
        limits = {name: config.get("max.message.bytes") for name, config in self._configs(names, seconds).items()}
        return {name: min(int(limit or BATCH_BYTES_MOST), BATCH_BYTES_MOST) for name, limit in limits.items()}

    def _configs(self, names: Iterable[str], seconds: float) -> dict[str, dict[str, str]]:
        """The configuration of each topic; empty where we may not ask."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        asked = self._admin.describe_configs(resources, request_timeout=seconds) if resources else {}
        found: dict[str, dict[str, str]] = {}
        for resource, future in asked.items():
            try:
                found[resource.name] = {name: entry.value for name, entry in self._answer(future).items()}
            except KafkaException as error:
                if error_of(error).code() not in REFUSED and not is_of_a_topic(error_of(error)):
                    raise
                found[resource.name] = {}
        return found

    def times_taken(self, topic: str) -> tuple[float, float]:
        """From when to when a topic takes messages, in ms since 1970.

        Where we may not ask, it takes all. Raises KafkaException.
        """
        config, now = self._configs([topic], CALL_SECONDS)[topic], self._clock.wall_ms()
        either = config.get("message.timestamp.difference.max.ms")  # of brokers before 3.6
        before = config.get("message.timestamp.before.max.ms") or either
        after = config.get("message.timestamp.after.max.ms") or either
        return now - int(before) if before else -math.inf, now + int(after) if after else math.inf

    def awaited(self, topics: Mapping[str, int]) -> dict[str, KafkaTopic]:
        """Topics, as soon as all know that they were made with so many partitions.

        Raises KafkaException.
        """
        deadline = self._clock.monotonic_ns() + int(CALL_SECONDS * 1e9)
        while True:
            with suppress(_NotReady):
                found = self.find(topics)
                late = [name for name in topics if name not in found or found[name].partitions < topics[name]]
                if not late:
                    return found
            if self._clock.monotonic_ns() > deadline:
                names = ", ".join(list(topics)[:5])
                raise _NotReady(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, f"topics such as {names} are not ready"))
            self.on_wait()
            self._clock.sleep(0.02)

    def end_of(self, topic: str) -> int:
        """The offset behind the last record of partition 0, committed or not."""
        wanted = {TopicPartition(topic, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        found = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=CALL_SECONDS
        )
        return int(self._answer(next(iter(found.values()))).offset)

    def create(self, name: str, partitions: int, config: dict[str, str] | None = None) -> None:
        """Makes a topic; one that is there meanwhile is as good.

        Raises KafkaException, TopicRefused.
        """
        log.info("making topic %s in Kafka%s", name, f", with {partitions} partitions" if partitions > 1 else "")
        future = self._admin.create_topics(
            [NewTopic(name, partitions, config=config or {})], request_timeout=CALL_SECONDS
        )
        self._done(name, future[name], KafkaError.TOPIC_ALREADY_EXISTS)

    def create_many(self, topics: Mapping[str, int]) -> set[str]:
        """Makes topics with so many partitions at once: one by one takes Kafka much longer.

        Returns those that were made; of another one `create` says why.
        """
        log.info("making %s in Kafka", counted(len(topics), "topic"))
        asked = self._admin.create_topics(
            [NewTopic(name, partitions) for name, partitions in topics.items()], request_timeout=CALL_SECONDS
        )
        made = set()
        for name, future in asked.items():
            with suppress(KafkaException):
                self._answer(future)
                made.add(name)
        return made

    def grow(self, name: str, partitions: int) -> None:
        """Raises a topic's number of partitions. Raises KafkaException, TopicRefused."""
        log.info("raising topic %s in Kafka to %d partitions", name, partitions)
        future = self._admin.create_partitions([NewPartitions(name, partitions)], request_timeout=CALL_SECONDS)
        self._done(name, future[name], KafkaError.INVALID_PARTITIONS)

    def _done(self, name: str, future: Any, harmless: int) -> None:
        try:
            self._answer(future)
        except KafkaException as error:
            if error_of(error).code() != harmless:
                self.check_topic(name, error_of(error))
                raise


def _lacks(name: str, allowed: Collection[AclOperation] | None) -> str:
    """What the forwarder has to do with a topic and may not; empty if all, or if nobody says."""
    wanted = {"write": AclOperation.WRITE}
    if name.startswith(POSITIONS_PREFIX):
        wanted["read"] = AclOperation.READ
    return " and ".join(word for word, operation in wanted.items() if allowed and operation not in allowed)


def whole_partition(topic: str) -> TopicPartition:
    """Partition 0 of a topic, from its first message on."""
    return TopicPartition(topic, 0, 0)
