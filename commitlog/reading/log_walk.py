"""Walks a lane's log from record to record, across segments, up to a limit and never past it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.mapped_file import MappedFile, read_ahead
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import CorruptRecord
from commitlog.record.record_layout import Buffer
from commitlog.record.scan import LARGEST_BYTES, scan
from commitlog.record.table import RecordTable, Stop
from commitlog.shm.layout import segment_start

WALK_BYTES = 4 << 20
"""How many bytes of the log one table covers, about."""


@dataclass(frozen=True, slots=True)
class Step:
    """Some records of one segment.

    `next_where` is the log offset at which the log goes on. `buffer` is what `table` was made of: a
    mapped segment, or a copy of a part of one.
    """

    table: RecordTable
    next_where: int
    buffer: Buffer


def walk(
    open_segment: Callable[[int], Buffer], lane: int | None, segment_bytes: int, where: int, limit: int
) -> Iterator[Step]:
    """The records in [where, limit) of a log, without a look at their CRCs.

    `where` is a record's start. `open_segment(start)` gives the bytes of the segment that begins at
    a log offset, which is the table's `buffer_start`. The walk ends at `limit`, or before a record
    that reaches beyond it. Raises CorruptRecord, and what `open_segment` raises.
    """
    ready = where  # what is below has been read ahead
    while where < limit:
        start = segment_start(where, segment_bytes)
        end = min(limit - start, segment_bytes)
        segment = open_segment(start)
        ahead = start + min(end, where - start + WALK_BYTES + LARGEST_BYTES)
        read_ahead(segment, max(ready, where) - start, ahead - start)
        ready = ahead
        table = scan(
            segment, where - start, end, start, lane,
            check_crc=False, segment_end=segment_bytes, max_bytes=WALK_BYTES,
        )  # fmt: skip
        if table.stop in (Stop.CORRUPT, Stop.ZERO):
            if len(table):
                yield Step(table, start + table.stop_position, segment)
            reason = table.reason or "nothing but zeros below the limit"
            raise CorruptRecord(f"lane {lane}: {reason}", start + table.stop_position)
        where = start + (segment_bytes if table.stop is Stop.BLANK else table.stop_position)
        yield Step(table, where, segment)
        if table.stop is Stop.PARTIAL:
            return


class RecentSegments:
    """Opens segments of one log, and keeps the last used ones mapped. A walk needs only one."""

    def __init__(
        self, lane_directory: LaneDirectory, segment_bytes: int, channel: FileChannel = DISK, *, keep: int = 1
    ) -> None:
        self.lane_directory, self.segment_bytes, self.channel, self.keep = lane_directory, segment_bytes, channel, keep
        self._mapped: OrderedDict[int, Buffer] = OrderedDict()

    def open(self, start: int) -> Buffer:
        """The bytes of the segment that begins at `start`.

        Raises FileNotFoundError, DamagedFile.
        """
        mapped = self._mapped.get(start)
        if mapped is None:
            file = MappedFile(self.lane_directory.segment_path(start), start, self.segment_bytes, self.channel)
            if not file.is_whole:
                return file.view  # a copy, and the file may be healed
            mapped = self._mapped[start] = file.view  # unmapped as soon as the last user of the bytes is done
            if len(self._mapped) > self.keep:
                self._mapped.popitem(last=False)
        else:
            self._mapped.move_to_end(start)
        return mapped

    def forget_below(self, where: int) -> None:
        """Unmaps the segments that end at or below a log offset.

        A mapping keeps the disk space of a file that retention has deleted.
        """
        for start in [start for start in self._mapped if start + self.segment_bytes <= where]:
            del self._mapped[start]
