"""How far a forwarder has come, kept in Kafka itself.

A forwarder has a topic of its own there, `commitlog-forward-<name>-<store id>`, of one partition,
compacted. Each transaction that has messages has their new positions too. So both are there or
neither is, and a start goes on exactly where the last transaction that counts has ended. This is
how Kafka Connect keeps the offsets of exactly-once sources. Offsets of a consumer group would not
do: they are for topics of Kafka's, and Kafka forgets those of a group that is idle for a week.

    orders → {"topic": "orders", "topic_id": "tXvM…", "offsets": {"0": 42, "1": 7}}
    @owner → {"owner": "9f0c…", "host": "one", "pid": 4711, "epoch": 0, "epochs": []}

An offset is the queue offset of the next message of the store's topic in a lane. The id tells a
topic that was removed and made again from the one that was fed. The owner is the process that has
begun last: one that finds itself fenced learns from it who has taken over. The offsets are of that
epoch of the store: a promoted copy, or a restored backup, may have other messages behind its end.
`epochs` has the store's history, as `store.json` has it: it tells where another one parted from it.

No other forwarder writes the topic. So no open transaction of somebody else hides its end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
from confluent_kafka import KafkaError, KafkaException

from commitlog.disk.epochs import Epoch, epochs_from_json, epochs_to_json
from commitlog.errors import ForwardError
from commitlog.forwarding.cluster import CALL_SECONDS, Cluster, whole_partition
from commitlog.forwarding.forward_settings import POSITIONS_PREFIX, ForwardSettings
from commitlog.system.clock import SYSTEM_CLOCK, Clock

OWNER_KEY = b"@owner"
"""No topic has such a name."""
_TOPIC_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "0.1"}
"""Small segments are compacted soon, and so a start reads little."""


@dataclass
class TopicPosition:
    """How far a topic of the store is forwarded, and into which topic of Kafka's.

    Of a topic that this cluster was not fed with, `topic` is empty, and the offsets say where to
    begin.
    """

    topic: str
    topic_id: str
    offsets: dict[int, int] = field(default_factory=dict)
    """Lane → next queue offset."""

    def moved(self, offsets: Mapping[int, int]) -> TopicPosition:
        """The position with some lanes further on."""
        return TopicPosition(self.topic, self.topic_id, {**self.offsets, **offsets})

    def to_bytes(self) -> bytes:
        offsets = {str(lane): offset for lane, offset in sorted(self.offsets.items())}
        return orjson.dumps({"topic": self.topic, "topic_id": self.topic_id, "offsets": offsets})

    @classmethod
    def from_bytes(cls, data: bytes) -> TopicPosition:
        """Raises ValueError, KeyError, TypeError, AttributeError."""
        values = orjson.loads(data)
        offsets = {int(lane): int(offset) for lane, offset in values["offsets"].items()}
        return cls(str(values["topic"]), str(values["topic_id"]), offsets)


@dataclass(frozen=True)
class Owner:
    """A process that forwards, or has forwarded."""

    id: str
    host: str = ""
    pid: int = 0
    epoch: int = 0
    """The epoch of the store that it forwards."""
    epochs: tuple[Epoch, ...] = ()
    """The history of that store. Packages before wrote none."""

    @classmethod
    def here(cls) -> Owner:
        """This process, by an id that no other has."""
        return cls(os.urandom(8).hex(), socket.gethostname(), os.getpid())

    def to_bytes(self) -> bytes:
        epochs = epochs_to_json(self.epochs)
        return orjson.dumps(
            {"owner": self.id, "host": self.host, "pid": self.pid, "epoch": self.epoch, "epochs": epochs}
        )


@dataclass
class Positions:
    """What a positions topic says."""

    topics: dict[str, TopicPosition] = field(default_factory=dict)
    """Topic of the store → its position."""
    owner: Owner | None = None
    """None where nothing was ever forwarded."""

    def offset(self, topic: str, lane: int) -> int:
        """The next queue offset of a topic in a lane; 0 if nothing is known: it came later."""
        known = self.topics.get(topic)
        return 0 if known is None else known.offsets.get(lane, 0)

    def begin(self, topic: str, lane: int, offset: int) -> None:
        """Notes where a queue begins of which nothing is known."""
        self.topics.setdefault(topic, TopicPosition("", "")).offsets.setdefault(lane, offset)


def positions_topic(settings: ForwardSettings, store_id: str) -> str:
    """The name of the forwarder's positions topic, and of its transactional.id."""
    return f"{POSITIONS_PREFIX}{settings.name}-{store_id}"


def create_positions(cluster: Cluster, topic: str) -> None:
    """Makes the topic if it is not there. Raises KafkaException."""
    if not cluster.find([topic]):
        cluster.create(topic, 1, _TOPIC_CONFIG)
        cluster.awaited({topic: 1})


def read_positions(cluster: Cluster, topic: str, clock: Clock = SYSTEM_CLOCK) -> Positions:
    """What the committed transactions say.

    A producer must have initialized its transactions before: then none is open any more, and no
    older forwarder can commit one. Raises KafkaException, ForwardError.
    """
    found = Positions()
    deadline = clock.monotonic_ns() + int(CALL_SECONDS * 1e9)
    end = cluster.end_of(topic)
    consumer = cluster.consumer()
    try:
        consumer.assign([whole_partition(topic)])
        while clock.monotonic_ns() < deadline:
            cluster.on_wait()
            for message in consumer.consume(10_000, timeout=0.05):
                error = message.error()
                if error is None:
                    _take(found, topic, message.key(), message.value())
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                elif (message.offset() or 0) >= end:
                    return found
    finally:
        consumer.close()
    raise KafkaException(
        KafkaError(KafkaError._TIMED_OUT, f"the positions in topic {topic} can't be read to their end")
    )


def _take(found: Positions, topic: str, key: bytes | None, value: bytes | None) -> None:
    try:
        if key == OWNER_KEY:
            values = orjson.loads(value or b"")
            found.owner = Owner(
                str(values["owner"]),
                str(values["host"]),
                int(values["pid"]),
                int(values.get("epoch", 0)),
                epochs_from_json(values.get("epochs", [])),
            )
        else:
            found.topics[(key or b"").decode()] = TopicPosition.from_bytes(value or b"")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForwardError(
            f"topic {topic} of Kafka has a message that is no position ({error}): nobody else may write there; forward "
            "under another --name"
        ) from error
