"""Which message of a queue was the first that was stored at or after a time.

A bisection of the consume queue finds it, as RocketMQ's getOffsetInQueueByTime does. Records that
have no entry yet, and queues that are damaged, are walked.
"""

from __future__ import annotations

import contextlib

import numpy as np

from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.errors import CorruptRecord, DamagedFile
from commitlog.reading.lane_index import LaneIndex
from commitlog.reading.log_holes import Hole
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.readable_log import RetentionWasQuicker


def find_by_time(index: LaneIndex, topic: str, timestamp_ms: int) -> int | None:
    """The queue offset of the first message stored at or after a time (ms), or None."""
    known = index.queues.get(topic)
    if known is None or known.first >= known.end:
        return None
    indexed = min(known.indexed, known.end)
    with index.consume_queues.open(topic) as queue:
        try:
            found = queue.find_by_timestamp(
                timestamp_ms,
                known.first,
                indexed,
                lambda offset: index.consume_queues.record_of(topic, queue, offset).store_timestamp,
            )
        except (DamagedFile, CorruptRecord):
            if index.view.one_log:
                return _find_one_by_one(index, topic, queue, known, timestamp_ms)
            return _find_by_walking(index, topic, known.first, index.first, timestamp_ms)
    if found < indexed:
        return found
    return _find_by_walking(index, topic, max(indexed, known.first), known.walk_from(indexed), timestamp_ms)


def older_than(index: LaneIndex, topic: str, timestamp_ms: int) -> int:
    """Returns a queue offset before which all messages were stored before a time (ms), for sure.

    It is what `find_by_time` returns, if the message before it proves that: a lane's times never go
    back, so a whole message that is older is the proof for all before it. Otherwise it is 0.
    """
    known = index.queues.get(topic)
    if known is None:
        return 0
    found = find_by_time(index, topic, timestamp_ms)
    border = min(known.end if found is None else found, known.indexed)
    if border <= known.first:
        return 0  # retention may have deleted messages before it
    with index.consume_queues.open(topic) as queue:
        try:
            last = index.consume_queues.record_of(topic, queue, border - 1)
        except (DamagedFile, CorruptRecord):
            return 0
    return border if last.store_timestamp < timestamp_ms else 0


def _find_one_by_one(
    index: LaneIndex, topic: str, queue: ConsumeQueue, known: QueueRange, timestamp_ms: int
) -> int | None:
    """Finds the same by a look at each record, because damage prevents a bisection."""
    for offset in range(known.first, known.end):
        with contextlib.suppress(CorruptRecord, DamagedFile):
            if index.consume_queues.record_of(topic, queue, offset).store_timestamp >= timestamp_ms:
                return offset
    return None


def _find_by_walking(index: LaneIndex, topic: str, begin: int, start: int, timestamp_ms: int) -> int | None:
    while start >= 0:
        with contextlib.suppress(RetentionWasQuicker):
            return _first_behind(index, topic, begin, start, timestamp_ms)
        start = index.view.limits(index.lane).first
    return None


def _first_behind(index: LaneIndex, topic: str, begin: int, start: int, timestamp_ms: int) -> int | None:
    """Finds the same from queue offset `begin` on, by a walk from log offset `start`.

    If records are missing just before the found one, it returns the first missing offset. A reader
    that begins there gets the error.
    """
    for step in index.log.pieces(start, index.limit):
        if isinstance(step, Hole) or topic not in step.table.topics:
            continue
        table = step.table
        wanted = (table.topic_index == table.topics.index(topic)) & table.in_queue
        rows = np.flatnonzero(wanted & (table.queue_offsets >= begin))
        late = np.flatnonzero(table.store_timestamps[rows] >= timestamp_ms)
        before = rows[: late[0]] if len(late) else rows
        begin = int(table.queue_offsets[before[-1]]) + 1 if len(before) else begin
        if len(late):
            return begin
    return None
