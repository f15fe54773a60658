"""One producer of Kafka's, from its first transaction to its end.

The producer fences all earlier ones of the same transactional.id, and what they had begun and not
committed is gone. So what a session finds when it begins is final, whatever has ended the one
before: an error, a timeout or a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from commitlog.errors import ForwardError
from commitlog.forwarding.cluster import CALL_SECONDS, STEP_SECONDS, Cluster, error_of
from commitlog.forwarding.kafka_positions import OWNER_KEY, Owner, Positions, TopicPosition, read_positions
from commitlog.forwarding.refusals import OF_A_MESSAGE, TOO_LARGE, WANTS_KEY, is_of_a_topic
from commitlog.forwarding.store_source import Rows
from commitlog.system.clock import SYSTEM_CLOCK, Clock

_ABORT_SECONDS = 3.0
_DOUBT_SECONDS = 2.0
"""After this time a commit that waits asks whether the topics are still there."""
_COMMIT_SECONDS = 60.0
"""Kafka's default of transaction.timeout.ms: after that the coordinator aborts a transaction."""
ANY_PARTITION = -1
"""Stands for the partition that Kafka's partitioner chooses."""


class Stopped(Exception):  # no error: what is open is aborted
    """The forwarder is to stop, and the transaction is not committed."""


class NewSession(Exception):  # no error: the producer needs another setting, or the topics another look
    """The session ends, and the next one begins at once."""


class Sent(NamedTuple):
    """What tells a message from others, as librdkafka gives it back."""

    topic: str
    value: bytes
    key: bytes | None
    time_ms: int
    """0 where librdkafka does not say it."""


class RefusedByKafka(Exception):  # becomes a MessageRefused that says which message
    """Kafka does not take a message, or librdkafka does not (`here`)."""

    def __init__(self, message: Sent, error: KafkaError, *, here: bool = False) -> None:
        super().__init__(error.str())
        self.message, self.error, self.here = message, error, here

    @property
    def topic(self) -> str:
        """The topic in Kafka."""
        return self.message.topic


class TopicRefusedByKafka(Exception):  # becomes a TopicRefused of the topics that go there
    """Kafka does not take messages of this topic from the forwarder's user."""

    def __init__(self, topic: str, error: KafkaError) -> None:
        super().__init__(topic)
        self.topic, self.error = topic, error


class Session:
    """Sends rows in transactions that hold the positions too.

    Raises KafkaException, and what the cluster's `on_wait` raises.
    """

    def __init__(self, cluster: Cluster, positions_topic: str, batch_bytes: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._cluster, self._positions_topic = cluster, positions_topic
        self.batch_bytes = batch_bytes
        self._refused: RefusedByKafka | TopicRefusedByKafka | None = None
        self._in_transaction = False
        self._producer = cluster.producer(positions_topic, batch_bytes, self._delivered)

    def begin(self) -> Positions:
        """Fences earlier producers. Returns the positions that count."""
        self._patiently(self._producer.init_transactions, CALL_SECONDS)
        return read_positions(self._cluster, self._positions_topic, self._clock)

    def take_over(self, owner: Owner, positions: Mapping[str, TopicPosition]) -> None:
        """Writes who forwards from now on, and from where."""
        self.begin_transaction()
        self._producer.produce(self._positions_topic, owner.to_bytes(), OWNER_KEY, 0)
        self.commit(positions)

    def begin_transaction(self) -> None:
        self._producer.begin_transaction()
        self._in_transaction = True

    def send(self, topic: str, partition: int, rows: Rows) -> None:
        """Gives messages to librdkafka. Where its queue is full, this waits: back-pressure."""
        produce = self._producer.produce
        for value, key, time, headers in zip(rows.values, rows.keys, rows.times, rows.headers, strict=False):
            try:
                produce(topic, value, key, partition, None, None, time, headers)
            except BufferError:
                self._send_when_there_is_room(topic, value, key, partition, None, None, time, headers)
            except KafkaException as error:
                if error_of(error).code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise
                raise RefusedByKafka(Sent(topic, value, key, time), error_of(error), here=True) from None
        self._producer.poll(0)

    def _send_when_there_is_room(self, *message: Any) -> None:
        with self._cluster.asking():
            while True:
                self._cluster.on_wait()
                empty = not len(self._producer)
                self._producer.poll(0.01)
                try:
                    self._producer.produce(*message)
                    return
                except BufferError:
                    if empty:
                        raise ForwardError(
                            f"a message of {len(message[1]):,} bytes for topic {message[0]} in Kafka does not fit into the "
                            "empty queue of librdkafka: raise queue.buffering.max.kbytes in the --config file"
                        ) from None

    def commit(self, moved: Mapping[str, TopicPosition], are_same: Callable[[], bool] = lambda: True) -> None:
        """Commits what was sent, with the positions behind it.

        `are_same` tells of a commit that lasts whether the topics are still the same ones. Raises
        KafkaException: it is unknown whether the transaction counts. Raises RefusedByKafka,
        TopicRefusedByKafka, NewSession.
        """
        for topic, position in moved.items():
            self._producer.produce(self._positions_topic, position.to_bytes(), topic.encode(), 0)
        try:
            self._patiently(self._producer.commit_transaction, _COMMIT_SECONDS, are_same)
        except KafkaException:
            self._producer.poll(0)
            self._check_refused()
            raise
        self._in_transaction = False
        self._cluster.note_success()

    def _check_refused(self) -> None:
        """Raises RefusedByKafka, TopicRefusedByKafka; of the positions ForwardError."""
        refused = self._refused
        if refused is None:
            return
        if refused.topic != self._positions_topic:
            raise refused from None
        if isinstance(refused, TopicRefusedByKafka):
            self._cluster.check_topic(refused.topic, refused.error)
        raise ForwardError(
            f"topic {refused.topic} in Kafka does not take a position ({refused}): mend the topic"
        ) from None

    def serve(self) -> None:
        """Lets librdkafka say what it has to say, and asks now and then whether Kafka is there."""
        self._producer.poll(0)
        self._cluster.probe()

    def _patiently(
        self, call: Callable[[float], object], seconds: float, are_same: Callable[[], bool] = lambda: True
    ) -> None:
        """Repeats a call while its only error is that it is not done yet, for so many seconds."""
        deadline = self._clock.monotonic_ns() + int(seconds * 1e9)
        doubt = self._clock.monotonic_ns() + int(_DOUBT_SECONDS * 1e9)
        with self._cluster.asking():
            while True:
                try:
                    call(STEP_SECONDS)
                    return
                except KafkaException as error:
                    if not error_of(error).retriable() or self._clock.monotonic_ns() > deadline:
                        raise
                    self._cluster.check(error_of(error))
                self._cluster.on_wait()
                if self._clock.monotonic_ns() > doubt:
                    if not are_same():
                        raise NewSession
                    doubt = self._clock.monotonic_ns() + int(_DOUBT_SECONDS * 1e9)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        """Called for failures only."""
        if error is None:
            return
        if is_of_a_topic(error):
            self._refused = self._refused or TopicRefusedByKafka(str(message.topic()), error)
        if error.code() not in OF_A_MESSAGE or isinstance(self._refused, TopicRefusedByKafka):
            return
        value, key = message.value() or b"", message.key()
        known = self._refused.message if self._refused is not None else None
        lacks_key = error.code() in WANTS_KEY and key is None and known is not None and known.key is not None
        if (
            known is None or lacks_key or (error.code() in TOO_LARGE and len(value) > len(known.value))
        ):  # others were in one batch
            time_ms = max(message.timestamp()[1], 0)
            self._refused = RefusedByKafka(Sent(str(message.topic()), value, key, time_ms), error)

    def close(self) -> None:
        """Aborts what was not committed: until then it hides what comes after from consumers.

        If no broker answers, the next session aborts the transaction, or the broker does after a
        minute.
        """
        self._producer.purge()
        self._producer.poll(0)
        if self._in_transaction:
            with suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_SECONDS)
        del self._producer
