"""Finds where a log begins, and whether it is the log that belongs there.

A log begins behind the segments that retention has deleted, and `positions` records that place
durably. A file that is missing behind it is damage, at the begin of a log as in its middle. So the
files alone never tell where a log begins.
"""

from __future__ import annotations

import numpy as np

from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.store_directory import LaneDirectory
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.record.table import RecordTable
from commitlog.shm.control_region import counted_entries
from commitlog.shm.layout import Lane, segment_start
from commitlog.shm.memory_order import observe


def begin_of_log(log: LogScan, lane_directory: LaneDirectory, recorded: int | None, noted: int = 0) -> int:
    """Returns the first offset of a log. `recorded` is the begin by its `positions`, or None.

    `noted` is how far the log was flushed, as `store.json` says.

    Retention records the new begin before it removes a file. If it had no time to remove files,
    they are still a part of the log. Without positions nobody knows which files retention has
    removed, so the log begins at 0, and everything before the first file counts as lost. Only a log
    that never had a record begins at its first file: a new copy of a lane makes that file before
    its positions. If the log has no record any more, its consume queues tell that it had some.
    """
    segments = log.segments
    if recorded is None:
        queues = lane_directory.consumequeue
        has_had_any = noted > 0 or (queues.is_dir() and bool(segments.channel.list(queues)))
        return 0 if has_had_any or any(map(log.holds_record, segments.starts)) else segments.first
    return min(recorded, segments.first) if segments.starts else recorded


def other_lanes_log(segments: MappedFileQueue, lane_directory: LaneDirectory) -> str:
    """Says what is wrong if a lane has another lane's log; "" if it has its own.

    The first record of each file tells whose log it is. It is another lane's if somebody has
    renamed or swapped the lanes' directories. All its records would be wrong for this lane, and a
    recovery would set them aside.
    """
    own, others = LogScan(segments, lane_directory.number), set[int]()
    for start in segments.starts:
        if own.holds_record(start):
            return ""
        piece = next(LogScan(segments, None).pieces(start), None)
        if piece is not None and not isinstance(piece, Gap):
            others.add(int(piece.queue_ids[0]))
    if len(others) != 1:
        return ""
    return (
        f"{lane_directory.path} has the log of lane {others.pop()}: give the directory the name that it had, or move it "
        f"away"
    )


def other_log(segments: MappedFileQueue, lane_directory: LaneDirectory, indexed: int) -> str:
    """Says what is wrong if the log is not the one that was indexed up to `indexed`; else "".

    `indexed` is a log offset. In the indexed log a record ended at this offset. In another store's
    log, or in one that began anew, some record lies across this offset. If only zeros follow behind
    it, as after a proper stop, the records are not looked at.
    """
    start, log = segment_start(indexed, segments.size), LogScan(segments, lane_directory.number)
    if start == indexed or start not in segments or segments.last_nonzero(start, indexed - start) <= indexed - start:
        return ""
    if log.holds_record(indexed):
        return ""
    for piece in LogScan(segments, lane_directory.number, check_crc=False).pieces(start):
        if not isinstance(piece, Gap) and (found := _record_around(piece, indexed)) and log.holds_record(found[0]):
            return (
                f"not the log that was flushed here: it has a record in [{found[0]:,}, {found[1]:,}), and one ended at "
                f"{indexed:,}. Put back the lane's own files; or, to take these for the lane's, move "
                f"{lane_directory.positions_file} away, then start the store"
            )
        if (piece.end if isinstance(piece, Gap) else piece.buffer_start + piece.stop_position) >= indexed:
            break
    return ""


def damage_of_index_word(
    lane_directory: LaneDirectory, row: memoryview, segment_bytes: int, channel: FileChannel
) -> str:
    """Says what is wrong if no record ends at the word `dispatch_synced` of a lane; else "".

    The dispatcher stores a place with a count of the entries up to it. So only a place without a
    count may be garbage, and is looked at. Raises OSError.
    """
    indexed = observe(row, Lane.DISPATCH_SYNCED)
    if counted_entries(row, indexed) >= 0:
        return ""
    segments = MappedFileQueue(lane_directory.commitlog, segment_bytes, channel)
    if not other_log(segments, lane_directory, indexed):
        return ""
    return f"dispatch_synced is {indexed:,}, and a record lies across that place"


def _record_around(table: RecordTable, where: int) -> tuple[int, int] | None:
    """Returns begin and end of the record that lies across a log offset; None without one."""
    begins = table.physical_offsets
    row = int(np.searchsorted(begins, where)) - 1
    if row < 0 or begins[row] + table.sizes[row] <= where:
        return None
    return int(begins[row]), int(begins[row] + table.sizes[row])
