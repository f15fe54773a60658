"""Feeds a Kafka cluster from a store: every flushed message once, in its lane's order.

**Exactly once.** Messages and the positions behind them are in one transaction. After any error
that may pass, the forwarder drops its producer and begins a new session (kafka_transactions.py).
The new session fences what was there before, and asks Kafka how far it is. So an error, a kill and
a restart are one case.

**One forwarder a name.** In one store the reader's lock holds a second one off. Of a copy of the
store, with the same id, Kafka fences the older one. A producer is fenced too when its transaction
has lasted too long (a machine that stood still). The owner in the positions tells the two apart.

**Retention.** The named reader of the store follows the position in Kafka. It is never ahead of it,
so nothing is deleted that was not forwarded. It decides nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event

from confluent_kafka import KafkaError, KafkaException

from commitlog.errors import (
    ForwarderFenced,
    ForwardError,
    MessageRefused,
    ReaderError,
    TargetChanged,
    TopicRefused,
)
from commitlog.forwarding.cluster import BATCH_BYTES_MOST, FENCED, Cluster, error_of
from commitlog.forwarding.forward_settings import ForwardSettings
from commitlog.forwarding.kafka_positions import (
    Owner,
    Positions,
    TopicPosition,
    create_positions,
    positions_topic,
    read_positions,
)
from commitlog.forwarding.kafka_transactions import (
    ANY_PARTITION,
    NewSession,
    RefusedByKafka,
    Session,
    Stopped,
    TopicRefusedByKafka,
)
from commitlog.forwarding.progress import Progress, Sent
from commitlog.forwarding.refusals import TOO_LARGE, Refusals, refused_by_kafka, way_out_of
from commitlog.forwarding.store_source import Source
from commitlog.forwarding.targets import Targets
from commitlog.planning.row_limit import QueueKey
from commitlog.reading.named_reader import NamedReader
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock
from commitlog.text.quantities import counted

TRANSACTION_NS = 500_000_000
"""How long a transaction takes messages, if that many wait."""
INTERVAL_NS = 100_000_000
"""The shortest time between the begins of two transactions. Each costs the cluster some writes."""
CHUNK_ROWS = 20_000
"""How many messages of a queue are taken before it is the next one's turn."""
_DOUBT_SECONDS = 3.0
"""How long a question about topics may take while a transaction waits."""
_CHECK_NS = 30_000_000_000
"""How often to look whether the topics in Kafka are the same ones, and to give back memory."""
_PAUSE_SECONDS_LEAST, _PAUSE_SECONDS_MOST = 0.5, 10.0
_IDLE_SECONDS = 0.02

log = logging.getLogger(__name__)
Waiting = dict[QueueKey, tuple[int, int]]
"""The messages that wait to be forwarded: topic and lane → offsets [begin, end)."""


class Forwarder:
    """Forwards until `stop` is set, or, with `once`, until all is done. Use it once.

    Raises ForwardError and its subclasses, ReaderInUse, ReaderError, DataLoss, OffsetOutOfRange,
    CorruptRecord, DamagedFile, NotEnoughThreads, and what opening a store raises.
    """

    def __init__(self, settings: ForwardSettings, stop: Event, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings, self._stop, self._clock = settings, stop, clock
        self._owner = Owner.here()
        self._batch_bytes = BATCH_BYTES_MOST
        self._reached = False
        """Whether a broker has ever answered."""
        self._ends: dict[QueueKey, int] | None = None

    def run(self) -> None:
        """Forwards."""
        self._cluster = Cluster(self.settings, self._clock, self._while_waiting)
        try:
            self._run()
        finally:
            self._cluster.on_wait = lambda: None  # a circle keeps clients until garbage is collected

    def _run(self) -> None:
        self._source = Source(self.settings.store, accept_loss=self.settings.accept_loss)
        try:
            id_ = self._source.store_id or hashlib.sha256(bytes(Path(self.settings.store).resolve())).hexdigest()[:32]
            self._positions_topic = positions_topic(self.settings, id_)
            self._progress = Progress(self.settings, self._source, self._clock, self._cluster.silence)
            self._refusals = Refusals(self._progress.refused)
            try:
                with suppress(Stopped):
                    self._sessions()
            except BaseException as error:
                self._progress.failed(error)
                raise
            finally:
                self._progress.close()
        finally:
            self._source.close()

    def _sessions(self) -> None:
        pause = _PAUSE_SECONDS_LEAST
        while not self._stop.is_set():
            before = self._progress.transactions
            try:
                self._session()
                return
            except NewSession:
                continue
            except KafkaException as error:
                found = error_of(error)
                # The binding may keep the exception, and its frames hold the session's clients.
                error.__traceback__ = error.__context__ = None
            self._explain(found)
            pause = (
                _PAUSE_SECONDS_LEAST if self._progress.transactions > before else min(2 * pause, _PAUSE_SECONDS_MOST)
            )
            self._stop.wait(pause)

    def _explain(self, found: KafkaError) -> None:
        """Raises an error that only a person can mend, and notes an error that may pass."""
        self._cluster.check(found)
        if found.code() in FENCED:
            self._check_owner()
        if not self._reached and not self.settings.wait:
            raise self._cluster.unavailable(found)
        text = self._cluster.shown(found.str())
        why = f" ({self._cluster.last_error})" if self._cluster.last_error else ""
        self._progress.trouble(f"{self.settings.url}: {text}{why}; trying again")

    def _check_owner(self) -> None:
        """Raises ForwarderFenced if another forwarder has begun since."""
        try:
            owner = read_positions(self._cluster, self._positions_topic, self._clock).owner
        except KafkaException:
            return  # the cluster went away; the next session finds out
        if owner is not None and owner.id != self._owner.id:
            raise ForwarderFenced(
                f"forwarder {self.settings.name}: process {owner.pid} on {owner.host} forwards this store under the same "
                "name since then, from a copy of it: stop one of them, or give this one another --name"
            )

    def _session(self) -> None:
        self._cluster.check_is_there()
        self._reached = True
        create_positions(self._cluster, self._positions_topic)
        session = Session(self._cluster, self._positions_topic, self._batch_bytes, self._clock)
        try:
            positions = session.begin()
            if positions.owner is None:
                positions.topics.update(self._continued())
                self._note_begins(positions, None)
            else:
                with suppress(ReaderError):  # nobody knows what was to be forwarded: it counts as all
                    self._note_begins(positions, self._progress.reader())
            self._owner = replace(self._owner, epoch=self._source.epoch(), epochs=self._source.epochs())
            self._rewind(positions)
            session.take_over(self._owner, positions.topics)
            self._progress.begun(positions)
            log.info("forwarding %s to %s", self.settings.store, self.settings.url)
            self._forward(session, Targets(self._cluster, positions))
        finally:
            session.close()

    def _continued(self) -> dict[str, TopicPosition]:
        """Where to begin in a cluster that knows nothing of the forwarder. Raises TargetChanged."""
        known = self._progress.position_in_store()
        if not known or self.settings.new_target == "again":
            return {}
        if self.settings.new_target == "stop":
            raise TargetChanged(
                f"{self.settings.url} has no position of forwarder {self.settings.name}, which has forwarded this store "
                f"before: it is another cluster, or topic {self._positions_topic} was removed there. Give --new-target again "
                "to forward everything that the store has, or --new-target continue to go on near where it was"
            )
        return {topic: TopicPosition("", "", dict(lanes)) for topic, lanes in known.items()}

    def _note_begins(self, positions: Positions, known: NamedReader | None) -> None:
        """Notes where queues begin that were not to be forwarded until now.

        All others have to be forwarded from offset 0 on, so their first messages may be lost.
        """
        for (topic, lane), queue in self._source.refresh(deleted=True).items():
            is_new = known is None or known.offset(topic, lane) is None
            if is_new and queue.first and self.settings.wants(topic):
                positions.begin(topic, lane, queue.first)

    def _rewind(self, positions: Positions) -> None:
        """Moves positions back to the end of the messages that the store kept in its new epoch.

        Messages behind that end were not replicated, or came after the backup that was restored.
        Kafka has them, and keeps them. The store has other messages at their offsets. Raises
        ForwardError, DataLoss.
        """
        before, epoch = positions.owner or self._owner, self._owner.epoch
        known = before.epoch
        if known > epoch:
            raise ForwardError(
                f"{self.settings.store} is in epoch {epoch}, and epoch {known} of it was forwarded under this name: a "
                "replica was promoted, or a backup restored, so forward that one, or give another --name"
            )
        if known == epoch:
            return
        for topic, position in positions.topics.items():
            for lane, offset in position.offsets.items():
                shared = self._source.shared_end((topic, lane), known, before.epochs)
                if shared is not None and shared < offset:
                    position.offsets[lane] = shared
                    log.warning(
                        "topic %s, lane %d: Kafka has %s that the store does not have any more; going on from %d",
                        topic, lane, counted(offset - shared, "message"), shared,
                    )  # fmt: skip

    def _while_waiting(self) -> None:
        """Is called while Kafka owes an answer. Raises Stopped."""
        self._progress.write()
        if self._stop.is_set():
            raise Stopped

    # ---- forwarding -----------------------------------------------------------------------------

    def _forward(self, session: Session, targets: Targets) -> None:
        began = LONG_AGO_NS
        checked = self._clock.monotonic_ns()
        while not self._stop.is_set():
            waiting = self._waiting(targets.positions)
            self._progress.look()
            now = self._clock.monotonic_ns()
            if any(topic not in self._refusals for topic, _ in waiting):
                self._stop.wait(max(began + INTERVAL_NS - now, 0) / 1e9)
                began = self._clock.monotonic_ns()
                self._transaction(session, targets, waiting)
            elif self.settings.once:
                self._refusals.check()
                return
            else:
                session.serve()
                self._stop.wait(_IDLE_SECONDS)
            if now - checked > _CHECK_NS:
                checked = now
                self._refusals.try_again()
                targets.check()
                self._check_epoch()
                self._source.give_back()

    def _waiting(self, positions: Positions) -> Waiting:
        """Returns the messages that wait to be forwarded.

        Raises the errors of Source.begin and Source.check_topics.
        """
        queues = {key: queue for key, queue in self._source.refresh().items() if self.settings.wants(key[0])}
        at_start = self._ends is None
        if self._ends is None:
            self._ends = {key: queue.end for key, queue in queues.items()}
            self._source.check_topics(self.settings.topics or frozenset(), waits=not self.settings.once)
        found: Waiting = {}
        for key, queue in queues.items():
            begin = self._source.begin(key, queue, positions.offset(*key), at_start=at_start)
            end = min(queue.end, self._ends.get(key, 0)) if self.settings.once else queue.end
            if begin < end:
                found[key] = begin, end
        return found

    def _check_epoch(self) -> None:
        """Begins anew where the store was promoted, or follows one that was."""
        if self._source.epoch() != self._owner.epoch:
            raise NewSession

    def _transaction(self, session: Session, targets: Targets, waiting: Waiting) -> None:
        self._check_epoch()
        kafka_topics = self._prepared(targets, waiting)
        if self._batch_bytes < session.batch_bytes:
            raise NewSession
        if targets.forgotten():
            self._note_begins(targets.positions, None)
            return  # what waits is more now
        if not kafka_topics:
            return
        waiting = {key: bounds for key, bounds in waiting.items() if key[0] in kafka_topics}
        session.begin_transaction()
        sent = Sent({key: begin for key, (begin, _) in waiting.items()})
        try:
            self._send(session, kafka_topics, waiting, sent)
            positions = targets.positions.topics
            moved = {topic: positions[topic].moved(sent.to_of(topic)) for topic in kafka_topics}
            session.commit(moved, lambda: self._are_same(targets))
        except TopicRefusedByKafka as refused:
            reason = refused_by_kafka(refused.topic, refused.error, self._cluster.shown(refused.error.str()))
            for topic in (ours for ours, kafkas in kafka_topics.items() if kafkas == refused.topic):
                self._refusals.add(topic, reason)
            self._refusals.check(self._topics())
            raise NewSession from None
        except RefusedByKafka as refused:
            if self._was_lowered(refused, session):
                raise NewSession from None
            raise self._refused(refused, kafka_topics, waiting, sent) from None
        positions.update(moved)
        self._progress.moved(targets.positions, sent)

    def _prepared(self, targets: Targets, waiting: Waiting) -> dict[str, str]:
        """The topics that can be sent now → their topics in Kafka.

        New ones are made for as long as a transaction takes messages: the next one makes more. So
        nothing waits until the last one is there. Raises Stopped, TopicRefused if none is left.
        """
        lanes_max = self._source.lanes_max()
        found: dict[str, str] = {}
        topics = {topic for topic, _ in waiting if topic not in self._refusals}
        ordered = sorted(topics, key=lambda topic: (not targets.is_ready(topic), topic))
        new = ((topic, self._source.lanes(topic)) for topic in ordered if not targets.is_ready(topic))
        targets.make(new, lanes_max)
        until = self._clock.monotonic_ns() + TRANSACTION_NS
        for topic in ordered:
            self._while_waiting()
            if found and self._clock.monotonic_ns() > until:
                break
            try:
                target = targets.prepare(topic, self._source.lanes(topic), lanes_max)
            except TopicRefused as reason:
                self._refusals.add(topic, reason)
                self._refusals.check(self._topics())
                continue
            found[topic] = target.name
            self._batch_bytes = min(self._batch_bytes, target.batch_bytes_max)
        return found

    def _topics(self) -> set[str]:
        return {topic for topic, _ in self._source.refresh() if self.settings.wants(topic)}

    def _are_same(self, targets: Targets) -> bool:
        """Whether the topics in Kafka are the same ones, as far as Kafka says so soon."""
        try:
            return targets.check(_DOUBT_SECONDS)
        except KafkaException:
            return True

    def _send(self, session: Session, kafka_topics: dict[str, str], waiting: Waiting, sent: Sent) -> None:
        """Sends in turns from each queue, until all is sent or the time is over."""
        until = self._clock.monotonic_ns() + TRANSACTION_NS
        left = dict(waiting)
        while left:
            for key, (begin, end) in list(left.items()):
                chunk_end = min(begin + CHUNK_ROWS, end)
                partition = ANY_PARTITION if self.settings.by_key else key[1]
                for rows in self._source.rows(key, begin, chunk_end):
                    session.send(kafka_topics[key[0]], partition, rows)
                    sent.add(key, rows)
                    if self._stop.is_set() or self._clock.monotonic_ns() > until:
                        return
                sent.to[key] = chunk_end  # some of the last ones may be left out as lost
                left[key] = chunk_end, end
                if chunk_end == end:
                    del left[key]

    def _refused(
        self, refused: RefusedByKafka, kafka_topics: dict[str, str], waiting: Waiting, sent: Sent
    ) -> MessageRefused:
        """The error that says which message it is: librdkafka knows only what it was given.

        Of a message with a wrong time it gives the first one of the same batch. So the topic's
        limits tell which it is.
        """
        wanted, first, last = refused.message, -math.inf, math.inf
        if refused.error.code() == KafkaError.INVALID_TIMESTAMP:
            first, last = self._cluster.times_taken(wanted.topic)
        by_time = (first, last) != (-math.inf, math.inf)
        what = f"a message of {len(wanted.value):,} bytes"
        for (topic, lane), (begin, end) in waiting.items():
            if kafka_topics[topic] != wanted.topic:
                continue
            for rows in self._source.rows((topic, lane), begin, min(sent.to[topic, lane] + CHUNK_ROWS, end)):
                for offset, value, key, time in zip(rows.offsets, rows.values, rows.keys, rows.times, strict=False):
                    is_same = (value, key) == (wanted.value, wanted.key) and wanted.time_ms in (0, time)
                    if not first <= time <= last if by_time else is_same:
                        what = f"topic {topic}, lane {lane}, offset {offset}: its message of {len(value):,} bytes"
                        return self._message_refused(what, refused, by_time)
        return self._message_refused(what, refused, by_time)

    def _message_refused(self, what: str, refused: RefusedByKafka, by_time: bool) -> MessageRefused:
        here, code = refused.here, refused.error.code()
        way_out = "raise message.max.bytes in the --config file" if here else way_out_of(code, refused.message.key)
        if code == KafkaError.INVALID_TIMESTAMP and not by_time:
            what += ", or another one of its batch,"
        return MessageRefused(
            f"{what} is refused by Kafka's topic {refused.topic} ({self._cluster.shown(refused.error.str())}): {way_out}; "
            "then start the forwarder again; it goes on with this message"
        )

    def _was_lowered(self, refused: RefusedByKafka, session: Session) -> bool:
        """Whether the topic's limit is below the session's batches now: each message may fit."""
        if refused.here or refused.error.code() not in TOO_LARGE:
            return False
        now = self._cluster.find([refused.topic]).get(refused.topic)
        return now is not None and now.batch_bytes_max < session.batch_bytes
