"""Streams that Spark's JVM reads, and Python plans: beside the Python source, and over any kill."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import commitlog.spark
from tests.builders.hand_made import small_store
from tests.crash.scene import pid_of
from tests.spark.jvm_frames import BY_JVM, BY_PYTHON, children, failure, harm, store_of_one_lane
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLANNER = "planner"


class Sink:
    """A foreachBatch that remembers each batch by its id, and may do something in a batch."""

    def __init__(self, act: Callable[[int], object] = lambda batch: None) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.act = act

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = [bytes(row.value) for row in frame.select("value").collect()]
        self.act(batch)

    @property
    def values(self) -> list[bytes]:
        return sorted(value for values in self.batches.values() for value in values)


def frame(spark: SparkSession, store: Path, **options: object) -> DataFrame:
    reader = spark.readStream.format("commitlog")
    for name, value in ({"subscribe": "orders", "startingOffsets": "earliest"} | options).items():
        reader = reader.option(name, str(value))
    return reader.load(str(store))


def writer(spark: SparkSession, store: Path, checkpoint: Path, sink: Sink, **options: object) -> Any:
    made = frame(spark, store, **options).writeStream.foreachBatch(sink)
    return made.option("checkpointLocation", str(checkpoint))


def drain(spark: SparkSession, store: Path, checkpoint: Path, sink: Sink, **options: object) -> Any:
    """Reads all that there is. The query has ended then."""
    query = writer(spark, store, checkpoint, sink, **options).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@contextmanager
def running(query: Any) -> Iterator[Any]:
    """The query, which has not failed when it is stopped."""
    try:
        yield query
        assert query.exception() is None
    finally:
        query.stop()


@contextmanager
def live_store(path: Path) -> Iterator[tuple[commitlog.Store, Callable[[int], None]]]:
    """A store that runs, and a function that sends that many more messages and has them flushed."""
    with commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 16}}) as store, store.producer() as producer:
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            for number in range(sent, sent + count):
                producer.send("orders", b"%05d" % number)
            sent += count
            producer.flush(timeout=30)

        yield store, send


def numbered(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


def kill_planners(spark: SparkSession) -> None:
    """Kills the planners of all queries, and the one of the driver."""
    for pid in children(spark, PLANNER):
        os.kill(pid, signal.SIGKILL)


def plan_of(query: Any) -> str:
    return str(query._jsq.explainInternal(False))


def offsets(checkpoint: Path) -> list[str]:
    """The offsets of all batches, as they stand in the checkpoint."""
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return [file.read_text().splitlines()[-1] for file in files]


@pytest.mark.nightly
def test_a_checkpoint_goes_from_one_source_to_the_other(spark: SparkSession, tmp_path: Path) -> None:
    """Also in the middle of a batch. Both write the same offsets, letter by letter."""
    store = small_store(tmp_path / "store")
    mixed, of_python = tmp_path / "mixed", tmp_path / "python"
    sink, other = Sink(), Sink()
    for reader in ("any", "python", "any"):
        query = drain(spark, store.path, mixed, sink, reader=reader, maxOffsetsPerTrigger=70)
        drain(spark, store.path, of_python, other, reader="python", maxOffsetsPerTrigger=70)
        assert sink.batches == other.batches
        last = max(sink.batches)
        for file in (mixed / "commits").glob(f"*{last}*"):  # as if the driver had died before the batch was done
            file.unlink()
        for lane in (0, 3):
            for row in range(30):
                store.lane(lane).append("orders", b"new %d" % row)
        store.publish()
    assert offsets(mixed) == offsets(of_python)
    assert len(sink.values) == len(store.rows("orders")) - 60
    assert query.lastProgress["sources"][0]["description"] == BY_JVM


@pytest.mark.nightly  # daily a progress says that the JVM reads, and test_jvm_source.py who reads a batch
def test_explain_says_who_reads_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """And why, where it is Python."""
    store = small_store(tmp_path / "store", rows=10)
    for number, (options, said) in enumerate(
        [({}, BY_JVM), ({"reader": "python"}, BY_PYTHON.format("option reader=python"))]
    ):
        query = drain(spark, store.path, tmp_path / str(number), Sink(), **options)
        assert said in plan_of(query)


def test_progress_says_how_far_a_query_is_behind(spark: SparkSession, tmp_path: Path) -> None:
    """By the names of Kafka's source."""
    store = small_store(tmp_path / "store")
    query = drain(spark, store.path, tmp_path / "checkpoint", Sink(), maxOffsetsPerTrigger=150)
    metrics = [progress["sources"][0]["metrics"] for progress in query.recentProgress if progress["numInputRows"]]
    names = "minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest"
    assert [tuple(found[name] for name in names) for found in metrics] == [("25", "25", "25.0"), ("0", "0", "0.0")]
    assert commitlog.spark.lag(query.lastProgress) == {"orders": {0: 0, 1: 0}}


@pytest.mark.nightly
def test_what_is_not_good_is_read_by_python(spark: SparkSession, tmp_path: Path) -> None:
    """Damage ends a query by its name; with `ignoreCorruptRecords` the query goes on without it."""
    store = store_of_one_lane(tmp_path / "store")
    harm(store, 41, 2)
    sink = Sink()
    said = failure(lambda: drain(spark, store.path, tmp_path / "strict", Sink()))
    assert said.startswith("CorruptRecord: ")
    drain(spark, store.path, tmp_path / "checkpoint", sink, ignoreCorruptRecords=True)
    assert len(sink.values) == 159


def test_a_loss_ends_the_query_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """Retention was quicker than the query, and `failOnDataLoss=false` goes on."""
    store, sink = small_store(tmp_path / "store", lanes=1), Sink()
    store.lane(0).forget_before(2)
    kept = [
        value
        for _, offset, value in store.rows("orders")
        if store.lane(0).records[2 * offset].physical_offset >= 2 << 13
    ]
    options = {"startingOffsets": json.dumps({"orders": {"0": 0}})}
    said = failure(lambda: drain(spark, store.path, tmp_path / "strict", Sink(), **options))
    assert said.startswith("DataLoss: topic orders, lane 0: offset 0 was to be read and the first one kept is ")
    drain(spark, store.path, tmp_path / "checkpoint", sink, failOnDataLoss=False, **options)
    assert sink.values == sorted(kept)


def test_wrong_options_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """The words are those of the Python source: test_stream_reader.py has them all."""
    store = small_store(tmp_path / "store", rows=1)
    said = failure(lambda: drain(spark, store.path, tmp_path / "checkpoint", Sink(), endingOffsets="latest"))
    assert said.startswith("OptionError: option endingOffsets: a stream has no end; use it with spark.read")


def test_a_planner_that_is_killed_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Its query goes on with another one, which has the reader's name, and each row comes once."""

    def kill_in_the_first_two(batch: int) -> None:
        if batch < 2:
            kill_planners(spark)

    with live_store(tmp_path / "store") as (store, send):
        sink = Sink(kill_in_the_first_two)
        send(50)  # three batches
        query = writer(spark, store.path, tmp_path / "checkpoint", sink, maxOffsetsPerTrigger=20, readerName="billing")
        with running(query.start()):
            wait_until(lambda: sink.values == numbered(50), "the first messages")
            kill_planners(spark)
            send(50)
            wait_until(lambda: sink.values == numbered(100), "all messages, once")
        drain(spark, store.path, tmp_path / "checkpoint", sink, readerName="billing")  # the name is free at once
        assert sink.values == numbered(100)


@pytest.mark.nightly  # daily a planner is killed in a query that goes on
def test_the_end_of_available_now_outlives_its_planner(spark: SparkSession, tmp_path: Path) -> None:
    """A query ends where the store ended when the query began, also where its planner is killed."""
    with live_store(tmp_path / "store") as (store, send):

        def act(batch: int) -> None:
            kill_planners(spark)
            send(10)

        sink = Sink(act)
        send(50)
        drain(spark, store.path, tmp_path / "checkpoint", sink, maxOffsetsPerTrigger=20)
        sink.act = print  # Spark keeps the sink, and it must not keep the store
        assert sink.values == numbered(50)


@pytest.mark.nightly  # daily the whole store stops and starts under a stream
def test_stages_are_killed_under_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Exactly what is flushed comes, once. So it is over a stop and a start of the store."""
    with live_store(tmp_path / "store") as (store, send):
        sink = Sink()
        query = writer(spark, store.path, tmp_path / "checkpoint", sink).start()
        with running(query):
            for stage in ("committer", "flusher", "dispatcher", "allocator"):
                before = pid_of(store.path, stage)
                os.kill(before, signal.SIGKILL)
                send(25)
                wait_until(lambda: pid_of(store.path, stage) not in (0, before), stage)  # noqa: B023
            wait_until(lambda: sink.values == numbered(100), "all messages, once")


def test_an_idle_stream_follows_a_store_that_starts_again(spark: SparkSession, tmp_path: Path) -> None:
    """It looks at the words of the pool. Another start has another pool."""
    sink = Sink()
    with live_store(tmp_path / "store") as (store, send):
        send(10)
        query = writer(spark, store.path, tmp_path / "checkpoint", sink).start()
        wait_until(lambda: sink.values == numbered(10), "the first messages")
    with running(query), commitlog.Store.open(store.path) as again, again.producer() as producer:
        producer.send("orders", b"later")
        wait_until(lambda: sink.values == [*numbered(10), b"later"], "the last message")


def test_an_offset_that_is_no_json_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """As any offset of another source is: the planner answers, and does not die of it."""
    store, checkpoint = small_store(tmp_path / "store", rows=10).path, tmp_path / "checkpoint"
    drain(spark, store, checkpoint, Sink())
    file = checkpoint / "offsets" / "0"
    *lines, offset = file.read_text().splitlines()
    file.write_text("\n".join([*lines, offset[:-1]]))
    (checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    said = failure(lambda: drain(spark, store, checkpoint, Sink()))
    assert "OptionError: the checkpoint holds an offset that is none of this source (JSONDecodeError" in said


@pytest.mark.nightly
def test_a_planner_that_is_stopped_does_not_keep_its_query(spark: SparkSession, tmp_path: Path) -> None:
    """`stop` ends the query and the process, and the reader's name is free at once."""
    store, sink = small_store(tmp_path / "store", rows=10), Sink()
    loaded = writer(spark, store.path, tmp_path / "checkpoint", sink, readerName="billing")
    of_batches = children(spark, PLANNER)
    query = loaded.start()
    wait_until(lambda: len(sink.values) == 20, "all messages")
    for planner in children(spark, PLANNER) - of_batches:
        os.kill(planner, signal.SIGSTOP)
    query.stop()
    assert query.exception() is None
    drain(spark, store.path, tmp_path / "checkpoint", sink, readerName="billing")
    wait_until(lambda: children(spark, PLANNER) == of_batches, "only the planner of batches is left")
