"""The format in a real session: batch and stream, Kafka's options and columns.

Also restarts from a checkpoint, and errors.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import commitlog.spark
from tests.builders.hand_made import BEGIN_MS, HandMadeStore, small_store
from tests.nightly import by_all_readers_nightly, by_url_nightly
from tests.served import place_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[tuple[int, int, bytes]]

pytestmark = pytest.mark.usefixtures("both_ways")


def load(spark: SparkSession, store: HandMadeStore, **options: object) -> DataFrame:
    reader = spark.read.format("commitlog").option("path", place_of(store.path))
    for name, value in ({"subscribe": "orders"} | options).items():
        if value is not None:
            reader = reader.option(name, str(value))
    return reader.load()


def rows(frame: DataFrame) -> Rows:
    found = frame.select("partition", "offset", "value").collect()
    return sorted((row.partition, row.offset, bytes(row.value)) for row in found)


class Sink:
    """A foreachBatch that remembers each batch by its id, as an idempotent sink does."""

    def __init__(self) -> None:
        self.batches: dict[int, Rows] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = rows(frame)

    @property
    def rows(self) -> Rows:
        return sorted(row for batch in self.batches.values() for row in batch)


def stream(spark: SparkSession, store: HandMadeStore, checkpoint: Path, sink: Any, **options: object) -> Any:
    reader = spark.readStream.format("commitlog").option("subscribe", "orders")
    for name, value in ({"startingOffsets": "earliest"} | options).items():
        reader = reader.option(name, str(value))
    frame = reader.load(place_of(store.path))
    return frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))


@by_url_nightly
def test_a_table_as_kafkas(spark: SparkSession, tmp_path: Path) -> None:
    """No registration, no jar: columns, types and defaults are the Kafka source's."""
    store = small_store(tmp_path / "store")
    frame = load(spark, store)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert rows(frame) == store.rows("orders")
    row = frame.where("partition = 1 and offset = 2").selectExpr("*", "unix_millis(timestamp) as ms").collect()[0]
    assert (bytes(row.key), row.topic, row.timestampType) == (b"k2", "orders", 1)
    assert row.ms == store.lane(1).records[4].store_timestamp
    headers = load(spark, store, includeHeaders=True).schema["headers"].dataType.simpleString()
    assert headers == "array<struct<key:string,value:binary>>"
    chosen = spark.read.format("commitlog").schema("offset long, tags string").option("subscribe", "orders")
    assert chosen.load(place_of(store.path)).columns == ["offset", "tags"]


@pytest.mark.nightly
@by_url_nightly  # daily tests/columns/test_read_arrow.py and test_model.py begin and end anywhere by URL
def test_where_a_batch_begins_and_ends(spark: SparkSession, tmp_path: Path) -> None:
    """Every kind of bound against a plain model of the same store."""
    store = small_store(tmp_path / "store", rows=20)
    everything = store.rows("orders")
    stored = {
        (r.queue_id, r.queue_offset): r.store_timestamp
        for lane in store.lanes.values()
        for r in lane.records
        if r.topic == "orders"
    }
    middle = BEGIN_MS + 21_000
    expected = {
        ("startingOffsets", "last 3"): [row for row in everything if row[1] >= 17],
        ("startingOffsets", "10 minutes ago"): [],
        ("startingOffsets", "2000-01-01"): everything,
        ("startingOffsets", '{"orders": {"0": 5, "1": -2}}'): [r for r in everything if r[0] or r[1] >= 5],
        ("endingOffsets", '{"orders": {"0": 5, "1": -1}}'): [r for r in everything if r[0] or r[1] < 5],
        ("startingTimestamp", middle): [r for r in everything if stored[r[0], r[1]] >= middle],
        ("endingTimestamp", middle): [r for r in everything if stored[r[0], r[1]] < middle],
        ("startingOffsetsByTimestamp", json.dumps({"orders": {"0": middle, "1": 0}})): [
            r for r in everything if r[0] or stored[0, r[1]] >= middle
        ],
        ("assign", '{"orders": [1]}'): [row for row in everything if row[0] == 1],
        ("subscribePattern", "ord.*"): everything,
    }
    for (option, value), wanted in expected.items():
        both = {option: value} if option not in ("assign", "subscribePattern") else {option: value, "subscribe": None}
        assert rows(load(spark, store, **both)) == wanted, option
    assert load(spark, store, subscribe="orders,other").count() == 80


@by_url_nightly
def test_tasks(spark: SparkSession, tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    for options, tasks in (({}, 1), ({"minPartitions": 5}, 5), ({"maxRecordsPerPartition": 30}, 7)):
        frame = load(spark, store, **options)
        assert frame.rdd.getNumPartitions() == tasks
        assert rows(frame) == store.rows("orders")


@by_url_nightly
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "missing"}, "UnknownTopic: .*no topic missing; there are: orders, other"),
        ({"assign": '{"orders": [7]}', "subscribe": None}, "UnknownTopic: .*no lane 7; it has 0, 1"),
        (
            {"startingOffsets": '{"orders": {"0": 1}}'},
            "OptionError: option startingOffsets: .* topic orders, lane 1; name",
        ),
        (
            {"startingOffsets": '{"orders": {"0": 999, "1": -2}}'},
            "OffsetOutOfRange: option startingOffsets: offset 999 .* 100",
        ),
        (
            {"endingOffsets": '{"orders": {"0": 3, "1": 9}}', "startingOffsets": '{"orders": {"0": 4, "1": 9}}'},
            "begins at 4 and",
        ),
        ({"startingTimestamp": 4_000_000_000_000}, "no lane has a message at or after"),
        ({"nonsense": "1"}, "OptionError: option nonsense: there is none of this name"),
        ({"path": "absent"}, "StoreNotFound: .*/absent: there is no store here"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_errors_end_with_one_line_of_ours(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    store = small_store(tmp_path / "store")
    if "path" in options:
        options = {"path": tmp_path / options["path"]}
    with pytest.raises(PySparkException, match=message):
        load(spark, store, **options).collect()


@by_url_nightly
def test_paths_as_spark_s_users_write_them(spark: SparkSession, tmp_path: Path) -> None:
    """As a Path, as a URI, and in a temporary view."""
    store = small_store(tmp_path / "a store", rows=3)
    frames = [
        spark.read.format("commitlog").option("subscribe", "orders").option("path", store.path).load(),  # type: ignore[arg-type]
        spark.read.format("commitlog").option("subscribe", "orders").load(store.path.as_uri()),
    ]
    assert [frame.count() for frame in frames] == [6, 6]
    options = f"(path '{store.path}', subscribe 'orders')"
    spark.sql(f"CREATE TEMPORARY VIEW few USING commitlog OPTIONS {options}")
    try:
        assert spark.sql("SELECT * FROM few").count() == 6
    finally:
        spark.sql("DROP VIEW few")


@pytest.mark.nightly
@by_url_nightly
def test_filters_of_one_frame_do_not_mix(spark: SparkSession, tmp_path: Path) -> None:
    """Also where Spark pushes filters down: it gives the partitions of one scan to others then.

    Until it does not, a reader must not use `pushFilters`.
    """
    store, conf = small_store(tmp_path / "store", rows=10), "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(conf, "true")
    try:
        frame = load(spark, store)
        late, early = frame.where("offset >= 7"), frame.where("offset < 2")
        assert [late.count(), frame.count(), early.count()] == [6, 20, 4]
        assert late.union(early).count() == 10
        assert frame.where("timestamp > '2000-01-01' AND partition = 1").count() == 10
    finally:
        spark.conf.unset(conf)


@by_url_nightly
def test_a_batch_after_retention(spark: SparkSession, tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", lanes=1)
    store.lane(0).forget_before(2)
    kept = rows(load(spark, store))
    assert kept == store.rows("orders")[-len(kept) :]
    assert 0 < len(kept) < 100
    starting = '{"orders": {"0": 0}}'
    with pytest.raises(PySparkException, match=f"DataLoss: topic orders, lane 0: .* {100 - len(kept)} messages"):
        load(spark, store, startingOffsets=starting).collect()
    assert rows(load(spark, store, startingOffsets=starting, failOnDataLoss=False)) == kept


def test_committed_and_flushed(spark: SparkSession, tmp_path: Path) -> None:
    """In a stopped store, all that counts is flushed. What is beyond is shown at neither level."""
    store = small_store(tmp_path / "store", lanes=1)
    store.lane(0).publish(flushed=store.lane(0).records[100].physical_offset)
    for isolation in ("flushed", "committed"):
        assert rows(load(spark, store, isolation=isolation)) == store.rows("orders")[:50]


@by_all_readers_nightly
def test_available_now_in_limited_batches_and_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """Every row once by batch id, over new messages, a new lane and a replayed batch."""
    store, sink, checkpoint = small_store(tmp_path / "store"), Sink(), tmp_path / "checkpoint"
    query = stream(spark, store, checkpoint, sink, maxOffsetsPerTrigger=70).trigger(availableNow=True).start()
    query.awaitTermination()
    assert [len(batch) for batch in sink.batches.values()] == [70, 70, 60]
    assert sink.rows == store.rows("orders")
    lags = [commitlog.spark.lag(progress) for progress in query.recentProgress if progress["numInputRows"]]
    assert lags == [{"orders": {0: left, 1: left}} for left in (65, 30, 0)]
    last = max(sink.batches)
    (checkpoint / "commits" / str(last)).unlink()  # as if the driver had died before the last batch was done
    shutil.rmtree(checkpoint / "commits" / f".{last}.crc", ignore_errors=True)
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    before = sink.batches.pop(last)
    for row in range(30):
        store.lane(2).append("orders", b"new-%d" % row)
    store.publish()
    stream(spark, store, checkpoint, sink, maxOffsetsPerTrigger=70).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert sink.batches[last] == before
    assert sink.rows == store.rows("orders")


@pytest.mark.nightly
@by_all_readers_nightly
def test_a_live_query_follows_and_reports_its_lag(spark: SparkSession, tmp_path: Path) -> None:
    """Messages that came while a batch was read are its lag, and so is all of a new topic.

    At the end there is no lag.
    """
    store, sink = small_store(tmp_path / "store", rows=10), Sink()

    def slow(frame: DataFrame, batch: int) -> None:
        if batch == 0:
            for _ in range(7):
                store.lane(0).append("orders", b"more")
            store.lane(5).append("orders", b"in a new lane")
            store.publish()
        sink(frame, batch)

    query = stream(spark, store, tmp_path / "checkpoint", slow, maxOffsetsPerTrigger=20).start()
    try:
        wait_until(lambda: sink.rows == store.rows("orders"), "all rows")
        wait_until(lambda: _idle_lags(query)[-1:] == [{0: 0, 1: 0, 5: 0}], "no lag")
        store.lane(0).append("orders", b"one more")
        store.publish()
        wait_until(lambda: sink.rows == store.rows("orders"), "the row appended")
    finally:
        query.stop()
    assert query.exception() is None
    assert _idle_lags(query)[0] == {0: 0, 1: 0}  # as of when the batch was planned


def _idle_lags(query: Any) -> list[dict[int, int]]:
    return [commitlog.spark.lag(progress).get("orders", {}) for progress in query.recentProgress]


@by_all_readers_nightly
def test_a_store_made_again_under_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    store, sink, checkpoint = small_store(tmp_path / "store"), Sink(), tmp_path / "checkpoint"
    stream(spark, store, checkpoint, sink).trigger(availableNow=True).start().awaitTermination()
    shutil.rmtree(store.path)
    again = small_store(tmp_path / "store")
    query = stream(spark, again, checkpoint, sink).trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match=r"DataLoss: .* is another store"):
        query.awaitTermination()
