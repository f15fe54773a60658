"""A filter on `timestamp` narrows what Spark's JVM reads, and changes no row and no error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions

from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import append_rows, declare
from tests.nightly import with_nightly
from tests.spark.jvm_frames import failure, harm, load, plan_of, store_of_all_kinds, store_of_one_lane

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    """No test changes it."""
    return store_of_all_kinds(tmp_path_factory.mktemp("times") / "store")


def time_of(store: HandMadeStore, number: int, lane: int = 3) -> str:
    """SQL for the time of a record."""
    return f"timestamp_millis({store.lane(lane).records[number].store_timestamp})"


CONDITIONS = (
    "timestamp >= {0}",
    "timestamp > {0} AND timestamp < {1}",
    "timestamp = {0}",
    "timestamp <= {1} AND offset > 3 AND topic = 'orders'",
    "timestamp BETWEEN {0} + INTERVAL 1 MICROSECOND AND {1} - INTERVAL 1 MICROSECOND",
    "timestamp < '1970-01-02'",
    "timestamp > '2100-01-01'",
    "timestamp < {0} OR timestamp > {1}",
    "timestamp <=> {0} OR length(value) > 900",
    "timestamp > {1} AND timestamp < {0}",
    "timestamp IN ({0}, {1})",
)


@pytest.mark.parametrize("step", with_nightly([2], [1]))
def test_the_rows_are_the_python_source_s(spark: SparkSession, store: HandMadeStore, step: int) -> None:
    by_jvm, by_python = (load(spark, store.path, subscribe="orders,other", reader=it) for it in ("any", "python"))
    conditions = [condition.format(time_of(store, 50, 0), time_of(store, 120, 1)) for condition in CONDITIONS[::step]]
    answers = [functions.expr(condition).alias(condition) for condition in conditions]  # one job for all of them
    expected = by_python.select("*", *answers).collect()
    columns = len(by_python.columns)
    for condition in conditions:
        found = by_jvm.where(condition).collect()
        assert in_order(found) == in_order([row[:columns] for row in expected if row[condition]]), condition


def in_order(rows: Iterable[Sequence[object]]) -> list[tuple[object, ...]]:
    """The rows, by topic, partition and offset."""
    return sorted(map(tuple, rows), key=lambda row: row[2:5])


def test_explain_shows_the_times(spark: SparkSession, store: HandMadeStore) -> None:
    since = store.lane(0).records[50].store_timestamp
    assert f"Times: [{since} ms, ]" in plan_of(load(spark, store.path).where(f"timestamp >= {time_of(store, 50, 0)}"))
    assert "Times:" not in plan_of(load(spark, store.path).where("offset > 3"))


@pytest.mark.nightly
def test_what_was_stored_at_other_times_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """Damage there is no matter of the query. Without the filter it is one."""
    store = store_of_one_lane(tmp_path / "store")
    harm(store, 11, 4)
    frame = load(spark, store.path)
    assert "CorruptRecord" in failure(frame.collect)
    assert late(frame, store, 100).count() == 80
    assert frame.where(f"timestamp > {time_of(store, 99)} AND timestamp <= {time_of(store, 109)}").count() == 8


@pytest.mark.parametrize("damaged", with_nightly([99], [101]))
def test_damage_at_the_border_is_an_error(spark: SparkSession, tmp_path: Path, damaged: int) -> None:
    """Nobody knows when the damaged message was stored: it may be one of the wanted ones."""
    store = store_of_one_lane(tmp_path / "store")
    harm(store, damaged, 4)
    assert "CorruptRecord" in failure(late(load(spark, store.path), store, 101).collect)


@pytest.mark.nightly
def test_rows_that_retention_deleted_after_the_plan_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """They may be of the wanted times."""
    store = store_of_one_lane(tmp_path / "store")
    frame = load(spark, store.path)
    assert frame.count() == 160
    directory = store.directory.lane_directory(3).commitlog
    first, *others = sorted(directory.iterdir())
    first.unlink()
    store.lane(3).publish()
    assert others
    assert failure(late(frame, store, 1).collect)


def late(frame: DataFrame, store: HandMadeStore, number: int) -> DataFrame:
    """What was stored with this record of lane 3 or later."""
    return frame.where(f"timestamp >= {time_of(store, number)}")


@pytest.mark.nightly
def test_a_typed_topic_has_a_column_for_the_time_of_its_messages(spark: SparkSession, tmp_path: Path) -> None:
    """Its own column `timestamp` is no time of a message, and narrows nothing."""
    store = HandMadeStore(tmp_path / "store", 1 << 14)
    schema = declare(store, "sales", "timestamp TIMESTAMP, id INT")
    for number in range(100):
        at = datetime.fromtimestamp(1000 - number, UTC)
        append_rows(store.lane(0), schema, [{"timestamp": at, "id": number}] * 3)
    store.lane(0).dispatch()
    store.lane(0).publish()
    frame = load(spark, store.path, subscribe="sales", values="columns", metadata="true")
    by_message = frame.where(f"_timestamp >= {time_of(store, 90, 0)}")
    assert "Times:" in plan_of(by_message)
    assert by_message.count() == 30
    own = frame.where("timestamp > timestamp_seconds(990)")
    assert "Times:" not in plan_of(own)
    assert own.count() == 30
