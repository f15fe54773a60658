"""Stores written by hand, without stages: as stopped stores are.

Any part may not be dispatched or flushed yet.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory, StoreFacts, new_store_id
from commitlog.record.host import Host
from commitlog.record.properties import encode_properties
from commitlog.record.record import Record, RecordEncoder, decode, encode_blank
from commitlog.record.record_layout import BLANK_BYTES
from commitlog.shm.layout import segment_start

V4, V6 = Host(b"\x7f\0\0\x01", 10911), Host(bytes(15) + b"\x01", 10911)
BEGIN_MS = 1_700_000_000_000


_encoder = cache(RecordEncoder)


@dataclass
class HandMadeLane:
    """One lane. Each record is stored a second after the one before."""

    store: HandMadeStore
    number: int
    end: int = 0
    records: list[Record] = field(default_factory=list)
    next_offsets: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    dispatched: int = 0  # records that have an entry
    _paths: dict[int, str] = field(default_factory=dict)  # of segments

    def append(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        tags: str | None = None,
        properties: dict[str, str] | None = None,
        raw_properties: bytes | None = None,
        born: Host = V4,
        stored: Host = V4,
        sys_flag: int = 0,
        crc: bool = True,
    ) -> Record:
        encoder = _encoder(self.number, born, stored, crc)
        made = encode_properties(key, tags, properties) if raw_properties is None else raw_properties
        size = self.store.segment_bytes
        remaining = size - self.end % size
        if encoder.size(topic.encode(), body, made) + BLANK_BYTES > remaining:
            self._write(encode_blank(remaining))
            self.end += remaining
        offset, time = self.next_offsets[topic], BEGIN_MS + 1000 * len(self.records)
        data = encoder.encode(topic.encode(), body, made, offset, self.end, time - 5, time, sys_flag=sys_flag)
        self._write(data)
        self.end += len(data)
        self.next_offsets[topic] += not sys_flag & 4
        self.records.append(decode(data))
        return self.records[-1]

    def _write(self, data: bytes) -> None:
        size = self.store.segment_bytes
        start = segment_start(self.end, size)
        if start not in self._paths:
            self._paths[start] = str(self.store.directory.lane_directory(self.number).segment_path(start))
        try:
            fd = os.open(self._paths[start], os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            Path(self._paths[start]).parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._paths[start], os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT, 0o644)
            os.ftruncate(fd, size)
        try:
            os.pwrite(fd, data, self.end % size)
        finally:
            os.close(fd)

    def dispatch(self, count: int | None = None) -> None:
        """Places the entries of the next `count` records; with None those of all."""
        upto = len(self.records) if count is None else self.dispatched + count
        by_topic = defaultdict(list)
        for record in self.records[self.dispatched : upto]:
            if not record.sys_flag & 4:
                by_topic[record.topic].append(record)
        for topic, records in by_topic.items():
            queue = ConsumeQueue(self.store.directory.lane_directory(self.number).queue_path(topic), 20 * 1000)
            columns = [(r.queue_offset, r.physical_offset, r.total_size, r.tags_code) for r in records]
            queue.place(*zip(*columns, strict=True))
            queue.close()
        self.dispatched = upto

    def publish(self, *, flushed: int | None = None, first: int = 0, is_drained: bool = True) -> None:
        """Writes `positions`: everything is flushed, or the log up to offset `flushed`.

        Without `is_drained` the store was killed.
        """
        limit = self.end if flushed is None else flushed
        done = [r for r in self.records[: self.dispatched] if r.physical_offset + r.total_size <= limit]
        where = done[-1].physical_offset + done[-1].total_size if done else 0
        lane_directory = self.store.directory.lane_directory(self.number)
        lane_directory.path.mkdir(parents=True, exist_ok=True)
        entries = sum(not record.sys_flag & 4 for record in done) if len(done) == self.dispatched else -1
        PositionsFile(lane_directory, self.store.id, DISK).store(
            Positions(1, limit, max(where, first), first, 0, is_drained, entries)
        )

    def forget_before(self, segment: int) -> None:
        """Plays retention: removes the segments below this one."""
        size = self.store.segment_bytes
        for number in range(segment):
            self.store.directory.lane_directory(self.number).segment_path(number * size).unlink()
        self.publish(first=segment * size)


class HandMadeStore:
    """A store's directory; `lane(n)` makes lanes."""

    def __init__(self, path: Path, segment_bytes: int = 1 << 16) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path, self.segment_bytes, self.id = path, segment_bytes, new_store_id()
        self.directory = StoreDirectory(path)
        self.directory.save(StoreFacts(self.id, segment_bytes))
        self.lanes: dict[int, HandMadeLane] = {}

    def lane(self, number: int) -> HandMadeLane:
        return self.lanes.setdefault(number, HandMadeLane(self, number))

    def publish(self) -> None:
        """Records everything as dispatched and flushed."""
        for lane in self.lanes.values():
            lane.dispatch()
            lane.publish()

    def rows(self, topic: str) -> list[tuple[int, int, bytes]]:
        """(lane, queue offset, body) of a topic's messages, sorted."""
        return sorted(
            (lane.number, record.queue_offset, record.body)
            for lane in self.lanes.values()
            for record in lane.records
            if record.topic == topic and not record.sys_flag & 4
        )


def small_store(
    path: Path, rows: int = 100, lanes: int = 2, topics: tuple[str, ...] = ("orders", "other")
) -> HandMadeStore:
    """`rows` messages of each topic in each lane, over several segments, all dispatched."""
    store = HandMadeStore(path, segment_bytes=1 << 13)
    for number in range(lanes):
        for row in range(rows):
            for topic in topics:
                store.lane(number).append(topic, b"%s-%d-%d" % (topic.encode(), number, row), key=f"k{row}")
    store.publish()
    return store
