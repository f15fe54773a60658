"""Streams in Real-Time Mode: rows come as messages do, each once, whatever happens to the store."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import commitlog.spark
from commitlog.errors import StageFailed
from commitlog.record.record_layout import HEAD_V4_BYTES, MAGIC_AT
from commitlog.spark.jvm_stream import PlannedStream
from commitlog.spark.source import CommitLogDataSource
from tests.crash.scene import await_stages_gone, halted_process, kill, pid_of
from tests.nightly import with_nightly
from tests.spark.jvm_frames import error_line
from tests.spark.test_foreach import end_processes
from tests.spark.test_jvm_stream import Sink, drain, frame, kill_planners, live_store, numbered, offsets, running
from tests.spark_session import jvm_pid
from tests.waiting import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SMALL = {"store": {"segment_bytes": 1 << 16, "max_lanes": 4}}


class Noting:
    """Appends the first column of each row to a file of its process, as text."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)

    def __call__(self, batch: pa.RecordBatch) -> None:
        with (self.directory / str(os.getpid())).open("a") as file:
            for value in batch.column(0).to_pylist():
                file.write(f"{value.decode() if isinstance(value, bytes) else value}\n")

    @property
    def values(self) -> list[str]:
        """What all processes have noted, sorted."""
        return sorted(line for file in self.directory.iterdir() for line in file.read_text().split())


@pytest.fixture(autouse=True)
def _short_batches(spark: SparkSession) -> Iterator[None]:
    """Lets a batch be shorter than Spark's least: rows could be lost at each end of one."""
    spark.conf.set("spark.sql.streaming.realTimeMode.minBatchDuration", "100ms")
    yield
    spark.conf.unset("spark.sql.streaming.realTimeMode.minBatchDuration")
    end_processes(spark)


def start(rows: DataFrame, noting: Noting, checkpoint: Path, batch: str = "5 minutes") -> Any:
    writer = commitlog.spark.foreach(rows, noting).option("checkpointLocation", str(checkpoint))
    in_real_time: Any = writer.outputMode("update").trigger
    return in_real_time(realTime=batch).start()


@contextmanager
def following(
    spark: SparkSession, path: Path, noting: Noting, batch: str = "5 minutes", **options: object
) -> Iterator[Any]:
    """A query that notes the values. It has not failed when it is stopped."""
    rows = frame(spark, path, **options).select("value")
    with running(start(rows, noting, path.parent / "checkpoint", batch)) as query:
        yield query


def texts(values: list[bytes]) -> list[str]:
    return [value.decode() for value in values]


def await_values(query: Any, noting: Noting, wanted: list[str]) -> None:
    """Waits for these values, each once."""

    def are_there() -> bool:
        assert query.exception() is None, str(query.exception())
        return len(noting.values) >= len(wanted)

    wait_until(are_there, f"{len(wanted)} values")
    assert noting.values == sorted(wanted)


def await_count(noting: Noting, count: int) -> None:
    wait_until(lambda: len(noting.values) >= count, f"{count} values")


def ended_batches(checkpoint: Path) -> int:
    return len(list((checkpoint / "commits").glob("[0-9]*")))


def await_ended_batch(checkpoint: Path) -> None:
    before = ended_batches(checkpoint)
    wait_until(lambda: ended_batches(checkpoint) > before, "the end of a batch")


@pytest.mark.nightly
def test_messages_come_while_a_batch_lasts(spark: SparkSession, tmp_path: Path) -> None:
    """The backlog first. No batch has ended by then."""
    noting = Noting(tmp_path / "noted")
    with live_store(tmp_path / "store") as (store, send):
        send(100)
        with following(spark, store.path, noting) as query:
            await_values(query, noting, texts(numbered(100)))
            for count in range(1, 6):
                send(1)
                await_values(query, noting, texts(numbered(100 + count)))
            assert ended_batches(tmp_path / "checkpoint") == 0


def test_each_row_comes_once_over_many_batches(spark: SparkSession, tmp_path: Path) -> None:
    noting, checkpoint = Noting(tmp_path / "noted"), tmp_path / "checkpoint"
    with live_store(tmp_path / "store") as (store, send):
        with following(spark, store.path, noting, "200 milliseconds") as query:
            sent = 0
            while ended_batches(checkpoint) < 4:
                assert query.exception() is None
                send(50)
                sent += 50
            await_values(query, noting, texts(numbered(sent)))
            await_ended_batch(checkpoint)
        assert len(noting.values) == sent


@pytest.mark.nightly
def test_a_checkpoint_goes_from_micro_batches_to_real_time_and_back(spark: SparkSession, tmp_path: Path) -> None:
    noting, checkpoint, sink = Noting(tmp_path / "noted"), tmp_path / "checkpoint", Sink()
    with live_store(tmp_path / "store") as (store, send):
        send(30)
        drain(spark, store.path, checkpoint, sink)
        send(30)
        with following(spark, store.path, noting, "200 milliseconds") as query:
            await_values(query, noting, texts(numbered(60)[30:]))
            await_ended_batch(checkpoint)
            await_ended_batch(checkpoint)
        send(30)
        drain(spark, store.path, checkpoint, sink)
        drain(spark, store.path, checkpoint, sink, reader="python")
        assert sink.values == numbered(30) + numbered(90)[60:]
        assert json.loads(offsets(checkpoint)[-1])["orders"] == {"0": 90}


def test_rows_of_a_typed_topic_come_once_where_a_batch_ends_inside_a_message(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A message has many rows, and an offset does not say at which row a batch has ended."""
    import pyarrow as pa

    noting, checkpoint = Noting(tmp_path / "noted"), tmp_path / "checkpoint"
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 22}}) as store:
        store.create_topic("points", "id BIGINT")
        with store.producer() as producer:
            rows = frame(spark, store.path, subscribe="points", values="columns")
            query = start(rows, noting, checkpoint, "300 milliseconds")
            try:
                sent = 0
                while ended_batches(checkpoint) < 3:
                    assert query.exception() is None, str(query.exception())
                    producer.send_rows("points", pa.table({"id": pa.array(range(sent, sent + 40_000))}))
                    sent += 40_000
                    producer.flush(timeout=30)
                    await_count(noting, sent - 80_000)
                await_count(noting, sent)
                await_ended_batch(checkpoint)
                counts = Counter(map(int, noting.values))
                assert counts == Counter(range(sent))
            finally:
                query.stop()


@pytest.mark.nightly
def test_values_of_json_come_as_they_are_parsed(spark: SparkSession, tmp_path: Path) -> None:
    noting = Noting(tmp_path / "noted")
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        producer.send("orders", b'{"id": 1}')
        producer.flush()
        rows = (
            spark.readStream.format("commitlog")
            .schema("id BIGINT")
            .options(subscribe="orders", values="json", startingOffsets="earliest")
            .load(str(store.path))
        )
        query = start(rows, noting, tmp_path / "checkpoint")
        try:
            await_values(query, noting, ["1"])
            producer.send("orders", b'{"id": 2}')
            await_values(query, noting, ["1", "2"])
        finally:
            query.stop()


@pytest.mark.nightly
def test_new_lanes_and_topics_join(spark: SparkSession, tmp_path: Path) -> None:
    """Also a topic that nobody knew, where topics are chosen by a pattern."""
    noting = Noting(tmp_path / "noted")
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as first:
        reader = spark.readStream.format("commitlog").option("startingOffsets", "earliest")
        rows = reader.option("subscribePattern", "orders.*").load(str(store.path))
        query = start(rows.select("value"), noting, tmp_path / "checkpoint")
        try:
            first.send("other", b"x")
            first.send("orders", b"a")
            await_values(query, noting, ["a"])
            first.send("others", b"x")
            first.send("orders-2", b"b")
            await_values(query, noting, ["a", "b"])
            with store.producer() as second:
                second.send("orders", b"c")
                first.send("orders-2", b"d")
                await_values(query, noting, ["a", "b", "c", "d"])
        finally:
            query.stop()


def send_one(path: Path, value: str) -> None:
    """Runs the store for one message."""
    with commitlog.Store.open(path) as store, store.producer() as producer:
        producer.send("orders", value.encode())


def test_stops_kills_and_starts_pass_without_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """The query goes on with whoever runs the store, and waits while nobody does."""
    noting, path, wanted = Noting(tmp_path / "noted"), tmp_path / "store", ["1"]
    send_one(path, "1")
    rows = frame(spark, path).select("value")
    with running(start(rows, noting, tmp_path / "checkpoint")) as query:
        await_values(query, noting, wanted)
        send_one(path, "2")
        await_values(query, noting, wanted := [*wanted, "2"])
        store = commitlog.Store.open(path)
        with store.producer() as producer:
            for stage in ("committer", "flusher", "dispatcher", "allocator"):
                before = pid_of(path, stage)
                kill(before)
                wait_until(lambda stage=stage, before=before: pid_of(path, stage) not in (0, before), f"a new {stage}")  # type: ignore[misc]
            producer.send("orders", b"3")
            await_values(query, noting, wanted := [*wanted, "3"])
            pids = [pid_of(path, name) for name in ("", "committer", "flusher", "dispatcher", "allocator")]
            for pid in pids:
                kill(pid)
            producer.send("orders", b"4")  # accepted, and only in memory
        await_stages_gone(path)
        with pytest.raises(StageFailed):
            store.close()
        send_one(path, "5")
        await_values(query, noting, [*wanted, "4", "5"])


@pytest.mark.nightly
def test_a_planner_that_is_killed_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    noting, checkpoint = Noting(tmp_path / "noted"), tmp_path / "checkpoint"
    with (
        live_store(tmp_path / "store") as (store, send),
        following(spark, store.path, noting, "300 milliseconds") as query,
    ):
        for count in (20, 40, 60):
            send(20)
            kill_planners(spark)
            await_values(query, noting, texts(numbered(count)))
            await_ended_batch(checkpoint)


@pytest.mark.parametrize("level", with_nightly(["flushed"], ["accepted"]))
def test_a_new_planner_says_where_a_batch_has_ended(tmp_path: Path, level: str) -> None:
    """It has nothing but the question, and the options of the query."""
    path = tmp_path / "store"
    send_one(path, "1")
    options = {"path": str(path), "subscribe": "orders", "startingOffsets": "earliest", "isolation": level}
    opening = {
        "schema": CommitLogDataSource({"path": str(path), "subscribe": "orders"}).schema().json(),
        "real_time": True,
    }
    first, second = PlannedStream(options, opening), PlannedStream(options, opening)
    begin = first.answer({"ask": "initial"})["offset"]
    plan = first.answer({"ask": "follow", "start": begin, "parallelism": 2})
    lane = plan["lanes"][0][0]
    ended = {"ask": "merge", "base": plan["base"], "end": plan["end"], "reached": {"orders": {"0": 1}}, "lanes": []}
    if level == "accepted":
        segment = min((path / "lanes/0/commitlog").iterdir())
        ended["lanes"] = [{"lane": 0, "where": lane["from"], "last": 0, "head": segment.read_bytes()[:48].hex()}]
    try:
        assert second.answer(ended) == first.answer(ended)
        assert json.loads(first.answer(ended)["offset"])["orders"] == {"0": 1}
    finally:
        first.stop()
        second.stop()


def test_damage_ends_the_query_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """The task that follows stops before it, and the next plan has it as a backlog."""
    noting = Noting(tmp_path / "noted")
    with live_store(tmp_path / "store") as (store, send):
        query = start(frame(spark, store.path).select("value"), noting, tmp_path / "checkpoint")
        try:
            send(5)
            await_values(query, noting, texts(numbered(5)))
            with halted_process(jvm_pid(spark)):
                send(5)
                segment = min((store.path / "lanes/0/commitlog").iterdir())
                with segment.open("r+b") as file:
                    file.seek(segment.read_bytes().index(b"00007") - HEAD_V4_BYTES + MAGIC_AT)
                    file.write(b"none")
            wait_until(lambda: not query.isActive, "the end of the query")
            assert error_line(query.exception()).startswith("CorruptRecord: ")
            assert noting.values[:5] == texts(numbered(5))
        finally:
            query.stop()


@pytest.mark.parametrize(("level", "halted"), with_nightly([("accepted", "committer")], [("committed", "flusher")]))
def test_messages_come_before_they_are_flushed_if_asked(
    spark: SparkSession, tmp_path: Path, level: str, halted: str
) -> None:
    """No checkpoint is ahead of what is flushed: the end of a batch waits for the flusher."""
    noting, path, checkpoint = Noting(tmp_path / "noted"), tmp_path / "store", tmp_path / "checkpoint"
    settings = SMALL | {"supervisor": {"hung_after_ms": 600_000}}
    with commitlog.Store.open(path, settings) as store, store.producer() as producer:
        producer.send("orders", b"1")
        producer.flush()
        with following(spark, path, noting, "500 milliseconds", isolation=level) as query:
            await_values(query, noting, ["1"])
            await_ended_batch(checkpoint)
            with halted_process(pid_of(path, halted)):
                producer.send("orders", b"2")
                await_values(query, noting, ["1", "2"])
                assert json.loads(offsets(checkpoint)[-1])["orders"] == {"0": 1}
            wait_until(
                lambda: json.loads(offsets(checkpoint)[-1])["orders"] == {"0": 2}, "a checkpoint with the message"
            )


@pytest.mark.nightly
def test_limits_of_batches_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    send_one(tmp_path / "store", "1")
    rows = frame(spark, tmp_path / "store", maxOffsetsPerTrigger=5)
    query = start(rows, Noting(tmp_path / "noted"), tmp_path / "checkpoint")
    wait_until(lambda: not query.isActive, "the end of the query")
    query.stop()
    assert error_line(query.exception()).startswith("OptionError: option maxOffsetsPerTrigger: in Real-Time Mode")


def test_what_python_reads_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would name a class of its own, and no way out."""
    send_one(tmp_path / "store", "1")
    rows = frame(spark, tmp_path / "store", reader="python").select("value")
    query = start(rows, Noting(tmp_path / "noted"), tmp_path / "checkpoint")
    wait_until(lambda: not query.isActive, "the end of the query")
    query.stop()
    assert error_line(query.exception()) == (
        "OptionError: trigger(realTime=...) is for what Spark's JVM reads, and Python reads this (option reader=python); "
        "take .trigger(processingTime='0 seconds'), which looks again at once"
    )


@pytest.mark.parametrize(
    ("options", "words"), with_nightly([({"hurry": "true"}, "hurry")], [({"isolation": "accepted"}, "isolation")])
)
def test_micro_batches_take_no_options_of_real_time(
    spark: SparkSession, tmp_path: Path, options: dict[str, object], words: str
) -> None:
    send_one(tmp_path / "store", "1")
    with pytest.raises(PySparkException) as raised:
        drain(spark, tmp_path / "store", tmp_path / "checkpoint", Sink(), **options)
    assert error_line(raised.value).startswith(f"OptionError: option {words}: ")
