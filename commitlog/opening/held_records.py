"""Writes whole records that only a lane's write buffers have to its files.

Nothing but the records themselves says what is in the buffers: the lane's words are damaged.
"""

from __future__ import annotations

from pathlib import Path

from commitlog.disk.direct_segment import whole_end
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import LaneDirectory
from commitlog.record.record_layout import BLANK_BYTES, MAGIC_BLANK, size_and_magic
from commitlog.shm.layout import segment_start
from commitlog.shm.region import Region, RegionError
from commitlog.shm.write_buffers import buffers_path


def write_out_held(lane_directory: LaneDirectory, pool: Path, end: int, size: int, channel: FileChannel) -> int:
    """Writes the records that follow the end of a recovered log, and returns how many bytes.

    A record counts if its CRC is right and it names this place of this lane's log. So what an
    earlier use of a buffer has left is passed over. A lane without sound buffers has no records.
    Raises OSError.
    """
    try:
        region = Region.attach(buffers_path(pool, lane_directory.number), writable=False)
    except (FileNotFoundError, RegionError):
        return 0
    where = end
    try:
        slots = region.size // size
        while slots:
            start = segment_start(where, size)
            at = start // size % slots * size
            held = bytes(region.bytes[at + where - start : at + size])
            whole = whole_end(lane_directory, held, 0, where)
            if whole:
                with channel.opened(lane_directory.segment_path(start), write=True, create=True) as fd:
                    channel.allocate(fd, size)
                    channel.pwrite(fd, held[:whole], where - start)
            if not _ends_segment(held, whole):
                where += whole
                break
            where = start + size
    finally:
        region.close()
    return where - end


def _ends_segment(held: bytes, whole: int) -> bool:
    """Whether whole records fill a segment, or a BLANK ends it behind them."""
    at = whole - BLANK_BYTES
    return whole == len(held) or (at >= 0 and size_and_magic(held, at) == (len(held) - at, MAGIC_BLANK))
