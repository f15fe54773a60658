"""Spark's UI shows what its JVM has read of a store: messages, bytes, and rows that Python read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import append_rows, declare
from tests.spark.jvm_frames import load, load_columns, store_of_one_lane
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def metrics_of(spark: SparkSession, frame: DataFrame) -> dict[str, str]:
    """The metrics that the UI shows for a query of a frame, by their descriptions."""
    frame.collect()
    status: Any = spark._jsparkSession.sharedState().statusStore()
    newest = wait_until(lambda: _ended(status), "the query is in the UI")
    values = status.executionMetrics(newest.executionId())
    found = {}
    metrics = newest.metrics()
    for place in range(metrics.size()):
        metric = metrics.apply(place)
        value = values.get(metric.accumulatorId())
        if value.isDefined():
            found[str(metric.name())] = str(value.get())
    return found


def _ended(status: Any) -> Any:
    executions = status.executionsList()
    newest = executions.apply(executions.size() - 1)
    return newest if newest.completionTime().isDefined() else None


@pytest.mark.parametrize("values", ["bytes", "json"])
def test_a_batch(spark: SparkSession, tmp_path: Path, values: str) -> None:
    """Only what is read counts, not what a filter leaves out."""
    store = store_of_one_lane(tmp_path / "store")
    frame = load(spark, store.path).select("value")
    if values == "json":
        reader = spark.read.format("commitlog").option("subscribe", "orders").option("values", "json")
        frame = reader.schema("a INT, _offset BIGINT, offset BIGINT").load(str(store.path))
    name = "_offset" if values == "json" else "offset"
    sizes = load(spark, store.path, columns="offset,size").where("offset >= 100").select("size").collect()
    shown = metrics_of(spark, frame.where(f"{name} >= 100"))
    assert shown["messages read"] == "60"
    assert shown["bytes read"] == str(sum(row[0] for row in sizes))
    assert shown["rows read by Python"] == "0"


def test_what_python_reads(spark: SparkSession, tmp_path: Path) -> None:
    """So it shows that a store is damaged, or has values that the JVM does not unpack."""
    store = store_of_one_lane(tmp_path / "store")
    store.directory.lane_directory(3).quarantine.mkdir()
    (store.directory.lane_directory(3).quarantine / "corrupt-").touch()
    shown = metrics_of(spark, load(spark, store.path))
    assert (shown["messages read"], shown["rows read by Python"]) == ("0", "160")


def test_a_typed_topic(spark: SparkSession, tmp_path: Path) -> None:
    """It counts messages, of which each has many rows."""
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "orders", "id BIGINT")
    for _ in range(3):
        append_rows(store.lane(0), schema, [{"id": 1}] * 50)
    store.publish()
    shown = metrics_of(spark, load_columns(spark, store))
    assert (shown["messages read"], shown["number of output rows"]) == ("3", "150")
