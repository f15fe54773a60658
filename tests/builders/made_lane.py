"""Makes lanes on disk, byte by byte and without stages, for tests that damage them."""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.consume_queue import ENTRY, ConsumeQueue
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.store_directory import LaneDirectory
from commitlog.opening.recovery import LaneEnd, recover_lane
from commitlog.reading.log_scan import LogScan
from commitlog.record.host import Host
from commitlog.record.properties import encode_properties
from commitlog.record.record import RecordEncoder, decode, encode_blank
from commitlog.record.record_layout import BLANK_BYTES
from commitlog.record.table import RecordTable
from commitlog.shm.layout import segment_start

SEGMENT = 1 << 12
QUEUE_FILE = 20 * 50
HOST = Host(b"\x7f\0\0\x01", 10911)


@dataclass
class MadeLane:
    """A lane that a store wrote and closed, with what is in it, and where.

    `places` are start and end of each record.
    """

    directory: LaneDirectory
    segment_bytes: int = SEGMENT
    append_crc: bool = True
    places: list[tuple[int, int]] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    end: int = 0
    next_offsets: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def append(self, topic: str, body: bytes, sys_flag: int = 0, dispatch: bool = True) -> None:
        """Appends one record, after a BLANK where the segment has no room."""
        encoder = RecordEncoder(self.directory.number, HOST, HOST, self.append_crc)
        properties = encode_properties(None, "tag", {"trace": "x"}) if len(body) % 2 else b""
        remaining = self.segment_bytes - self.end % self.segment_bytes
        if encoder.size(topic.encode(), body, properties) + BLANK_BYTES > remaining:
            self.write(self.end, encode_blank(remaining))
            self.end += remaining
        offset = self.next_offsets[topic]
        time = 1_000_000 + len(self.records)
        record = encoder.encode(topic.encode(), body, properties, offset, self.end, time, time, sys_flag=sys_flag)
        self.write(self.end, record)
        self.places.append((self.end, self.end + len(record)))
        self.records.append(record)
        self.topics.append(topic)
        if not sys_flag & 4:
            if dispatch:
                self.index(topic, offset, record)
            self.next_offsets[topic] += 1
        self.end += len(record)

    def index(self, topic: str, offset: int, record: bytes) -> None:
        queue = ConsumeQueue(self.directory.queue_path(topic), QUEUE_FILE)
        found = decode(record)
        queue.place([offset], [found.physical_offset], [len(record)], [found.tags_code])
        queue.close()

    def write(self, where: int, data: bytes) -> None:
        """Puts bytes into the log; a segment file is made in full size."""
        path = self.directory.segment_path(segment_start(where, self.segment_bytes))
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(self.segment_bytes)
        with path.open("r+b") as file:
            file.seek(where % self.segment_bytes)
            file.write(data)

    def read(self, start: int, end: int) -> bytes:
        with self.directory.segment_path(start - start % self.segment_bytes).open("rb") as file:
            file.seek(start % self.segment_bytes)
            return file.read(end - start)

    def set_positions(
        self, flushed: int, dispatched: int, first: int = 0, drained: bool = False, entries: int = -1
    ) -> None:
        """Writes the positions. Without `drained` the lane was killed: its `abort` is there.

        A dispatcher has placed no entry of a record that was not flushed.
        """
        self.directory.path.mkdir(parents=True, exist_ok=True)
        if drained:
            self.directory.abort_file.unlink(missing_ok=True)
        else:
            self.directory.abort_file.touch()
            self.forget_entries(flushed)
        PositionsFile(self.directory, "", DISK).store(
            Positions(1, flushed, dispatched, first, 1_000_000, drained, entries)
        )

    def forget_entries(self, flushed: int) -> None:
        """Empties the entries of records that end behind a log offset."""
        for file in self.directory.consumequeue.glob("*/*/*"):
            entries = np.fromfile(file, ENTRY)
            entries[entries["physical_offset"] + entries["size"] > flushed] = (0, 0, 0)
            file.write_bytes(entries.tobytes())

    def recover(self, channel: FileChannel = DISK, report: Callable[[str], None] = lambda line: None) -> LaneEnd:
        return recover_lane(self.directory, self.segment_bytes, channel, report, queue_file_bytes=QUEUE_FILE)

    def kept(self) -> list[int]:
        """Which of the written records are in the log now, byte for byte.

        Fails for a good record that was never written, with one exception: a record may lose its
        CRC to bytes that are by chance well-formed properties. Nothing else covers these, and
        records without that CRC are good in any log.
        """
        numbers = {record: number for number, record in enumerate(self.records)}
        starts = {start: number for number, (start, _) in enumerate(self.places)}
        found = []
        segments = MappedFileQueue(self.directory.commitlog, self.segment_bytes)
        for piece in LogScan(segments, self.directory.number).pieces(segments.first):
            if isinstance(piece, RecordTable):
                for row, (start, size) in enumerate(
                    zip(piece.physical_offsets.tolist(), piece.sizes.tolist(), strict=True)
                ):
                    record = self.read(start, start + size)
                    if record not in numbers and not piece.has_crc[row]:
                        written = self.records[starts[start]]
                        before = int(piece.properties_positions[row] - piece.positions[row])
                        assert (record[:before], len(record)) == (written[:before], len(written))
                        record = written
                    found.append(numbers[record])
        return found

    def entries(self, topic: str) -> list[tuple[int, int, int]]:
        """The consume queue of a topic: physical offset, size, tags code."""
        with ConsumeQueue(self.directory.queue_path(topic), QUEUE_FILE) as queue:
            return [tuple(entry) for entry in queue.entries(0, queue.end()).tolist()]

    def expected_entries(self, topic: str, end: int | None = None) -> list[tuple[int, int, int]]:
        found = []
        for record, name in zip(self.records, self.topics, strict=True):
            made = decode(record)
            in_queue = name == topic and not made.sys_flag & 4
            if in_queue and (end is None or made.physical_offset < end):
                found.append((made.physical_offset, len(record), made.tags_code))
        return found


def make_lane(
    path: Path,
    count: int = 60,
    topics: Sequence[str] = ("orders", "payments"),
    *,
    append_crc: bool = True,
    number: int = 3,
) -> MadeLane:
    """A lane of about 13 KB in segments of 4 KiB, closed properly."""
    lane = MadeLane(LaneDirectory(path, number), append_crc=append_crc)
    for row in range(count):
        body = hashlib.sha512(struct.pack(">i", row)).digest()[: row * 37 % 65]
        lane.append(topics[row * 7 % 5 % len(topics)], body, sys_flag=4 if row % 11 == 10 else 0)
    lane.set_positions(lane.end, lane.end, drained=True)
    return lane


def image(path: Path) -> dict[str, bytes]:
    """Every file below a directory, by its relative path; directories too."""
    return {
        str(found.relative_to(path)): found.read_bytes() if found.is_file() else b"<directory>"
        for found in sorted(path.rglob("*"))
    }


def check_again(lane: MadeLane, end: LaneEnd) -> None:
    """A second recovery finds the same end and changes no byte."""
    before = image(lane.directory.path)
    again = lane.recover()
    assert (again.first, again.end, again.allocated) == (end.first, end.end, end.allocated)
    assert again.last_store_timestamp == end.last_store_timestamp
    assert image(lane.directory.path) == before


def crash(lane: MadeLane, flushed: int, dispatched: int | None = None) -> None:
    """Writes positions as the flusher had last written them when everything died."""
    lane.set_positions(flushed, flushed if dispatched is None else dispatched)


def boundary(lane: MadeLane, number: int) -> int:
    return lane.places[number][0]
