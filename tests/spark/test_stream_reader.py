"""A query's offsets, asked as Spark asks for them.

What a restart replays, limits, AvailableNow, and errors.
"""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from commitlog.errors import CommitLogError, DataLoss, OffsetOutOfRange, OptionError, ReadingWarning
from commitlog.spark.source import CommitLogDataSource, StreamReader
from tests.builders.hand_made import HandMadeStore, small_store
from tests.served import place_of

ALL = ReadAllAvailable()
Json = dict[str, Any]

pytestmark = pytest.mark.usefixtures("look_each_time", "both_ways")


def reader(store: HandMadeStore, **options: object) -> StreamReader:
    given = {"path": place_of(store.path), "subscribe": "orders", "columns": "value,offset,partition"} | options
    source = CommitLogDataSource({name.lower(): str(value) for name, value in given.items() if value is not None})
    return source.streamReader(source.schema())


def through_json(offset: Json) -> Json:
    """As Spark hands it over: through its log."""
    return json.loads(json.dumps(offset))  # type: ignore[no-any-return]


def rows(of: StreamReader, start: Json, end: Json) -> list[tuple[int, int, bytes]]:
    """The rows of a batch, its tasks read by a pickled copy as workers have one."""
    tasks = of.partitions(through_json(start), through_json(end))
    copy = pickle.loads(pickle.dumps(StreamReader(of.options, of.schema)))
    found = []
    for task in pickle.loads(pickle.dumps(tasks)):
        for batch in copy.read(task):
            found += [(row["partition"], row["offset"], row["value"]) for row in batch.to_pylist()]
    return sorted(found)


def run(of: StreamReader, start: Json, limit: ReadLimit = ALL) -> tuple[list[tuple[int, int, bytes]], Json]:
    """All batches until there is nothing new."""
    found = []
    while (end := of.latestOffset(through_json(start), limit)) != start:
        found += rows(of, start, end)
        start = end
    return found, start


def test_everything_once_and_then_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    of = reader(store, startingOffsets="earliest")
    found, end = run(of, of.initialOffset())
    assert sorted(found) == store.rows("orders")
    assert of.latestOffset(through_json(end), ALL) == end
    assert of.reportLatestOffset() == {"@store": store.id, "orders": {"0": 100, "1": 100}}
    of.stop()


def test_limits_share_out_and_pass_everything(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    of = reader(store, startingOffsets="earliest", maxOffsetsPerTrigger=30)
    limit = of.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    start = of.initialOffset()
    end = of.latestOffset(start, limit)
    assert end["orders"] == {"0": 15, "1": 15}
    found, _ = run(of, start, limit)
    assert sorted(found) == store.rows("orders")
    of.stop()


def test_offsets_are_in_one_order(tmp_path: Path) -> None:
    """Spark compares them as strings."""
    store = HandMadeStore(tmp_path / "store")
    for lane in (10, 2, 0):
        for topic in ("b", "a"):
            store.lane(lane).append(topic, b"x")
    store.publish()
    of = reader(store, subscribe=None, subscribePattern="[ab]", startingOffsets="earliest")
    text = json.dumps(of.latestOffset(of.initialOffset(), ALL))
    begin = '{"a": {"0": 0, "2": 0, "10": 0}, "b": {"0": 0, "2": 0, "10": 0}}'
    end = '"a": {"0": 1, "2": 1, "10": 1}, "b": {"0": 1, "2": 1, "10": 1}}'
    assert text == f'{{"@store": "{store.id}", "@from": {begin}, {end}'
    of.stop()


@pytest.mark.parametrize("starting", ["latest", "last 7", '{"orders": {"0": 50}}'])
def test_batch_0_is_replayed_where_it_began(tmp_path: Path, starting: str) -> None:
    """After a crash in the first batch, Spark asks again for a first start.

    The stored end offset has the right one.
    """
    store = small_store(tmp_path / "store", lanes=1)
    first = reader(store, startingOffsets=starting)
    start = first.initialOffset()
    store.lane(0).append("orders", b"new")
    store.publish()
    end = through_json(first.latestOffset(through_json(start), ALL))
    expected = rows(first, start, end)
    first.stop()
    for _ in range(20):
        store.lane(0).append("orders", b"newer")
    store.publish()
    again = reader(store, startingOffsets=starting)
    assert rows(again, again.initialOffset(), end) == expected != []
    found, _ = run(again, end)
    assert [row[2] for row in found] == [b"newer"] * 20
    again.stop()


def test_an_empty_first_batch_is_replayed_empty(tmp_path: Path) -> None:
    """With nothing new Spark stores the first start as the end of batch 0."""
    store = small_store(tmp_path / "store", lanes=1)
    first = reader(store)
    end = through_json(first.latestOffset(first.initialOffset(), ALL))
    first.stop()
    store.lane(0).append("orders", b"new")
    store.publish()
    again = reader(store)
    assert rows(again, again.initialOffset(), end) == []
    assert [row[2] for row in run(again, end)[0]] == [b"new"]
    again.stop()


def test_new_lanes_and_topics_begin_at_their_first_message(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", lanes=1)
    of = reader(store, subscribe=None, subscribePattern="or.*|late")
    start = of.initialOffset()
    store.lane(4).append("orders", b"in a new lane")
    store.lane(0).append("late", b"of a new topic")
    store.publish()
    end = through_json(of.latestOffset(start, ALL))
    assert end["@from"]["orders"] == {"0": 100, "4": 0}
    expected = rows(of, start, end)
    assert [row[2] for row in expected] == [b"of a new topic", b"in a new lane"]
    again = reader(store, subscribe=None, subscribePattern="or.*|late")
    assert rows(again, start, end) == expected
    store.lane(4).append("orders", b"more")
    store.publish()
    assert "4" not in again.latestOffset(end, ALL)["@from"]["orders"]
    of.stop()
    again.stop()


def test_what_is_not_dispatched_is_walked(tmp_path: Path) -> None:
    """And what is not flushed is not there."""
    store = HandMadeStore(tmp_path / "store", 1 << 12)
    lane = store.lane(0)
    for row in range(90):
        lane.append("orders" if row % 3 else "other", b"%d" % row)
    lane.dispatch(30)
    last = lane.records[-1]
    lane.publish(flushed=last.physical_offset + last.total_size - 1, is_drained=False)
    of = reader(store, startingOffsets="earliest")
    with pytest.warns(ReadingWarning, match="was not stopped properly: lane 0 has more"):
        start = of.initialOffset()
    end = of.latestOffset(start, ALL)
    assert end["orders"] == {"0": 59}
    assert rows(of, start, end) == store.rows("orders")[:59]
    lane.publish()
    found, end = run(of, end)
    assert found == store.rows("orders")[59:]
    lane.dispatch()
    lane.publish()
    assert rows(of, start, end) == store.rows("orders")
    of.stop()


def test_available_now_ends_where_it_began(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", lanes=1)
    of = reader(store, startingOffsets="earliest", maxOffsetsPerTrigger=40, minOffsetsPerTrigger=40)
    start = of.initialOffset()
    of.prepareForTriggerAvailableNow()
    store.lane(0).append("orders", b"too late")
    store.lane(1).append("orders", b"in another lane")
    store.publish()
    found, _ = run(of, start, of.getDefaultReadLimit())
    assert found == store.rows("orders")[:100]
    of.stop()


def test_a_small_batch_waits_but_not_the_first_one(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", rows=5, lanes=1)
    of = reader(store, startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    end = of.latestOffset(of.initialOffset(), ALL)
    assert end["orders"] == {"0": 5}
    for row in range(10):
        store.lane(0).append("orders", b"x")
        store.publish()
        after = of.latestOffset(through_json(end), ALL)
        assert (after == end) == (row < 9)
    of.stop()
    hasty = reader(store, minOffsetsPerTrigger=10, maxTriggerDelay="0ms")
    first = hasty.latestOffset(hasty.initialOffset(), ALL)
    store.lane(0).append("orders", b"x")
    store.publish()
    assert hasty.latestOffset(first, ALL) != first
    hasty.stop()


def test_retention_past_the_reader(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", lanes=1)
    of = reader(store, startingOffsets="earliest")
    start = of.initialOffset()
    store.lane(0).forget_before(2)
    kept = [row for row in store.rows("orders") if store.lane(0).records[2 * row[1]].physical_offset >= 2 << 13]
    end = of.latestOffset(start, ALL)
    message = rf"topic orders, lane 0: offset 0 .* is {kept[0][1]}; {kept[0][1]} messages .*failOnDataLoss=false"
    with pytest.raises(DataLoss, match=message):
        of.partitions(start, end)
    of.stop()
    careless = reader(store, startingOffsets="earliest", failOnDataLoss="false")
    assert rows(careless, start, end) == kept
    careless.stop()


@pytest.mark.parametrize("pattern", [False, True])
def test_retention_before_a_new_lane_was_seen(tmp_path: Path, pattern: bool) -> None:
    """While the query was down, a lane appeared and lost its first messages.

    That is loss, and not the place where the lane begins.
    """
    chosen = {"subscribe": None, "subscribePattern": "ord.*"} if pattern else {}
    store = small_store(tmp_path / "store", lanes=1)
    of = reader(store, **chosen)
    start = through_json(of.latestOffset(of.initialOffset(), ALL))
    of.stop()
    for row in range(200):
        store.lane(1).append("orders", b"%d" % row)
    store.publish()
    store.lane(1).forget_before(1)
    of = reader(store, **chosen)
    end = of.latestOffset(start, ALL)
    with pytest.raises(DataLoss, match=r"topic orders, lane 1: offset 0 was to be read and the first one kept is \d+"):
        of.partitions(start, end)
    of.stop()
    careless = reader(store, failOnDataLoss="false", **chosen)
    kept = [r for r in store.lane(1).records if r.physical_offset >= 1 << 13]
    assert [row[1] for row in rows(careless, start, end)] == [r.queue_offset for r in kept]
    assert careless.latestOffset(through_json(end), ALL) == end
    careless.stop()


def test_a_new_lane_of_which_nothing_is_left(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", lanes=1)
    of = reader(store)
    start = through_json(of.latestOffset(of.initialOffset(), ALL))
    store.lane(1).append("orders", b"gone")
    for _ in range(200):
        store.lane(1).append("other", b"kept")
    store.publish()
    store.lane(1).forget_before(1)
    end = of.latestOffset(start, ALL)
    with pytest.raises(DataLoss, match="lane 1: offset 0 was to be read and the first one kept is 1; 1 messages"):
        of.partitions(start, end)
    of.stop()


def test_no_false_alarm(tmp_path: Path) -> None:
    """There is no loss if retention removed what was read, or what was never asked for.

    The latter is the start of a topic that is only now subscribed to, or a lane without messages of
    the topic.
    """
    store = small_store(tmp_path / "store", lanes=1)
    of = reader(store, startingOffsets="earliest")
    end = through_json(of.latestOffset(of.initialOffset(), ALL))
    of.stop()
    store.lane(0).forget_before(1)
    store.lane(2).append("other", b"in a lane of its own")
    store.publish()
    store.lane(0).publish(first=1 << 13)
    both = reader(store, subscribe="orders,other")
    kept = [r for r in store.lane(0).records if r.topic == "other" and r.physical_offset >= 1 << 13]
    found, last = run(both, end)
    assert [row[1] for row in found] == [*(r.queue_offset for r in kept), 0]
    assert last["orders"] == {"0": 100}
    both.stop()


def test_a_lane_that_is_gone(tmp_path: Path) -> None:
    """Nothing of ours removes one; what it still had is lost."""
    store = small_store(tmp_path / "store")
    of = reader(store, startingOffsets="earliest")
    end = through_json(of.latestOffset(of.initialOffset(), ALL))
    of.stop()
    shutil.rmtree(store.directory.lane_directory(1).path)
    of = reader(store)
    with pytest.raises(DataLoss, match="topic orders, lane 1: not in the store any more"):
        of.latestOffset(end, ALL)
    of.stop()
    careless = reader(store, failOnDataLoss="false")
    assert careless.latestOffset(end, ALL) == end
    careless.stop()


def test_another_store_under_the_checkpoint(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", lanes=1)
    of = reader(store, startingOffsets="earliest")
    end = of.latestOffset(of.initialOffset(), ALL)
    of.stop()
    again = small_store(tmp_path / "again", lanes=1)
    of = reader(again)
    for ask in (lambda: of.latestOffset(end, ALL), lambda: of.partitions(end, end)):
        with pytest.raises(DataLoss, match="another store"):
            ask()
    of.stop()


def test_a_start_beyond_the_end(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", lanes=1)
    of = reader(store)
    with pytest.raises(OffsetOutOfRange, match="offset 101 is beyond the store's end, 100"):
        of.latestOffset({"@store": store.id, "orders": {"0": 101}}, ALL)
    of.stop()
    of = reader(store, startingOffsets='{"orders": {"0": 101}}')
    with pytest.raises(OffsetOutOfRange, match="option startingOffsets: offset 101"):
        of.initialOffset()
    of.stop()


@pytest.mark.parametrize(
    "offset", [{}, {"@store": "x", "orders": 3}, {"@store": "x", "orders": {"a": 3}}, {"a": {"0": -1}}]
)
def test_an_offset_that_is_none(tmp_path: Path, offset: Json) -> None:
    of = reader(small_store(tmp_path / "store", lanes=1))
    with pytest.raises(OptionError, match="checkpoint"):
        of.latestOffset(offset, ALL)
    of.stop()


def test_a_stream_waits_for_its_topic(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store")
    of = reader(store)
    start = of.initialOffset()
    assert start == {"@store": store.id, "orders": {}}
    assert of.latestOffset(start, ALL) == start
    store.lane(0).append("orders", b"first")
    store.publish()
    assert [row[2] for row in run(of, start)[0]] == [b"first"]
    of.stop()


def test_streams_have_no_end_and_read_flushed_data(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", lanes=1)
    for options in ({"endingOffsets": "latest"}, {"endingTimestamp": 5}, {"isolation": "committed"}):
        with pytest.raises(CommitLogError, match=f"option {next(iter(options))}"):
            reader(store, **options)
