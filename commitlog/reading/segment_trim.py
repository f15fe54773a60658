"""Looks up which segments `commitlog trim` would delete, before it asks the user.

The rules are those of retention (`stages/allocating/retention.py`), which deletes the segments and
decides anew. The segments that named readers still need are not looked up here, so retention may
delete fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commitlog.disk.consume_queue import first_where
from commitlog.disk.store_directory import StoreDirectory, is_segment_name
from commitlog.disk.trim_request import TrimRequest
from commitlog.reading.lane_index import LaneIndex
from commitlog.reading.segment_ages import SegmentAges
from commitlog.reading.topic_facts import MessageFacts, facts_below, facts_of_all
from commitlog.reading.topic_index import TopicIndex
from commitlog.shm.layout import segment_start


@dataclass(frozen=True)
class SegmentTrim:
    """How many segments a trim would delete, and which messages."""

    segments: int
    facts: MessageFacts
    """The facts of the messages in these segments."""


@dataclass(frozen=True)
class KeptSegments:
    """How many segments stay after a trim, by reason."""

    last: int
    """Segments that are the last of their lane: they always stay."""
    wanted: int
    """Segments that are not older than the given time, or fit into the bytes to keep."""
    held: int
    """Segments that a named reader or a replica needs."""
    unindexed: int
    """Segments with messages that are in no consume queue yet: they stay until they are."""


def plan_segment_trim(index: TopicIndex, request: TrimRequest) -> SegmentTrim:
    """Looks up which segments a trim would delete. Raises DamagedFile, OSError."""
    view = index.view
    ages = SegmentAges(StoreDirectory(view.path, view.channel), view.segment_bytes)
    cuts = _by_size(index, ages, request.keep_bytes) if request.before_ms is None else _by_age(index, ages, request)
    segments = sum(max(cut - view.limits(lane).first, 0) for lane, cut in cuts.items()) // view.segment_bytes
    topics = index.topics(deleted=True)
    return SegmentTrim(
        segments, facts_of_all(facts_below(index, topic, _below(index, topic, cuts)) for topic in topics)
    )


def kept_segments(index: TopicIndex, request: TrimRequest) -> KeptSegments:
    """Counts, after a trim, the segments that stayed, by reason. Raises DamagedFile, OSError."""
    limits = [index.view.limits(lane) for lane in index.lanes]
    ends = [_last_segment(index, lane) for lane in index.lanes]
    before = sum(max(end - limit.first, 0) for end, limit in zip(ends, limits, strict=True)) // index.view.segment_bytes
    held = plan_segment_trim(index, request).segments
    return KeptSegments(sum(limit.flushed > 0 for limit in limits), before - held, held, unindexed_segments(index))


def unindexed_segments(index: TopicIndex) -> int:
    """Counts the segments behind those that a trim may take, but for the last of each lane."""
    size = index.view.segment_bytes
    ends = {lane: segment_start(max(index.view.limits(lane).flushed - 1, 0), size) for lane in index.lanes}
    return sum(max(end - _last_segment(index, lane), 0) for lane, end in ends.items()) // size


def _last_segment(index: TopicIndex, lane: int) -> int:
    """The log offset at which a lane's last segment with data begins.

    This segment is never deleted.
    """
    limits = index.view.limits(lane)
    return segment_start(max(min(limits.flushed, limits.dispatched) - 1, 0), index.view.segment_bytes)


def _by_age(index: TopicIndex, ages: SegmentAges, request: TrimRequest) -> dict[int, int]:
    """Returns lane → the log offset below which all segments are older than the time."""
    size, horizon = index.view.segment_bytes, request.before_ms or 0
    cuts = {}
    for lane in index.lanes:
        cut, last = index.view.limits(lane).first, _last_segment(index, lane)
        # if the next segment began early enough, this one ended early enough and need not be read
        while cut < last and (
            ages.oldest(lane, cut + size, last) < horizon
            or (ages.oldest(lane, cut, last) < horizon and ages.newest(lane, cut, last) < horizon)
        ):
            cut += size
        cuts[lane] = cut
    return cuts


def _by_size(index: TopicIndex, ages: SegmentAges, keep_bytes: int | None) -> dict[int, int]:
    """Returns lane → the log offset below which segments go. The others fit into `keep_bytes`.

    The oldest segments go first.
    """
    view, size = index.view, index.view.segment_bytes
    cuts = {lane: view.limits(lane).first for lane in index.lanes}
    files = sum(sum(map(is_segment_name, view.channel.list(view.lane_directory(lane).commitlog))) for lane in cuts)
    while files * size > (keep_bytes or 0):
        free = [lane for lane, cut in cuts.items() if cut < _last_segment(index, lane)]
        if not free:
            break
        cuts[min(free, key=lambda lane: ages.oldest(lane, cuts[lane], _last_segment(index, lane)))] += size
        files -= 1
    return cuts


def _below(index: TopicIndex, topic: str, cuts: Mapping[int, int]) -> dict[int, int]:
    """Returns lane → the topic's first queue offset whose record is not below the lane's cut."""
    return {lane: _first_behind(index.lanes[lane], topic, cuts[lane]) for lane in index.ranges(topic)}


def _first_behind(lane: LaneIndex, topic: str, cut: int) -> int:
    known = lane.queues[topic]
    with lane.consume_queues.open(topic) as queue:

        def is_behind(offset: int) -> bool:
            return bool(queue.entries(offset, 1)["physical_offset"][0] >= cut)

        return first_where(is_behind, known.first, min(known.indexed, known.end))
