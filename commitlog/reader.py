"""Reads a store message by message, live or stopped, beside its producers and without its stages.

Each lane is walked in its order; lanes are merged by store timestamp. A following reader merges what is there and never
waits for a quiet lane. Nothing beyond the limit (flushed, or committed where asked for) is ever given out.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Collection, Iterator
from functools import partial
from types import TracebackType
from typing import Literal

import numpy as np

from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.errors import CorruptRecord, DamagedFile, DataLoss, UnknownTopic
from commitlog.log_walk import LastSegment, walk
from commitlog.message import Message
from commitlog.record import decode
from commitlog.scan import Source
from commitlog.start import EARLIEST, Start, parse_start, resolve
from commitlog.statistics import ReaderStatistics
from commitlog.topic_index import LaneIndex, TopicIndex
from commitlog.view import StoreView

_WAIT_SECONDS_LEAST, _WAIT_SECONDS_MOST = 0.001, 0.02


class Reader:
    """An iterator over messages: `for message in Reader("data/events", topic="orders"): …`.

    `topic`: a name, several, or None for all. `isolation`: "flushed" (survives power loss) or "committed". `start`:
    earliest, latest, "last 100" (of each topic and lane), "10 minutes ago", an ISO time, or an offset for every lane.
    `follow`: go on waiting for more at the end instead of stopping there. Raises StoreNotFound, BadStart, UnknownTopic
    (a following reader waits for the topic instead), OffsetOutOfRange, CorruptRecord.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        topic: str | Collection[str] | None = None,
        isolation: Literal["flushed", "committed"] = "flushed",
        start: str | int = "earliest",
        follow: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if isolation not in ("flushed", "committed"):
            raise ValueError(f"isolation is 'flushed' or 'committed', not {isolation!r}")
        self.topics = None if topic is None else {topic} if isinstance(topic, str) else set(topic)
        self.follow = follow
        self._clock = clock
        self._start = parse_start(start).at(clock)
        self._view = StoreView(path)
        self._index = TopicIndex(self._view, isolation)
        self._cursors: dict[int, _LaneCursor] = {}
        self._closed = False
        self._given = 0
        self._index.refresh()
        if self.topics and not follow:
            missing = self.topics - set(self._index.topics())
            if missing:
                there = ", ".join(self._index.topics()) or "none"
                self.close()
                raise UnknownTopic(f"{path}: no topic {', '.join(sorted(missing))}; there are: {there}")
        for lane in self._index.lanes:
            self._cursors[lane] = _LaneCursor(self._index.lanes[lane], self.topics, self._start)
        self._messages = self._read()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = next(self._messages)
        self._given += 1
        return message

    def _read(self) -> Iterator[Message]:
        pause = _WAIT_SECONDS_LEAST
        while True:
            given = False
            for message in heapq.merge(*(c.read() for c in self._cursors.values()), key=lambda m: m.timestamp):
                given = True
                yield message
            if not self.follow:
                return
            pause = _WAIT_SECONDS_LEAST if given else min(pause * 2, _WAIT_SECONDS_MOST)
            if not given:
                self._clock.sleep(pause)
            self._index.refresh()
            for lane, index in self._index.lanes.items():
                if lane not in self._cursors:  # a lane that is new since the start: all of it is
                    self._cursors[lane] = _LaneCursor(index, self.topics, EARLIEST)

    def statistics(self) -> ReaderStatistics:
        """What it has given out so far, and what lies before it."""
        positions = {lane: cursor.where for lane, cursor in self._cursors.items()}
        behind = {}
        for lane, where in positions.items():
            limits = self._view.limits(lane)
            end = limits.committed if self._index.isolation == "committed" else limits.flushed
            behind[lane] = max(end - where, 0)
        return ReaderStatistics(self._given, positions, behind)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._cursors.clear()
            self._view.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _LaneCursor:
    """Where a reader is in one lane: an offset of the log, and from which queue offset on each topic counts."""

    def __init__(self, index: LaneIndex, topics: set[str] | None, start: Start) -> None:
        self._index, self._topics = index, topics
        self._segments = LastSegment(index.directory, index.view.segment_bytes, index.view.channel)
        self._from: dict[str, int] = {}
        self.where = index.limit
        if start == EARLIEST and topics is None:
            self.where = max(index.first, 0)  # all there is: no consume queue is asked
            return
        for topic, known in index.queues.items():
            if topics is not None and topic not in topics:
                continue
            where = f"{topic}, lane {index.lane}"
            offset = resolve(start, known.first, known.end, partial(index.find_by_time, topic), where=where)
            self._from[topic] = offset
            if offset < known.end:
                self.where = min(self.where, self._place(topic, offset))

    def _place(self, topic: str, offset: int) -> int:
        """Where a walk may begin that is to meet this record; where its entry can't be believed, at the log's first."""
        known = self._index.queues[topic]
        if offset >= known.indexed:
            return max(known.walk_from(offset), 0)
        try:
            return self._index.record(topic, offset).physical_offset
        except (CorruptRecord, DamagedFile, FileNotFoundError):
            return max(self._index.first, 0)

    def _open(self, base: int) -> Source:
        """The bytes of a segment. Raises DataLoss where retention was quicker than this reader."""
        try:
            return self._segments.open(base)
        except FileNotFoundError as error:
            first = self._index.view.limits(self._index.lane).first
            if first <= base:
                raise
            raise DataLoss(
                f"lane {self._index.lane}: the log below {first:,} was deleted for its age or size, and this reader had come "
                f"to {self.where:,} only: start it again, or raise retention.reserved_hours or retention.max_bytes"
            ) from error

    def read(self) -> Iterator[Message]:
        """The wanted messages from here to the lane's limit, in the log's order."""
        size = self._index.view.segment_bytes
        for step in walk(self._open, self._index.lane, size, self.where, self._index.limit):
            table = step.table
            wanted = table.in_queue.copy()
            for number, topic in enumerate(table.topics):
                if self._topics is not None and topic not in self._topics:
                    wanted &= table.topic_index != number
                elif first := self._from.get(topic):
                    wanted &= (table.topic_index != number) | (table.queue_offsets >= first)
            buffer = self._open(table.base_offset)
            for row in np.flatnonzero(wanted).tolist():
                position = int(table.positions[row])
                yield Message.of(decode(buffer, position, physical_offset=table.base_offset + position))
            self.where = step.next_where
