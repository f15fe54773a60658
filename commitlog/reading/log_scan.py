"""Reads a log in any state: records as tables, and between them the gaps that hold no record.

Recovery uses it to decide what to keep; `verify` and `dump` show what it finds. It writes nothing.
A gap ends at the next place that is certainly part of the log. That is a record whose physical
offset is its place and whose CRCs hold, a BLANK that reaches exactly to its segment's end, or the
start of a later segment file.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from commitlog.disk.mapped_file import read_ahead
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.errors import CorruptRecord
from commitlog.record.byte_ranges import ByteArray, gather
from commitlog.record.lost_crc import up_to_lost_crc
from commitlog.record.record import decode
from commitlog.record.record_layout import (
    BLANK_BYTES,
    BODY_LENGTH_BYTES,
    HEAD_BYTES,
    HOSTS_V6,
    I32,
    I64,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    RECOGNISABLE_BYTES,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
    V1_TOPIC_LENGTH_BYTES,
    V2_TOPIC_LENGTH_BYTES,
    size_and_magic,
)
from commitlog.record.scan import LARGEST_BYTES, MAX_BYTES, scan
from commitlog.record.table import RecordTable, Stop
from commitlog.shm.layout import segment_start

_BLOCK_BYTES = 1 << 20
_SAMPLE_RECORDS = 64
_DOUBLE_CHECKS = 4
"""A search ends when its CRCs of wrong places covered the segment's bytes this number of times."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The bytes [start, end) of a log hold no record. The last gap of a log may be empty."""

    start: int
    end: int
    file: str
    reason: str
    dirty: bool
    """Whether any byte in it is not zero."""
    last: bool
    """Whether no record follows."""
    claimed_end: int
    """The end of the record that seems to begin at `start`; `start` if none seems to begin."""

    def is_unfinished(self, end: int) -> bool:
        """Whether the gap may be a record that goes on behind `end`. Otherwise it is damage."""
        return self.claimed_end > end or self.start + RECOGNISABLE_BYTES > end


@dataclass
class LogScan:
    """Walks a log from a record's start to its end.

    `queue_id` is the one that all records must have; None allows any.
    """

    segments: MappedFileQueue
    queue_id: int | None
    check_crc: bool = True
    progress: Callable[[int], None] = lambda where: None
    expects_crc: bool = field(init=False, default=False)
    """Whether records of this log end with the whole-record CRC."""
    _ahead: tuple[int, int] = field(init=False, default=(0, 0))
    """The part of the log that was read ahead last."""

    def __post_init__(self) -> None:
        self.expects_crc = self._samples_have_crc()

    def pieces(self, where: int) -> Iterator[RecordTable | Gap]:
        """Tables and gaps in log order, up to the last gap.

        A table's `buffer_start` is its segment's start. Segments that retention removes meanwhile
        are passed over.
        """
        while True:
            try:
                for piece in self._pieces(where):
                    where = piece.end if isinstance(piece, Gap) else piece.buffer_start + piece.stop_position
                    yield piece
                return
            except FileNotFoundError:
                self.segments.refresh()
                where = max(where, self.segments.first)

    def _pieces(self, where: int) -> Iterator[RecordTable | Gap]:
        segments = self.segments
        while True:
            start = segment_start(where, segments.size)
            if start not in segments:
                missing = "the segment file is missing" if segments.after(start) else ""
                table = None
                gap = self.gap(where, missing)
            else:
                table = self._scan(start, where - start)
                if len(table):
                    yield table
                segments.done_with(start, table.stop_position)
                where = start + table.stop_position
                self.progress(where)
                if table.stop is Stop.FULL:
                    continue
                if table.stop is Stop.BLANK or where == start + segments.size:
                    where = start + segments.size
                    continue
                reason = "zeros where a record should be" if table.stop is Stop.ZERO else table.reason
                gap = self.gap(where, reason)
            yield gap
            if gap.last:
                return
            where = gap.end

    def holds_record(self, where: int) -> bool:
        """Whether a good record is at this place."""
        start = self.segments.find(where)
        return start is not None and len(self._scan(start, where - start, 1)) > 0

    def holds_record_between(self, where: int, end: int) -> bool:
        """Whether a good record or a BLANK begins behind `where` and before `end`.

        Both are in one segment.
        """
        start = segment_start(where, self.segments.size)
        if start not in self.segments:
            self.segments.refresh()
        return start in self.segments and self._find(start, where - start, 0, end - start) is not None

    # ---- records --------------------------------------------------------------------------------

    def _scan(self, start: int, position: int, most: int = 65_536) -> RecordTable:
        size = self.segments.size
        mapped = self.segments.map(start)
        self._read_ahead(start, position, LARGEST_BYTES if most == 1 else MAX_BYTES + LARGEST_BYTES)
        table = scan(
            mapped, position, size, start, self.queue_id, check_crc=self.check_crc, segment_end=size, max_records=most
        )
        return self._trusted(table, mapped)

    def _read_ahead(self, start: int, position: int, count: int) -> None:
        """Reads a part of a segment ahead, except for what the last call has read."""
        where, (begin, end) = start + position, self._ahead
        first = end if begin <= where <= end else where
        self._ahead = where, start + min(position + count, self.segments.size)
        read_ahead(self.segments.map(start), first - start, self._ahead[1] - start)

    def _trusted(self, table: RecordTable, mapped: mmap.mmap) -> RecordTable:
        return up_to_lost_crc(table, mapped) if self.check_crc and self.expects_crc else table

    def _samples_have_crc(self) -> bool:
        """Whether records of this log end with the whole-record CRC, judged by a few of them."""
        starts = self.segments.starts
        for start in dict.fromkeys([*starts[:2], *starts[-4:]]):
            with contextlib.suppress(FileNotFoundError):  # its store runs, and retention has just removed it
                sample = self._sample(start, 0)
                if not len(sample):
                    found = self._find(start, 0, 0, self.segments.last_nonzero(start))
                    if found is not None:  # the first record is damaged
                        sample = self._sample(start, found)
                if sample.has_crc.any():
                    return True
        return False

    def _sample(self, start: int, position: int) -> RecordTable:
        mapped = self.segments.map(start)
        read_ahead(mapped, position, position + MAX_BYTES + LARGEST_BYTES)
        return scan(
            mapped, position, len(mapped), start, self.queue_id, check_crc=self.check_crc, max_records=_SAMPLE_RECORDS
        )

    # ---- gaps -----------------------------------------------------------------------------------

    def gap(self, where: int, reason: str, *, passes_file: bool = False) -> Gap:
        """The gap from `where` to the next good record or BLANK, or to the end of the last file.

        `passes_file` says that this file can't be read, so the gap ends in a later file.
        """
        segments, size = self.segments, self.segments.size
        start = segment_start(where, size)
        claimed, dirty = where, False
        if start in segments and not passes_file:
            claimed = self._claimed_end(start, where - start)
            used = segments.last_nonzero(start, where - start)
            dirty = used > where - start
            found = self._find(start, where - start, claimed - start, used) if dirty else None
            if found is not None:
                return self._closed(where, start + found, reason, claimed)
        for later in segments.after(start):
            self.progress(later)
            used = segments.last_nonzero(later)
            found = self._find(later, -1, 0, used) if used else None
            if found is not None:
                return self._closed(where, later + found, reason, claimed)
            dirty = dirty or used > 0
        end = max(segments.end, where)
        return Gap(where, end, str(segments.segment_path(start)), reason, dirty, last=True, claimed_end=claimed)

    def _closed(self, where: int, end: int, reason: str, claimed: int) -> Gap:
        path = self.segments.segment_path(segment_start(where, self.segments.size))
        return Gap(where, end, str(path), reason, dirty=True, last=False, claimed_end=claimed)

    def _claimed_end(self, start: int, position: int) -> int:
        """Where the record at `position` ends if its head is plausible, otherwise its start."""
        size, mapped = self.segments.size, self.segments.map(start)
        if size - position < RECORD_BYTES_MIN:
            return start + position
        read_ahead(mapped, position, position + LARGEST_BYTES)
        total, magic = size_and_magic(mapped, position)
        (offset,) = I64.unpack_from(mapped, position + PHYSICAL_OFFSET_AT)
        if magic not in (MAGIC_V1, MAGIC_V2) or offset != start + position:
            return start + position
        total = min(total, _size_by_lengths(mapped, position, magic) or total)
        return start + position + total if RECORD_BYTES_MIN <= total <= size - position else start + position

    def _find(self, start: int, after: int, likely: int, end: int) -> int | None:
        """The first position in (after, end) at which a good record or a BLANK is, or None.

        `likely` is tried first.
        """
        mapped, size = self.segments.map(start), self.segments.size
        budget = _DOUBLE_CHECKS * size
        read_ahead(mapped, likely, likely + BLANK_BYTES)
        if likely > after and self._is_good(start, likely):
            return likely
        view = np.frombuffer(mapped, np.uint8)
        for at in range(after + 1, min(end, size - BLANK_BYTES), _BLOCK_BYTES):
            read_ahead(mapped, at, at + _BLOCK_BYTES + BLANK_BYTES)
            for position, length in _candidates(view, start, at, min(at + _BLOCK_BYTES, end)):
                if self._is_good(start, position):
                    return position
                budget -= length
                if budget < 0:
                    return None
            self.segments.done_with(start, at)
        return None

    def _is_good(self, start: int, position: int) -> bool:
        size = self.segments.size
        if position + BLANK_BYTES <= size:
            remaining, magic = size_and_magic(self.segments.map(start), position)
            if magic == MAGIC_BLANK and position + remaining == size:
                return True
        return len(self._scan(start, position, 1)) > 0


def _size_by_lengths(mapped: mmap.mmap, position: int, magic: int) -> int:
    """The size of a record by the lengths within it; 0 if it is not a good record with that size.

    It finds a good record whose TOTALSIZE alone is damaged and reaches to the end of a later
    record.
    """

    def number(at: int, width: int) -> int:
        return int.from_bytes(mapped[at : at + width], "big")

    (sys_flag,) = I32.unpack_from(mapped, position + SYS_FLAG_AT)
    body = position + HEAD_BYTES[sys_flag & HOSTS_V6]
    topic = body + number(body - BODY_LENGTH_BYTES, BODY_LENGTH_BYTES)
    width = V1_TOPIC_LENGTH_BYTES if magic == MAGIC_V1 else V2_TOPIC_LENGTH_BYTES
    properties = topic + width + number(topic, width) + PROPERTIES_LENGTH_BYTES
    end = properties + number(properties - PROPERTIES_LENGTH_BYTES, PROPERTIES_LENGTH_BYTES)
    size = end - position
    if end > len(mapped):
        return 0
    try:
        decode(I32.pack(size) + mapped[position + MAGIC_AT : end])
    except CorruptRecord:
        return 0
    return size


def _candidates(view: ByteArray, start: int, begin: int, end: int) -> list[tuple[int, int]]:
    """Positions in [begin, end) that look like a record or BLANK of their place, with sizes."""
    size = len(view)
    magics = view[begin + MAGIC_AT : min(end + BLANK_BYTES - 1, size)]
    first = np.flatnonzero((magics == MAGIC_V1 >> 24) | (magics == MAGIC_BLANK >> 24)) + begin
    first = first[first + BLANK_BYTES <= size]
    magic, length = gather(view, ">u4", first + MAGIC_AT), gather(view, ">i4", first)
    blank = (magic == MAGIC_BLANK) & (length == size - first)
    record = ((magic == MAGIC_V1) | (magic == MAGIC_V2)) & (length >= RECORD_BYTES_MIN) & (length <= size - first)
    places = first[record]
    fits = gather(view, ">i8", places + PHYSICAL_OFFSET_AT) == places + start
    record[record] = fits
    keep = np.flatnonzero(blank | record)
    return list(zip(first[keep].tolist(), length[keep].tolist(), strict=True))
