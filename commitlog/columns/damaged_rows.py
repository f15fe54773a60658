"""Finds rows that can't be read because their records are damaged.

Recovery leaves damaged bytes where they are, and notes each range in
`lanes/<number>/quarantine/corrupt-<offset>.json` (commitlog/disk/quarantine.py). Rows whose consume
queue entry leads into a noted range are checked one by one with all their CRCs. The note alone is
not enough, because somebody may have restored the file since. The decoder checks all other rows
only against their place, many at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commitlog.columns.arrow_columns import Places
from commitlog.columns.mapped_segments import Segment
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.quarantine import noted_ranges
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import CorruptRecord
from commitlog.reading.queue_bounds import NamedQueue
from commitlog.record.body_compression import plain_body
from commitlog.record.byte_ranges import Ints, Mask
from commitlog.record.record import decode

_ANYWHERE = 1 << 62


@dataclass(frozen=True)
class Damage:
    """The noted ranges of a lane's log, [start, end) in bytes, ascending by start."""

    start: Ints
    end: Ints
    """The furthest end of all ranges up to this one, so that the ends ascend as well."""

    @classmethod
    def load(cls, lane_directory: LaneDirectory, channel: FileChannel = DISK) -> Damage:
        """Reads the lane's notes.

        The range of a note that can't be read has no end.
        """
        ranges = list(noted_ranges(lane_directory, channel))
        ends = [_ANYWHERE if noted.end is None else noted.end for noted in ranges]
        starts = [noted.start for noted in ranges]
        return cls(np.array(starts, np.int64), np.maximum.accumulate(np.array(ends, np.int64)))

    def touches(self, where: Ints, size: Ints) -> Mask:
        """Which of the records [where, where + size) of the log overlap a noted range."""
        if not len(self.start):
            return np.zeros(len(where), np.bool_)
        before = np.searchsorted(self.start, where + size, side="left")  # ranges that begin before the record's end
        reaches: Mask = self.end[np.maximum(before - 1, 0)] > where
        return reaches & (before > 0)


def check_rows(segment: Segment, queue: NamedQueue, places: Places, rows: Ints) -> dict[int, str]:
    """Checks single rows with all their CRCs. Returns for each bad row what is wrong with it."""
    wrong = {}
    for row in rows.tolist():
        at, size = int(places.at[row]), int(places.size[row])
        try:
            record = decode(segment.map, at, limit=at + size, physical_offset=segment.start + at)
            plain_body(record)
        except CorruptRecord as error:
            wrong[row] = error.reason
            continue
        named = queue.topic, queue.lane, places.offset + row
        is_other = queue.offset_is_stored and (record.topic, record.queue_id, record.queue_offset) != named
        if record.total_size != size or is_other:
            wrong[row] = "another record is in its place"
    return wrong
