"""What `commitlog forward` is asked to do, checked before anything is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from commitlog.errors import IllegalArgument, TopicRefused
from commitlog.planning.address import shown_url
from commitlog.reading.named_reader import check_name
from commitlog.record.topic_names import check_topic

DEFAULT_NAME = "kafka"
PORT = 9092
_SCHEME = "kafka://"
_SHAPE = "give kafka://HOST:PORT, or several brokers as in kafka://one:9092,two:9092"
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?")
POSITIONS_PREFIX = "commitlog-forward-"
"""How the names of the topics begin that keep the positions of forwarders."""
_KAFKAS_OWN = {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
_KAFKA_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

NewTarget = Literal["stop", "again", "continue"]
"""What to do where Kafka's topic or cluster is another than before."""


@dataclass(frozen=True)
class ForwardSettings:
    """Which messages go where, and how."""

    store: str
    servers: str
    """Kafka's bootstrap servers, as in `one:9092,two:9092`."""
    name: str = DEFAULT_NAME
    """The reader's name in the store. With the store's id it is Kafka's transactional.id."""
    topics: frozenset[str] | None = None
    """Topics of the store, or None for all."""
    topic_map: Mapping[str, str] = field(default_factory=dict)
    """Topic of the store → topic in Kafka, where they differ."""
    by_key: bool = False
    """Whether Kafka's partitioner chooses by key. Otherwise lane n goes to partition n."""
    partitions: int | None = None
    """How many partitions topics have at least: they are made with them, or raised to them."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Settings of librdkafka."""
    wait: bool = False
    """Whether to wait for brokers that do not answer at the start."""
    once: bool = False
    """Whether to end when all is forwarded that was there at the start."""
    accept_loss: bool = False
    """Whether to go on without messages that are deleted or damaged."""
    new_target: NewTarget = "stop"

    def __post_init__(self) -> None:
        check_name(self.name)

    @property
    def url(self) -> str:
        return _SCHEME + self.servers

    def wants(self, topic: str) -> bool:
        """Whether a topic of the store is forwarded."""
        return self.topics is None or topic in self.topics

    def kafka_topic(self, topic: str) -> str:
        """The topic in Kafka. Raises TopicRefused where Kafka does not allow its name."""
        name = self.topic_map.get(topic, topic)
        if not is_kafka_topic(name):
            raise TopicRefused(
                f"topic {topic}: Kafka allows letters, digits, . _ and - in a name, 249 at most: give it another one with "
                f"--topic-map '{topic}=NAME', or choose topics with --topic"
            )
        if name in _KAFKAS_OWN or name.startswith(POSITIONS_PREFIX):
            whose = "Kafka's own" if name in _KAFKAS_OWN else "for positions of forwarders"
            raise TopicRefused(
                f"topic {topic}: {name} in Kafka is {whose}, and takes no messages: give it another name with --topic-map "
                f"'{topic}=NAME', or choose topics with --topic"
            )
        return name


def is_kafka_topic(name: str) -> bool:
    """Whether Kafka allows the name."""
    return _KAFKA_TOPIC.fullmatch(name) is not None and name not in (".", "..")


def servers_of(url: str) -> str:
    """The bootstrap servers of `kafka://HOST:PORT[,HOST:PORT]`. Raises IllegalArgument."""
    if not url.lower().startswith(_SCHEME):
        raise IllegalArgument(f"{shown_url(url)[:80]!r} is not the address of a Kafka cluster: {_SHAPE}")
    hosts = url[len(_SCHEME) :].rstrip("/")
    if "@" in hosts:
        raise IllegalArgument(
            "the address of a Kafka cluster has no user and no password: give them in a --config file"
        )
    return ",".join(_server(text) for text in hosts.split(","))


def _server(text: str) -> str:
    found = _HOST.fullmatch(text.strip())
    port = int(found[2] or PORT) if found else 0
    if not found or not 0 < port < 1 << 16:
        raise IllegalArgument(f"{shown_url(text)[:80]!r} is not a broker's host and port: {_SHAPE}")
    return f"{found[1]}:{port}"


def topic_map_of(given: Iterable[str]) -> dict[str, str]:
    """Reads `OURS=KAFKAS` of each --topic-map. Raises IllegalArgument, IllegalTopic."""
    found: dict[str, str] = {}
    for text in given:
        ours, separator, kafkas = text.partition("=")
        if not separator or not is_kafka_topic(kafkas):
            raise IllegalArgument(f"--topic-map {text[:120]!r}: give TOPIC=NAME, where Kafka allows the name")
        check_topic(ours)
        if found.setdefault(ours, kafkas) != kafkas:
            raise IllegalArgument(f"--topic-map: topic {ours} has two names: {found[ours]} and {kafkas}")
    return found


def topics_of(given: Collection[str]) -> frozenset[str] | None:
    """The topics of --topic; None stands for all. Raises IllegalTopic."""
    for topic in given:
        check_topic(topic)
    return frozenset(given) or None


def settings_of(
    store: str | os.PathLike[str],
    url: str,
    *,
    topics: Collection[str] = (),
    topic_map: Iterable[str] = (),
    **others: object,
) -> ForwardSettings:
    """Settings of what a user has typed. Raises IllegalArgument, IllegalTopic, OptionError."""
    return ForwardSettings(
        os.fspath(store),
        servers_of(url),
        topics=topics_of(topics),
        topic_map=topic_map_of(topic_map),
        **others,  # type: ignore[arg-type]  # fields of ForwardSettings
    )
