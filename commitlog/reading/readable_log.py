"""One lane's log, as its readers meet it: how far it may be read, its segments and its holes.

What is accepted and not committed yet is in no file. It is read from the lane's write buffers.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

from commitlog.disk.mapped_file import read_ahead
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.errors import CorruptRecord, DamagedFile
from commitlog.reading.accepted_bytes import AcceptedBytes
from commitlog.reading.log_holes import Hole, LogHoles, walk_past
from commitlog.reading.log_walk import WALK_BYTES, RecentSegments, Step
from commitlog.reading.view import LaneLimits, LogView
from commitlog.record.record_layout import Buffer
from commitlog.record.scan import LARGEST_BYTES, scan
from commitlog.record.table import Stop
from commitlog.shm.layout import segment_start
from commitlog.system.clock import SYSTEM_CLOCK

_SEGMENTS_KEPT = 4
"""How many segments are mapped at a time, because queues begin and end in different segments."""
_LOOKS_MOST, _LOOK_AGAIN_SECONDS = 2_000, 0.001
"""How often accepted bytes are looked for that are in no buffer and in no file for a moment."""
_REST_BYTES = 1 << 16
"""How many bytes behind the end of the log are searched for a byte that is not zero."""


class ReadableLog:
    """The log of one lane. It may be read up to its `isolation`: flushed, committed, accepted."""

    def __init__(self, view: LogView, lane: int, isolation: str) -> None:
        self.view, self.lane, self.isolation = view, lane, isolation
        self.lane_directory = view.lane_directory(lane)
        self.holes = LogHoles(self.lane_directory, view.segment_bytes, view.channel)
        self.accepted = AcceptedBytes(view, lane)
        self.segments = RecentSegments(self.lane_directory, view.segment_bytes, view.channel, keep=_SEGMENTS_KEPT)

    def limit_of(self, limits: LaneLimits) -> int:
        """How far the lane may be read by these limits (offset of its log)."""
        if self.isolation == "accepted":
            return max(limits.accepted, limits.committed)
        return limits.committed if self.isolation == "committed" else limits.flushed

    def limit_now(self) -> int:
        """How far the lane may be read now (offset of its log)."""
        return self.limit_of(self.view.limits(self.lane))

    def pieces(self, start: int, limit: int) -> Iterator[Step | Hole]:
        """Gives the lane's records in [start, limit), and the holes between them.

        Their bytes lie in segments that this object has mapped. Raises RetentionWasQuicker.
        """
        return self.walk(self._open, start, limit)

    def walk(self, open_segment: Callable[[int], Buffer], start: int, limit: int) -> Iterator[Step | Hole]:
        """Gives the lane's records in [start, limit), and the holes between them."""
        if self.isolation == "accepted" and self.view.live:
            return self._walk_with_buffers(open_segment, start, limit)
        return self._walk_files(open_segment, start, limit)

    def _walk_files(self, open_segment: Callable[[int], Buffer], start: int, limit: int) -> Iterator[Step | Hole]:
        ends_whole = not self.view.live and self.view.limits(self.lane).stopped_properly and limit == self.limit_now()
        size, holes = self.view.segment_bytes, self.holes
        return walk_past(open_segment, self.lane, size, start, limit, holes, ends_whole=ends_whole)

    def _walk_with_buffers(
        self, open_segment: Callable[[int], Buffer], where: int, limit: int
    ) -> Iterator[Step | Hole]:
        """Walks files up to what is committed, and then the write buffers.

        Bytes move from the buffers to the files meanwhile. What is in neither for a moment is
        looked at again, because the lane is given back or taken then.
        """
        looks = 0
        while where < limit:
            before = where
            in_files = max(self.view.limits(self.lane).committed, self.accepted.direct_end(where))
            for piece in self._walk_files(open_segment, where, min(in_files, limit)):
                yield piece
                where = piece.next_where if isinstance(piece, Step) else piece.end
                if isinstance(piece, Hole) and piece.is_open:
                    return
            for step in self._accepted(where, limit):
                yield step
                if isinstance(step, Hole):
                    return
                where = step.next_where
            looks = 0 if where > before else looks + 1
            if looks == _LOOKS_MOST:
                raise DamagedFile(
                    f"lane {self.lane}: the messages accepted from offset {where:,} on are neither in its write buffers nor "
                    f"in its files: start the store again"
                )
            if looks:
                SYSTEM_CLOCK.sleep(_LOOK_AGAIN_SECONDS)

    def _accepted(self, where: int, limit: int) -> Iterator[Step | Hole]:
        """Gives the records from `where` on that write buffers have."""
        size, most = self.view.segment_bytes, WALK_BYTES
        while where < limit:
            segment_end = segment_start(where, size) + size
            end = min(limit, segment_end, where + most)
            data = self.accepted.copy(where, end)
            if data is None:
                return
            table = scan(
                data, 0, len(data), where, self.lane,
                check_crc=False, segment_end=segment_end - where, max_bytes=WALK_BYTES,
            )  # fmt: skip
            reached = where + table.stop_position
            if table.stop in (Stop.CORRUPT, Stop.ZERO):
                if len(table):
                    yield Step(table, reached, data)
                reason = f"{table.reason or 'nothing but zeros'}, in a write buffer"
                path = str(self.lane_directory.segment_path(segment_end - size))
                yield Hole(reached, limit, CorruptRecord(reason, reached, path), is_open=True)
                return
            if table.stop is Stop.PARTIAL and not len(table) and end < min(limit, segment_end):
                most = LARGEST_BYTES + WALK_BYTES  # for a record that is larger than a step
                continue
            where = segment_end if table.stop is Stop.BLANK else reached
            yield Step(table, where, data)
            if not len(table) and table.stop is not Stop.BLANK:
                return

    def part(self, open_segment: Callable[[int], Buffer], where: int, end: int) -> tuple[Buffer, int, int] | None:
        """The bytes of the log from `where` on: a buffer, its first log offset, and where they end.

        They end at `end`, or with the segment. None where they are in a buffer and a file, or in
        none of them for a moment. Raises DamagedFile, and what `open_segment` raises.
        """
        start, size = segment_start(where, self.view.segment_bytes), self.view.segment_bytes
        end = min(end, start + size)
        if self.isolation == "accepted" and self.view.live:
            data = self.accepted.copy(where, end)
            if data is not None:
                return data, where, end
            if self.accepted.in_files(where) < end:
                return None
        return open_segment(start), start, end

    def unmap(self) -> None:
        """Unmaps all segments and buffers. The next look maps again what it needs."""
        self.segments.forget_below(1 << 63)
        self.accepted.close()

    def _open(self, start: int) -> Buffer:
        try:
            return self.segments.open(start)
        except FileNotFoundError as error:
            if self.view.limits(self.lane).first > start:
                raise RetentionWasQuicker from error
            path = self.lane_directory.segment_path(start)
            raise DamagedFile(f"{path}: missing, `commitlog verify` says more") from error

    def goes_on(self, limit: int) -> bool:
        """Whether a lane of a killed store has something behind the part that may be read.

        What the disk can't read there is something, too: a start looks at it, and names it.
        """
        if self.view.limits(self.lane).stopped_properly:
            return False
        segments = MappedFileQueue(self.lane_directory.commitlog, self.view.segment_bytes, self.view.channel)
        where = max(limit, segments.first)
        begin = segment_start(where, segments.size)
        looks = [(begin, where - begin), (begin + segments.size, 0)]
        try:
            return any(_has_bytes(segments.map(start), at) for start, at in looks if start in segments)
        except FileNotFoundError:
            return False  # somebody has started the store since, and retention deletes


def _has_bytes(mapped: mmap.mmap, at: int) -> bool:
    """Whether a segment has a byte soon behind `at` that is not zero, or can't be read."""
    try:
        read_ahead(mapped, at, at + _REST_BYTES)
    except OSError:
        return True
    return any(mapped[at : at + _REST_BYTES])


class RetentionWasQuicker(Exception):
    """A segment was deleted since the lane's limits were read."""
