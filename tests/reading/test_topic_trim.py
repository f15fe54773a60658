"""Topics that are trimmed or deleted: whoever reads sees what retention would have left.

Nothing brings the messages back, and no offset names two messages.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.backups.store_backup import backup
from commitlog.client.reader import Reader
from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreFacts, new_store_id
from commitlog.disk.trim_marks import TrimMark, TrimMarks
from commitlog.errors import DamagedFile, DataLoss, ReaderError, UnknownTopic
from commitlog.inspecting.verify import verify_store
from commitlog.opening.recovery import recover_lane
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.reader_states import reader_states
from commitlog.reading.topic_facts import topic_facts
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.topic_trim import carry_out, parse_before, plan_deletion, plan_trim
from commitlog.reading.view import StoreView
from commitlog.stages.allocating.reader_needs import ReaderNeeds
from tests.builders.hand_made import BEGIN_MS, HandMadeStore
from tests.builders.killed import kill_store
from tests.builders.named_reader import billing, rest
from tests.builders.spark_source import run_stream as run
from tests.builders.spark_source import spark_source, spark_stream
from tests.nightly import with_nightly
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("look_each_time", "little_patience", "no_segments_mapped")


Given = list[tuple[str, int, int]]
"""Topic, lane, offset."""


def indexed(view: StoreView) -> TopicIndex:
    index = TopicIndex(view)
    index.refresh()
    return index


def trim(store: HandMadeStore, before: str, topic: str = "orders") -> int:
    with closing(StoreView(store.path)) as view:
        plan = plan_trim(indexed(view), topic, parse_before(topic, before))
        carry_out(view, plan)
    return plan.messages


def delete(store: HandMadeStore, topic: str = "orders") -> None:
    with closing(StoreView(store.path)) as view:
        carry_out(view, plan_deletion(indexed(view), topic))


def given(store: HandMadeStore, topic: str | None = "orders") -> Given:
    with Reader(store.path, topic) as reader:
        return sorted((message.topic, message.partition, message.offset) for message in reader)


def expected(first: int, topic: str = "orders", lanes: tuple[int, ...] = (0, 1), end: int = 100) -> Given:
    return [(topic, lane, offset) for lane in lanes for offset in range(first, end)]


def spark_rows(store: HandMadeStore, **options: object) -> list[tuple[int, int]]:
    asked = {"path": store.path, "subscribe": "orders", "columns": "partition,offset"} | options
    source = spark_source({name.lower(): str(value) for name, value in asked.items() if value is not None})
    reader = source.reader(source.schema())
    tables = (batch for task in reader.partitions() for batch in reader.read(task))
    return sorted((row["partition"], row["offset"]) for batch in tables for row in batch.to_pylist())


# ---- who reads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "first"),
    [
        ("42", 42),
        ("0", 0),
        ("last 3", 97),
        ("latest", 100),
        ("earliest", 0),
        ('{"0": 42, "1": 42}', 42),
        ('{"0": -1, "1": 100}', 100),
    ],
)
def test_everybody_begins_behind_the_mark(store: HandMadeStore, before: str, first: int) -> None:
    """Reader of one topic and of all, Spark's batch and stream, Arrow; other topics stay."""
    assert trim(store, before) == 2 * first
    assert given(store) == expected(first)
    assert given(store, None) == expected(first) + expected(0, "other")
    assert spark_rows(store) == [(lane, offset) for _, lane, offset in expected(first)]
    of = spark_stream(store, startingOffsets="earliest")
    assert [(lane, offset) for lane, offset, _ in run(of, of.initialOffset())[0]] == spark_rows(store)
    of.stop()
    assert sum(len(batch) for batch in commitlog.read_arrow(store.path, "orders")) == 2 * (100 - first)


def test_a_time_and_single_lanes(store: HandMadeStore) -> None:
    """Records of HandMadeStore are a second apart, and two topics take turns."""
    from datetime import UTC, datetime

    time = datetime.fromtimestamp(BEGIN_MS / 1000 + 50, UTC).isoformat()
    assert trim(store, time) == 50
    assert given(store) == expected(25)
    assert trim(store, '{"1": 60}') == 35
    assert given(store) == expected(25, lanes=(0,)) + expected(60, lanes=(1,))
    assert trim(store, "30") == 5, "a mark never goes down"
    assert given(store) == expected(30, lanes=(0,)) + expected(60, lanes=(1,))


def test_a_reader_that_runs(store: HandMadeStore) -> None:
    """It sees a trim when it looks again; behind the mark it goes on, below it is DataLoss."""
    with Reader(store.path, "orders", follow=True) as ahead, Reader(store.path, None, follow=True) as behind:
        assert sum(1 for _ in iter(ahead.poll, None)) == 200
        assert behind.poll() is not None
        trim(store, "90")
        store.lane(0).append("orders", b"new")
        store.publish()
        assert [message.value for message in iter(ahead.poll, None)] == [b"new"]
    with Reader(store.path, "orders", follow=True) as late:
        assert late.poll() is not None
        for _ in range(20):
            store.lane(0).append("orders", b"more")
        late._source.refresh()  # the reader has not come to these before they are trimmed
        store.publish()
        trim(store, "latest")
        late._source.refresh()
        with pytest.raises(DataLoss, match="topic orders, lane 0: the messages below offset 121 were trimmed"):
            list(iter(late.poll, None))


def test_streams_of_spark(store: HandMadeStore) -> None:
    """A query that is below the mark has lost messages, with retention's words; others go on."""
    of = spark_stream(store, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    start = of.initialOffset()
    done = of.latestOffset(start, of.getDefaultReadLimit())
    trim(store, "50")
    with pytest.raises(DataLoss, match="offset 0 was to be read and the first one kept is 50"):
        of.partitions(start, done)
    end = of.latestOffset(done, of.getDefaultReadLimit())
    with pytest.raises(DataLoss, match="offset 10 was to be read"):
        of.partitions(done, end)
    of.stop()
    of = spark_stream(store, startingOffsets="earliest", failOnDataLoss="false")
    assert len(run(of, done)[0]) == 100
    of.stop()


@pytest.mark.parametrize("subscribed", [{"subscribe": "orders"}, {"subscribe": None, "subscribePattern": "or.*"}])
def test_a_stream_outlives_a_deletion(store: HandMadeStore, subscribed: dict[str, str]) -> None:
    """Where it has read all, nothing is lost, and what is sent later comes."""
    of = spark_stream(store, startingOffsets="earliest", **subscribed)
    _, end = run(of, of.initialOffset())
    delete(store)
    assert run(of, end) == ([], end)
    store.lane(1).append("orders", b"new")
    store.publish()
    assert run(of, end)[0] == [(1, 100, b"new")]
    of.stop()


@pytest.mark.parametrize("limit", [None, 20])
def test_a_stream_that_subscribes_to_a_trimmed_topic(store: HandMadeStore, limit: int | None) -> None:
    """It begins with what is kept, also in a lane that has nothing, or that a batch leaves out."""
    of = spark_stream(store, subscribe="other", startingOffsets="earliest")
    _, end = run(of, of.initialOffset())
    of.stop()
    trim(store, '{"0": 100, "1": 90}')
    of = spark_stream(store, subscribe="other,orders", maxOffsetsPerTrigger=limit and 1)
    found, _ = run(of, end, of.getDefaultReadLimit())
    assert [row[:2] for row in found] == [(1, offset) for offset in range(90, 100)]
    of.stop()


def test_json_offsets_name_no_deleted_topic(store: HandMadeStore) -> None:
    delete(store, "other")
    offsets = '{"orders": {"0": 98, "1": 99}}'
    assert spark_rows(store, subscribe=None, subscribePattern="o.*", startingOffsets=offsets) == [
        (0, 98),
        (0, 99),
        (1, 99),
    ]


def test_named_readers(store: HandMadeStore) -> None:
    """Lag counts what is left; a reader below the mark is told; it keeps no trimmed messages."""
    with billing(store) as reader:
        for _ in range(20):
            next(reader)
        reader.commit()
    needs = ReaderNeeds(store.directory, store.id)
    needs.refresh()
    assert needs.holder(0, store.lane(0).end // 2) == "billing"
    trim(store, "90")
    needs.refresh()
    assert needs.holder(0, store.lane(0).end // 2) is None
    with closing(StoreView(store.path)) as view:
        (state,) = reader_states(indexed(view))
        assert state.lag == {"orders": {0: 10, 1: 10}}
    with pytest.raises(DataLoss, match="reader billing: 160 messages were deleted before it read them"):
        rest(store)


def test_a_named_reader_outlives_a_deletion(store: HandMadeStore) -> None:
    with billing(store, topic=None) as reader:
        list(reader)
        reader.commit()
    delete(store)
    store.lane(0).append("orders", b"new")
    store.publish()
    assert rest(store, topic=None) == [("orders", 0, 100)]


# ---- deletion ----------------------------------------------------------------------------------


def test_a_deleted_topic_is_unknown_until_messages_come(store: HandMadeStore) -> None:
    """Its offsets go on. A topic that is trimmed to its end stays."""
    trim(store, "latest", "other")
    delete(store)
    with closing(StoreView(store.path)) as view:
        index = indexed(view)
        assert index.topics() == ["other"]
        assert index.topics(deleted=True) == ["orders", "other"]
        with pytest.raises(UnknownTopic, match=r"no topic orders; there are: other"):
            Reader(store.path, "orders")
        with pytest.raises(UnknownTopic, match="no topic orders; there are: other"):
            spark_rows(store)
        store.lane(0).append("orders", b"new")
        store.publish()
        assert index.refresh()
        assert index.topics() == ["orders", "other"]
    assert given(store) == [("orders", 0, 100)]
    trim(store, "latest")
    with closing(StoreView(store.path)) as view:
        assert indexed(view).topics() == ["orders", "other"], "trimmed, and not deleted again"


def test_offsets_go_on_in_a_running_store(tmp_path: Path) -> None:
    """A producer sees nothing of a deletion; a start and a recovery bring nothing back."""
    path = tmp_path / "store"
    with commitlog.Store.open(path) as store, store.producer() as producer:
        producer.send_batch("orders", [b"a", b"b", b"c"])
        producer.flush()
        with closing(StoreView(path)) as view:
            carry_out(view, plan_deletion(indexed(view), "orders"))
        assert producer.send("orders", b"d").offset == 3
        producer.flush()
    shutil.rmtree(path / "lanes/0/consumequeue")
    with commitlog.Store.open(path) as store, store.producer() as producer:
        assert producer.send("orders", b"e").offset == 4
        producer.flush()
        assert [message.value for message in Reader(path, "orders")] == [b"d", b"e"]
    copy = shutil.copytree(path, tmp_path / "copy")
    assert [message.value for message in Reader(copy)] == [b"d", b"e"]


GONE: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": 1 << 16, "max_lanes": 1},
    "flusher": {"positions_interval_ms": 50},
    "retention": {"max_bytes": 1 << 18, "interval_ms": 50},
}


def delete_orders_for_good(path: Path) -> int:
    """Deletes the 10 messages of a topic in a running store, and has retention take their segment.

    Returns how many messages another topic has.
    """
    with commitlog.Producer(path) as producer:
        producer.send_batch("orders", [b"old"] * 10)
        producer.flush()
        with closing(StoreView(path)) as view:
            carry_out(view, plan_deletion(indexed(view), "orders"))
        for _ in range(60):
            producer.send("other", bytes(10_000))
        producer.flush()
        wait_until(lambda: not (path / "lanes/0/commitlog" / "0".zfill(20)).exists(), "retention")
        last = producer.last("other")
        assert last is not None
        return last.offset + 1


def is_dispatched(store: commitlog.Store) -> bool:
    (lane,) = store.statistics().lanes
    return lane.dispatched == lane.wrote


def check_goes_on(path: Path, others: int, number: int) -> None:
    """Opens the store, sends a message of each topic, sees it before and after it is indexed."""
    expected = [(10 + sent, b"%d" % sent) for sent in range(number + 1)]
    with commitlog.Store.open(path, GONE) as store, store.producer() as producer:
        assert producer.send("orders", b"%d" % number).offset == 10 + number
        assert producer.send("other", b"").offset == others + number
        producer.flush()
        assert [(message.offset, message.value) for message in Reader(path, "orders")] == expected
        wait_until(lambda: is_dispatched(store), "the index")
        assert [(message.offset, message.value) for message in Reader(path, "orders")] == expected
    assert [(message.offset, message.value) for message in Reader(path, "orders")] == expected
    assert verify_store(path).good


@pytest.mark.filterwarnings("error::commitlog.errors.ReadingWarning")
@pytest.mark.parametrize("removed", with_nightly(["after a kill"], ["after a stop", "under the store"]))
@pytest.mark.leaves_pools
def test_offsets_go_on_where_only_the_mark_tells(tmp_path: Path, removed: str) -> None:
    """No message is left and the consume queues are lost. New messages are behind the mark."""
    path = tmp_path / "store"
    store = commitlog.Store.open(path, GONE)
    others = delete_orders_for_good(path)
    if removed == "after a kill":
        kill_store(store)
    elif removed == "after a stop":
        store.close()
    shutil.rmtree(path / "lanes/0/consumequeue")
    if removed == "under the store":
        wait_until(lambda: (path / "lanes/0/consumequeue/other").exists() and is_dispatched(store), "the other queue")
        store.close()
    for number in range(3):
        check_goes_on(path, others, number)


@pytest.mark.nightly
@pytest.mark.filterwarnings("error::commitlog.errors.ReadingWarning")
def test_a_backup_goes_on_where_only_the_mark_tells(tmp_path: Path) -> None:
    """It is made while the mark alone tells, and takes the store's place."""
    path, copy = tmp_path / "store", tmp_path / "backup"
    with commitlog.Store.open(path, GONE):
        others = delete_orders_for_good(path)
    shutil.rmtree(path / "lanes/0/consumequeue")
    backup(path, copy)
    check_goes_on(copy, others, 0)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*left out:commitlog.errors.ReadingWarning")
def test_a_log_that_is_older_than_its_marks(tmp_path: Path) -> None:
    """Somebody has put older files back. The marks end where the log does, and hide nothing new."""
    path, older = tmp_path / "store", tmp_path / "older"
    with commitlog.Store.open(path) as store, store.producer() as producer:
        producer.send_batch("orders", [b"a", b"b", b"c"])
        producer.flush()
    shutil.copytree(path / "lanes/0", older)
    with commitlog.Store.open(path) as store, store.producer() as producer:
        producer.send_batch("orders", [b"d", b"e", b"f"])
        producer.flush()
        with closing(StoreView(path)) as view:
            carry_out(view, plan_trim(indexed(view), "orders", parse_before("orders", "5")))
    shutil.copy(path / "lanes/0/trimmed.json", older)
    shutil.rmtree(path / "lanes/0")
    shutil.copytree(older, path / "lanes/0")
    for number in range(2):
        with commitlog.Store.open(path) as store, store.producer() as producer:
            assert producer.send("orders", b"new").offset == 3 + number
            producer.flush()
            with Reader(path, "orders", ignore_corrupt=True) as reader:  # what the files lack is noted as damage
                assert [message.offset for message in reader] == [3, 4][: number + 1]
    said = (path / "logs/supervisor.log").read_text()
    assert said.count("topic orders was trimmed before offset 5, and ends at 3") == 1


# ---- what the files may be ---------------------------------------------------------------------


def test_recovery_brings_nothing_back(store: HandMadeStore) -> None:
    """Neither with consume queues that are built anew, nor with none; verify has no complaint."""
    trim(store, "60")
    assert verify_store(store.path).good
    for lane in store.lanes.values():
        directory = store.directory.lane_directory(lane.number)
        PositionsFile(directory, store.id, DISK).store(Positions(2, lane.end, 0, 0, 0, False))
        shutil.rmtree(directory.consumequeue)
    assert given(store) == expected(60)
    for lane in store.lanes.values():
        directory = store.directory.lane_directory(lane.number)
        end = recover_lane(directory, store.segment_bytes, DISK, lambda line: None, queue_file_bytes=20_000)
        PositionsFile(directory, store.id, DISK).store(Positions(3, end.end, end.end, 0, 0, True))
    assert given(store) == expected(60)


def test_entries_that_are_not_placed_yet(tmp_path: Path) -> None:
    """The mark lies behind the indexed part: readers walk, and give out what is behind it."""
    store = HandMadeStore(tmp_path / "store")
    for row in range(30):
        store.lane(0).append("orders", b"%d" % row)
        if row == 9:
            store.lane(0).dispatch()
    store.lane(0).publish()
    assert trim(store, "20") == 20
    assert given(store) == expected(20, lanes=(0,), end=30)
    assert spark_rows(store) == [(0, offset) for offset in range(20, 30)]
    with closing(StoreView(store.path)) as view:
        facts = topic_facts(indexed(view), "orders", BEGIN_MS + 29_000)
    kept = store.lane(0).records[20:]
    assert (facts.messages, facts.bytes) == (10, sum(record.total_size for record in kept))
    assert (facts.first_timestamp, facts.last_timestamp) == (kept[0].store_timestamp, kept[-1].store_timestamp)
    assert facts.messages_per_second == 10 / 60


def test_a_mark_beyond_the_recorded_end(store: HandMadeStore) -> None:
    """After power loss `positions` are older than the log: nothing trimmed shows."""
    trim(store, "90")
    upto = store.lane(0).records[100].physical_offset
    store.lane(0).publish(flushed=upto)
    with Reader(store.path, "orders", follow=True, lanes={0}) as reader:
        assert reader.poll() is None
        store.lane(0).publish()
        assert [next(reader).offset for _ in range(10)] == list(range(90, 100))


def test_files_that_are_not_ours(store: HandMadeStore) -> None:
    """Nonsense is an error with a way out. A file of another store or lane does not count."""
    trim(store, "90")
    file = store.directory.lane_directory(0).trimmed_file
    good = file.read_bytes()
    file.write_bytes(good.partition(b',"crc32"')[0] + b"}")
    assert given(store) == expected(90)  # as an older package has written it
    for bad in (b"", b"{", b"[]", b"{}", good.replace(b":90", b":-1"), good.replace(b":90", b":true"), b"9" * 5000):
        file.write_bytes(bad)
        with pytest.raises(DamagedFile, match=r"trimmed\.json: does not say what was trimmed .*put it back, or remove"):
            given(store)
        needs = ReaderNeeds(store.directory, store.id)
        needs.refresh()
    shutil.copy(store.directory.lane_directory(1).trimmed_file, file)
    assert given(store) == expected(0, lanes=(0,)) + expected(90, lanes=(1,))
    file.write_bytes(good)
    store.directory.save(StoreFacts(new_store_id(), store.segment_bytes))
    with closing(StoreView(store.path)) as view:
        marks = TrimMarks(view.lane_directory(0), DISK)
        marks.refresh(view.store_id)
        assert marks.marks == {}


@pytest.mark.nightly
def test_more_marks_than_can_be_read_are_refused(store: HandMadeStore) -> None:
    """The marks stay as they were, and can be read."""
    marks = TrimMarks(store.directory.lane_directory(0), DISK)
    many = {f"a topic with a name of usual length {number}": TrimMark(1, deleted=True) for number in range(70_000)}
    with pytest.raises(ReaderError, match=r"70,000 trimmed .* may have 4,194,304: leave topics"):
        marks.raise_to(store.id, many)
    marks.raise_to(store.id, dict(list(many.items())[:40_000]))
    with pytest.raises(ReaderError, match="trimmed or deleted topics"):
        marks.raise_to(store.id, many)
    assert given(store) == expected(0)
    assert len(indexed(StoreView(store.path)).lanes[0].trims) == 40_000


def test_marks_are_kept_for_readers_of_all_topics(store: HandMadeStore) -> None:
    """A mark of a topic that has no message in a lane harms nobody."""
    marks = TrimMarks(store.directory.lane_directory(0), DISK)
    marks.raise_to(store.id, {"later": TrimMark(5, deleted=True)})
    assert given(store, None) == expected(0) + expected(0, "other")
    assert NamedReaders(store.directory).names() == []
