"""Small consume queues are looked at together: with what a look at one after the other finds."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.disk.consume_queue import ENTRY_BYTES, PRE_FILL_SIZE, ConsumeQueue
from commitlog.errors import CorruptRecord, DamagedFile
from commitlog.reading.log_walk import RecentSegments
from commitlog.reading.queue_bounds import NamedQueue, QueueBounds, record_of_entry
from commitlog.reading.small_queues import SMALL_ENTRIES, have_records, small_queues
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from tests.builders.hand_made import HandMadeLane, HandMadeStore

TOPICS = ("many", "few", "one")
SEGMENT = 1 << 12


def lane_of(path: Path, rows: int = 60) -> HandMadeLane:
    """Three topics in one lane, over several segments."""
    made = HandMadeStore(path / "store", SEGMENT).lane(0)
    for row in range(rows):
        made.append(TOPICS[(row % 9 == 0) + (row == 27)], b"%d" % row)
    made.store.publish()
    return made


def check(lane: HandMadeLane, first_where: int, end_where: int) -> int:
    """Compares all queues of a lane; returns how many were small, and proven."""
    directory, channel = lane.store.directory.lane_directory(0), StoreView(lane.store.path).channel
    found = small_queues(directory, TOPICS, first_where, end_where, channel)
    segments = RecentSegments(directory, SEGMENT)
    proven = have_records(segments, 0, found)
    for topic, first, end, mean, is_proven in zip(
        found.topics, found.firsts.tolist(), found.ends.tolist(), found.record_bytes.tolist(), proven, strict=True
    ):
        with ConsumeQueue(directory.queue_path(topic)) as queue:
            assert (first, end) == QueueBounds(queue, first_where, end_where).find()
            entries = queue.entries(first, end - first).tolist()

        def is_named(offset: int, topic: str = topic, first: int = first, entries: list = entries) -> bool:
            where, size = entries[offset - first][:2]
            try:
                record_of_entry(segments, NamedQueue(topic, 0), offset, where, size, check_crc=False)
            except (CorruptRecord, DamagedFile, OSError):
                return False
            return True

        assert is_proven == all(is_named(offset) for offset in {first, end - 1} if first < end)
        assert mean == (sum(size for _, size, _ in entries) / len(entries) if entries else 0)
    return int(proven.sum())


@pytest.mark.parametrize("deleted", [0, 2])
def test_whole_queues(tmp_path: Path, deleted: int) -> None:
    """Wherever the log begins and ends; also behind places that RocketMQ has filled."""
    lane = lane_of(tmp_path)
    with ConsumeQueue(lane.store.directory.lane_directory(0).queue_path("few")) as queue:
        queue.fill(0, 2)
    for end in (0, lane.records[5].physical_offset, lane.records[40].physical_offset + 1, lane.end):
        assert check(lane, deleted * SEGMENT, end) == len(TOPICS)


def test_a_queue_that_is_not_small(tmp_path: Path) -> None:
    made = HandMadeStore(tmp_path / "store", 1 << 20).lane(0)
    counts = {"many": SMALL_ENTRIES, "few": SMALL_ENTRIES - 1, "one": 1}
    for topic, count in counts.items():
        for _ in range(count):
            made.append(topic, b"x")
    made.store.publish()
    found = small_queues(
        made.store.directory.lane_directory(0), TOPICS, 0, made.end, StoreView(made.store.path).channel
    )
    assert dict(zip(found.topics, found.ends.tolist(), strict=True)) == {"few": SMALL_ENTRIES - 1, "one": 1}
    index = TopicIndex(StoreView(made.store.path))
    index.refresh()
    assert {topic: index.ranges(topic)[0].end for topic in TOPICS} == counts


_PLACES = st.one_of(
    st.sampled_from([0, 1, -1, SEGMENT, 1 << 62, -(1 << 63), (1 << 63) - 1]), st.integers(0, 3 * SEGMENT)
)
_SIZES = st.one_of(st.sampled_from([0, 1, 90, 91, 120, -1, PRE_FILL_SIZE, -(1 << 31)]), st.integers(0, 300))
_CHANGES = st.lists(
    st.tuples(st.sampled_from(TOPICS), st.integers(0, 60), st.one_of(st.tuples(_PLACES, _SIZES), st.integers(0, 60))),
    max_size=4,
)
_HARMS = st.lists(st.tuples(st.integers(0, 59), st.integers(0, 100), st.integers(1, 255)), max_size=3)


@settings(max_examples=150, deadline=None)
@given(
    changes=_CHANGES, harms=_HARMS, first=st.sampled_from([0, SEGMENT, 2 * SEGMENT]), end=st.integers(0, 60),
    cut=st.sampled_from([None, 7 * ENTRY_BYTES, 20 * ENTRY_BYTES + 3, 0]), lost=st.booleans(),
)  # fmt: skip
def test_any_damage(
    changes: list, harms: list[tuple[int, int, int]], first: int, end: int, cut: int | None, lost: bool
) -> None:
    """What is said of a small queue is what a look at it alone says, or nothing is said of it."""
    with TemporaryDirectory() as place:
        lane = lane_of(Path(place))
        directory = lane.store.directory.lane_directory(0)
        for topic, offset, entry in changes:
            with ConsumeQueue(directory.queue_path(topic)) as queue:
                if isinstance(entry, int):  # the entry of another record
                    entry = lane.records[entry % 60].physical_offset, lane.records[entry % 60].total_size
                queue.place([offset], [entry[0]], [entry[1]], [0])
        for row, at, bits in harms:
            where = lane.records[row].physical_offset + at % lane.records[row].total_size
            with directory.segment_path(where - where % SEGMENT).open("r+b") as file:
                file.seek(where % SEGMENT)
                byte = file.read(1)[0]
                file.seek(where % SEGMENT)
                file.write(bytes([byte ^ bits]))
        if cut is not None:
            os.truncate(directory.queue_path("few") / f"{0:020}", cut)
        if lost:
            directory.segment_path(SEGMENT).unlink()
        check(lane, first, lane.end if end == 60 else lane.records[end].physical_offset)
