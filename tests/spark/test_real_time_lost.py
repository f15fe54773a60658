"""A query in Real-Time Mode has read messages that are lost: new ones get their offsets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import commitlog
from commitlog.errors import StageFailed
from commitlog.spark.real_time_plans import RealTimePlans
from tests.crash.scene import await_stages_gone, halted_process, kill, pid_of
from tests.spark.driven_stream import stream
from tests.spark.jvm_frames import error_line
from tests.spark.test_foreach import end_processes
from tests.spark.test_jvm_stream import frame
from tests.spark.test_real_time import Noting, await_values, send_one, start
from tests.spark_session import jvm_pid
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def followed(spark: SparkSession, path: Path, **options: str) -> Iterator[tuple[Any, Noting]]:
    """A query that reads what is accepted, and has the first message."""
    noting = Noting(path.parent / "noted")
    send_one(path, "1")
    rows = frame(spark, path, isolation="accepted", **options).select("value")
    query = start(rows, noting, path.parent / "checkpoint")
    try:
        await_values(query, noting, ["1"])
        yield query, noting
    finally:
        query.stop()
        end_processes(spark)


def lose(path: Path, is_read: Callable[[], object]) -> None:
    """As a power cut does: the pool is gone with a message that was only in memory."""
    store = commitlog.Store.open(path)
    with store.producer() as producer:
        producer.send("orders", b"2")
        producer.flush()
        with halted_process(pid_of(path, "committer")):
            producer.send("orders", b"3")
            is_read()
            pool = Path(json.loads((path / "store.json").read_text())["pool"]["directory"])
            for name in ("", "committer", "flusher", "dispatcher", "allocator"):
                kill(pid_of(path, name))
    await_stages_gone(path)
    with pytest.raises(StageFailed):
        store.close()
    shutil.rmtree(pool)


def test_what_was_read_and_lost_before_it_was_flushed_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with followed(spark, path) as (query, noting):
        lose(path, lambda: await_values(query, noting, ["1", "2", "3"]))
        send_one(path, "4")
        wait_until(lambda: not query.isActive, "the end of the query")
        assert error_line(query.exception()).startswith("DataLoss: lane 0: the query has read messages before")


def test_a_query_that_may_go_on_leaves_no_new_message_out(spark: SparkSession, tmp_path: Path) -> None:
    """It hears of the loss when the offset of the lost message is that of a new one."""
    path = tmp_path / "store"
    with followed(spark, path, failOnDataLoss="false") as (query, noting), ExitStack() as halted:

        def read_and_halt() -> None:
            await_values(query, noting, ["1", "2", "3"])
            halted.enter_context(halted_process(jvm_pid(spark)))

        lose(path, read_and_halt)
        with commitlog.Store.open(path) as store, store.producer() as producer:
            producer.send_batch("orders", [b"4", b"5", b"6"])
            producer.flush()
            halted.close()
            wait_until(lambda: not query.isActive or "6" in noting.values, "the last message")
        assert set(noting.values) == set("123456"), query.exception()


class Driven:
    """A stream of a typed topic in Real-Time Mode, whose tasks run in the thread of the test."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        jvm: Any = spark._jvm
        options = {"subscribe": "points", "path": str(path), "values": "columns", "startingOffsets": "earliest"}
        given = jvm.java.util.HashMap()
        for name, value in options.items():
            given.put(name, value)
        whole = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(given)
        provider = jvm.commitlog.spark.Provider()
        gateway: Any = spark.sparkContext._gateway
        transforms = gateway.new_array(jvm.org.apache.spark.sql.connector.expressions.Transform, 0)
        table = provider.getTable(provider.inferSchema(whole), transforms, given)
        self._gateway, self._jvm = gateway, jvm
        self._stream = table.newScanBuilder(whole).build().toMicroBatchStream("checkpoint")
        self._stream.prepareForRealTimeMode()
        self._at = self._stream.initialOffset()

    def batch(self, most: int) -> list[int]:
        """The ids of a batch that ends after so many rows, or when there is none."""
        contexts = getattr(getattr(self._jvm.org.apache.spark, "TaskContext$"), "MODULE$")
        contexts.setTaskContext(contexts.empty())
        try:
            (task,) = self._stream.planInputPartitions(self._at)
            reader = self._stream.createReaderFactory().createReader(task)
            found = list[int]()
            while len(found) < most and reader.next():
                found.append(reader.get().getLong(0))
            ends = self._gateway.new_array(self._jvm.org.apache.spark.sql.connector.read.streaming.PartitionOffset, 1)
            ends[0] = reader.getOffset()
            reader.close()
            self._at = self._stream.mergeOffsets(ends)
            return found
        finally:
            contexts.unset()

    def stop(self) -> None:
        self._stream.stop()


@pytest.mark.nightly
def test_rows_of_a_lost_message_do_not_count_for_the_one_in_its_place(spark: SparkSession, tmp_path: Path) -> None:
    """A batch may end inside of a message: the next one goes on there, if it is still the same."""
    path, backup = tmp_path / "store", tmp_path / "backup"

    def send(first: int) -> None:
        with commitlog.Store.open(path) as store, store.producer() as producer:
            store.create_topic("points", "id BIGINT")
            producer.send_rows("points", [{"id": number} for number in range(first, first + 3)])
            producer.flush()

    send(0)
    commitlog.backup(path, backup)
    send(10)
    stream = Driven(spark, path)
    try:
        assert stream.batch(2) == [0, 1]
        assert stream.batch(2) == [2, 10]
        path.rename(tmp_path / "broken")
        backup.rename(path)
        send(20)
        assert stream.batch(10) == [20, 21, 22]
    finally:
        stream.stop()


def test_a_batch_without_rows_that_ends_early_leaves_no_message_out(tmp_path: Path) -> None:
    """It ends by what no task follows, which is there when the planner looks where it has ended."""
    path = tmp_path / "store"
    with commitlog.Store.open(path) as store, store.producer() as producer, stream(path) as reader:
        producer.send("orders", b"1")
        producer.flush()
        reader.options = replace(reader.options, hurry=False)  # else the planner's end lets the stages rest
        plans = RealTimePlans(reader)

        def end_of_batch(plan: dict[str, Any]) -> str:
            end: str = plans.merge({"base": plan["base"], "end": plan["end"], "reached": {}, "lanes": []})["offset"]
            return end

        def backlog(plan: dict[str, Any]) -> list[tuple[int, int, int]]:
            return [(piece["lane"], piece["start"], piece["end"]) for task in plan["tasks"] for piece in task]

        plan = plans.plan(json.dumps(reader.initialOffset()), 2)
        assert backlog(plan) == [(0, 0, 1)]
        for _ in range(2):
            start = end_of_batch(plan)
            plan = plans.plan(start, 2)
            assert backlog(plan) == []
        producer.send("orders", b"2")
        producer.flush()
        assert end_of_batch(plan) == start
        assert backlog(plans.plan(start, 2)) == [(0, 1, 2)]
