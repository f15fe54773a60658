"""Finds or makes Kafka's topic for each topic of the store, and checks that it stays the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from commitlog.errors import TargetChanged, TopicRefused
from commitlog.forwarding.cluster import CALL_SECONDS, Cluster, KafkaTopic
from commitlog.forwarding.kafka_positions import Positions, TopicPosition

_USUAL = -1
"""Stands for the broker's own default number of partitions."""
AT_ONCE = 200
"""About so many partitions of new topics are made in one request, which is as quick as for one."""
_PARTITIONS_MOST = 100_000
"""The largest number of partitions that librdkafka asks for."""


class Targets:
    """Kafka's topics of one session, with the positions that the session has taken over.

    Raises KafkaException, TargetRefused, TargetChanged, TopicRefused.
    """

    def __init__(self, cluster: Cluster, positions: Positions) -> None:
        self._cluster = cluster
        self.settings = cluster.settings
        self.positions = positions
        self._ready: dict[str, KafkaTopic] = {}
        self._found: dict[str, KafkaTopic] = {}
        """Name in Kafka → topic, for the topics that `make` has found and made."""
        self._forgotten = False

    def forgotten(self) -> bool:
        """Whether a position was given up since the last call.

        The position's topic is forwarded anew.
        """
        forgotten, self._forgotten = self._forgotten, False
        return forgotten

    def is_ready(self, topic: str) -> bool:
        """Whether `prepare` has returned Kafka's topic for this topic."""
        return topic in self._ready

    def make(self, topics: Iterable[tuple[str, Collection[int]]], lanes_max: int) -> None:
        """Makes those of the first topics that Kafka does not have, as many as one request takes.

        `topics` has each topic with its lanes. If a topic can't be made, `prepare` raises the error
        later.
        """
        wanted: dict[str, int] = {}
        letters: set[str] = set()
        """The wanted names as Kafka compares them. Kafka does not compare those of one request."""
        for topic, lanes in topics:
            if self._was_fed(topic):
                continue  # it may be missing because it was removed
            with suppress(TopicRefused):
                name = self.settings.kafka_topic(topic)
                partitions = self.settings.partitions or self._usual(self._needed(lanes), lanes_max)
                if name.replace(".", "_") not in letters and partitions < AT_ONCE:
                    letters.add(name.replace(".", "_"))
                    wanted[name] = partitions
                if sum(map(abs, wanted.values())) >= AT_ONCE:
                    break
        self._found = {}
        if len(wanted) < 2:
            return
        with suppress(TopicRefused):
            self._found = self._cluster.find(wanted)
            new = {name: partitions for name, partitions in wanted.items() if name not in self._found}
            if new:
                made = self._cluster.create_many(new)
                self._found |= self._cluster.awaited(dict.fromkeys(made, 1))

    def _was_fed(self, topic: str) -> bool:
        """Whether a topic has been forwarded to a topic of this cluster."""
        position = self.positions.topics.get(topic)
        return position is not None and bool(position.topic)

    def _needed(self, lanes: Collection[int]) -> int:
        needed = self.settings.partitions or 1
        return needed if self.settings.by_key else max(needed, max(lanes) + 1)

    def _usual(self, needed: int, lanes_max: int) -> int:
        return _USUAL if self.settings.by_key else max(lanes_max, needed)

    def prepare(self, topic: str, lanes: Collection[int], lanes_max: int) -> KafkaTopic:
        """Returns the topic in Kafka that a topic goes to, after it has made sure of it.

        The topic in Kafka is made if it does not exist. It is the one that was forwarded to before,
        and it has a partition for each of `lanes`. `lanes_max` is how many lanes the store may
        have. Raises TargetChanged, TopicRefused, TargetRefused, KafkaException.
        """
        needed = self._needed(lanes)
        known = self._ready.get(topic)
        if known is None or known.partitions < needed:
            known = self._ready[topic] = self._prepared(topic, needed, lanes_max)
        return known

    def _prepared(self, topic: str, needed: int, lanes_max: int) -> KafkaTopic:
        name = self.settings.kafka_topic(topic)
        if needed > _PARTITIONS_MOST:
            raise TopicRefused(
                f"topic {topic} has queue {needed - 1}, and no topic of Kafka's so many partitions: give --by-key"
            )
        found = self._found.pop(name, None) or self._cluster.find([name]).get(name)
        self._check_same(topic, name, found)
        if found is None:
            self._cluster.create(name, self.settings.partitions or self._usual(needed, lanes_max))
            found = self._cluster.awaited({name: 1})[name]
        if found.partitions < (self.settings.partitions or 0):
            self._cluster.grow(name, self.settings.partitions or 0)
            found = self._cluster.awaited({name: self.settings.partitions or 0})[name]
        if found.partitions < needed:
            raise TopicRefused(
                f"topic {name} in Kafka has {found.partitions} partitions, and lane {needed - 1} of topic {topic} goes to "
                f"partition {needed - 1}: give --partitions {needed}, which adds some, or --by-key"
            )
        position = self.positions.topics.setdefault(topic, TopicPosition(name, found.id))
        position.topic, position.topic_id = name, found.id
        return found

    def _check_same(self, topic: str, name: str, found: KafkaTopic | None) -> None:
        position = self.positions.topics.get(topic)
        if position is None or not position.topic or not any(position.offsets.values()):
            return
        if found is not None and (position.topic, position.topic_id) == (name, found.id):
            return
        if self.settings.new_target == "again":
            del self.positions.topics[topic]
            self._forgotten = True
        elif self.settings.new_target == "stop":
            was = (
                "another one, " + position.topic
                if position.topic != name
                else "removed" + (" and made again" if found else "")
            )
            raise TargetChanged(
                f"topic {name} in Kafka is not the one that topic {topic} was forwarded to (it was {was}): give "
                f"--new-target again to forward {topic} from its first message, or --new-target continue to go on"
            )

    def check(self, seconds: float = CALL_SECONDS) -> bool:
        """Looks whether the topics in Kafka are still the same ones. Returns whether they are."""
        same = True
        try:
            found = self._cluster.find({known.name for known in self._ready.values()}, seconds)
        except TopicRefused:  # its next preparation says so, and of which topic
            return False
        for topic, known in list(self._ready.items()):  # several may go to one topic of Kafka's
            now = found.get(known.name)
            if now is None or now.id != known.id:
                self._check_same(topic, known.name, now)
                del self._ready[topic]
                same = False
        return same
