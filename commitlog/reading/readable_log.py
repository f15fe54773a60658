"""One lane's log, as its readers meet it: how far it may be read, its segments and its holes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.errors import DamagedFile
from commitlog.reading.log_holes import Hole, LogHoles, walk_past
from commitlog.reading.log_walk import RecentSegments, Step
from commitlog.reading.view import LaneLimits, LogView
from commitlog.record.record_layout import Buffer
from commitlog.shm.layout import segment_start

_SEGMENTS_KEPT = 4
"""How many segments are mapped at a time, because queues begin and end in different segments."""
_REST_BYTES = 1 << 16
"""How many bytes behind the end of the log are searched for a byte that is not zero."""


class ReadableLog:
    """The log of one lane. It may be read up to what is flushed, or committed (`isolation`)."""

    def __init__(self, view: LogView, lane: int, isolation: str) -> None:
        self.view, self.lane, self.isolation = view, lane, isolation
        self.lane_directory = view.lane_directory(lane)
        self.holes = LogHoles(self.lane_directory, view.segment_bytes, view.channel)
        self.segments = RecentSegments(self.lane_directory, view.segment_bytes, view.channel, keep=_SEGMENTS_KEPT)

    def limit_of(self, limits: LaneLimits) -> int:
        """How far the lane may be read by these limits (offset of its log)."""
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
        ends_whole = not self.view.live and self.view.limits(self.lane).stopped_properly and limit == self.limit_now()
        size, holes = self.view.segment_bytes, self.holes
        return walk_past(open_segment, self.lane, size, start, limit, holes, ends_whole=ends_whole)

    def unmap(self) -> None:
        """Unmaps all segments. The next look maps again what it needs."""
        self.segments.forget_below(1 << 63)

    def _open(self, start: int) -> Buffer:
        try:
            return self.segments.open(start)
        except FileNotFoundError as error:
            if self.view.limits(self.lane).first > start:
                raise RetentionWasQuicker from error
            path = self.lane_directory.segment_path(start)
            raise DamagedFile(f"{path}: missing, `commitlog verify` says more") from error

    def goes_on(self, limit: int) -> bool:
        """Whether a lane of a killed store has something behind the part that may be read."""
        if self.view.limits(self.lane).stopped_properly:
            return False
        segments = MappedFileQueue(self.lane_directory.commitlog, self.view.segment_bytes, self.view.channel)
        where = max(limit, segments.first)
        begin = segment_start(where, segments.size)
        looks = [(begin, where - begin), (begin + segments.size, 0)]
        try:
            return any(any(segments.map(start)[at : at + _REST_BYTES]) for start, at in looks if start in segments)
        except FileNotFoundError:
            return False  # somebody has started the store since, and retention deletes


class RetentionWasQuicker(Exception):
    """A segment was deleted since the lane's limits were read."""
