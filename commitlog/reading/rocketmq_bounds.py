"""Finds begin and end of a RocketMQ consume queue, even with damaged entries or records.

All queues share RocketMQ's log, so it can't be walked in place of one queue, and only the entries
say which messages exist. Entries that are damaged, or name damaged records, are within the bounds:
readers meet them one by one.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Protocol

import numpy as np

from commitlog.disk.consume_queue import ENTRY_BYTES, PRE_FILL_SIZE, ConsumeQueue
from commitlog.errors import CorruptRecord, DamagedFile, ReadingWarning
from commitlog.reading.queue_bounds import QueueBounds
from commitlog.reading.view import LaneLimits
from commitlog.record.record import Record
from commitlog.record.record_layout import RECORD_BYTES_MIN


class RecordOf(Protocol):
    """Gives the record that an entry of the queue names.

    Raises CorruptRecord if there is no record or another one, and DamagedFile.
    """

    def __call__(self, offset: int, *, check_crc: bool = False) -> Record: ...


def rocketmq_bounds(queue: ConsumeQueue, limits: LaneLimits, record: RecordOf) -> tuple[int, int]:
    """The first queue offset, and one past the last. Both are 0 if the queue is empty.

    Raises DamagedFile, OSError.
    """
    bounds = QueueBounds(queue, limits.first, limits.dispatched)
    try:
        first, end = bounds.find()
        goes_on = bounds.goes_on(end)
        is_found = not goes_on or not limits.stopped_properly
    except DamagedFile:
        is_found = False
    if not is_found:
        first, end = _read_through(queue, limits.first, limits.dispatched, record)
        goes_on = False
    return first, end if limits.stopped_properly else _proven_end(queue, first, end, goes_on, record)


def _proven_end(queue: ConsumeQueue, first: int, end: int, goes_on: bool, record: RecordOf) -> int:
    """Finds the end of a queue after a kill of RocketMQ.

    The queue's last entries may name records that never reached the disk.
    """
    good = end
    while good > first and not _is_good(record, good - 1, check_crc=True):
        good -= 1
    if good < end or goes_on:
        warnings.warn(
            f"{queue.directory}: the entries from {good:,} on name no good records, as a RocketMQ that was killed leaves "
            f"them; they are passed over",
            ReadingWarning,
            stacklevel=2,
        )
    return good


def _is_good(record: RecordOf, offset: int, *, check_crc: bool = False) -> bool:
    with contextlib.suppress(CorruptRecord, DamagedFile, OverflowError, ValueError):
        record(offset, check_crc=check_crc)
        return True
    return False


def _read_through(queue: ConsumeQueue, first_where: int, end_where: int, record: RecordOf) -> tuple[int, int]:
    """Finds the bounds of a queue with impossible entries by a look at each entry.

    Damaged entries are within the bounds. The queue ends with the last good entry and those that
    follow it without an empty place. Raises DamagedFile, OSError.
    """
    first, last = -1, -1
    per_file = queue.file_bytes // ENTRY_BYTES
    starts = [start // ENTRY_BYTES for start in queue.starts()]
    for start in starts:
        entries = queue.entries(start, per_file)
        where, size = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
        is_in = (where >= first_where) & (where <= end_where - size) & (size >= RECORD_BYTES_MIN)
        is_in &= size != PRE_FILL_SIZE
        within = (np.flatnonzero(is_in) + start).tolist()
        if first < 0 and within:  # if nothing was deleted, the entries before it are damaged
            first = starts[0] if first_where <= 0 and entries["size"][0] != PRE_FILL_SIZE else within[0]
        last = next((offset for offset in reversed(within) if _is_good(record, offset)), last)
    if last < 0:
        return 0, 0
    end = last + 1
    while len(entry := queue.entries(end, 1)) and entry["size"][0]:
        end += 1
    return first, end
