"""Writes whole records that only a lane's write buffers have to its files.

Nothing but the records themselves says what is in the buffers: the lane's words are damaged.
"""

from __future__ import annotations

from pathlib import Path

from commitlog.disk.direct_segment import whole_end
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import LaneDirectory, is_segment_name
from commitlog.record.record_layout import PHYSICAL_OFFSET_AT
from commitlog.shm.region import Region, RegionError
from commitlog.shm.write_buffers import buffers_path


def write_out_held(lane_directory: LaneDirectory, pool: Path, size: int, channel: FileChannel) -> int:
    """Writes the records that the files lack, before these are recovered; returns how many bytes.

    Files lack what was accepted and not committed, and what a disk has lost. A record counts if its
    CRC is right and it names this place of this lane's log. So what an earlier use of a buffer has
    left is passed over, as is a segment below the first file, which was deleted. A lane without
    sound buffers has no records. Raises OSError.
    """
    try:
        region = Region.attach(buffers_path(pool, lane_directory.number), writable=False)
    except (FileNotFoundError, RegionError):
        return 0
    try:
        channel.create_directory(lane_directory.commitlog, below=lane_directory.path)
        first = min((int(name) for name in channel.list(lane_directory.commitlog) if is_segment_name(name)), default=0)
        written = 0
        for at in range(0, region.size // size * size, size):
            held = bytes(region.bytes[at : at + size])
            start = int.from_bytes(held[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8])  # of the buffer's first record
            if start % size == 0 and start >= first and (end := whole_end(lane_directory, held, 0, start)):
                written += _write(lane_directory, held[:end], start, size, channel)
        return written
    finally:
        region.close()


def _write(lane_directory: LaneDirectory, records: bytes, start: int, size: int, channel: FileChannel) -> int:
    """Writes the records behind the last one that the segment file has; returns how many bytes."""
    with channel.opened(lane_directory.segment_path(start), write=True, create=True) as fd:
        channel.allocate(fd, size)
        kept = whole_end(lane_directory, channel.pread(fd, size, 0), 0, start)
        channel.pwrite(fd, records[kept:], kept)
    return max(len(records) - kept, 0)
