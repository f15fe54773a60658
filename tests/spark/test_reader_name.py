"""Option readerName: the position that a stream keeps in the store.

Also who may have the name, and what a crash leaves.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from commitlog.disk.file_channel import FileChannel
from commitlog.errors import OptionError, ReaderError, ReaderInUse
from commitlog.planning import reader_name
from commitlog.reading.named_reader import PYTHON, NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.spark.source import CommitLogDataSource, StreamReader
from commitlog.stages.allocating.reader_needs import ReaderNeeds
from tests.builders.hand_made import HandMadeStore
from tests.nightly import by_all_readers_nightly
from tests.served import place_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = ReadAllAvailable()
Json = dict[str, Any]
pytestmark = pytest.mark.usefixtures("look_each_time", "little_patience")


def source(store: HandMadeStore, **options: object) -> CommitLogDataSource:
    given = {"path": place_of(store.path), "subscribe": "orders", "readerName": "billing"} | options
    return CommitLogDataSource({name.lower(): str(value) for name, value in given.items() if value is not None})


def stream(store: HandMadeStore, **options: object) -> StreamReader:
    made = source(store, **{"startingOffsets": "earliest"} | options)
    return made.streamReader(made.schema())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each position is written, not one a second."""
    monkeypatch.setattr(reader_name, "WRITE_EVERY_NS", 0)


def position(store: HandMadeStore) -> dict[str, dict[int, int]]:
    return {topic: dict(lanes) for topic, lanes in NamedReaders(store.directory).load("billing").offsets.items()}


def test_only_a_stream_has_one(store: HandMadeStore) -> None:
    made = source(store)
    with pytest.raises(OptionError, match="option readerName: a batch has no position"):
        made.reader(made.schema())
    with pytest.raises(OptionError, match=r"option readerName: '\.\./x' is not a reader's name"):
        source(store, readerName="../x")


def test_the_position_is_what_spark_says_is_done(store: HandMadeStore, at_once: None) -> None:
    """The name is registered from the first look on, before anything is read.

    An end that was only planned does not count.
    """
    of = stream(store, maxOffsetsPerTrigger=30)
    start = of.initialOffset()
    end = of.latestOffset(start, of.getDefaultReadLimit())
    assert position(store) == {"orders": {0: 0, 1: 0}}
    of.partitions(start, end)
    assert position(store) == {"orders": {0: 0, 1: 0}}
    of.latestOffset(end, of.getDefaultReadLimit())
    assert position(store) == {"orders": {0: 15, 1: 15}}
    of.stop()


def test_retention_keeps_what_is_not_done(store: HandMadeStore, at_once: None) -> None:
    """Rows are kept from the query's first look on until a batch is done.

    If the batch fails, its rows are needed once more.
    """
    needs = ReaderNeeds(store.directory, store.id)

    def holders() -> list[str | None]:
        needs.refresh()
        return [needs.holder(lane, 1 << 13) for lane in (0, 1)]

    of = stream(store)
    start = of.initialOffset()
    assert holders() == [None, None]
    end = of.latestOffset(start, ALL)
    of.partitions(start, end)
    of.commit(end)
    assert holders() == ["billing", "billing"]
    of.latestOffset(end, ALL)
    assert holders() == [None, None]
    of.stop()


def test_a_new_checkpoint_moves_it_back(store: HandMadeStore, at_once: None) -> None:
    """What the query will read is what has to be kept."""
    of = stream(store, startingOffsets="latest")
    of.latestOffset(of.initialOffset(), ALL)
    assert position(store) == {"orders": {0: 100, 1: 100}}
    of.stop()
    of = stream(store)
    of.latestOffset(of.initialOffset(), ALL)
    assert position(store) == {"orders": {0: 0, 1: 0}}
    of.stop()


def test_it_is_written_once_a_second_and_at_the_stop(store: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at all while nothing moves."""
    writes = []
    monkeypatch.setattr(NamedReaders, "save", lambda self, reader: writes.append(reader.offsets))
    monkeypatch.setattr(reader_name, "WRITE_EVERY_NS", 1 << 62)
    of = stream(store, maxOffsetsPerTrigger=2)
    start = of.initialOffset()
    for _ in range(5):
        start = of.latestOffset(start, of.getDefaultReadLimit())
    assert writes == [{"orders": {0: 0, 1: 0}}]
    monkeypatch.setattr(reader_name, "WRITE_EVERY_NS", 0)
    start = of.latestOffset(start, ALL)
    for _ in range(100):
        assert of.latestOffset(start, ALL) == start
    assert writes[1:] == [{"orders": {0: 5, 1: 5}}, {"orders": {0: 100, 1: 100}}]
    monkeypatch.setattr(reader_name, "WRITE_EVERY_NS", 1 << 62)
    store.lane(0).append("orders", b"more")
    store.publish()
    of.latestOffset(of.latestOffset(start, ALL), ALL)
    assert len(writes) == 3
    of.stop()
    assert writes[3:] == [{"orders": {0: 101, 1: 100}}]


def test_available_now_leaves_its_end(store: HandMadeStore) -> None:
    """Spark ends it without a word, so the position is written when nothing is left."""
    of = stream(store)
    start = of.initialOffset()
    of.prepareForTriggerAvailableNow()
    end = of.latestOffset(start, ALL)
    assert of.latestOffset(end, ALL) == end
    assert position(store) == {"orders": {0: 100, 1: 100}}
    of.stop()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": "orders,later"}, {"orders": {0: 0, 1: 0}, "later": {}}),
        ({"subscribe": None, "assign": '{"orders": [1, 7]}'}, {"orders": {1: 0, 7: 0}}),
        ({"subscribe": None, "subscribePattern": "or.*"}, {"orders": {0: 0, 1: 0}}),
    ],
    ids=["a topic to come", "lanes", "a pattern"],
)
def test_what_is_to_come_is_needed_too(store: HandMadeStore, options: dict[str, Any], expected: object) -> None:
    of = stream(store, **options)
    of.latestOffset(of.initialOffset(), ALL)
    reader = NamedReaders(store.directory).load("billing")
    assert reader.offsets == expected
    assert reader.all_lanes == ("assign" not in options)
    assert reader.pattern == options.get("subscribePattern")
    of.stop()


def test_topics_that_do_not_match_are_written_as_passed_over(store: HandMadeStore, at_once: None) -> None:
    """Retention matches no patterns: it keeps every topic that the query has not passed over.

    A topic that appears later is noted at the next look.
    """
    of = stream(store, subscribe=None, subscribePattern="or.*")
    start = of.initialOffset()
    of.latestOffset(start, ALL)
    assert NamedReaders(store.directory).load("billing").passed_over == {"other"}
    store.lane(0).append("ordinary", b"x")
    store.lane(0).append("others", b"x")
    store.publish()
    needs = ReaderNeeds(store.directory, store.id)
    needs.refresh()
    assert needs.holder(0, store.lane(0).end) == "billing"
    of.latestOffset(of.latestOffset(start, ALL), ALL)
    reader = NamedReaders(store.directory).load("billing")
    assert reader.passed_over == {"other", "others"}
    assert reader.offsets == {"orders": {0: 100, 1: 100}, "ordinary": {0: 1}}
    needs.refresh()
    assert needs.holder(0, store.lane(0).end) is None
    of.stop()


def test_a_name_of_pythons_is_no_querys(store: HandMadeStore) -> None:
    """The query would overwrite the only place that has that reader's position.

    The name is free again afterwards.
    """
    readers = NamedReaders(store.directory)
    readers.save(NamedReader("billing", store.id, {"orders": {0: 42}}, 1, kind=PYTHON))
    of = stream(store)
    with pytest.raises(ReaderError, match=r"reader billing is one of Python's .* choose another name"):
        of.initialOffset()
    assert position(store) == {"orders": {0: 42}}
    assert not readers.is_held("billing")


def test_a_second_live_query_of_the_name_fails(store: HandMadeStore) -> None:
    """The first call fails, whichever it is. A reader for planning or in a task takes no name."""
    of = stream(store)
    start = of.initialOffset()
    second = pickle.loads(pickle.dumps(stream(store)))
    for first_call in (
        second.initialOffset,
        lambda: second.partitions(start, start),
        lambda: second.latestOffset(start, ALL),
    ):
        with pytest.raises(ReaderInUse, match=f"reader billing is in use by process {os.getpid()}"):
            first_call()
    of.stop()
    second.initialOffset()
    second.stop()


def test_of_two_queries_without_a_lock_file_one_hears_of_it(store: HandMadeStore) -> None:
    """Nothing more is kept for it: retention would delete what it has not read."""
    first, second = stream(store), stream(store)
    start = first.initialOffset()
    (store.directory.readers_directory / "billing.lock").unlink()
    second.initialOffset()
    with pytest.raises(ReaderInUse, match=r"somebody has removed .*billing\.lock, and process"):
        first.latestOffset(first.latestOffset(start, ALL), ALL)
    first.stop()
    second.stop()


def test_the_kernel_frees_the_name_of_a_killed_process(store: HandMadeStore) -> None:
    code = """
import sys, time
from commitlog.reading.named_readers import NamedReaders
from commitlog.disk.store_directory import StoreDirectory
held = NamedReaders(StoreDirectory(sys.argv[1])).hold("billing")
print("held", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(store.path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        of = stream(store)
        with pytest.raises(ReaderInUse, match=f"process {process.pid}"):
            of.initialOffset()
        process.kill()
        process.wait(60)
        of.initialOffset()
        of.stop()
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()


def test_no_store_no_name(tmp_path: Path) -> None:
    """Nothing is made where no store is."""
    made = CommitLogDataSource({"path": str(tmp_path / "none"), "subscribe": "orders", "readername": "billing"})
    of = made.streamReader(made.schema())
    with pytest.raises(Exception, match="there is no store here"):
        of.initialOffset()
    assert not (tmp_path / "none").exists()


def test_a_disk_that_does_not_take_the_position(
    store: HandMadeStore, at_once: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first must be there; a later one is tried again, and said once: nothing is lost by it."""

    def full(self: FileChannel, path: object, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(FileChannel, "replace_file", full)
        of = stream(store, maxOffsetsPerTrigger=30)
        start = of.initialOffset()
        with pytest.raises(ReaderError, match=r"reader billing: its position can't be written .* No space left"):
            of.latestOffset(start, of.getDefaultReadLimit())
    end = of.latestOffset(start, of.getDefaultReadLimit())
    with monkeypatch.context() as patch:
        patch.setattr(FileChannel, "replace_file", full)
        for _ in range(3):
            end = of.latestOffset(end, of.getDefaultReadLimit())
    assert caplog.text.count("No space left") == 1
    assert position(store) == {"orders": {0: 0, 1: 0}}
    of.latestOffset(end, of.getDefaultReadLimit())
    assert position(store) == {
        topic: {int(n): at for n, at in lanes.items()} for topic, lanes in [("orders", end["orders"])]
    }
    of.stop()


@by_all_readers_nightly
@pytest.mark.usefixtures("both_ways")
def test_in_a_session(spark: SparkSession, store: HandMadeStore, tmp_path: Path) -> None:
    """The position follows a live query, which holds its name.

    A second query fails. The name of a stopped query is free at once.
    """

    def query(checkpoint: str) -> Any:
        reader = spark.readStream.format("commitlog").option("subscribe", "orders").option("readerName", "billing")
        frame = reader.option("startingOffsets", "earliest").load(place_of(store.path))
        return frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / checkpoint))

    first = query("first").start()
    try:
        wait_until(lambda: first.recentProgress and position(store) == {"orders": {0: 100, 1: 100}}, "the position")
        second = query("second").start()
        wait_until(lambda: not second.isActive, "the end of the second query")
        assert "ReaderInUse: reader billing is in use by" in str(second.exception())
    finally:
        first.stop()
    store.lane(0).append("orders", b"more")
    store.publish()
    for _ in range(2):
        query("first").trigger(availableNow=True).start().awaitTermination(100)
    assert position(store) == {"orders": {0: 101, 1: 100}}
