"""Scans the records of a segment into tables, for recovery, the dispatcher and readers.

In Python, the walk reads sizes only. It finds a run of records of one size by one comparison of
numpy's. table.py then gathers the records that it found, and checks them column by column. The
native core does all of this at each record. Both make the same table.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commitlog.native import core
from commitlog.record.byte_ranges import Ints, first_false
from commitlog.record.record_layout import I32, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, Buffer, size_and_magic
from commitlog.record.table import RecordGatherer, RecordTable, Stop, empty_columns

MAX_RECORDS = 8192
MAX_BYTES = 8 * 1024 * 1024
"""A table ends after MAX_RECORDS records, or with the record that passes MAX_BYTES.

This bounds memory. Larger tables are slower too, because they do not stay in the processor's cache.
"""

LARGEST_BYTES = 4 << 20
"""No record of ours is larger. So a table reaches this far behind its limit of bytes, at most."""

_RUN_LEAST = 16
"""Runs of at least this number of records of one size are compared by numpy, others are walked."""
_WALK_MOST = 2048
_size = I32.unpack_from


def scan(
    buffer: Buffer,
    start: int,
    end: int,
    buffer_start: int,
    queue_id: int | None,
    *,
    check_crc: bool,
    require_crc: bool = False,
    segment_end: int | None = None,
    max_records: int = MAX_RECORDS,
    max_bytes: int = MAX_BYTES,
) -> RecordTable:
    """The records in [start, end) of a buffer as a table.

    `buffer_start` is the physical offset of the buffer's first byte. A record counts only if its
    size, magic, physical offset and (if given) queue id are those of its place, and if its CRCs
    hold. `check_crc` and `require_crc` mean the same as for `record.decode`. `segment_end`, if
    known, is the position at which the segment ends: a BLANK must reach it exactly. Nothing beyond
    `end` is read. Call again from `stop_position` while `stop` is FULL. Damage raises nothing:
    `stop` and `reason` tell of it.
    """
    gatherer = RecordGatherer(buffer, buffer_start, queue_id, check_crc, require_crc)
    end = min(end, len(gatherer.view))
    last = min(end, start + max_bytes)
    table = (_scan_in_python if core is None else _scan_natively)(gatherer, start, last, end, max_records)
    where = table.stop_position
    stop, reason = gatherer.why_stopped(where, end, segment_end)
    if stop is Stop.END and table.stop is Stop.CORRUPT:
        return table
    if stop is Stop.END and where < end:
        stop = Stop.FULL
    return table if (table.stop, table.reason) == (stop, reason) else replace(table, stop=stop, reason=reason)


def _scan_in_python(gatherer: RecordGatherer, start: int, last: int, end: int, max_records: int) -> RecordTable:
    """At most `max_records` records, which begin before `last` and end at `end` or before it.

    They are all that there are (END), or those before one that seems to be a record and is not good
    (CORRUPT). It may also be a BLANK, because the walk looks at sizes only.
    """
    positions, where = _walk(gatherer.buffer, start, last, end, max_records)
    table = gatherer.tabulate_in_python(positions, np.diff(positions, append=where))
    return table if table.stop is Stop.CORRUPT else replace(table, stop_position=where)


def _scan_natively(gatherer: RecordGatherer, start: int, last: int, end: int, max_records: int) -> RecordTable:
    most = max(min(max_records, (last - start) // RECORD_BYTES_MIN + 1), 0)
    columns = empty_columns(most)
    count, where, bad_bytes, topics = core.scan(
        gatherer.view, start, max(last, 0), max(end, 0), gatherer.demands, most, columns.view(np.uint8)
    )
    return gatherer.table_of(columns[:, :count], topics, where, bad_bytes)


def _walk(buffer: Buffer, start: int, last: int, end: int, max_records: int) -> tuple[Ints, int]:
    """The positions of possible records, judged by their sizes, and where the last of them ends."""
    found: list[Ints] = []
    room, position, walk_next = max_records, start, _RUN_LEAST
    while room > 0 and position < last:
        run, size = _run(buffer, position, end, min(room, (last - position) // RECORD_BYTES_MIN + 1))
        if run >= _RUN_LEAST:
            run = min(run, (last - position - 1) // size + 1)  # the record that passes `last` is the last one
            found.append(np.arange(run, dtype=np.int64) * size + position)
            position, room, walk_next = position + run * size, room - run, _RUN_LEAST
            continue
        # these bytes are so few that they can't begin more records than there is room for
        before = min(last, position + min(room, walk_next) * RECORD_BYTES_MIN)
        walked, position, done = _walk_some(buffer, position, before, end)
        found.append(np.array(walked, np.int64))
        room -= len(walked)
        walk_next = min(walk_next * 2, _WALK_MOST)  # sizes differ: look for runs less and less often
        if done:
            break
    return (np.concatenate(found) if found else np.empty(0, np.int64)), position


def _walk_some(buffer: Buffer, position: int, before: int, end: int) -> tuple[list[int], int, bool]:
    """Walks one by one over the records that begin before a position.

    Returns their positions, their end, and whether no record follows at that end.
    """
    positions: list[int] = []
    append, unpack, stop = positions.append, _size, min(before - 1, end - RECORD_BYTES_MIN)
    while position <= stop:
        (size,) = unpack(buffer, position)
        if size < RECORD_BYTES_MIN:
            return positions, position, True
        append(position)
        position += size
    if position > end:  # the last one reaches too far: nothing was read there
        return positions, positions.pop(), True
    return positions, position, position > end - RECORD_BYTES_MIN


def _run(buffer: Buffer, position: int, end: int, most: int) -> tuple[int, int]:
    """How many records in a row have the size and magic of the one at `position`, and that size."""
    if end - position < RECORD_BYTES_MIN:
        return 0, 0
    size, magic = size_and_magic(buffer, position)
    if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_BYTES_MIN:
        return 0, 0
    most = min(most, (end - position) // size)
    first = np.ndarray((), np.int64, buffer, position)
    run, step = 0, _RUN_LEAST
    while run < most:
        count = min(step, most - run)
        starts = np.ndarray((count,), np.int64, buffer, position + run * size, (size,))
        same = first_false(starts == first)
        run += same
        if same < count:
            break
        step *= 8
    return run, size
