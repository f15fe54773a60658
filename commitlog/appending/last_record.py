"""Finds the last record of a topic in a lane, in a write buffer or in the log's files.

The queue offset of this record is known. So the consume queue's entry is tried first, and counts
only if it names that record. Otherwise the log is walked segment by segment from its end, because
records without an entry are near the end.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import numpy as np

from commitlog.appending.lease import Lease
from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.errors import CorruptRecord, DamagedFile, disk_error
from commitlog.record.record import Record, decode
from commitlog.record.record_layout import RECORD_BYTES_MIN
from commitlog.record.scan import MAX_BYTES, scan
from commitlog.record.table import Stop
from commitlog.shm.control_region import first_kept
from commitlog.shm.layout import Lane, segment_start
from commitlog.shm.memory_order import observe
from commitlog.shm.write_buffers import is_direct


def last_record(lease: Lease, topic: str, queue_offset: int) -> Record | None:
    """Finds the record with this queue offset, the last one of its topic.

    Returns None if retention has deleted the record. Only the lessee calls it, while it appends
    nothing. Raises CorruptRecord, DamagedFile, DiskError.
    """
    first = first_kept(lease.row)
    try:
        place = _indexed(lease, topic, queue_offset)
        if place is not None:
            where, size = place
            if where < first:
                return None
            record = _named(lease, where, size)
            if record is not None and (record.topic, record.queue_offset) == (topic, queue_offset):
                return record
        for start, end in _ranges(lease):
            record = _walked(lease, topic, queue_offset, start, end)
            if record is not None:
                return record
    except FileNotFoundError as error:
        if first_kept(lease.row) > first:
            return None  # retention came in between
        raise DamagedFile(f"{error.filename}: missing; `commitlog verify` says more") from error
    except OSError as error:
        doing = f"{lease.lane_directory.path}: looking for the last message of {topic}"
        raise disk_error(error.errno or errno.EIO, doing) from error
    return None


def _indexed(lease: Lease, topic: str, queue_offset: int) -> tuple[int, int] | None:
    """Log offset and size of the record, by the consume queue; None without a plausible entry."""
    with ConsumeQueue(lease.lane_directory.queue_path(topic), channel=lease.channel) as queue:
        try:
            entries = queue.entries(queue_offset, 1)
        except (DamagedFile, FileNotFoundError):
            return None
    if not len(entries) or entries["size"][0] < RECORD_BYTES_MIN or entries["physical_offset"][0] < 0:
        return None
    return int(entries["physical_offset"][0]), int(entries["size"][0])


def _named(lease: Lease, where: int, size: int) -> Record | None:
    """The record that an entry names; None if there is no such record."""
    segment_bytes = lease.row[Lane.SEGMENT_SIZE]
    if where + size > min(observe(lease.row, Lane.WROTE), segment_start(where, segment_bytes) + segment_bytes):
        return None
    try:
        return decode(_read(lease, where, where + size), physical_offset=where, queue_id=lease.lane)
    except CorruptRecord:
        return None  # the walk tells a wrong entry from a damaged record


def _ranges(lease: Lease) -> Iterator[tuple[int, int]]:
    """The log from its end to its begin, in ranges of one segment that begin with a record."""
    row = lease.row
    first, synced, end = first_kept(row), observe(row, Lane.DISPATCH_SYNCED), observe(row, Lane.WROTE)
    while end > first:
        start = segment_start(end - 1, row[Lane.SEGMENT_SIZE])
        if start < synced < end:
            start = synced
        yield max(start, first), end
        end = start


def _walked(lease: Lease, topic: str, queue_offset: int, start: int, end: int) -> Record | None:
    """The record, if it is in [start, end).

    The range begins with a record and is in one segment. Raises CorruptRecord.
    """
    while start < end:
        data = _read(lease, start, min(end, start + MAX_BYTES))
        table = scan(data, 0, len(data), start, lease.lane, check_crc=False)
        if topic in table.topics:
            wanted = (table.topic_index == table.topics.index(topic)) & (table.queue_offsets == queue_offset)
            rows = np.flatnonzero(wanted & table.in_queue)
            if len(rows):
                position = int(table.positions[rows[-1]])
                return decode(data, position, physical_offset=start + position, queue_id=lease.lane)
        if table.stop is Stop.BLANK or not table.stop_position:
            return None
        start += table.stop_position
    return None


def _read(lease: Lease, where: int, end: int) -> bytes:
    """The bytes [where, end) of one segment.

    They come from its file. In the segment that is being committed, they come from its buffer.
    """
    row, buffers = lease.row, lease.buffers
    segment_bytes = row[Lane.SEGMENT_SIZE]
    segment, position = divmod(where, segment_bytes)
    is_written_out = segment < observe(row, Lane.COMMITTED) // segment_bytes or is_direct(row, segment)
    if buffers is not None and not is_written_out:
        return bytes(buffers.slot(segment)[position : position + end - where])
    with lease.channel.opened(lease.lane_directory.segment_path(segment * segment_bytes)) as fd:
        return lease.channel.pread(fd, end - where, position)
