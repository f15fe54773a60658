"""Typed topics in a real session: columns, rows per batch, schemas that grow, killed producers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import commitlog
import commitlog.spark
from commitlog.schemas.topic_schemas import TopicSchemas
from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import append_rows, declare
from tests.nightly import by_all_readers_nightly, by_url_nightly, with_nightly
from tests.served import place_of
from tests.spark.jvm_frames import load_columns
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DECLARED = (
    "id BIGINT NOT NULL, name STRING, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(10,2), "
    "tags ARRAY<STRING>, marks MAP<STRING, INT>, s STRUCT<a: INT, b: ARRAY<DOUBLE>>, raw BINARY, day DATE, ok BOOLEAN"
)

pytestmark = pytest.mark.usefixtures("both_ways")


def row(number: int) -> dict[str, Any]:
    if number % 5 == 0:
        return {"id": number}
    return {
        "id": number,
        "name": f"n{number}",
        "tags": ["a", None],
        "marks": {"k": number},
        "s": {"a": number, "b": [0.5]},
        "raw": b"x",
        "ok": True,
    }


@pytest.fixture
def typed(tmp_path: Path) -> HandMadeStore:
    """Two lanes with ten messages of ten rows each."""
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "orders", DECLARED)
    for lane in range(2):
        for message in range(10):
            first = 100 * lane + 10 * message
            append_rows(store.lane(lane), schema, map(row, range(first, first + 10)), (None, "lz4")[message % 2])
        store.lane(lane).append("values", b"x")
    store.publish()
    return store


class Batches:
    """A foreachBatch that remembers the ids of each batch."""

    def __init__(self) -> None:
        self.ids: dict[int, list[int]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.ids[batch] = [found.id for found in frame.select("id").collect()]

    @property
    def all(self) -> list[int]:
        return sorted(number for ids in self.ids.values() for number in ids)


def stream(spark: SparkSession, path: Path, checkpoint: Path, sink: Batches, **options: object) -> Any:
    reader = spark.readStream.format("commitlog")
    chosen = {"subscribe": "orders", "values": "columns", "startingOffsets": "earliest"} | options
    for name, value in chosen.items():
        reader = reader.option(name, str(value))
    return reader.load(place_of(path)).writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))


@by_url_nightly
def test_a_table_of_columns(spark: SparkSession, typed: HandMadeStore) -> None:
    """The schema's columns and types; metadata where it is asked for; all rows."""
    frame = load_columns(spark, typed)
    assert frame.schema.simpleString() == (
        "struct<id:bigint,name:string,at:timestamp,local:timestamp_ntz,price:decimal(10,2),tags:array<string>,"
        "marks:map<string,int>,s:struct<a:int,b:array<double>>,raw:binary,day:date,ok:boolean>"
    )
    assert not frame.schema["id"].nullable
    found = {one.id: one.asDict(recursive=True) for one in frame.collect()}
    assert sorted(found) == list(range(200))
    for number, values in found.items():
        assert {name: value for name, value in values.items() if value is not None} == row(number)
    last = load_columns(spark, typed, metadata=True, startingOffsets="last 1").where("id = 198").collect()[0]
    assert (last._topic, last._partition, last._offset, last._row) == ("orders", 1, 9, 8)
    chosen = load_columns(spark, typed, columns="_row,s,id").where("id = 7").collect()[0].asDict(recursive=True)
    assert chosen == {"_row": 7, "s": {"a": 7, "b": [0.5]}, "id": 7}
    given = load_columns(spark, typed, "s struct<a:int,b:array<double>>, id bigint")
    assert given.columns == ["s", "id"]
    assert given.selectExpr("sum(id)").collect()[0][0] == sum(range(200))
    assert load_columns(spark, typed).count() == 200
    assert load_columns(spark, typed, values="bytes").columns[:2] == ["key", "value"]


@by_url_nightly
@pytest.mark.parametrize(
    ("options", "message"),
    with_nightly(
        [
            ({"subscribe": "values"}, "NoSchema: .*topic values has no schema"),
            ({"columns": "id,missing"}, "OptionError: there is no column 'missing'"),
            (
                {"schema": "s struct<a:int not null,b:array<double>>"},
                "OptionError: schema: column 's' may have nulls, within",
            ),
            ({"values": "rows"}, "OptionError: .*values"),
        ],
        [
            ({"subscribe": "missing"}, "NoSchema: .*topic missing has no schema.*Topics that have one: orders"),
            ({"columns": "id,id"}, "OptionError: .*columns"),
            ({"schema": "id string"}, "OptionError: schema: column 'id' of topic orders is bigint, not string"),
            ({"schema": "x int"}, "OptionError: there is no column 'x'"),
            ({"schema": "_key binary not null"}, "OptionError: schema: column '_key' may have nulls; leave"),
        ],
    ),
)
def test_wrong_uses(spark: SparkSession, typed: HandMadeStore, options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        load_columns(spark, typed, **options).collect()


@pytest.mark.nightly
@by_all_readers_nightly
def test_a_stream_takes_few_rows_at_a_time(spark: SparkSession, typed: HandMadeStore, tmp_path: Path) -> None:
    """`maxRowsPerTrigger` counts rows, not messages; a message is never cut."""
    sink = Batches()
    query = stream(spark, typed.path, tmp_path / "checkpoint", sink, maxRowsPerTrigger=45)
    query.trigger(availableNow=True).start().awaitTermination()
    assert sink.all == list(range(200))
    assert [len(ids) for _, ids in sorted(sink.ids.items())] == [40] * 5
    small = Batches()
    query = stream(
        spark,
        typed.path,
        tmp_path / "small",
        small,
        maxRowsPerTrigger=1,
        startingOffsets='{"orders": {"0": 8, "1": 9}}',
    )
    query.trigger(availableNow=True).start().awaitTermination()
    assert [len(ids) for _, ids in sorted(small.ids.items())] == [10] * 3


@by_all_readers_nightly
def test_a_stream_goes_on_when_the_schema_grows(
    spark: SparkSession, typed: HandMadeStore, tmp_path: Path, look_each_time: None
) -> None:
    """With the columns that it began with; a query that starts later has the new ones."""
    sink = Batches()
    query = stream(spark, typed.path, tmp_path / "checkpoint", sink).start()
    try:
        wait_until(lambda: len(sink.all) == 200, "the old rows")
        grown = declare(typed, "orders", DECLARED + ", more INT", evolve=True)
        append_rows(typed.lane(0), grown, [{"id": 200, "more": 1}])
        typed.publish()
        wait_until(lambda: len(sink.all) == 201, "the row of the new schema")
    finally:
        query.stop()
    assert sink.all == list(range(201))
    rows = load_columns(spark, typed, columns="id,more").where("id >= 199").orderBy("id").collect()
    assert [tuple(one) for one in rows] == [(199, None), (200, 1)]


@pytest.mark.nightly
@by_all_readers_nightly
@pytest.mark.parametrize(
    ("remade", "said"),
    with_nightly(
        [("id BIGINT, s STRUCT<x: INT>", "column s has values that are")],
        [("id BIGINT, other INT", "there is no column name")],
    ),
)
def test_a_stream_ends_where_a_topic_has_other_columns(
    spark: SparkSession, typed: HandMadeStore, tmp_path: Path, look_each_time: None, remade: str, said: str
) -> None:
    """Such as one that was deleted and made anew. Nulls in their place would be wrong rows."""
    sink = Batches()
    columns = "id,s" if "STRUCT" in remade else "id,name"
    query = stream(spark, typed.path, tmp_path / "checkpoint", sink, columns=columns).start()
    try:
        wait_until(lambda: len(sink.all) == 200, "the old rows")
        TopicSchemas(typed.directory).delete("orders")
        other = declare(typed, "orders", remade)
        append_rows(typed.lane(0), other, [{"id": 200}])
        typed.publish()
        with pytest.raises(PySparkException, match=f"SchemaConflict: topic orders: .*{said}"):
            query.awaitTermination(60)
    finally:
        query.stop()
    assert sink.all == list(range(200))


SENDER = """
import os, sys
import commitlog
first = int(sys.argv[2])
with commitlog.Producer(sys.argv[1]) as producer:
    notes = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        rows = [{"id": first + number, "name": "x" * (number % 50)} for number in range(97)]
        producer.send_rows("orders", rows, max_rows=10)
        first += 97
        os.write(notes, b"%d\\n" % first)
"""


@by_all_readers_nightly
@pytest.mark.parametrize("kills", with_nightly([1], [3]))
def test_producers_killed_in_mid_batch(spark: SparkSession, tmp_path: Path, kills: int) -> None:
    """kill -9 while rows are sent: each accepted row once, none of a half message, types whole."""
    config = {"store": {"segment_bytes": 1 << 18}}
    sink = Batches()
    with commitlog.Store.open(tmp_path / "store", config) as store:
        store.create_topic("orders", "id BIGINT NOT NULL, name STRING")
        query = stream(spark, store.path, tmp_path / "checkpoint", sink, maxRowsPerTrigger=50_000).start()
        try:
            for turn in range(kills):
                notes = tmp_path / f"notes-{turn}"
                command = [sys.executable, "-c", SENDER, str(store.path), str(turn * 1_000_000), str(notes)]
                sender = subprocess.Popen(command)
                wait_until(lambda: notes.exists() and len(notes.read_text().split()) >= 5, "rows are accepted")  # noqa: B023
                os.kill(sender.pid, signal.SIGKILL)
                sender.wait()
            with store.producer() as last:
                last.send_rows("orders", [{"id": -1}])
                last.flush(timeout=60)
            accepted = [int((tmp_path / f"notes-{turn}").read_text().split()[-1]) for turn in range(kills)]
            wait_until(lambda: -1 in sink.all and len(sink.all) > sum(end % 1_000_000 for end in accepted))
            wait_until(lambda: len(sink.all) == commitlog.read_arrow(store.path, "orders").read_all().num_rows)
        finally:
            query.stop()
    found = sink.all
    assert len(found) == len(set(found))
    for turn, end in enumerate(accepted):
        own = [number for number in found if number // 1_000_000 == turn]
        assert own == list(range(turn * 1_000_000, turn * 1_000_000 + len(own)))
        assert own[-1] + 1 >= end
