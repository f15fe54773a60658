"""A Spark query goes on, with its checkpoint, on a copy that was promoted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import commitlog
from commitlog.replicas.promotion import promote
from tests.replicas.scene import Scene, await_copy
from tests.spark.test_foreach import end_processes
from tests.spark.test_jvm_stream import frame
from tests.spark.test_real_time import Noting, await_values, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def drain(spark: SparkSession, store: Path, place: Path) -> None:
    """Reads what is new in a store, and appends it to a table."""
    frame = (
        spark.readStream.format("commitlog").options(subscribe="orders", startingOffsets="earliest").load(str(store))
    )
    writer = frame.selectExpr("CAST(value AS STRING) AS value", "partition", "offset").writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    query.start(str(place / "table")).awaitTermination()


def test_a_query_goes_on_with_exactly_the_missing_rows(spark: SparkSession, scene: Scene, tmp_path: Path) -> None:
    """It reads the copy by its path, too, before that is promoted."""

    def send(store: commitlog.Store, first: int, end: int) -> None:
        with store.producer() as producer:
            for number in range(first, end):
                producer.send("orders", b"%d" % number)
            producer.flush()

    with scene.open() as store, scene.follower():
        send(store, 0, 50)
        drain(spark, scene.primary, tmp_path)
        send(store, 50, 80)
        await_copy(scene)
        copied = spark.read.format("commitlog").option("subscribe", "orders").load(str(scene.copy))
        assert copied.count() == 80
    promote(scene.copy)
    with scene.open(scene.copy, listen="") as store:
        send(store, 80, 100)
        drain(spark, scene.copy, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(100))
    assert sorted(row["offset"] for row in rows) == list(range(100))


@pytest.mark.nightly
def test_a_query_in_real_time_goes_on_through_a_promotion(spark: SparkSession, scene: Scene, tmp_path: Path) -> None:
    """It follows the copy before, and after: each row comes once."""
    noting = Noting(tmp_path / "noted")

    def send(store: commitlog.Store, numbers: range) -> None:
        with store.producer() as producer:
            for number in numbers:
                producer.send("orders", b"%05d" % number)
            producer.flush()

    def rows(count: int) -> list[str]:
        return [f"{number:05}" for number in range(count)]

    with scene.open() as store, scene.follower():
        send(store, range(30))
        await_copy(scene)
        query = start(frame(spark, scene.copy).select("value"), noting, tmp_path / "checkpoint")
        try:
            await_values(query, noting, rows(30))
            send(store, range(30, 50))
            await_values(query, noting, rows(50))
        except BaseException:
            query.stop()
            raise
    try:
        promote(scene.copy)
        with scene.open(scene.copy, listen="") as store:
            send(store, range(50, 70))
            await_values(query, noting, rows(70))
    finally:
        query.stop()
        end_processes(spark)
