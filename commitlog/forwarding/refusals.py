"""Topics that can't be forwarded, and why. The others go on, and each of these is named."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from confluent_kafka import KafkaError

from commitlog.errors import TopicRefused
from commitlog.forwarding.forward_settings import POSITIONS_PREFIX

_OTHER_NAME = "give it another name with --topic-map"
_WAYS_OUT = {
    KafkaError.TOPIC_EXCEPTION: f"{_OTHER_NAME}; in Kafka . and _ count as the same letter",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "give the forwarder's user the rights to create, describe and write it",
    KafkaError.POLICY_VIOLATION: f"make the topic as the cluster's policy wants it, or {_OTHER_NAME}",
    KafkaError.INVALID_REPLICATION_FACTOR: "make the topic with as many replicas as the cluster has brokers",
    KafkaError.INVALID_PARTITIONS: "make the topic with another number of partitions, or give --partitions",
    KafkaError.INVALID_CONFIG: "mend the cluster's defaults, or make the topic yourself",
}
"""Kafka's errors that refuse one topic only → what to do."""


_WITH_KEY = (
    "a compacted topic takes no message without a key: set its cleanup.policy to delete, or give another topic with "
    "--topic-map"
)
OF_A_MESSAGE = {
    KafkaError.MSG_SIZE_TOO_LARGE: "raise that topic's max.message.bytes",
    KafkaError.INVALID_MSG_SIZE: "raise that topic's max.message.bytes",
    KafkaError.RECORD_LIST_TOO_LARGE: "raise that topic's segment.bytes",
    KafkaError.INVALID_TIMESTAMP: "raise that topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms, "
    "or set its message.timestamp.type to LogAppendTime",
    KafkaError.INVALID_RECORD: _WITH_KEY,
    KafkaError.INVALID_MSG: _WITH_KEY,
}
"""Kafka's errors that refuse one message → what to do."""
TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE}
"""The errors whose cause is the largest message of a batch."""
WANTS_KEY = {KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG}
"""The errors whose cause is the first message without a key. librdkafka gives them to the whole
batch.
"""


def way_out_of(code: int, key: bytes | None) -> str:
    """Returns the way out for a message that Kafka refuses.

    If it has a key, a missing key is not the cause.
    """
    if code in WANTS_KEY and key is not None:
        return "the broker's log says what is wrong with it; mend the topic's settings"
    return OF_A_MESSAGE[code]


def is_of_a_topic(error: KafkaError) -> bool:
    """Whether Kafka refuses one topic, and may take the others."""
    return error.code() in _WAYS_OUT


def refused_by_kafka(name: str, error: KafkaError, why: str) -> TopicRefused:
    """The error of a topic of Kafka's."""
    way_out = _WAYS_OUT[error.code()]
    if name.startswith(POSITIONS_PREFIX) and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        way_out += ", and to read it"
    return TopicRefused(f"topic {name} is refused by Kafka ({why.rstrip('.')}): {way_out}")


@dataclass
class Refusals:
    """The topics of the store that are left out for now."""

    tell: Callable[[str], None]
    """The function that is called once for each reason."""
    _reasons: dict[str, TopicRefused] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)

    def __contains__(self, topic: str) -> bool:
        return topic in self._reasons

    def add(self, topic: str, reason: TopicRefused) -> None:
        """Leaves a topic out, and tells of it if the reason is a new one."""
        self._reasons[topic] = reason
        text = str(reason)
        if self._told.get(topic) != text:
            self._told[topic] = text
            self.tell(f"{text}; the other topics go on")

    def try_again(self) -> None:
        """All topics are tried again: somebody may have done something about them."""
        self._reasons.clear()

    def check(self, topics: Collection[str] = ()) -> None:
        """Raises TopicRefused, if there is any, and all of these are left out."""
        if self._reasons and all(topic in self._reasons for topic in topics):
            first, *others = sorted(self._reasons)
            more = f"; and {len(others)} more: " + ", ".join(others[:20]) if others else ""
            raise TopicRefused(f"{self._reasons[first]}{more}")
