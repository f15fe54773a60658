"""A served store, as planning sees it: one call for each look, and one for what a batch needs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa

from commitlog.columns.read_plan import Isolation, ReadOptions, ReadPlan, Slice
from commitlog.errors import CommitLogError, ReadingWarning, ServerError
from commitlog.planning.address import Address
from commitlog.planning.row_limit import QueueKey
from commitlog.planning.store_index import Ranges
from commitlog.planning.task_sizes import Work
from commitlog.planning.topic_queues import TopicQueues
from commitlog.reading.named_reader import NamedReader
from commitlog.reading.queue_range import QueueRange
from commitlog.remote import requests
from commitlog.remote.flight_connection import Connection, connection_of
from commitlog.schemas.topic_schemas import TopicSchema
from commitlog.system.threads import Background

RENEW_SECONDS = 10.0
"""How often a lease of a reader's name is renewed. A server keeps one for three times as long."""


class RemoteIndex:
    """Which topics and queues a served store has, as of the last look.

    `topics` are those whose queues are wanted, or None for all. It is not for several threads.
    """

    def __init__(
        self, address: Address, isolation: Isolation = "flushed", topics: tuple[str, ...] | None = None
    ) -> None:
        self.address, self.path, self.isolation = address, str(address), isolation
        self.warn: Callable[[str], object] = _warn
        """Is told of what is wrong with the store."""
        self._connection = connection_of(address)
        self._wanted = topics
        self._known: requests.Looked | None = None
        self._topics: dict[str, bool] = {}
        self._ranges: dict[str, TopicQueues] = {}

    @property
    def _looked(self) -> requests.Looked:
        if self._known is None:
            self.refresh()
        assert self._known is not None
        return self._known

    @property
    def store_id(self) -> str:
        return self._looked.store_id

    @property
    def identity(self) -> tuple[object, ...]:
        """A value that differs once another store, or a restored copy, is there.

        Several hosts have copies, so only the store's id counts there.
        """
        return self.store_id, self._looked.identity if len(self.address.hosts) == 1 else ""

    @property
    def epoch(self) -> int:
        return self._looked.epoch

    @property
    def one_log(self) -> bool:
        return self._looked.one_log

    @property
    def live(self) -> bool:
        return self._looked.live

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports of the server's processes."""
        return self._looked.ports

    def refresh(self, wait_ms: int = 0, waiter: str = "", *, patient: bool = True) -> bool:
        seen = "" if self._known is None else self._known.version
        look = requests.Look(self.address.store, self.isolation, self._wanted, seen, wait_ms, waiter)
        answer = self._connection.ask("look", look, patient=patient)
        try:
            looked = requests.Looked(**answer)
            self._warn(looked)
            if looked.topics is None or looked.queues is None:
                if self._known is None:
                    raise ValueError("nothing is said of topics")
                self._known = looked
                return False
            damaged = {
                topic: {int(lane): str(why) for lane, why in lanes.items()} for topic, lanes in looked.damaged.items()
            }
            self._ranges = {
                topic: TopicQueues(
                    {int(lane): QueueRange(*queue, indexed=0) for lane, queue in lanes.items()}, damaged.get(topic, {})
                )
                for topic, lanes in looked.queues.items()
            }
        except (TypeError, ValueError, AttributeError) as error:
            raise ServerError(
                f"{self.path}: its server's answer can't be read ({error}); is it of another version?"
            ) from None
        self._known, self._topics = looked, looked.topics
        return True

    @property
    def warning(self) -> str:
        """What the server has warned of at the last look: there may be more than can be read."""
        return "" if self._known is None else self._known.warning

    def _warn(self, looked: requests.Looked) -> None:
        if looked.warning and (self._known is None or self._known.warning != looked.warning):
            self.warn(f"{self.path}: {looked.warning}")

    def end_wait(self, waiter: str) -> None:
        """Ends a `refresh` of another thread that waits under this name."""
        look = requests.Look(self.address.store, topics=(), waiter=waiter)
        self._connection.ask("look", look, patient=False)

    def topics(self, *, deleted: bool = False) -> list[str]:
        return sorted(topic for topic, is_deleted in self._topics.items() if deleted or not is_deleted)

    def declared_topics(self) -> Collection[str]:
        return typed_topics(self.address)

    def ranges(self, topic: str) -> Mapping[int, QueueRange]:
        return self._ranges.get(topic, {})

    def shared_ends(self, epoch: int, queues: Collection[QueueKey]) -> dict[QueueKey, int]:
        asked = requests.SharedEnds(self.address.store, epoch, tuple(queues))
        found = self._connection.ask("shared_ends", asked)
        return {key: end for key, end in zip(queues, found, strict=True) if end is not None}

    def find_by_times(self, times: Mapping[QueueKey, int]) -> dict[QueueKey, int | None]:
        wanted = tuple((topic, lane, ms) for (topic, lane), ms in times.items())
        found = self._connection.ask("find_by_times", requests.FindByTimes(self.address.store, wanted, self.isolation))
        return dict(zip(times, found, strict=True))

    def find_by_time(self, topic: str, lane: int, ms: int) -> int | None:
        return self.find_by_times({(topic, lane): ms})[topic, lane]

    def slices(self, ranges: Ranges) -> list[Slice]:
        """The server finds out, when a slice is read, which of its rows have no entry yet."""
        return [Slice(*part, -1, 0) for part in _parts(ranges)]

    def work(self, ranges: Ranges) -> list[Work]:
        asked = requests.Sizes(self.address.store, _parts(ranges), self.isolation)
        sizes = self._connection.ask("sizes", asked)
        return [Work(piece, size) for piece, size in zip(self.slices(ranges), sizes, strict=True)]

    def limit_rows(self, ranges: Ranges, most: int, first: QueueKey, options: ReadOptions) -> dict[QueueKey, int]:
        asked = requests.LimitRows(self.address.store, _parts(ranges), most, first, options)
        ends = self._connection.ask("limit_rows", asked)
        return dict(zip(ranges, ends, strict=True))

    def plan(self, slices: tuple[Slice, ...], options: ReadOptions) -> ReadPlan:
        return ReadPlan(self.path, self.store_id, 0, slices, options, self.epoch)

    def hold_name(self, name: str) -> LeasedName:
        return LeasedName(self._connection, self.address.store, name)

    def close(self) -> None:
        """Does nothing: the connection stays for later reads of this process."""


def _warn(text: str) -> None:
    warnings.warn(text, ReadingWarning, stacklevel=4)


def _parts(ranges: Ranges) -> tuple[requests.QueuePart, ...]:
    return tuple((topic, lane, begin, end) for (topic, lane), (begin, end) in ranges.items())


class LeasedName:
    """A reader's name, which a server holds for this process as long as it says so now and then.

    Making one raises ReaderInUse, ReaderError.
    """

    def __init__(self, connection: Connection, store: str, name: str) -> None:
        self._connection, self._store, self._name = connection, store, name
        self._position: requests.Position | None = None
        self._told: requests.Position | None = None
        self._lease = self._take()
        self._asking = threading.Lock()
        self._ended = threading.Event()
        Background(self._renew, f"renews {name}")

    def _take(self) -> str:
        return str(self._connection.ask("hold_name", requests.HoldName(self._store, self._name)))

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                self._renew_lease(now=False)
            except (CommitLogError, MemoryError):
                self._told = None  # the query tells it again, and hears why that is impossible

    def move(self, position: NamedReader) -> None:
        self._position = requests.Position(
            position.store_id,
            {topic: dict(lanes) for topic, lanes in position.offsets.items()},
            position.pattern,
            position.all_lanes,
            tuple(sorted(position.passed_over)),
        )
        self.write()

    def write(self, *, now: bool = False) -> None:
        """Tells the server the position if it has moved, or has to be written `now`."""
        if now or self._position != self._told:
            self._renew_lease(now=now)

    def _renew_lease(self, *, now: bool) -> None:
        """Tells the server the position, and so renews the lease.

        A server that was started again knows of no lease, and is asked for the name anew.
        """
        with self._asking:
            if self._ended.is_set():
                return
            if not self._tell(now):
                self._lease = self._take()
                self._tell(now)

    def _tell(self, now: bool, release: bool = False) -> bool:
        position = self._position
        request = requests.MoveName(self._store, self._lease, position, now, release)
        is_known = bool(self._connection.ask("move_name", request))
        if is_known:
            self._told = position
        return is_known

    def close(self) -> None:
        with self._asking:
            if not self._ended.is_set():
                self._ended.set()
                self._tell(now=True, release=True)


def typed_topics(address: Address, topics: tuple[str, ...] | None = None) -> dict[str, TopicSchema]:
    """The newest schema of each typed topic of a served store: of all, or of these `topics`."""
    answer = connection_of(address).ask("schemas", requests.Schemas(address.store, topics))
    try:
        return {
            topic: TopicSchema(topic, int(version), requests.decode_schema(columns))
            for topic, (version, columns) in answer.items()
        }
    except (TypeError, ValueError, AttributeError, OSError, pa.ArrowException) as error:
        raise ServerError(
            f"{address}: its server's schemas can't be read ({error}); is it of another version?"
        ) from None


def served_topics(address: Address) -> list[dict[str, Any]]:
    """What `commitlog topics --json` lists of a served store."""
    return list(connection_of(address).ask("topics", requests.Topics(address.store)))


def served_stat(address: Address) -> dict[str, Any]:
    """What `commitlog stat --json` prints of a served store, without paths."""
    return dict(connection_of(address).ask("stat", requests.Stat(address.store)))
