"""Which topics and lanes a store has, and which queue offsets of each may be read now.

What is dispatched, the consume queues know; what is flushed (or committed) and not dispatched yet is found by walking
the log, so that a slow or dead dispatcher costs readers nothing but time. The order matters: first `dispatched` is
read, then the ends of the consume queues, then the limit, then [dispatched, limit) is walked. Everything below the
dispatched position that was read is in the queues; everything above it is walked.

An object lives as long as its reader and remembers how far it has walked, so that asking again costs next to nothing
while nothing has moved. It is not for threads.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from commitlog.consume_queue import ConsumeQueue
from commitlog.log_walk import LastSegment, Step, walk
from commitlog.record import decode
from commitlog.view import LaneLimits, StoreView

WALK_RATHER_BYTES = 8192
"""Per queue of a lane: so much more is walked before the ends of all its consume queues are read again."""
MARK_BYTES = 1 << 20
"""A topic's records above `dispatched` are marked about this often, so that readers of a part walk little."""
STOPPED_REREAD_NS = 100_000_000
"""Without a pool the limits are in files; they are looked at no more often than this."""


@dataclass(slots=True)
class QueueRange:
    """The queue offsets [first, end) of one topic in one lane; those below `indexed` have a consume queue entry."""

    first: int
    end: int
    indexed: int
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(queue offset, log offset) of some records that may have no entry yet, ascending."""

    def walk_from(self, offset: int) -> int:
        """A log offset from which a walk finds this queue offset and all after it; −1 if there is nothing to walk."""
        at = bisect_right(self.marks, (offset, 1 << 63)) - 1
        return self.marks[max(at, 0)][1] if self.marks else -1


class LaneIndex:
    """The queues of one lane."""

    def __init__(self, view: StoreView, lane: int, isolation: str) -> None:
        self.view, self.lane, self.isolation = view, lane, isolation
        self.directory = view.directory.lane(lane)
        self.queues: dict[str, QueueRange] = {}
        self.limit = 0
        """Bytes of the log that were looked through."""
        self._first = -1
        self._walked_to = -1
        self._segments = LastSegment(self.directory, view.segment_bytes, view.channel)

    def _limit_of(self, limits: LaneLimits) -> int:
        return limits.committed if self.isolation == "committed" else limits.flushed

    def refresh(self) -> bool:
        """Looks how far the lane is now; whether anything moved. Raises CorruptRecord, DamagedFile, OSError."""
        limits = self.view.limits(self.lane)
        limit = self._limit_of(limits)
        if limit <= self.limit and limits.first <= self._first:
            return False
        if (
            self._walked_to < limits.first
            or self._walked_to < 0
            or limits.dispatched - self._walked_to > WALK_RATHER_BYTES * len(self.queues)
        ):
            self._read_queues(limits.first)
            self._walked_to = max(self._walked_to, limits.dispatched, limits.first)
            limit = max(limit, self._limit_of(self.view.limits(self.lane)))
            self._bound_by(limit)
        elif limits.first > self._first:
            self._read_firsts(limits.first)
        self._first = max(self._first, limits.first)
        for step in self._walk(self._walked_to, limit):
            self._note(step)
        self.limit = limit
        return True

    def _walk(self, start: int, limit: int) -> Iterator[Step]:
        return walk(self._segments.open, self.lane, self.view.segment_bytes, start, limit)

    # ---- consume queues ------------------------------------------------------------------------------------------

    def queue(self, topic: str) -> ConsumeQueue:
        """Opens the topic's consume queue; the caller closes it."""
        return ConsumeQueue(self.directory.queue(topic), channel=self.view.channel)

    def _topics_on_disk(self) -> list[str]:
        return self.view.channel.list(self.directory.consumequeue)

    def _read_queues(self, first_where: int) -> None:
        for topic in self._topics_on_disk():
            queue = self.queue(topic)
            try:
                end = queue.end()
                if not end:
                    continue
                first = self._first_from(queue, end, first_where)
            finally:
                queue.close()
            known = self.queues.get(topic)
            if known is None:
                self.queues[topic] = QueueRange(first, end, end)
            else:
                known.first, known.end, known.indexed = first, max(end, known.end), max(end, known.indexed)
        self._forget_marks(first_where)

    def _read_firsts(self, first_where: int) -> None:
        """Old segments were deleted: their entries may be the only ones that were not walked but looked up."""
        for topic, known in self.queues.items():
            queue = self.queue(topic)
            try:
                end = min(queue.end(), known.end)
                if end:
                    known.first = max(self._first_from(queue, end, first_where), known.first)
                    known.indexed = max(end, known.indexed)
            finally:
                queue.close()
        self._forget_marks(first_where)

    def _forget_marks(self, first_where: int) -> None:
        """Marks below what is indexed now are not needed; none may lead below the log's first offset."""
        for known in self.queues.values():
            at = bisect_right(known.marks, (known.indexed, 1 << 63)) - 1
            del known.marks[: max(at, 0)]
            known.marks = [(offset, max(where, first_where)) for offset, where in known.marks]

    def _first_from(self, queue: ConsumeQueue, end: int, first_where: int) -> int:
        """The first queue offset whose record is in a segment that is still there."""
        low, high = queue.first(), end
        while low < high:
            middle = (low + high) // 2
            entry = queue.entries(middle, 1)  # none: the queue's old files were deleted just now
            if not len(entry) or int(entry["physical_offset"][0]) < first_where:
                low = middle + 1
            else:
                high = middle
        return low

    def _bound_by(self, limit: int) -> None:
        """Entries may name records beyond the limit where the pool was lost: they don't count yet."""
        for topic, known in self.queues.items():
            if known.end > known.indexed:
                continue
            queue = self.queue(topic)
            try:
                low, high = known.first, known.end
                if high > low and not self._is_below(queue, high - 1, limit):
                    while low < high:
                        middle = (low + high) // 2
                        low, high = (middle + 1, high) if self._is_below(queue, middle, limit) else (low, middle)
                    known.end = known.indexed = low
            finally:
                queue.close()

    @staticmethod
    def _is_below(queue: ConsumeQueue, offset: int, limit: int) -> bool:
        entry = queue.entries(offset, 1)
        return len(entry) == 1 and int(entry["physical_offset"][0]) + int(entry["size"][0]) <= limit

    # ---- the walk ------------------------------------------------------------------------------------------------

    def _note(self, step: Step) -> None:
        table = step.table
        in_queue = table.in_queue
        for index, topic in enumerate(table.topics):
            rows = np.flatnonzero((table.topic_index == index) & in_queue)
            if not len(rows):
                continue
            first = int(table.queue_offsets[rows[0]])
            end = int(table.queue_offsets[rows[-1]]) + 1
            where = table.base_offset + int(table.positions[rows[0]])
            known = self.queues.get(topic)
            if known is None:
                known = self.queues[topic] = QueueRange(first, end, 0)
            known.end = max(known.end, end)
            if not known.marks or where - known.marks[-1][1] >= MARK_BYTES:
                known.marks.append((first, where))
        self._walked_to = step.next_where

    def find_by_time(self, topic: str, timestamp_ms: int) -> int | None:
        """The queue offset of the first message stored at or after a time (ms); None if there is none."""
        known = self.queues.get(topic)
        if known is None or known.first >= known.end:
            return None
        indexed = min(known.indexed, known.end)
        queue = self.queue(topic)
        try:
            found = queue.find_by_timestamp(timestamp_ms, known.first, indexed, self._stored_at)
        finally:
            queue.close()
        if found < indexed:
            return found
        return self._find_by_walking(topic, known, timestamp_ms)

    def _stored_at(self, where: int, size: int) -> int:
        base = where - where % self.view.segment_bytes
        record = self._segments.open(base)
        found = decode(record, where - base, limit=where - base + size, physical_offset=where, check_crc=False)
        return found.store_timestamp

    def _find_by_walking(self, topic: str, known: QueueRange, timestamp_ms: int) -> int | None:
        start = known.walk_from(known.indexed)
        if start < 0:
            return None
        for step in self._walk(start, self.limit):
            table = step.table
            if topic not in table.topics:
                continue
            wanted = (table.topic_index == table.topics.index(topic)) & table.in_queue
            rows = np.flatnonzero(wanted & (table.store_timestamps >= timestamp_ms))
            if len(rows):
                return int(table.queue_offsets[rows[0]])
        return None


class TopicIndex:
    """All lanes of a store. `isolation` is "flushed" or "committed"."""

    def __init__(self, view: StoreView, isolation: str = "flushed") -> None:
        self.view, self.isolation = view, isolation
        self.lanes: dict[int, LaneIndex] = {}
        self._looked_at = 0

    def refresh(self) -> bool:
        """Looks at the store again; whether anything moved. Raises CorruptRecord, DamagedFile, CommitLogError."""
        self.view.refresh()
        if not self.view.live:
            now = time.monotonic_ns()
            if self._looked_at and now - self._looked_at < STOPPED_REREAD_NS:
                return False
            self._looked_at = now
        moved = False
        for lane in self.view.lanes():
            index = self.lanes.get(lane)
            if index is None:
                index = self.lanes[lane] = LaneIndex(self.view, lane, self.isolation)
            moved = index.refresh() or moved
        return moved

    def topics(self) -> list[str]:
        """Topics that have, or had, a message in any lane; sorted."""
        return sorted({topic for index in self.lanes.values() for topic in index.queues})

    def ranges(self, topic: str) -> dict[int, QueueRange]:
        """Lane → what may be read of the topic there."""
        return {lane: index.queues[topic] for lane, index in self.lanes.items() if topic in index.queues}

    def find_by_time(self, topic: str, lane: int, timestamp_ms: int) -> int | None:
        """The queue offset of the first message stored at or after a time (ms); None if there is none."""
        return self.lanes[lane].find_by_time(topic, timestamp_ms)
