"""Shows a forwarder in the store: by its named reader, and by a file of its counters.

A RocketMQ store root is only read, so it shows nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from commitlog.disk.forwarder_files import ForwarderStatistics, write_forwarder
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, ReaderError
from commitlog.forwarding.forward_settings import ForwardSettings
from commitlog.forwarding.kafka_positions import Positions
from commitlog.forwarding.store_source import Rows, Source
from commitlog.planning.reader_name import HeldReaderName
from commitlog.planning.row_limit import QueueKey
from commitlog.reading.named_reader import FORWARD, NamedReader
from commitlog.system.clock import LONG_AGO_NS, Clock

_WRITE_EVERY_NS = 1_000_000_000
_LOOK_SHARE = 10
"""Between two looks at what waits is so many times the time that one takes."""

log = logging.getLogger(__name__)


@dataclass
class Sent:
    """The content of a transaction: how far each queue is sent, messages, and their bytes."""

    to: dict[QueueKey, int]
    messages: int = 0
    bytes: int = 0

    def add(self, key: QueueKey, rows: Rows) -> None:
        """Counts rows that were sent."""
        self.to[key] = rows.next
        self.messages += len(rows.values)
        self.bytes += rows.bytes

    def to_of(self, topic: str) -> dict[int, int]:
        """Lane → how far a topic is sent."""
        return {lane: to for (other, lane), to in self.to.items() if other == topic}


@dataclass
class Progress:
    """Counts, and tells the store about once a second. It holds the reader's name until `close`.

    Making it raises ReaderInUse, ReaderError.
    """

    settings: ForwardSettings
    source: Source
    clock: Clock
    silence: Callable[[], str]
    """Says that Kafka does not answer, and why; empty if it does."""
    _written_ns: int = LONG_AGO_NS
    _next_look_ns: int = LONG_AGO_NS
    _oldest: tuple[int | None, int] = (0, 0)
    """The store time of the oldest message that waits, and when it was seen first."""
    _before: tuple[int, int] = (0, 0)
    """Messages and time at the last write, for the rate."""

    def __post_init__(self) -> None:
        self._now = ForwarderStatistics(self.settings.name, self.settings.url, os.getpid())
        self._name: HeldReaderName | None = None
        self._complaint = self._unseen = ""
        self._positions: Mapping[str, Mapping[int, int]] | None = None
        if not self.source.one_log:
            self._name = HeldReaderName(self.settings.store, self.settings.name, self.clock, FORWARD)
        self._directory = StoreDirectory(self.settings.store)
        self.write(now=True)

    @property
    def transactions(self) -> int:
        """How many transactions were committed."""
        return self._now.transactions

    def reader(self) -> NamedReader | None:
        """The named reader in the store; None where there is none.

        Raises ReaderError: its file can't be read, and so nobody knows whether there was one.
        """
        if self._name is None:
            return None
        try:
            known = self._name.readers.load(self.settings.name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ReaderError(f"reader {self.settings.name}: {error.filename}: {error.strerror}; fix it") from error
        return known if known.store_id == self.source.store_id else None

    def position_in_store(self) -> Mapping[str, Mapping[int, int]]:
        """What the named reader says of queues that were forwarded. Raises what `reader` does."""
        known = self.reader()
        return {} if known is None else {topic: lanes for topic, lanes in known.offsets.items() if any(lanes.values())}

    # ---- what happens ---------------------------------------------------------------------------

    def begun(self, positions: Positions) -> None:
        """A session begins from these positions."""
        self._now = replace(self._now, state="forwarding")
        self._complaint = ""
        self._move(positions)
        self.write(now=True)

    def look(self) -> None:
        """Tells the store, if the last time is a second ago."""
        self.write()
        if self._name is not None:
            self._name.write()

    def moved(self, positions: Positions, sent: Sent) -> None:
        """A transaction was committed."""
        now = self._now
        self._now = replace(
            now,
            messages=now.messages + sent.messages,
            bytes=now.bytes + sent.bytes,
            transactions=now.transactions + 1,
        )
        self._move(positions)

    def _move(self, positions: Positions) -> None:
        if self._name is None:
            return
        offsets = {
            topic: position.offsets for topic, position in positions.topics.items() if self.settings.wants(topic)
        }
        self._positions = offsets
        topics: dict[str, Mapping[int, int]] = {topic: {} for topic in self.settings.topics or ()}
        everything = self.settings.topics is None
        self._name.move(
            NamedReader(
                self.settings.name,
                self.source.store_id,
                {**topics, **{topic: dict(lanes) for topic, lanes in offsets.items()}},
                moved_ms=0,
                kind=FORWARD,
                all_topics=everything,
            )
        )

    def trouble(self, text: str) -> None:
        """A session has ended in an error that may pass."""
        self._now = replace(self._now, state="waiting", errors=self._now.errors + 1, last_error=text)
        self._complain(text)
        self.write(now=True)

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            log.warning("%s", text)
            self._complaint = text

    def refused(self, text: str) -> None:
        """A topic is left out because of this, and the others go on."""
        self._now = replace(self._now, errors=self._now.errors + 1, last_error=text)
        log.warning("%s", text)
        self.write(now=True)

    def failed(self, error: BaseException) -> None:
        """The forwarder ends because of this."""
        if isinstance(error, Exception):
            self._now = replace(self._now, errors=self._now.errors + 1, last_error=f"{type(error).__name__}: {error}")

    # ---- the file -------------------------------------------------------------------------------

    def write(self, *, now: bool = False) -> None:
        """Writes the file if the last time is a second ago."""
        time = self.clock.monotonic_ns()
        if self.source.one_log or not (now or time - self._written_ns >= _WRITE_EVERY_NS):
            return
        self._written_ns = time
        messages, since = self._before
        if time - since >= _WRITE_EVERY_NS:
            rate = (self._now.messages - messages) / ((time - since) / 1e9) if since else 0.0
            self._now = replace(self._now, messages_per_second=round(rate, 1))
            self._before = self._now.messages, time
        self._now = replace(self._behind(), updated_ms=self.clock.wall_ms())
        try:
            write_forwarder(self._directory, self._shown())
        except OSError as error:  # of a write it names no file
            why = f"{self._directory.forwarders_directory}: {error.strerror}"
            if why != self._unseen:
                log.warning("%s; what the forwarder does can't be seen there", why)
            self._unseen = why
        else:
            self._unseen = ""

    def _shown(self) -> ForwarderStatistics:
        """What the file says: a session that gets no answer is not over for a long time."""
        silence = self.silence()
        if not silence or self._now.state == "waiting":
            return self._now
        self._complain(silence)
        return replace(self._now, state="waiting", last_error=silence)

    def _behind(self) -> ForwarderStatistics:
        """Returns how much waits to be forwarded now. It grows while the cluster does not answer.

        With thousands of queues that wait, a look takes a second. All looks together take a tenth
        of the time.
        """
        began = self.clock.monotonic_ns()
        if began < self._next_look_ns:
            return self._now.aged(self.clock.wall_ms())
        try:
            if self._positions is None:
                self._positions = self.position_in_store()
            messages, size, oldest_ms = self.source.behind(self._waiting(self._positions))
        except (OSError, CommitLogError):  # what waits was deleted meanwhile, or is damaged: the next read says so
            return self._now.aged(self.clock.wall_ms())
        now = self.clock.monotonic_ns()
        self._next_look_ns = now + _LOOK_SHARE * (now - began)
        if not messages:
            self._oldest = 0, 0
        age = self._age(oldest_ms) if messages else 0
        return replace(self._now, behind_messages=messages, behind_bytes=size, behind_ms=age)

    def _age(self, oldest_ms: int | None) -> int:
        """How long the oldest message that waits has waited.

        That is since it was seen first, at least: the clock may have been set back, or nobody may
        know when it was stored.
        """
        now = self.clock.monotonic_ns()
        if oldest_ms != self._oldest[0]:
            self._oldest = oldest_ms, now
        seen = (now - self._oldest[1]) // 1_000_000
        return seen if oldest_ms is None else max(self.clock.wall_ms() - oldest_ms, seen)

    def _waiting(self, positions: Mapping[str, Mapping[int, int]]) -> dict[QueueKey, tuple[int, int]]:
        found = {}
        for (topic, lane), queue in self.source.refresh().items():
            begin = max(positions.get(topic, {}).get(lane, 0), queue.first)
            if begin < queue.end and self.settings.wants(topic):
                found[topic, lane] = begin, queue.end
        return found

    def close(self) -> None:
        """Writes what is known, and gives the name back."""
        self._next_look_ns = LONG_AGO_NS  # the last word stays, and what was forwarded since the last look is in it
        try:
            self.write(now=True)
        finally:
            if self._name is not None:
                self._name.close()
