"""What may leave the machine of a lane's log: what is flushed, in whole records.

A replica must never have what this machine can lose, so only flushed bytes are sent. `flushed` may
lie inside a record, so the limit is the end of the last record below it. RocketMQ sends what is not
flushed yet, and so its master may come back with another log than its slave has.
"""

from __future__ import annotations

from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file import MappedFile, read_ahead
from commitlog.disk.quarantine import is_noted
from commitlog.disk.store_directory import LaneDirectory
from commitlog.record.scan import scan
from commitlog.record.table import Stop
from commitlog.shm.control_region import first_kept
from commitlog.shm.layout import Lane, segment_start
from commitlog.shm.memory_order import observe


class LaneLog:
    """The log of one lane, as far as it may be sent.

    Attributes: `limit` is the end of what may be sent, an offset of the log. The stage's main
    thread moves it, and any thread may look at it.
    """

    def __init__(self, directory: LaneDirectory, row: memoryview, size: int, channel: FileChannel) -> None:
        self.directory, self.row, self.size, self.channel = directory, row, size, channel
        self.limit = 0
        self._mapped: MappedFile | None = None

    @property
    def first(self) -> int:
        """The first offset that is kept."""
        return first_kept(self.row)

    def advance(self) -> bool:
        """Moves the limit to the end of the last record that is flushed. True where it moved.

        The dispatcher passes over damage; then the limit goes on where the dispatcher is. Raises
        OSError, DamagedFile.
        """
        flushed = observe(self.row, Lane.FLUSHED)
        before, where = self.limit, max(self.limit, min(observe(self.row, Lane.DISPATCHED), flushed), self.first)
        while where < flushed:
            where, goes_on = self._pass_records(where, flushed)
            if not goes_on:
                break
        self.limit = where
        return where > before

    def _pass_records(self, where: int, flushed: int) -> tuple[int, bool]:
        """The end of a run of records from `where` on, and whether more may follow."""
        start = segment_start(where, self.size)
        segment = self._segment(start)
        end = min(flushed - start, self.size)
        read_ahead(segment.view, where - start, end)
        table = scan(
            segment.view, where - start, end, start, self.directory.number, check_crc=False, segment_end=self.size
        )
        where = start + table.stop_position
        if table.stop is Stop.BLANK:
            is_whole = flushed >= start + self.size
            return (start + self.size if is_whole else where), is_whole
        return where, table.stop is Stop.FULL or where == start + self.size

    def close(self) -> None:
        """Lets the mapped segment go."""
        self._mapped = None

    def _segment(self, start: int) -> MappedFile:
        if self._mapped is None or self._mapped.start != start:
            self._mapped = MappedFile(self.directory.segment_path(start), start, self.size, self.channel)
        return self._mapped


class LaneReader:
    """Reads what may be sent of a lane, for one thread. Keeps one segment open until `close`."""

    def __init__(self, log: LaneLog) -> None:
        self.log, self._channel = log, log.channel
        self._start, self._fd = -1, -1

    def read_into(self, room: memoryview, where: int) -> int:
        """Fills `room` from `where` on, and returns how many bytes it has now.

        All of them are in one segment; at the limit there are none. Of a segment that is lost, as a
        start has noted, they are zeros: the replica has the note too. Raises FileNotFoundError
        where retention has deleted the segment, and OSError.
        """
        size = self.log.size
        start = segment_start(where, size)
        count = min(self.log.limit, start + size, where + len(room)) - where
        if count <= 0:
            return 0
        if start != self._start:
            self.close()
            path = self.log.directory.segment_path(start)
            is_lost = path.is_symlink() or not path.is_file()
            if is_lost and self.log.first <= where and is_noted(self.log.directory, where):
                room[:count] = bytes(count)
                return count
            self._fd = self._channel.open(path)
            self._start = start
        return self._channel.pread_into(self._fd, room[:count], where - start)

    def close(self) -> None:
        if self._fd >= 0:
            self._channel.close(self._fd)
        self._start = self._fd = -1
