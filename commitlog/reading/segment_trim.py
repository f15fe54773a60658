"""What `commitlog trim` would delete, looked up before anybody is asked: whole segments of a store.

The rules are those of retention (`stages/allocating/retention.py`), which decides when it deletes.
What named readers still need is not looked up here, so it may take less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commitlog.disk.consume_queue import first_where
from commitlog.disk.store_directory import StoreDirectory, is_segment_name
from commitlog.disk.trim_request import TrimRequest
from commitlog.reading.segment_ages import SegmentAges
from commitlog.reading.topic_facts import MessageFacts, facts_below, facts_of_all
from commitlog.reading.topic_index import LaneIndex, TopicIndex
from commitlog.shm.layout import segment_start


@dataclass(frozen=True)
class SegmentTrim:
    """How much a trim of segments would take."""

    segments: int
    facts: MessageFacts
    """Of the messages in them."""


@dataclass(frozen=True)
class KeptSegments:
    """How many segments stay, and why."""

    last: int
    """The last one of each lane, which always stays."""
    wanted: int
    """Not older than the time, or within the bytes to keep."""
    held: int
    """Needed by a named reader or a replica."""


def plan_segment_trim(index: TopicIndex, request: TrimRequest) -> SegmentTrim:
    """Looks up what a trim would take. Raises DamagedFile, OSError."""
    view = index.view
    ages = SegmentAges(StoreDirectory(view.path, view.channel), view.segment_bytes)
    cuts = _by_size(index, ages, request.keep_bytes) if request.before_ms is None else _by_age(index, ages, request)
    segments = sum(max(cut - view.limits(lane).first, 0) for lane, cut in cuts.items()) // view.segment_bytes
    topics = index.topics(deleted=True)
    return SegmentTrim(
        segments, facts_of_all(facts_below(index, topic, _below(index, topic, cuts)) for topic in topics)
    )


def kept_segments(index: TopicIndex, request: TrimRequest) -> KeptSegments:
    """Why the segments stay that a trim has left. Raises DamagedFile, OSError."""
    limits = [index.view.limits(lane) for lane in index.lanes]
    ends = [_last_segment(index, lane) for lane in index.lanes]
    before = sum(max(end - limit.first, 0) for end, limit in zip(ends, limits, strict=True)) // index.view.segment_bytes
    held = plan_segment_trim(index, request).segments
    return KeptSegments(sum(limit.flushed > 0 for limit in limits), before - held, held)


def _last_segment(index: TopicIndex, lane: int) -> int:
    """Where the last segment with data in it begins, which stays in any case."""
    limits = index.view.limits(lane)
    return segment_start(max(min(limits.flushed, limits.dispatched) - 1, 0), index.view.segment_bytes)


def _by_age(index: TopicIndex, ages: SegmentAges, request: TrimRequest) -> dict[int, int]:
    """Lane → the log offset below which all segments are older than the time."""
    size, horizon = index.view.segment_bytes, request.before_ms or 0
    cuts = {}
    for lane in index.lanes:
        cut, last = index.view.limits(lane).first, _last_segment(index, lane)
        # where the next one has begun early enough, this one has ended early enough and is not read
        while cut < last and (
            ages.oldest(lane, cut + size, last) < horizon
            or (ages.oldest(lane, cut, last) < horizon and ages.newest(lane, cut, last) < horizon)
        ):
            cut += size
        cuts[lane] = cut
    return cuts


def _by_size(index: TopicIndex, ages: SegmentAges, keep_bytes: int | None) -> dict[int, int]:
    """Lane → the log offset below which segments go until all others fit; the oldest go first."""
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
    """Lane → the first queue offset whose record is not below the lane's cut."""
    return {lane: _first_behind(index.lanes[lane], topic, cuts[lane]) for lane in index.ranges(topic)}


def _first_behind(lane: LaneIndex, topic: str, cut: int) -> int:
    known = lane.queues[topic]
    with lane.queue(topic) as queue:

        def is_behind(offset: int) -> bool:
            return bool(queue.entries(offset, 1)["physical_offset"][0] >= cut)

        return first_where(is_behind, known.first, min(known.indexed, known.end))
