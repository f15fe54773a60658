"""What a replica does with each frame of the store."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import replace

from commitlog.backups.small_files import SmallFiles, is_note
from commitlog.disk.quarantine import unnamed_note
from commitlog.disk.replica_files import Lag, lacking
from commitlog.disk.replica_mark import ReplicaMark, save_mark
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import ReplicationRefused
from commitlog.replicas.copy_place import faults_of_copy
from commitlog.replicas.lane_copy import Joiner, LaneCopy
from commitlog.replicas.lost_segments import own_notes
from commitlog.replicas.wire import (
    ACKNOWLEDGEMENT,
    IS_COMPLETE,
    NO_LANE,
    Frame,
    Kind,
    check_file_name,
    ends_from_bytes,
    file_part,
    queues_from_bytes,
)


class Incoming:
    """Takes the frames of one connection, in their order.

    `unsynced` says how many bytes were written since the last sync began, and `is_complete` whether
    all is durable here that the store had when the connection began. `lanes` gets the lanes
    that begin. `index_lock` is held while what the indexing thread uses is changed. `beside` has
    one thread, which syncs while more comes. `noted` has the segments by lane in which only this
    copy has damage: it does not count with them. Raises DiskError where the disk refuses, and
    StoreMoved where files are gone, so that an OSError is always of the connection.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        facts: StoreFacts,
        lanes: dict[int, LaneCopy],
        index_lock: threading.Lock,
        mark: ReplicaMark,
        beside: Executor,
        noted: dict[int, dict[int, int]],
    ) -> None:
        self._directory, self._facts, self._lanes = directory, facts, lanes
        self._index_lock, self._mark, self._beside = index_lock, mark, beside
        self._syncing: Future[None] | None = None
        self._files = SmallFiles(directory)
        self._named: set[str] = set()
        """The small files that the store has told of in this connection."""
        self._joiner = Joiner()
        self._part = bytearray()
        """The begin of a small file that comes in parts."""
        self._ends: dict[int, int] = {}
        """Lane → how far the store may send it, as it has said last."""
        self._acknowledged: dict[int, int] = {}
        """Lane → what was acknowledged last."""
        self._lag = Lag()
        self._completed = False
        """Whether the store must still be told that the copy is complete."""
        self.unsynced, self.is_complete = 0, False
        self.noted = noted

    @property
    def is_over(self) -> bool:
        """Whether the copy must heal first. Otherwise it follows while the connection lasts."""
        return bool(self.noted)

    def expect(self, ends: Mapping[int, int]) -> None:
        """Notes how far the store's lanes may be sent."""
        for lane, end in ends.items():
            self._ends[lane] = max(self._ends.get(lane, 0), end)

    def take(self, frame: Frame) -> None:
        """Does what a frame says. Raises ReplicationRefused, ReplicaRefused, DiskError."""
        with faults_of_copy(self._directory, "taking in the store's log"):
            match frame.kind:
                case Kind.DATA:
                    self._lane(frame.lane).write(frame.offset, frame.body, self._joiner)
                    self.unsynced += len(frame.body)
                    self.expect({frame.lane: frame.offset + len(frame.body)})
                case Kind.HEARTBEAT:
                    self.expect(ends_from_bytes(frame.body))
                case Kind.FIRST:
                    self._take_first(frame.lane, frame.offset)
                case Kind.QUEUES:
                    self._take_queues(frame)
                case Kind.FILE:
                    self._take_part(frame)
                case Kind.GONE:
                    self._take_gone(check_file_name(bytes(frame.body).decode("utf-8", "replace")))
                case Kind.COMPLETE:
                    self._take_complete()

    def _lane(self, number: int) -> LaneCopy:
        lane = self._lanes.get(number)
        if lane is None:
            raise ReplicationRefused(f"data of lane {number}, before it was said where that begins")
        return lane

    def _take_first(self, number: int, first: int) -> None:
        if first % self._facts.segment_bytes:
            raise ReplicationRefused(f"lane {number}: begins at {first:,}, where no segment begins")
        lane = self._lanes.get(number)
        if lane is None or (lane.is_empty and lane.first != first):
            with self._index_lock:
                lane = lane or LaneCopy(self._directory, self._facts, number)
                lane.begin(first)
                self._lanes[number] = lane
        elif lane.first != first:
            lane.sync()
            lane.retire(first)

    def _take_queues(self, frame: Frame) -> None:
        lane = self._lane(frame.lane)
        if not lane.is_empty:
            raise ReplicationRefused(f"lane {frame.lane}: consume queues behind the first data")
        with self._index_lock:
            lane.indexing.fill_queues(queues_from_bytes(frame.body))

    def _take_part(self, frame: Frame) -> None:
        part = file_part(frame.body)
        if frame.offset != (len(self._part) if frame.offset else 0):
            raise ReplicationRefused(f"{part.name}: a part from byte {frame.offset:,} on does not follow on")
        if not frame.offset:
            self._part.clear()
        self._part += part.part
        if len(self._part) > part.total:
            raise ReplicationRefused(f"{part.name}: has more than its {part.total:,} bytes")
        if len(self._part) == part.total:
            self._write(part.name, bytes(self._part))

    def _write(self, name: str, data: bytes) -> None:
        """Writes a small file, when the log that it names is durable. See SmallFiles.kept."""
        self._named.add(name)
        if self._files.kept(name, data):
            return
        self._sync_lanes()
        # what a topic has lost behind its last message has no entry here, as no record tells of it
        self._files.write(name, unnamed_note(data) if is_note(name) else data)
        if is_note(name):
            lane = self._lanes.get(int(name.split("/")[1]))
            if lane is not None:
                with self._index_lock:
                    lane.read_notes()

    def _take_gone(self, name: str) -> None:
        self._files.remove([name])
        self._named.discard(name)

    def _take_complete(self) -> None:
        """Removes the small files that the store does not have, and notes that this is a copy."""
        self._sync_lanes()
        for number, lane in self._lanes.items():
            if own := own_notes(self._directory, number, lane.first, self._facts.segment_bytes, self._named):
                self.noted.setdefault(number, {}).update(own)
        if self.noted:
            return
        marks = [f"lanes/{number}/trimmed.json" for number in self._lanes]
        known = [*self._files.schemas(), *self._files.deletions(), *self._files.readers(), *marks]
        self._files.remove([name for name in known if name not in self._named])
        with self._index_lock:  # the other thread saves the mark, too
            self._mark.complete = True
            save_mark(self._directory, replace(self._mark))
        self._completed = self.is_complete = True

    # ---- durability -----------------------------------------------------------------------------

    def sync(self, *, beside: bool = False) -> bytes:
        """Syncs the written data, and returns the acknowledgements to send.

        With `beside` the sync runs while more data is taken in, and a later call acknowledges it.
        One such sync ends before the next begins, so a slow disk slows the store down.
        """
        self.unsynced = 0
        if beside:
            self.end_sync()
            self._syncing = self._beside.submit(_sync, list(self._lanes.values()))
        else:
            self._sync_lanes()
        durable = {number: lane.durable for number, lane in self._lanes.items()}
        changed = {lane: end for lane, end in durable.items() if self._acknowledged.get(lane) != end}
        self._acknowledged.update(changed)
        said = [*changed.items()]
        if self._completed:  # behind what it is complete with
            said.append((NO_LANE, IS_COMPLETE))
            self._completed = False
        return b"".join(ACKNOWLEDGEMENT.pack(lane, end) for lane, end in said)

    def end_sync(self) -> None:
        """Waits for the sync that is under way beside. Raises DiskError.

        It comes before each other sync, and at the end: one behind a failed sync succeeds, although
        the data is not on the disk.
        """
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            with self._named_faults():
                syncing.result()

    def _sync_lanes(self) -> None:
        self.end_sync()
        with self._named_faults():
            _sync(self._lanes.values())

    def _named_faults(self) -> AbstractContextManager[None]:
        return faults_of_copy(self._directory, "syncing the store's log")

    def note_behind(self, now_ms: int) -> None:
        """Notes how far the copy is behind what is known of the store, and what it has said."""
        self._mark.note_acknowledged(self._acknowledged)
        have = {number: lane.durable for number, lane in self._lanes.items()}
        self._mark.behind_bytes = lacking(self._ends, have)
        self._mark.behind_since_ms = self._lag.since(self._mark.behind_since_ms, now_ms, self._ends, have)


def _sync(lanes: Iterable[LaneCopy]) -> None:
    for lane in lanes:
        lane.sync()
