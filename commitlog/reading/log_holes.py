"""Goes on behind damage: a hole is where a log holds no record below its limit, and ends where it
proves itself again.

The index passes over holes, so that one does not hide what is around it; a reader that comes to one
raises its error, or goes on behind it where it was told to. Recovery's judgement (log_scan.py) says
where the log goes on: at a record of its place whose CRCs hold, at a BLANK that ends with its
segment, or with a later segment file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import CorruptRecord, DamagedFile
from commitlog.reading.left_out import LogError
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.reading.log_walk import Step, walk
from commitlog.record.layout import Buffer
from commitlog.shm.layout import segment_start

_LOOKS = 3
"""Retention may remove a file while it is looked at: then the files are listed anew."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes [start, end) of a log that hold no record, and the error that tells why."""

    start: int
    end: int
    error: LogError
    is_open: bool
    """Whether nothing below the limit proves itself behind it: then `end` is the limit, and no
    record's start.
    """


class LogHoles:
    """Finds the holes of one lane's log and remembers them: a search may take as long as reading a
    segment does.
    """

    def __init__(self, directory: LaneDirectory, segment_bytes: int, channel: FileChannel = DISK) -> None:
        self._directory, self._segment_bytes, self._channel = directory, segment_bytes, channel
        self._found: dict[int, int] = {}  # start → end
        self._searched: dict[int, int] = {}  # start → the limit below which nothing was found
        self._scan: LogScan | None = None

    def hole(self, where: int, limit: int, error: LogError) -> Hole:
        """The hole that begins at `where`. Raises OSError."""
        end = self._end(where, limit, error)
        text = f"{end - where:,} bytes hold no record"
        if isinstance(error, CorruptRecord):
            file = self._directory.segment(segment_start(where, self._segment_bytes))
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
                self._opened().segments.look()
                return self._opened().gap(where, "", passes_file=passes_file)
            except FileNotFoundError:
                continue
            finally:
                self._let_go()
        return None

    def _opened(self) -> LogScan:
        if self._scan is None:
            segments = MappedFileQueue(self._directory.commitlog, self._segment_bytes, self._channel)
            self._scan = LogScan(segments, self._directory.number)
        return self._scan

    def hides(self, where: int, limit: int) -> bool:
        """Whether a record that seems to reach beyond the limit is none, because good ones follow
        before the limit.
        """
        try:
            return where in self._found or self._opened().goes_on(where, limit)
        except FileNotFoundError:  # retention has just removed the segment
            return False
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
    """Like `walk`, and where that raises CorruptRecord or DamagedFile a hole comes instead, then
    what is behind it.

    An open hole is the last thing that comes. `ends_whole`: no record reaches beyond the limit, so
    what seems to is damaged. Raises what else `open_segment` raises.
    """
    where = start
    while where < limit:
        try:
            for step in walk(open_segment, lane, segment_bytes, where, limit):
                where = step.next_where
                yield step
            if where >= limit or not (ends_whole or holes.hides(where, limit)):
                return
            hole = holes.hole(where, limit, CorruptRecord(f"lane {lane}: a record's size is damaged"))
        except CorruptRecord as error:
            hole = holes.hole(error.offset, limit, error)
        except DamagedFile as error:
            hole = holes.hole(where, limit, error)
        yield hole
        where = hole.end
