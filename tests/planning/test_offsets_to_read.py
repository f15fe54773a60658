"""Which queue offsets may be read, and no more than these.

They are dispatched or must be walked, and retention has left them.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from commitlog.errors import OffsetOutOfRange
from commitlog.planning.options import parse_options
from commitlog.planning.resolving import Resolver
from commitlog.planning.store_index import LocalIndex
from commitlog.reading.lane_index import LaneIndex
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from tests.builders.hand_made import BEGIN_MS, HandMadeLane, HandMadeStore
from tests.fake_clock import SetClock

pytestmark = pytest.mark.usefixtures("look_each_time")


@pytest.fixture
def lane(tmp_path: Path) -> HandMadeLane:
    """100 records of two topics in turn, over several segments; nothing dispatched or published."""
    made = HandMadeStore(tmp_path / "store", 1 << 12).lane(0)
    for row in range(100):
        made.append(("even", "odd")[row % 2], b"%d" % row)
    return made


def index_of(lane: HandMadeLane) -> TopicIndex:
    index = TopicIndex(StoreView(lane.store.path))
    index.refresh()
    return index


def ends(index: TopicIndex) -> dict[str, tuple[int, int]]:
    return {topic: (queue.first, queue.end) for topic in index.topics() for queue in index.ranges(topic).values()}


@pytest.mark.parametrize("dispatched", [0, 1, 37, 99, 100])
@pytest.mark.parametrize("flushed", [0, 1, 38, 100])
def test_any_state_of_dispatch_and_flush(lane: HandMadeLane, dispatched: int, flushed: int) -> None:
    """Also entries beyond the limit, as a lost pool leaves them: they don't count."""
    lane.dispatch(dispatched)
    last = lane.records[flushed - 1]
    lane.publish(flushed=last.physical_offset + last.total_size if flushed else 0)
    expected = {"even": (0, (flushed + 1) // 2), "odd": (0, flushed // 2)}
    found = ends(index_of(lane))
    assert {topic: found.get(topic, (0, 0)) for topic in expected} == expected


def test_it_follows(lane: HandMadeLane) -> None:
    """Step by step, whatever is dispatched meanwhile; walks from a mark find every offset."""
    lane.publish(flushed=0)
    index = index_of(lane)
    assert ends(index) == {}
    for count, record in enumerate(lane.records, 1):
        lane.publish(flushed=record.physical_offset + record.total_size)
        if count % 7 == 0:
            lane.dispatch(5)
        assert index.refresh()
        assert not index.refresh()
        assert ends(index)["even"] == (0, (count + 1) // 2)
        queue = index.ranges("even")[0]
        assert queue.walk_from(queue.end - 1) <= lane.records[2 * (queue.end - 1)].physical_offset


def test_marks_lead_to_what_has_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = QueueRange(0, 50, 10, [(8, 800), (20, 2000), (40, 4000)])
    assert [queue.walk_from(offset) for offset in (0, 8, 19, 20, 39, 40, 49)] == [800, 800, 800, 2000, 2000, 4000, 4000]
    assert QueueRange(0, 50, 50).walk_from(3) == -1


def test_retention(lane: HandMadeLane) -> None:
    lane.dispatch()
    lane.publish()
    index = index_of(lane)
    lane.forget_before(2)
    assert index.refresh()
    kept = [record for record in lane.records if record.physical_offset >= 2 << 12]
    firsts = {topic: min(r.queue_offset for r in kept if r.topic == topic) for topic in ("even", "odd")}
    for seen in (index, index_of(lane)):
        assert ends(seen) == {topic: (first, 50) for topic, first in firsts.items()}


@pytest.mark.parametrize("dispatched", [0, 50, 100])
def test_times(lane: HandMadeLane, dispatched: int) -> None:
    lane.dispatch(dispatched)
    lane.publish()
    index = index_of(lane)
    for row in (0, 1, 48, 49, 50, 51, 97, 98):
        assert index.find_by_time("even", 0, BEGIN_MS + 1000 * row - 1) == (row + 1) // 2
    assert index.find_by_time("even", 0, BEGIN_MS + 98_001) is None
    assert index.find_by_time("even", 0, 0) == 0


def test_lanes_that_appear(lane: HandMadeLane) -> None:
    lane.publish()
    index = index_of(lane)
    lane.store.lane(5).append("new", b"x")
    lane.store.lane(5).publish()
    assert index.refresh()
    assert isinstance(index.lanes[5], LaneIndex)
    assert ends(index)["new"] == (0, 1)


class Hurrying(SetClock):
    """A clock on which a minute passes with each look at it. The first look is at 20 minutes."""

    def __init__(self) -> None:
        super().__init__()
        self.wall = BEGIN_MS + 19 * 60_000

    def wall_ms(self) -> int:
        self.pass_seconds(60)
        return self.wall


def test_ago_counts_from_one_moment_for_all_queues(tmp_path: Path) -> None:
    """And for both ends of a batch. A record a second was stored in each lane, from 0 on."""
    store = HandMadeStore(tmp_path / "store")
    for lane in range(3):
        for row in range(600):
            store.lane(lane).append("t", b"%d" % row)
    store.publish()
    starting = {"startingOffsets": "15 minutes ago", "endingOffsets": "12 minutes ago"}
    options = parse_options({"path": str(store.path), "subscribe": "t", **starting})
    assert options.starting is not None
    assert options.ending is not None
    with closing(LocalIndex(store.path)) as index:
        index.refresh()
        resolver = Resolver(index, options, Hurrying())
        begins, ends = (resolver.offsets(bound, resolver.queues()) for bound in (options.starting, options.ending))
    assert set(begins.values()) == {300}
    assert set(ends.values()) == {480}
    assert len(begins) == len(ends) == 3


def test_an_idle_lane_is_no_reason_for_an_error(tmp_path: Path) -> None:
    """A lane with nothing so late begins at its end. It is an error if that is so in all lanes."""
    store = HandMadeStore(tmp_path / "store")
    for lane, count in ((0, 10), (1, 600)):
        for row in range(count):
            store.lane(lane).append("t", b"%d" % row)
    store.publish()
    by_lane = '{"t": {"0": %d, "1": %d}}'
    late, too_late = BEGIN_MS + 300_000, BEGIN_MS + 3_600_000
    for given in (
        {"startingTimestamp": str(late)},
        {"startingOffsetsByTimestamp": by_lane % (late, late)},
        {"startingOffsetsByTimestamp": by_lane % (too_late, late)},
    ):
        assert _begins(store, given) == {("t", 0): 10, ("t", 1): 300}
    for given in (
        {"startingTimestamp": str(too_late)},
        {"startingOffsetsByTimestamp": by_lane % (too_late, too_late)},
    ):
        with pytest.raises(OffsetOutOfRange, match="no lane has a message at or after"):
            _begins(store, given)
        assert _begins(store, given | {"startingOffsetsByTimestampStrategy": "latest"}) == {("t", 0): 10, ("t", 1): 600}


def _begins(store: HandMadeStore, given: dict[str, str]) -> dict[tuple[str, int], int]:
    options = parse_options({"path": str(store.path), "subscribe": "t", **given})
    assert options.starting is not None
    with closing(LocalIndex(store.path)) as index:
        index.refresh()
        resolver = Resolver(index, options)
        return resolver.offsets(options.starting, resolver.queues())
