"""One replica: a copy of the whole store, as a thread of the HAService (`replicas/wire.py`).

It sends in rounds. What names something is read before what it names, and sent behind it, as in a
backup:

1. Named readers, deletions of schemas and marks of trims are read, once in a second.
2. The limit of each lane is read, then the schemas: all that the log below the limits needs.
3. New schemas and notes of damage are sent, then the log up to these limits.
4. What was read first is sent, as far as it has changed.

So no reader of the copy is further than its log, and no message has an unknown schema.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import orjson

from commitlog.backups.small_files import SmallFiles
from commitlog.config import ReplicationConfig
from commitlog.disk.consume_queue import ConsumeQueue, is_light
from commitlog.disk.quarantine import corruption_notes
from commitlog.errors import CommitLogError, DamagedFile, ReplicaRefused, ReplicationRefused
from commitlog.reading.queue_bounds import QueueBounds
from commitlog.replicas.wire import (
    HEAD,
    NO_LANE,
    Acknowledgements,
    Hello,
    Kind,
    Welcome,
    ends_to_bytes,
    file_frames,
    frame,
    refusal,
)
from commitlog.stages.replicating.lane_log import LaneLog, LaneReader
from commitlog.stages.replicating.peer_connection import Acknowledged, HAConnection, Throttle
from commitlog.system.clock import LONG_AGO_NS, Clock

_LOOK_NS = 1_000_000_000
_QUEUES_A_FRAME = 4_096
_FAREWELL_SECONDS = 1.0
"""How long a connection may take to end by itself."""

log = logging.getLogger(__name__)


class ReplicaConnection(HAConnection):
    """One replica, which follows all lanes."""

    peer: ssl.SSLSocket

    def __init__(
        self,
        peer: ssl.SSLSocket,
        hello: Hello,
        welcome: Welcome,
        lane_logs: dict[int, LaneLog],
        files: SmallFiles,
        config: ReplicationConfig,
        clock: Clock,
        throttle: Throttle,
        acknowledged: Acknowledged,
        completed: Callable[[ReplicaConnection, Mapping[int, int]], None],
        ended: Callable[[HAConnection, str], None],
    ) -> None:
        super().__init__(peer, hello.name, config, clock, ended)
        self._welcome, self._lane_logs, self._files = welcome, lane_logs, files
        self._throttle, self._acknowledged, self._completed = throttle, acknowledged, completed
        self._where = {tail.lane: tail.end for tail in hello.lanes}
        self._wanted = hello.wants
        self._mends = bool(hello.wants)
        """Whether it only gets what it has lost. Then it comes again."""
        self._firsts: dict[int, int] = {}
        """Lane → the first offset that the replica was told."""
        self._sent: dict[str, bytes] = {}
        """Name of a small file → its content as it was sent; b"" for one that never changes."""
        self._readers: dict[int, LaneReader] = {}
        self._heard = Acknowledgements()
        self._round: Iterator[bytes | memoryview] = iter(())
        self._looked_ns = LONG_AGO_NS
        self._is_complete = False
        self._durable: dict[int, int] = {}
        """Lane → how far the replica has acknowledged it on this connection."""
        self.counts = False
        """Whether the copy could be promoted: only then it counts as a replica."""
        self._follower = ""
        """Where another connection of this name has come from, for which this one ends."""

    def greet(self) -> None:
        self.send(self._welcome.to_bytes())

    def take(self, data: bytes) -> None:
        for lane, offset in self._heard.feed(data):
            if offset > self._where.get(lane, 0):
                raise self._refuse(
                    f"{self.peer_name} acknowledges offset {offset:,} of lane {lane}, and only {self._where.get(lane, 0):,} "
                    f"was sent: it follows another log; set it aside with `commitlog replica … --again`"
                )
            self._durable[lane] = offset
            self._acknowledged(self, lane, offset)
        if self._heard.is_complete and not self.counts:
            self.counts = True
            self._completed(self, self._durable)

    def _refuse(self, why: str) -> ReplicaRefused:
        """Tells the replica why this ends, and returns the error."""
        error = ReplicaRefused(why)
        with suppress(OSError):
            self.send(frame(Kind.REFUSAL, NO_LANE, 0, refusal(error)))
        return error

    # ---- sending --------------------------------------------------------------------------------

    def send_next(self) -> bool:
        if not self._throttle.take(0):
            return False
        data = next(self._round, None)
        if data is None:
            self._round = self._frames()
            data = next(self._round, None)
        if data is None:
            return False
        self._throttle.take(len(data))
        self.send(data)
        return True

    def _frames(self) -> Iterator[bytes | memoryview]:
        """One round. See the module. A frame is good until the next one is asked for."""
        logs = dict(self._lane_logs)
        if self._mends:
            wanted, self._wanted = self._wanted, {}
            yield from self._lost_segments(wanted, logs)
            return
        late = self._changing_files(logs)
        limits = {lane: lane_log.limit for lane, lane_log in logs.items()}
        if late is not None or any(limit > self._where.get(lane, -1) for lane, limit in limits.items()):
            yield from self._new_files(logs)
        for lane, lane_log in logs.items():
            yield from self._first(lane, lane_log, limits[lane])
        behind = True
        while behind:
            behind = False
            for lane, lane_log in logs.items():  # each in turn, so that a large lane keeps no other waiting
                if self._where[lane] < limits[lane]:
                    yield self._data(lane, lane_log, limits[lane])
                    behind = True
        if late is not None:
            yield from self._changes(late)
            if not self._is_complete:
                self._is_complete = True
                yield frame(Kind.COMPLETE, NO_LANE, 0)

    def _data(self, lane: int, lane_log: LaneLog, limit: int, kind: Kind = Kind.DATA) -> memoryview:
        where = self._where[lane]
        reader = self._readers.setdefault(lane, LaneReader(lane_log))
        try:
            count = reader.read_into(self.room[HEAD.size : HEAD.size + limit - where], where)
        except FileNotFoundError:
            if lane_log.first > where:
                raise self._too_far_behind(lane, lane_log) from None
            raise
        self._where[lane] = where + count
        HEAD.pack_into(self.room, 0, kind, lane, where, count)
        return self.room[: HEAD.size + count]

    def _lost_segments(
        self, wanted: Mapping[int, tuple[int, ...]], logs: Mapping[int, LaneLog]
    ) -> Iterator[bytes | memoryview]:
        """The segments that the replica has asked for, as far as they are here."""
        if not wanted:  # they were sent
            return
        for lane in wanted.keys() & logs.keys():
            lane_log = logs[lane]
            yield frame(Kind.FIRST, lane, lane_log.first)
            for start in wanted[lane]:
                self._where[lane], end = start, start + lane_log.size
                while lane_log.first <= start and self._where[lane] < end <= lane_log.limit:
                    yield self._data(lane, lane_log, end, Kind.SEGMENT)
        yield frame(Kind.COMPLETE, NO_LANE, 0)

    def _first(self, lane: int, lane_log: LaneLog, limit: int) -> Iterator[bytes]:
        """Tells what retention keeps of a lane, where that is new."""
        first = lane_log.first
        is_new = lane not in self._where
        if is_new:
            self._where[lane] = first
        if first > self._where[lane]:
            raise self._too_far_behind(lane, lane_log)
        if self._firsts.get(lane) != first:
            self._firsts[lane] = first
            yield frame(Kind.FIRST, lane, first)
        if is_new and first:
            yield from self._queues(lane, lane_log, first, limit)

    def _too_far_behind(self, lane: int, lane_log: LaneLog) -> ReplicaRefused:
        return self._refuse(
            f"lane {lane} of {self.peer_name} ends at {self._where[lane]:,}, and retention has deleted this store's before "
            f"{lane_log.first:,}: the copy is too far behind: begin anew with `commitlog replica … --again`"
        )

    @staticmethod
    def _queues(lane: int, lane_log: LaneLog, first: int, limit: int) -> Iterator[bytes]:
        """Tells where the topics of a lane go on whose first messages retention has deleted.

        No record tells it of a topic that has no message left.
        """
        found = {}
        for topic in lane_log.channel.list(lane_log.directory.consumequeue):
            if is_light(topic):
                continue
            with ConsumeQueue(lane_log.directory.queue_path(topic), channel=lane_log.channel) as queue:
                try:
                    found[topic] = QueueBounds(queue, first, limit).find()[0]
                except DamagedFile as error:
                    log.warning("lane %d: %s; a replica may count topic %s anew", lane, error, topic)
        topics = sorted(found)
        for at in range(0, len(topics), _QUEUES_A_FRAME):
            some = {topic: found[topic] for topic in topics[at : at + _QUEUES_A_FRAME]}
            yield frame(Kind.QUEUES, lane, first, orjson.dumps(some))

    # ---- small files ----------------------------------------------------------------------------

    def _changing_files(self, logs: Mapping[int, LaneLog]) -> dict[str, bytes] | None:
        """The files that name places of the log; None where they were read a moment ago."""
        now = self.clock.monotonic_ns()
        if now - self._looked_ns < _LOOK_NS:
            return None
        self._looked_ns = now
        found = {**self._files.readers(), **self._files.deletions()}
        for lane, lane_log in logs.items():
            with suppress(FileNotFoundError):
                name = f"lanes/{lane}/{lane_log.directory.trimmed_file.name}"
                found[name] = self._files.read(name)
        return found

    def _new_files(self, logs: Mapping[int, LaneLog]) -> Iterator[bytes]:
        """The files that the log needs, as far as they are new. They never change."""
        names = list(self._files.schemas())
        for lane, lane_log in logs.items():
            notes = corruption_notes(lane_log.directory, lane_log.channel)
            names += [f"lanes/{lane}/quarantine/{path.name}" for start, path in notes if start >= lane_log.first]
        for name in names:
            if name not in self._sent:
                yield from self._file(name, self._files.read(name))
                self._sent[name] = b""

    def _changes(self, wanted: Mapping[str, bytes]) -> Iterator[bytes]:
        for name, data in wanted.items():
            if self._sent.get(name) != data:
                yield from self._file(name, data)
                self._sent[name] = data
        for name in [name for name, data in self._sent.items() if data and name not in wanted]:
            del self._sent[name]
            self._note_damage(name, "")
            yield frame(Kind.GONE, NO_LANE, 0, name.encode())

    def _file(self, name: str, data: bytes) -> Iterator[bytes]:
        """The frames of a small file. The replica knows what to do with one that is damaged."""
        self._note_damage(name, self._files.damage(name, data, decodes=False))
        try:
            yield from file_frames(name, data)
        except CommitLogError as error:  # somebody has put a file there that is none of ours
            log.warning("%s is not copied: %s", name, error)

    def _note_damage(self, name: str, why: str) -> None:
        """Notes why a small file is damaged; empty where it is not, or is gone."""
        if self.damaged.get(name, "") != why:
            rest = {other: text for other, text in self.damaged.items() if other != name}
            self.damaged = {**rest, name: why} if why else rest

    # ---- otherwise ------------------------------------------------------------------------------

    def send_heartbeat(self) -> None:
        ends = {lane: lane_log.limit for lane, lane_log in dict(self._lane_logs).items()}
        self.send(frame(Kind.HEARTBEAT, NO_LANE, 0, ends_to_bytes(ends)))

    def _wait_ms(self) -> int:
        """Not longer than until it looks at the readers again."""
        return min(super()._wait_ms(), _LOOK_NS // 1_000_000)

    def give_way(self, address: str) -> None:
        """Ends it for another connection of this name, and waits for that.

        Mostly that is the same replica, which has lost this one. Where this one is another copy, it
        has to know, or the two of them would end each other again and again.
        """
        self._follower = address
        self.end()
        self.join(_FAREWELL_SECONDS)
        self.break_off()

    def finish(self) -> None:
        for reader in self._readers.values():
            reader.close()
        if self._follower:
            why = (
                f"another connection of replica {self.peer_name} has come from {self._follower}: give each copy a name of "
                f"its own with `commitlog replica --name`"
            )
            log.warning("%s: ended: %s", self.peer_name, why)
            with suppress(OSError):  # it is gone, as it should be
                self.send(frame(Kind.REFUSAL, NO_LANE, 0, refusal(ReplicationRefused(why))))
