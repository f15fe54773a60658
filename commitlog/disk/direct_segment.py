"""A segment file that its producer writes itself: RocketMQ's *only flush* path.

It uses pwrite and no mapping, because a mapping could raise SIGBUS.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import CorruptRecord, disk_error
from commitlog.record.lost_crc import up_to_lost_crc
from commitlog.record.record_layout import BLANK_BYTES, Buffer
from commitlog.record.scan import scan
from commitlog.record.table import RecordTable, Stop
from commitlog.shm.layout import Lane, segment_start
from commitlog.shm.memory_order import observe

_LOOK_BYTES = 1 << 16
_CLEAR_BYTES = 1 << 20


class DirectSegment:
    """A file with the interface of a write buffer.

    `segment[a:b] = data` is a pwrite, and `segment[a:b]` a pread. Positions are bytes from the
    segment's start. Raises DiskInputOutput, QuotaExceeded and other DiskErrors.
    """

    def __init__(self, path: Path, channel: FileChannel) -> None:
        self._channel = channel
        self._fd = -1
        self._position = 0
        try:
            self._fd = channel.open(path, write=True)
        except OSError as error:
            raise disk_error(error.errno or errno.EIO, f"{path}: opening the segment") from error

    def __setitem__(self, place: slice, data: Buffer) -> None:
        try:
            self._channel.pwrite(self._fd, data, place.start)
        except OSError as error:
            raise disk_error(error.errno or errno.EIO, "writing the segment; the message was not accepted") from error

    def writer(self, position: int) -> Callable[[bytes], object]:
        """See WriteBuffers.writer."""
        self._position = position
        return self._write

    def _write(self, data: bytes) -> None:
        position = self._position
        self[position : position + len(data)] = data
        self._position = position + len(data)

    def __getitem__(self, place: slice) -> bytes:
        try:
            return self._channel.pread(self._fd, place.stop - place.start, place.start)
        except OSError as error:
            raise disk_error(error.errno or errno.EIO, "reading the segment back") from error

    def close(self) -> None:
        if self._fd >= 0:
            self._channel.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def check_whole(lane_directory: LaneDirectory, data: bytes, at: int, start: int) -> None:
    """Checks with all CRCs that a segment's bytes are whole records from byte `at` to their end.

    `data` begins with the segment's first byte, at the log offset `start`. Raises CorruptRecord:
    no buffer has these bytes, so they are lost.
    """
    table = _scan_whole(lane_directory, data, at, start)
    if table.stop not in (Stop.END, Stop.BLANK):
        reason = f"a failed sync lost it, and what the file holds now is damaged ({table.reason or 'zeros'})"
        raise CorruptRecord(reason, start + table.stop_position, str(lane_directory.segment_path(start)))


def whole_end(lane_directory: LaneDirectory, data: Buffer, at: int, start: int) -> int:
    """Where the whole records of a segment's bytes end that begin at byte `at`.

    `data` begins with the segment's first byte, at the log offset `start`. A BLANK counts.
    """
    table = _scan_whole(lane_directory, data, at, start)
    return table.stop_position + (BLANK_BYTES if table.stop is Stop.BLANK else 0)


def _scan_whole(lane_directory: LaneDirectory, data: Buffer, at: int, start: int) -> RecordTable:
    """The last table of the records from byte `at` on, whose CRCs are right.

    Beside records with the whole-record CRC, one that seems to have lost it is not whole.
    """
    while True:
        table = scan(data, at, len(data), start, lane_directory.number, check_crc=True)
        table = up_to_lost_crc(table, data) if table.has_crc.any() else table
        if table.stop is not Stop.FULL:
            return table
        at = table.stop_position


def clear_unpublished(lane_directory: LaneDirectory, row: memoryview, channel: FileChannel) -> bool:
    """Zeroes the bytes behind `wrote` in a segment file, where the log ends.

    A lessee that was killed or interrupted may have written there, and never published it. Returns
    whether there was anything; the zeros are not synced. The caller holds the lane's lock. Raises
    OSError.
    """
    wrote, size = observe(row, Lane.WROTE), row[Lane.SEGMENT_SIZE]
    if size == 0:  # nobody has leased it since its pool was made
        return False
    start = segment_start(wrote, size)
    if observe(row, Lane.ALLOCATED) <= start:
        return False
    with channel.opened(lane_directory.segment_path(start), write=True) as fd:
        if _is_zero(fd, wrote - start, size, channel):
            return False
        for at in range(wrote - start, size, _CLEAR_BYTES):
            channel.pwrite(fd, bytes(min(_CLEAR_BYTES, size - at)), at)
    return True


def _is_zero(fd: int, position: int, end: int, channel: FileChannel) -> bool:
    """Whether a file has only zeros in [position, end).

    All of the range is read, except holes: an interrupted call may be followed by one that writes
    less, and then the end of the first one is left. A look ends at a border of blocks: a page that
    has been read is no hole any more, and the next look would begin in it.
    """
    at: int | None = position
    while at is not None and at < end:
        border = at - at % _LOOK_BYTES + _LOOK_BYTES
        data = channel.pread(fd, min(border, end) - at, at)
        if data != bytes(len(data)):
            return False
        at = channel.next_data(fd, border)
    return True
