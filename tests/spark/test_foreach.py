"""Rows of a stream that go to a Python function, or to a topic, as they come."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException

import commitlog
import commitlog.spark
from commitlog.errors import IllegalTopic, OptionError, StoreNotFound
from tests.builders.hand_made import HandMadeStore, small_store
from tests.nightly import by_url_nightly, with_nightly
from tests.served import place_of
from tests.spark.jvm_frames import children, error_line
from tests.waiting import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

MODULE = "rows_process"
CONFIG: dict[str, Any] = {"store": {"segment_bytes": 1 << 20, "max_lanes": 2}, "producer": {"lane_wait_ms": 20}}


class Noting:
    """Appends a line for each row, and for each flush, to a file of its process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, batch: pa.RecordBatch) -> None:
        self._note([f"{row['partition']} {row['offset']}" for row in batch.to_pylist()])

    def flush(self) -> None:
        self._note(["flush"])

    def close(self) -> None:
        self._note(["close"])

    def _note(self, lines: list[str]) -> None:
        with (self.directory / str(os.getpid())).open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))


def orders(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    stream = spark.readStream.format("commitlog").option("startingOffsets", "earliest")
    for name, value in options.items():
        stream = stream.option(name, str(value))
    return stream.option("subscribe", "orders").load(place_of(path)).coalesce(1)


def run(writer: DataStreamWriter, checkpoint: Path) -> None:
    """Until everything that is there now was handed over."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def failure(writer: DataStreamWriter, checkpoint: Path) -> str:
    with pytest.raises(StreamingQueryException) as raised:
        run(writer, checkpoint)
    return error_line(raised.value)


def noted(directory: Path) -> Counter[str]:
    return Counter(line for file in directory.iterdir() for line in file.read_text().splitlines())


def noted_rows(directory: Path) -> dict[str, int]:
    """Without the ends of batches, and of processes that nobody has needed for a while."""
    return {line: count for line, count in noted(directory).items() if line not in ("flush", "close")}


def end_processes(spark: SparkSession) -> None:
    """Ends those that wait for a next task."""
    for pid in children(spark, MODULE):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not children(spark, MODULE), "the processes to end")


def test_a_function_has_each_row_before_the_position_is_noted(
    spark: SparkSession, store: HandMadeStore, tmp_path: Path
) -> None:
    """Once, if nothing fails. A process stays for the next batch, and flushes at each end."""
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    lines.mkdir()
    rows = {f"{lane} {offset}" for lane in range(2) for offset in range(100)}
    function = Noting(lines)
    run(commitlog.spark.foreach(orders(spark, store.path), function), checkpoint)
    assert noted_rows(lines) == dict.fromkeys(rows, 1)
    flushes = noted(lines)["flush"]
    assert flushes >= len(list(lines.iterdir())) > 0
    run(commitlog.spark.foreach(orders(spark, store.path), function), checkpoint)
    assert noted_rows(lines) == dict.fromkeys(rows, 1)
    before = set(lines.iterdir())
    by_batch = orders(spark, store.path, maxOffsetsPerTrigger=20)
    run(commitlog.spark.foreach(by_batch, function), tmp_path / "another")
    assert noted_rows(lines) == dict.fromkeys(rows, 2)
    assert len(set(lines.iterdir()) - before) == 1
    assert noted(lines)["flush"] >= flushes + 10
    end_processes(spark)


def test_each_start_of_a_query_has_a_function_of_its_own(
    spark: SparkSession, store: HandMadeStore, tmp_path: Path
) -> None:
    """An older one may write to a file that was removed since."""

    class Written:
        def __init__(self, path: Path) -> None:
            self.path = path
            self.file: IO[str] | None = None

        def __call__(self, batch: pa.RecordBatch) -> None:
            self.file = self.file or self.path.open("w")
            self.file.write("row\n" * batch.num_rows)

        def flush(self) -> None:
            if self.file is not None:
                self.file.flush()

    for name in ("first", "again"):
        written = tmp_path / "written"
        run(commitlog.spark.foreach(orders(spark, store.path), Written(written)), tmp_path / name)
        assert len(written.read_text().splitlines()) == 200
        written.unlink()
    end_processes(spark)


def refuses(batch: pa.RecordBatch) -> None:
    raise LookupError(f"no place for {batch.num_rows > 0}")


def ends(batch: pa.RecordBatch) -> None:
    os._exit(3)


class FailsToFlush:
    def __call__(self, batch: pa.RecordBatch) -> None:
        print("not for Spark's JVM", batch.num_rows)

    def flush(self) -> None:
        raise OSError("the last rows have no place")


def leaves(batch: pa.RecordBatch) -> None:
    sys.exit("no more rows")


async def waits(batch: pa.RecordBatch) -> None:
    pass


def yields(batch: pa.RecordBatch) -> Iterator[int]:
    yield batch.num_rows


@pytest.mark.parametrize(
    ("function", "words"),
    with_nightly(
        [
            (refuses, "LookupError: no place for True"),
            (ends, "its process ended without an answer"),
            (FailsToFlush(), "OSError: the last rows have no place"),
        ],
        [
            (leaves, "SystemExit: no more rows"),
            (waits, "TypeError: it returned a coroutine, which nobody runs"),
            (yields, "TypeError: it returned a generator, which nobody runs"),
        ],
    ),
    ids=["refuses", "ends", "fails to flush", "leaves", "waits", "yields"],
)
def test_what_a_function_raises_ends_the_query_by_name(
    spark: SparkSession, store: HandMadeStore, tmp_path: Path, function: Callable[[Any], Any], words: str
) -> None:
    """With the function's own words. Its process may also end."""
    told = failure(commitlog.spark.foreach(orders(spark, store.path), function), tmp_path / "checkpoint")
    assert told.startswith(f"FunctionFailed: the Python function that rows are handed to: {words}")
    wait_until(lambda: not children(spark, MODULE), "the processes to end")


def test_a_killed_process_loses_no_row(spark: SparkSession, store: HandMadeStore, tmp_path: Path) -> None:
    """The query ends with an error, and its next start hands over what was not noted."""
    lines, checkpoint, gate = tmp_path / "lines", tmp_path / "checkpoint", tmp_path / "gate"
    lines.mkdir()
    noting = Noting(lines)

    def function(batch: pa.RecordBatch) -> None:
        import time

        while not gate.exists():
            time.sleep(0.01)
        noting(batch)

    writer = commitlog.spark.foreach(orders(spark, store.path), function)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        pids = wait_until(lambda: children(spark, MODULE), "a process")
        for pid in pids:
            psutil.Process(pid).kill()
        with pytest.raises(StreamingQueryException) as raised:
            query.awaitTermination()
    finally:
        query.stop()
    assert "its process ended without an answer" in str(raised.value)
    gate.touch()
    run(commitlog.spark.foreach(orders(spark, store.path), function), checkpoint)
    assert set(noted(lines)) == {f"{lane} {offset}" for lane in range(2) for offset in range(100)}
    end_processes(spark)


@pytest.mark.nightly
def test_a_child_that_outlives_its_process_is_not_waited_for(
    spark: SparkSession, store: HandMadeStore, tmp_path: Path
) -> None:
    """The query ends with an error as if there were none."""
    gate, started = tmp_path / "gate", tmp_path / "started"

    def function(batch: pa.RecordBatch) -> None:
        import time

        if child := os.fork():
            started.write_text(str(child))
            os._exit(3)
        while not gate.exists():
            time.sleep(0.01)
        os._exit(0)

    writer = commitlog.spark.foreach(orders(spark, store.path), function)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_until(lambda: not query.isActive, "the query to end")
        assert "its process ended without an answer" in str(query.exception())
    finally:
        query.stop()
        gate.touch()
    wait_until(lambda: not psutil.pid_exists(int(started.read_text())), "the child to end")


def test_a_forked_child_that_returns_takes_no_rows(spark: SparkSession, store: HandMadeStore, tmp_path: Path) -> None:
    """Nor does it answer for the process, which has all rows."""
    lines = tmp_path / "lines"
    lines.mkdir()
    noting = Noting(lines)

    def function(batch: pa.RecordBatch) -> None:
        if os.fork():
            os.wait()
            noting(batch)

    by_batch = orders(spark, store.path, maxOffsetsPerTrigger=50)
    run(commitlog.spark.foreach(by_batch, function), tmp_path / "checkpoint")
    assert noted_rows(lines) == {f"{lane} {offset}": 1 for lane in range(2) for offset in range(100)}
    assert len(list(lines.iterdir())) == 1
    end_processes(spark)


@by_url_nightly  # daily test_sink.py writes by URL
@pytest.mark.usefixtures("both_ways")
def test_rows_are_appended_and_flushed(spark: SparkSession, tmp_path: Path) -> None:
    """With their keys, to the topic of each row. Then no process keeps a lane: the store stops."""
    original = small_store(tmp_path / "original")
    with commitlog.Reader(original.path, "orders") as reader:
        sent = Counter((message.key, message.value) for message in reader)
    for number in range(2):
        with commitlog.Store.open(tmp_path / "copy", CONFIG) as copy:
            rows = orders(spark, original.path).selectExpr("value", "key", f"'orders-{number}' topic")
            run(commitlog.spark.write_real_time(rows, place_of(copy.path)), tmp_path / f"checkpoint-{number}")
            assert copy.close().drained
        with commitlog.Reader(tmp_path / "copy", f"orders-{number}") as reader:
            assert Counter((message.key, message.value) for message in reader) == sent
    assert sent.total() == 200
    end_processes(spark)


def test_wrong_uses_are_named_before_anything_starts(spark: SparkSession, store: HandMadeStore, tmp_path: Path) -> None:
    stream = orders(spark, store.path)
    with pytest.raises(OptionError, match="foreach takes a stream"):
        commitlog.spark.foreach(spark.range(3), print)
    with pytest.raises(
        OptionError, match=r"has 20\d MiB: too much for Spark's JVM, which has \d+ MiB .* at its first call"
    ):
        commitlog.spark.foreach(stream, partial(print, bytes(200 << 20)))
    with pytest.raises(StoreNotFound, match="there is no store here"):
        commitlog.spark.write_real_time(stream, str(tmp_path / "nowhere"), "copies")
    with pytest.raises(IllegalTopic, match="option topic: topic 'a b'"):
        commitlog.spark.write_real_time(stream, str(store.path), "a b")
    with pytest.raises(OptionError, match="column value is bigint"):
        commitlog.spark.write_real_time(stream.selectExpr("offset value"), str(store.path), "copies")
