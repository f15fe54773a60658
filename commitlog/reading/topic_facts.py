"""Finds how large a topic is, how old its messages are, and how fast they come.

These facts are for people who run a store. Nothing waits, and only few messages are read: the
first, the last, and those that a bisection meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.errors import CorruptRecord, DamagedFile
from commitlog.reading.lane_index import LaneIndex
from commitlog.reading.log_walk import RecentSegments, Step
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.topic_index import TopicIndex
from commitlog.record.table import RecordTable

Ints = npt.NDArray[np.int64]

SAMPLES = 1_000
"""How many entries of a consume queue are read, at most, to estimate the sizes of messages."""
RATE_MS = 60_000


@dataclass(frozen=True)
class MessageFacts:
    """Facts about a range of messages."""

    messages: int
    bytes: int
    """How many bytes the messages' records take in the log."""
    bytes_are_estimated: bool
    """Whether `bytes` is an estimate: the mean size of a sample times the number of messages."""
    first_timestamp: int | None
    """Store time (ms) of the oldest message; None if no message can be read."""
    last_timestamp: int | None
    """Store time (ms) of the newest message."""


@dataclass(frozen=True)
class TopicFacts(MessageFacts):
    """Facts about one topic, over all its lanes."""

    topic: str
    messages_per_second: float
    """How many messages per second were stored in the last RATE_MS.

    Messages from the future do not count.
    """
    lanes: tuple[int, ...]


def topic_facts(index: TopicIndex, topic: str, now_ms: int) -> TopicFacts:
    """Looks up a topic in an index. Raises DamagedFile, OSError."""
    ranges = index.ranges(topic)
    found = {lane: _lane_facts(index, topic, lane, queue.end) for lane, queue in ranges.items()}
    recent = sum(_recent(index, topic, lane, now_ms) for lane, facts in found.items() if _may_be_recent(facts, now_ms))
    return TopicFacts(
        **asdict(facts_of_all(found.values())),
        topic=topic,
        messages_per_second=recent * 1000 / RATE_MS,
        lanes=tuple(sorted(ranges)),
    )


def _may_be_recent(facts: MessageFacts, now_ms: int) -> bool:
    """Whether a lane has messages of the last RATE_MS. A lane's times never go back."""
    return facts.messages > 0 and (facts.last_timestamp is None or facts.last_timestamp >= now_ms - RATE_MS)


def _recent(index: TopicIndex, topic: str, lane: int, now_ms: int) -> int:
    """How many messages of a lane were stored in the last RATE_MS."""
    since = index.find_by_time(topic, lane, now_ms - RATE_MS)
    if since is None:
        return 0
    queue, later = index.ranges(topic)[lane], index.find_by_time(topic, lane, now_ms + 1)  # the clock was ahead
    return (queue.end if later is None else later) - max(since, queue.first)


def facts_below(index: TopicIndex, topic: str, before: Mapping[int, int]) -> MessageFacts:
    """Looks up the messages of a topic below a queue offset of each lane.

    Raises DamagedFile, OSError.
    """
    return facts_of_all(_lane_facts(index, topic, lane, end) for lane, end in before.items())


def facts_of_all(parts: Iterable[MessageFacts]) -> MessageFacts:
    """The facts of all messages together."""
    found = list(parts)
    return MessageFacts(
        sum(part.messages for part in found),
        sum(part.bytes for part in found),
        any(part.bytes_are_estimated for part in found),
        min((part.first_timestamp for part in found if part.first_timestamp is not None), default=None),
        max((part.last_timestamp for part in found if part.last_timestamp is not None), default=None),
    )


def _lane_facts(index: TopicIndex, topic: str, lane: int, end: int) -> MessageFacts:
    queue, lane_index = index.ranges(topic)[lane], index.lanes[lane]
    if queue.first >= end:
        return MessageFacts(0, 0, False, None, None)
    indexed = min(max(queue.indexed, queue.first), end)
    total, is_sampled, times = 0, False, list[int]()
    if indexed > queue.first:
        with lane_index.consume_queues.open(topic) as entries:
            total, is_sampled = _indexed_bytes(entries, queue.first, indexed)
            times = _times(lane_index, topic, entries, (queue.first, indexed - 1))
    for sizes, stored in _walked(lane_index, topic, queue, indexed, end):
        total += int(sizes.sum())
        times += stored[[0, -1]].tolist()
    return MessageFacts(end - queue.first, total, is_sampled, min(times, default=None), max(times, default=None))


def _indexed_bytes(queue: ConsumeQueue, begin: int, end: int) -> tuple[int, bool]:
    """The bytes of the records of entries [begin, end), and whether this number is an estimate."""
    if end - begin <= SAMPLES:
        return int(queue.entries(begin, end - begin)["size"].astype(np.int64).sum()), False
    picked = np.unique(np.linspace(begin, end - 1, SAMPLES).astype(np.int64))
    sizes = [int(entry["size"][0]) for at in picked.tolist() if len(entry := queue.entries(at, 1))]
    return round(sum(sizes) / max(len(sizes), 1) * (end - begin)), True


def _times(index: LaneIndex, topic: str, queue: ConsumeQueue, offsets: Iterable[int]) -> list[int]:
    """Store times of messages; a damaged one has none."""
    found = []
    for offset in offsets:
        with suppress(CorruptRecord, DamagedFile):
            found.append(index.consume_queues.record_of(topic, queue, offset).store_timestamp)
    return found


def _walked(index: LaneIndex, topic: str, queue: QueueRange, begin: int, end: int) -> Iterator[tuple[Ints, Ints]]:
    """Sizes and store times of messages that have no entry yet, from a walk of the log."""
    start = queue.walk_from(begin)
    if begin >= end or start < 0:
        return
    segments = RecentSegments(index.log.lane_directory, index.view.segment_bytes, index.view.channel)
    with suppress(FileNotFoundError):  # retention has just deleted the rest
        for step in index.log.walk(segments.open, start, index.limit):
            if isinstance(step, Step) and len(rows := _rows(step.table, topic, begin, end)):
                yield step.table.sizes[rows], step.table.store_timestamps[rows]


def _rows(table: RecordTable, topic: str, begin: int, end: int) -> Ints:
    if topic not in table.topics:
        return np.empty(0, np.int64)
    wanted = (table.topic_index == table.topics.index(topic)) & table.in_queue
    return np.flatnonzero(wanted & (table.queue_offsets >= begin) & (table.queue_offsets < end))
