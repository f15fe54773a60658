"""Finds the holes of a log, and walks a log past them.

A hole is a range below the log's limit that holds no record. It ends where a good record or BLANK
proves that the log continues. log_scan.py decides where a hole ends, for readers as for recovery.
The index passes over holes, so that a hole does not hide the records around it. A reader that comes
to a hole raises the hole's error, or goes on behind the hole if it was told to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import CorruptRecord, DamagedFile
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.reading.log_walk import Step, walk
from commitlog.reading.skipped_damage import LogError
from commitlog.record.record_layout import Buffer
from commitlog.shm.layout import segment_start

_LOOKS = 3
"""How often the files are listed again if retention removes a file during a search."""


@dataclass(frozen=True, slots=True)
class Hole:
    """The bytes [start, end) of a log hold no record. `error` says why."""

    start: int
    end: int
    error: LogError
    is_open: bool
    """Whether no record follows below the limit. Then `end` is the limit, not a record's start."""


class LogHoles:
    """Finds the holes of one lane's log, and remembers them.

    A search may take as long as the read of a whole segment.
    """

    def __init__(self, lane_directory: LaneDirectory, segment_bytes: int, channel: FileChannel = DISK) -> None:
        self._lane_directory, self._segment_bytes, self._channel = lane_directory, segment_bytes, channel
        self._found: dict[int, int] = {}  # start → end
        self._searched: dict[int, int] = {}  # start → the limit below which nothing was found
        self._scan: LogScan | None = None

    def hole(self, where: int, limit: int, error: LogError) -> Hole:
        """The hole that begins at `where`. Raises OSError."""
        end = self._end(where, limit, error)
        text = f"{end - where:,} bytes hold no record"
        if isinstance(error, CorruptRecord):
            file = self._lane_directory.segment_path(segment_start(where, self._segment_bytes))
            named: LogError = CorruptRecord(f"{error.reason}; {text}", where, str(file))
        else:
            named = DamagedFile(f"{error}; at offset {where}, {text}")
        return Hole(where, end, named, end >= limit)

    def _end(self, where: int, limit: int, error: LogError) -> int:
        if where not in self._found and self._searched.get(where) != limit:
            gap = self._search(where, isinstance(error, DamagedFile))
            if gap is not None and not gap.last and gap.end < limit:
                self._found[where] = gap.end
            else:
                self._searched[where] = limit
        return min(self._found.get(where, limit), limit)

    def _search(self, where: int, passes_file: bool) -> Gap | None:
        for _ in range(_LOOKS):
            try:
                self._opened().segments.refresh()
                return self._opened().gap(where, "", passes_file=passes_file)
            except FileNotFoundError:
                continue
            finally:
                self._let_go()
        return None

    def _opened(self) -> LogScan:
        if self._scan is None:
            segments = MappedFileQueue(self._lane_directory.commitlog, self._segment_bytes, self._channel)
            self._scan = LogScan(segments, self._lane_directory.number)
        return self._scan

    @property
    def expects_crc(self) -> bool:
        """Whether records of the log end with the whole-record CRC."""
        return self._opened().expects_crc

    def is_damaged_size(self, where: int, limit: int) -> bool:
        """Whether the size of a record that seems to reach beyond the limit is damaged.

        It is damaged if a good record follows before the limit.
        """
        try:
            return where in self._found or self._opened().holds_record_between(where, limit)
        except FileNotFoundError:  # retention has just removed the segment
            return False
        finally:
            self._let_go()

    def has_record(self, where: int) -> bool:
        """Whether a good record is at this place, by all its CRCs, or retention has deleted it."""
        try:
            self._opened().segments.refresh()
            return self._opened().holds_record(where)
        except FileNotFoundError:
            return True
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._scan is not None:
            self._scan.segments.let_go()


def walk_past(
    open_segment: Callable[[int], Buffer],
    lane: int,
    segment_bytes: int,
    start: int,
    limit: int,
    holes: LogHoles,
    *,
    ends_whole: bool = False,
) -> Iterator[Step | Hole]:
    """Walks like `walk`, but yields a hole where `walk` raises CorruptRecord or DamagedFile.

    After a hole the records behind it follow. An open hole is the last item. `ends_whole` says that
    no record reaches beyond the limit. A record that seems to reach beyond it is damaged then.
    Raises the other errors of `open_segment`.
    """
    where = start
    while where < limit:
        try:
            for step in walk(open_segment, lane, segment_bytes, where, limit):
                where = step.next_where
                yield step
            if where >= limit or not (ends_whole or holes.is_damaged_size(where, limit)):
                return
            hole = holes.hole(where, limit, CorruptRecord(f"lane {lane}: a record's size is damaged"))
        except CorruptRecord as error:
            hole = holes.hole(error.offset, limit, error)
        except DamagedFile as error:
            hole = holes.hole(where, limit, error)
        yield hole
        where = hole.end
