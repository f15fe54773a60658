"""Reads a store message by message, live or stopped, beside its producers and without its stages; or a RocketMQ's.

Each lane is walked in its order; lanes are merged by store timestamp. A following reader merges what is there and never
waits for a quiet lane. Nothing beyond the limit (flushed, or committed where asked for) is ever given out.

A RocketMQ store root is read queue by queue, as far as its consume queues go, and merged by the places in its log.
"""

from __future__ import annotations

import heapq
import inspect
import os
from collections.abc import Collection, Generator, Iterator
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Literal

import numpy as np

from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.consume_queue import is_light
from commitlog.errors import (
    CommitLogError,
    CorruptRecord,
    DamagedFile,
    DataLoss,
    OptionError,
    ReaderError,
    UnknownTopic,
)
from commitlog.log_walk import RecentSegments, walk
from commitlog.message import Message
from commitlog.queue_bounds import record_of_entry
from commitlog.record import decode
from commitlog.scan import Source
from commitlog.start import EARLIEST, Start, parse_start, resolve
from commitlog.statistics import ReaderStatistics
from commitlog.topic_index import LaneIndex, TopicIndex
from commitlog.view import open_view

_ENTRIES_AT_ONCE = 1_000
_SEGMENTS_KEPT = 8
"""Mapped segments of a RocketMQ's log: its queues are not all at the same place."""
_WAIT_SECONDS_LEAST, _WAIT_SECONDS_MOST = 0.001, 0.02
_NOTHING_YET = Message("", -1, -1, None, b"", None, {}, -1, -1, -1, "")
"""Given out inside instead of a message where there is none at the moment. It sorts before every message."""


class Reader:
    """An iterator over messages: `for message in Reader("data/events", topic="orders"): …`.

    `topic`: a name, several, or None for all. `isolation`: "flushed" (survives power loss) or "committed". `start`:
    earliest, latest, "last 100" (of each topic and lane), "10 minutes ago", an ISO time, or an offset for every lane.
    `follow`: go on waiting for more at the end instead of stopping there. Raises StoreNotFound, BadStart, UnknownTopic
    (a following reader waits for the topic instead), OffsetOutOfRange, CorruptRecord, DamagedFile.

    `path` may also be a RocketMQ store root, of which `partition` is the queue id; it can't be followed and has no
    `isolation` (OptionError). Light queues (`%LMQ%…`) are read where they are named.
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
        self._cursors: dict[tuple[int, str], _LaneCursor | _QueueCursor] = {}
        self._given = 0
        self._given_at_rest, self._rest_seconds, self._is_at_end = -1, 0.0, False
        self._closed, self._failure = False, ""
        self._last_statistics: ReaderStatistics | None = None
        self._messages = self._read()
        self._view = open_view(path)
        self._index = TopicIndex(self._view, isolation)
        try:
            self._begin(isolation)
        except BaseException:
            self.close()
            raise

    def _begin(self, isolation: str) -> None:
        """Looks at the store for the first time."""
        path = self._view.path
        if self._view.one_log and (self.follow or isolation != "flushed"):
            option = "follow=True" if self.follow else f"isolation={isolation!r}"
            raise OptionError(
                f"{path}: {option} needs a store of ours, and this is a RocketMQ store root: leave it out"
            )
        self._index.refresh()
        if self.topics and not self.follow:
            missing = self.topics - set(self._index.topics())
            if missing:
                there = ", ".join(self._index.topics()) or "none"
                raise UnknownTopic(f"{path}: no topic {', '.join(sorted(missing))}; there are: {there}")
        self._open_cursors(self._start)

    def _open_cursors(self, start: Start) -> None:
        """A cursor a lane, or a queue of a RocketMQ's, where there is none yet."""
        segments = RecentSegments(self._view.lane(0), self._view.segment_bytes, self._view.channel, keep=_SEGMENTS_KEPT)
        for lane, index in self._index.lanes.items():
            if not self._view.one_log:
                if (lane, "") not in self._cursors:
                    self._cursors[lane, ""] = _LaneCursor(index, self.topics, start)
                continue
            for topic, known in index.queues.items():
                wanted = topic in self.topics if self.topics is not None else not is_light(topic)
                if wanted and known.first < known.end:
                    self._cursors[lane, topic] = _QueueCursor(index, topic, segments, start)

    # ---- messages ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        while (message := self._take()) is None:
            if self._is_at_end:
                self._clock.sleep(self._rest())
        return message

    def _take(self) -> Message | None:
        """The next message; None where there is none at the moment. Raises StopIteration at the end and after `close`."""
        try:
            message = next(self._messages)
        except StopIteration:
            if self._failure and not self._closed:
                raise ReaderError(f"this reader ended with {self._failure}: make another to go on") from None
            raise
        except BaseException as error:
            self._note_error(error)
            raise
        if self._closed:  # meanwhile, by another thread or a signal handler
            self.close()
            raise StopIteration
        if message is _NOTHING_YET:
            return None
        self._given += 1
        return message

    def _read(self) -> Generator[Message, None, None]:
        """All messages in their order, and _NOTHING_YET where it came to the end or walked for long without finding any."""
        order = attrgetter("physical_offset" if self._view.one_log else "timestamp")
        while True:
            given_before = self._given
            yield from heapq.merge(*(cursor.read() for cursor in list(self._cursors.values())), key=order)
            if not self.follow:
                return
            if self._given == given_before:
                self._is_at_end = True
                yield _NOTHING_YET
                self._is_at_end = False
            self._index.refresh()
            self._open_cursors(EARLIEST)  # a lane that is new since the start: all of it is

    def _rest(self) -> float:
        """How long to wait before the next look (s): longer each time, until something comes."""
        fresh = self._given != self._given_at_rest
        self._given_at_rest = self._given
        self._rest_seconds = _WAIT_SECONDS_LEAST if fresh else min(self._rest_seconds * 2, _WAIT_SECONDS_MOST)
        return self._rest_seconds

    def _note_error(self, error: BaseException) -> None:
        """What `next` raised. Raises ReaderError where this call is inside another one's."""
        if isinstance(error, ValueError) and inspect.getgeneratorstate(self._messages) == inspect.GEN_RUNNING:
            raise ReaderError(
                "this reader is inside `next` already, and serves one thread at a time: give each a reader of its own"
            ) from error
        self._failure = f"{type(error).__name__}: {error}"
        if self._closed:
            self.close()

    # ---- the end -------------------------------------------------------------------------------------------------

    def statistics(self) -> ReaderStatistics:
        """What it has given out so far, and what lies before it; of a closed reader, what that was at its end."""
        try:
            return self._last_statistics or self._statistics()
        except ValueError:  # closed meanwhile: the shared memory is released
            if self._last_statistics is None:
                raise
            return self._last_statistics

    def _note_last_statistics(self) -> None:
        try:
            self._last_statistics = self._statistics()
        except (CommitLogError, OSError):  # the store is gone, or damaged: to close a reader of it is no error
            self._last_statistics = ReaderStatistics(self._given, {}, {})

    def _statistics(self) -> ReaderStatistics:
        positions: dict[int, int] = {}
        behind: dict[int, int] = {}
        for (lane, _), cursor in list(self._cursors.items()):
            positions[lane] = min(cursor.where, positions.get(lane, cursor.where))
            behind[lane] = max(cursor.end() - cursor.where, behind.get(lane, 0))
        return ReaderStatistics(self._given, positions, behind)

    def close(self) -> None:
        """Ends the iteration, for good and from anywhere: the loop's body, a signal handler, another thread.

        `next` raises StopIteration then, also one that waits. What was read ahead is not given out. Files and memory are
        free when this returns; or as soon as the `next` that is being interrupted, or runs in another thread, has come to
        its end, which is at once. To call it again does no harm.
        """
        self._closed = True
        try:
            self._messages.close()
        except ValueError:  # somebody is inside: he sees that it is closed when he comes out, and calls this
            return
        if self._last_statistics is None:
            self._note_last_statistics()
        self._cursors.clear()
        self._index.lanes.clear()  # they hold mapped segments
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
        self._segments = RecentSegments(index.directory, index.view.segment_bytes, index.view.channel)
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
        except (CorruptRecord, DamagedFile):
            return max(self._index.first, 0)

    def end(self) -> int:
        """How far the lane may be read now, bytes of its log."""
        limits = self._index.view.limits(self._index.lane)
        return limits.committed if self._index.isolation == "committed" else limits.flushed

    def _open(self, base: int) -> Source:
        """The bytes of a segment. Raises DataLoss where retention was quicker than this reader, DamagedFile."""
        try:
            return self._segments.open(base)
        except FileNotFoundError as error:
            first = self._index.view.limits(self._index.lane).first
            if first <= base:
                path = self._index.directory.segment(base)
                raise DamagedFile(f"{path}: missing, `commitlog verify` says more") from error
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
            rows = np.flatnonzero(wanted).tolist()
            if not rows:
                yield _NOTHING_YET
            buffer = self._open(table.base_offset)
            for row in rows:
                position = int(table.positions[row])
                yield Message.of(decode(buffer, position, physical_offset=table.base_offset + position))
            self.where = step.next_where


class _QueueCursor:
    """Where a reader is in one queue of a RocketMQ store root: `where` is the place of its next record in the log."""

    def __init__(self, index: LaneIndex, topic: str, segments: RecentSegments, start: Start) -> None:
        self._index, self._topic, self._segments = index, topic, segments
        self._queue = index.named(topic)
        known = index.queues[topic]
        where = f"{topic}, queue {index.lane}"
        self._next = resolve(start, known.first, known.end, partial(index.find_by_time, topic), where=where)
        self._stop = known.end
        first, last = (index.record(topic, offset) for offset in (min(self._next, known.end - 1), known.end - 1))
        self._end = last.physical_offset + last.total_size
        self.where = first.physical_offset if self._next < known.end else self._end

    def end(self) -> int:
        """Where the queue's last record ends in the log."""
        return self._end

    def read(self) -> Iterator[Message]:
        """The messages from here to the queue's end."""
        while self._next < self._stop:
            for where, size, _ in self._entries():
                message = Message.of(record_of_entry(self._segments, self._queue, self._next, where, size))
                if not self._queue.offset_is_stored:
                    message = replace(message, topic=self._topic, partition=self._index.lane, offset=self._next)
                yield message
                self.where = where + size
                self._next += 1

    def _entries(self) -> list[tuple[int, int, int]]:
        queue = self._index.queue(self._topic)
        try:
            entries: list[tuple[int, int, int]]
            entries = queue.entries(self._next, min(_ENTRIES_AT_ONCE, self._stop - self._next)).tolist()
        finally:
            queue.close()
        if not entries:
            raise DamagedFile(f"{queue.directory}: the file with entry {self._next:,} is gone")
        return entries
