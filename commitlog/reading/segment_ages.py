"""Finds how old the messages of a segment are, and remembers it."""

from __future__ import annotations

import logging

from commitlog.disk.mapped_file import read_ahead
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, CorruptRecord, DamagedFile
from commitlog.reading.log_walk import RecentSegments, walk
from commitlog.record.record_layout import BLANK_BYTES, size_and_magic
from commitlog.record.scan import LARGEST_BYTES, scan

UNKNOWN = 1 << 62
"""Timestamp of a segment whose messages can't be read.

The segment is never expired, and is the last to be deleted.
"""

log = logging.getLogger(__name__)


class SegmentAges:
    """Store timestamps (ms) of full segments.

    The answers for the last segment of each lane that was asked for are remembered.
    """

    def __init__(self, directory: StoreDirectory, segment_bytes: int) -> None:
        self.directory, self._size = directory, segment_bytes
        self._known: dict[int, tuple[int, dict[str, int]]] = {}

    def oldest(self, lane: int, start: int, end: int) -> int:
        """The timestamp of the first message in the segment that begins at `start`.

        `end` is the end of the lane's log.
        """
        return self._ask("oldest", lane, start, end)

    def newest(self, lane: int, start: int, end: int) -> int:
        """The timestamp of the last message in a segment.

        For a segment that is damaged or lost it is the timestamp of the first message behind it,
        which is no older.
        """
        return self._ask("newest", lane, start, end)

    def _ask(self, what: str, lane: int, start: int, end: int) -> int:
        known_start, answers = self._known.get(lane, (-1, {}))
        if known_start != start:
            self._known[lane] = start, (answers := {})
        if what not in answers:
            try:
                answers[what] = self._first_in(lane, start) if what == "oldest" else self._last_in(lane, start, end)
            except (FileNotFoundError, DamagedFile):  # it is lost: who deletes it for its age hides that
                answers[what] = self._first_behind(lane, start, end)
            except (OSError, CommitLogError) as error:
                log.warning("lane %d, segment %d: its age is not known: %s", lane, start, error)
                answers[what] = UNKNOWN
        return answers[what]

    def _segments(self, lane: int) -> RecentSegments:
        return RecentSegments(self.directory.lane_directory(lane), self._size, self.directory.channel)

    def _first_in(self, lane: int, start: int) -> int:
        segment = self._segments(lane).open(start)
        read_ahead(segment, 0, BLANK_BYTES)
        read_ahead(segment, 0, min(size_and_magic(segment)[0], LARGEST_BYTES) + BLANK_BYTES)
        table = scan(segment, 0, self._size, start, lane, check_crc=False, max_records=1)
        return int(table.store_timestamps[0]) if len(table) else 0

    def _last_in(self, lane: int, start: int, end: int) -> int:
        newest = UNKNOWN
        try:
            for step in walk(self._segments(lane).open, lane, self._size, start, start + self._size):
                if len(step.table):
                    newest = int(step.table.store_timestamps[-1])
        except (CorruptRecord, DamagedFile):
            return self._first_behind(lane, start, end)
        return newest

    def _first_behind(self, lane: int, start: int, end: int) -> int:
        for later in range(start + self._size, end, self._size):
            try:
                found = self._first_in(lane, later)
            except (DamagedFile, FileNotFoundError):
                continue
            if found:
                return found
        return UNKNOWN
