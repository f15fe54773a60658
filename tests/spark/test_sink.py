"""The sink in a real session over a running store: by path, and by URL.

What arrives, what is refused, lanes, failures, kills.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import udf

import commitlog
from commitlog.errors import NoFreeLane
from commitlog.reading.view import StoreView
from commitlog.shm.layout import Lane
from tests.builders.hand_made import small_store
from tests.nightly import by_url_nightly, with_nightly
from tests.served import is_by_url, place_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LANES = 2
CONFIG: dict[str, Any] = {
    "store": {"segment_bytes": 1 << 20, "max_lanes": LANES},
    "producer": {"lane_wait_ms": 20},
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    """With two lanes."""
    with commitlog.Store.open(tmp_path_factory.mktemp("sink") / "store", CONFIG) as opened:
        yield opened


@pytest.fixture
def store(running: commitlog.Store) -> commitlog.Store:
    """As if new: what other tests have written is not among its messages."""
    _begins.clear()
    _begins.update({lane.lane: lane.wrote for lane in running.statistics().lanes})
    return running


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[commitlog.Store]:
    """For a test that looks at the lanes' words, or stops the stages."""
    _begins.clear()
    with commitlog.Store.open(tmp_path / "store", CONFIG) as opened:
        yield opened


_begins: dict[int, int] = {}
"""Where in each lane the messages of the test begin."""


def write(frame: DataFrame, store: commitlog.Store, **options: object) -> None:
    frame.write.format("commitlog").options(**options).mode("append").save(place_of(store.path))  # type: ignore[arg-type]


def messages(store: commitlog.Store, topic: str | None = None) -> list[commitlog.Message]:
    """All messages of the store, or of one topic, in the order of each lane.

    When the sink returns, all of them are flushed.
    """
    with commitlog.Reader(store.path, topic=topic) as reader:
        return [message for message in reader if message.physical_offset >= _begins.get(message.partition, 0)]


def values(store: commitlog.Store, topic: str | None = None) -> list[bytes]:
    return [message.value for message in messages(store, topic)]


def check_lanes_free(store: commitlog.Store) -> None:
    """A producer can have each of them."""
    producers: list[commitlog.Producer] = []

    def leased() -> bool:
        try:
            producers.append(commitlog.Producer(store.path))
        except NoFreeLane:
            return False
        return len(producers) == LANES

    try:
        wait_until(leased, "all lanes are free")
    finally:
        for producer in producers:
            producer.close()


# ---- what arrives ------------------------------------------------------------------------------


@pytest.mark.parametrize("both_ways", with_nightly(["url"], ["path"]), indirect=True)
@pytest.mark.usefixtures("both_ways")
def test_a_topic_is_copied_whole(spark: SparkSession, store: commitlog.Store) -> None:
    """With all of its columns, as they come from the source, and keys that are no text."""
    keys = [b"text", b"\xff\x01", None]
    one, other = ("original-by-url", "copy-by-url") if is_by_url() else ("original", "copy")
    rows = [(one, key, b"%d" % number) for number, key in enumerate(keys)]
    write(spark.createDataFrame(rows, "topic string, key binary, value binary"), store)
    whole = spark.read.format("commitlog").option("subscribe", one).option("includeHeaders", True)
    frame = whole.load(place_of(store.path))
    with pytest.raises(PySparkException, match=r"column partition: .* set option ignorePartition to true"):
        write(frame, store, topic=other)
    write(frame, store, topic=other, ignorePartition=True)
    copy = spark.read.format("commitlog").option("subscribe", other).load(str(store.path)).select("key", "value")
    found = sorted((bytes(row.value), row.key and bytes(row.key)) for row in copy.collect())
    assert found == [(b"%d" % number, key) for number, key in enumerate(keys)]


def test_rows_come_back_as_they_were_written(spark: SparkSession, store: commitlog.Store) -> None:
    """Value, key, topic and headers come back, in the order of each topic.

    Columns that the sink does not know do no harm.
    """
    h, g = {"key": "h", "value": b"x"}, {"key": "g", "value": b"y"}
    rows = [
        {"topic": "a", "value": b"1", "key": "k1", "headers": [h, g], "offset": 9},
        {"topic": "b", "value": b"2", "key": None, "headers": None, "offset": None},
        {"topic": "a", "value": b"", "key": None, "headers": [], "offset": 9},
        {"topic": "b", "value": b"\xff\x00", "key": "ключ", "headers": None, "offset": 9},
    ]
    write(spark.createDataFrame(pa.Table.from_pylist(rows)).coalesce(1), store)
    written = messages(store)
    assert [(m.topic, m.value, m.key, m.headers) for m in written] == [
        ("a", b"1", "k1", {"h": "x", "g": "y"}),
        ("b", b"2", None, {}),
        ("a", b"", None, {}),
        ("b", b"\xff\x00", "ключ", {}),
    ]
    read = spark.read.format("commitlog").options(subscribe="a,b", includeHeaders=True).load(str(store.path))
    write(read.drop("partition"), store, topic="copy")
    copies = {m.value: (m.key, m.headers) for m in messages(store, "copy")}
    assert copies == {m.value: (m.key, m.headers) for m in written}


@pytest.mark.parametrize("how", with_nightly(["keys"], ["no keys"]))
def test_many_rows_of_some_topics_over_many_segments(spark: SparkSession, store: commitlog.Store, how: str) -> None:
    """By batch and row by row: all of them, each topic in the order of its task."""
    frame = spark.range(0, 12_000, 1, 2).selectExpr(
        "concat('t', id % 3) AS topic",
        "concat(id, repeat('.', CAST(id % 400 AS INT))) AS value",
        "encode(concat('k', id), 'utf-8') AS key",
    )
    if how == "no keys":
        frame = frame.drop("key")
    write(frame, store)
    found = messages(store)
    numbers = [int(m.value.rstrip(b".")) for m in found]
    assert sorted(numbers) == list(range(12_000))
    for message, number in zip(found, numbers, strict=True):
        assert (message.topic, len(message.value)) == (f"t{number % 3}", len(str(number)) + number % 400)
        assert message.key == (f"k{number}" if how == "keys" else None)
    of_a_task: dict[tuple[str, bool], list[int]] = {}
    for message, number in zip(found, numbers, strict=True):
        of_a_task.setdefault((message.topic, number < 6_000), []).append(number)
    assert len(of_a_task) == 6
    assert all(numbers == sorted(numbers) for numbers in of_a_task.values())


@by_url_nightly
@pytest.mark.usefixtures("both_ways")
def test_a_stream_and_its_restart(spark: SparkSession, store: commitlog.Store, tmp_path: Path) -> None:
    """From one store into another and back, batch by batch, each row once if nothing fails."""
    source = small_store(tmp_path / "source", lanes=1)

    def run() -> None:
        frame = spark.readStream.format("commitlog").option("subscribe", "orders").option("maxOffsetsPerTrigger", 40)
        query = (
            frame.option("startingOffsets", "earliest")
            .load(str(source.path))
            .select("value", "key")
            .writeStream.format("commitlog")
            .queryName("copies")
            .option("topic", "copy")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(place_of(store.path))
        )
        query.awaitTermination()

    run()
    assert values(store, "copy") == [body for _, _, body in source.rows("orders")]
    for number in range(10):
        source.lane(0).append("orders", b"later-%d" % number)
    source.publish()
    run()
    assert values(store, "copy") == [body for _, _, body in source.rows("orders")]
    assert {m.key for m in messages(store, "copy")} == {f"k{row}" for row in range(100)} | {None}
    check_lanes_free(store)


# ---- lanes -------------------------------------------------------------------------------------


@by_url_nightly
@pytest.mark.usefixtures("both_ways")
def test_more_tasks_than_lanes(spark: SparkSession, store: commitlog.Store) -> None:
    """One lane is taken: of two tasks at a time one waits for the other."""
    with commitlog.Producer(store.path):
        write(spark.range(0, 4_000, 1, 8).selectExpr("CAST(id AS STRING) AS value"), store, topic="t")
    assert sorted(map(int, values(store))) == list(range(4_000))
    assert {m.partition for m in messages(store)} == {1}
    check_lanes_free(store)


@pytest.mark.nightly
@by_url_nightly
@pytest.mark.usefixtures("both_ways")
def test_no_lane_within_the_limit(spark: SparkSession, store: commitlog.Store) -> None:
    """And a task without a row needs none."""
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    with commitlog.Producer(store.path), commitlog.Producer(store.path):
        write(frame.where("value = 'x'"), store, topic="t")
        with pytest.raises(
            PySparkException, match=r"NoFreeLane: option maxLaneWait: no lane within 0\.3 s: .*coalesce"
        ):
            write(frame, store, topic="t", maxLaneWait="300ms")
    assert values(store) == []


# ---- refusals ----------------------------------------------------------------------------------


def test_errors_end_with_one_line_of_ours(spark: SparkSession, store: commitlog.Store) -> None:
    """An option fails before any task runs, a row in its task. test_sink_rows.py has all rows."""
    with pytest.raises(PySparkException, match="OptionError: option nonsense: there is none of this name; allowed are"):
        write(spark.sql("SELECT 'x' AS value"), store, nonsense="1")
    with pytest.raises(PySparkException, match="IllegalTopic: column topic: topic 'a b': only letters"):
        write(spark.sql("SELECT 'x' AS value, 'a b' AS topic"), store)
    store.create_topic("typed", "id BIGINT")
    with pytest.raises(PySparkException, match="ValuesRefused: topic typed has a schema, so it takes rows"):
        write(spark.sql("SELECT 'x' AS value"), store, topic="typed")
    assert values(store) == []


def test_overwrite_deletes_nothing(spark: SparkSession, store: commitlog.Store) -> None:
    frame = spark.sql("SELECT 'x' AS value")
    write(frame, store, topic="t")
    with pytest.raises(PySparkException, match=r"OptionError: mode overwrite: .* nothing was deleted"):
        frame.write.format("commitlog").option("topic", "t").mode("overwrite").save(str(store.path))
    assert values(store) == [b"x"]


@pytest.mark.nightly
def test_a_sink_option_is_none_of_the_source(spark: SparkSession, store: commitlog.Store) -> None:
    """An option of a sink is refused for a source, with the spelling of README, and the reverse.

    A source refuses it when the DataFrame is made; with `.schema`, Spark asks only when it is read.
    A sink refuses an option of a source when it is written.
    """
    mixed = r"option maxLaneWait is one of a sink .* and option subscribe one of a source"
    for reader in (spark.read, spark.readStream):
        given = reader.format("commitlog").option("subscribe", "t").option("maxLaneWait", "1s")
        with pytest.raises(PySparkException, match=mixed):
            given.load(str(store.path))
    given = spark.read.format("commitlog").option("subscribe", "t").option("maxLaneWait", "1s").schema("value binary")
    with pytest.raises(PySparkException, match=mixed):
        given.load(str(store.path)).collect()
    with pytest.raises(
        PySparkException, match=r"option failOnDataLoss: it is one of a source .* only; allowed are path"
    ):
        write(spark.sql("SELECT 'x' AS value, 't' AS topic"), store, failOnDataLoss="true")
    assert values(store) == []


@by_url_nightly
@pytest.mark.usefixtures("both_ways")
def test_a_store_whose_stages_do_not_run(spark: SparkSession, own_store: commitlog.Store, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 'x' AS value")
    stopped = own_store
    with pytest.raises(PySparkException, match=r"StoreNotFound: .*nowhere: there is no store here"):
        frame.write.format("commitlog").option("topic", "t").mode("append").save(place_of(tmp_path / "nowhere"))
    stopped.close()
    with pytest.raises(
        PySparkException,
        match=r"StoreNotRunning: .* start them with `commitlog run .*stages must run on (the machine of its exec|its mach)",
    ) as it:
        write(frame, stopped, topic="t")
    assert "Traceback" not in str(it.value)  # in a task too, the line alone says what is wrong
    assert not is_by_url() or str(stopped.path) not in str(it.value)


# ---- failures ----------------------------------------------------------------------------------


def slow(go: Path) -> Any:
    """A function of a number that waits at 30,000 for the file `go`.

    It fails there if the file says "fail".
    """

    def value(number: int) -> bytes:
        if number == 30_000:
            while not go.exists():
                time.sleep(0.01)
            if go.read_text() == "fail":
                raise ValueError("upstream gave up")
        return b"%d" % number

    return udf(value, "binary", useArrow=False)


def lessee(store: commitlog.Store) -> int:
    """The process that has appended to lane 0 and still holds it; 0 for none."""
    view = StoreView(store.path)
    try:
        assert view.control is not None
        row = view.control.row(0)
        pid: int = row[Lane.LESSEE_PID]
        return pid if row[Lane.MESSAGES] else 0
    finally:
        view.close()


@pytest.mark.nightly
@by_url_nightly
@pytest.mark.usefixtures("both_ways")
def test_a_task_that_fails_gives_its_lane_back(spark: SparkSession, store: commitlog.Store, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text("fail")
    with pytest.raises(PySparkException, match="upstream gave up"):
        write(spark.range(0, 40_000, 1, 1).select(slow(go)("id").alias("value")), store, topic="t")
    check_lanes_free(store)


def test_a_worker_killed_in_mid_write(spark: SparkSession, own_store: commitlog.Store, tmp_path: Path) -> None:
    """The query fails; from its checkpoint the batch is written again: each row once at least."""
    source, go = small_store(tmp_path / "source", rows=1, lanes=1), tmp_path / "go"

    def start() -> Any:
        frame = spark.readStream.format("commitlog").options(subscribe="orders", startingOffsets="earliest")
        return (
            frame.load(str(source.path))
            .selectExpr("explode(sequence(0, 39999)) AS number")
            .select(slow(go)("number").alias("value"))
            .writeStream.format("commitlog")
            .option("topic", "t")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(place_of(own_store.path))
        )

    query = start()
    victim = wait_until(lambda: lessee(own_store), "the task has appended")
    os.kill(victim, signal.SIGKILL)
    go.write_text("go on")
    with pytest.raises(PySparkException, match="crashed"):
        query.awaitTermination()
    start().awaitTermination()
    counts = Counter(map(int, values(own_store, "t")))
    assert set(counts) == set(range(40_000))
    assert set(counts.values()) == {1, 2}, "what was appended before the kill is there a second time"
    check_lanes_free(own_store)
