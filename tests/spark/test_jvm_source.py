"""The JVM reads batches of bytes topics: the same rows as the Python source."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import commitlog.spark
from commitlog.record import properties, record_layout
from tests.builders.hand_made import HandMadeStore
from tests.leaks import describe, parent_and_state, pids
from tests.spark.jvm_frames import (
    ALL,
    BY_JVM,
    BY_PYTHON,
    LONG,
    checksum,
    failure,
    load,
    plan_of,
    store_of_all_kinds,
    store_of_one_lane,
)
from tests.spark_session import jvm_pid
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    """No test changes it."""
    return store_of_all_kinds(tmp_path_factory.mktemp("kinds") / "store")


@pytest.fixture
def own_store(tmp_path: Path) -> HandMadeStore:
    return store_of_one_lane(tmp_path / "store")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": ALL, "subscribe": f"orders,other,{LONG}"},
        {"includeHeaders": "true", "subscribePattern": ".*", "subscribe": None, "maxRecordsPerPartition": 17},
        {"isolation": "committed", "columns": ALL, "startingOffsets": '{"orders": {"0": 5, "1": -2}}'},
    ],
    ids=str,
)
def test_the_rows_are_the_python_source_s(
    spark: SparkSession, store: HandMadeStore, options: dict[str, object]
) -> None:
    """All columns of all kinds of records, with entries and without."""
    given = {name: value for name, value in ({"subscribe": "orders"} | options).items() if value is not None}
    frames = [_load_as(spark, store, given), _load_as(spark, store, given | {"reader": "python"})]
    assert BY_JVM in plan_of(frames[0])
    assert BY_PYTHON.format("option reader=python") in plan_of(frames[1])
    assert frames[0].schema == frames[1].schema
    by_jvm, by_python = map(checksum, frames)
    assert by_jvm == by_python
    assert by_jvm[0] > 50


def _load_as(spark: SparkSession, store: HandMadeStore, options: dict[str, object]) -> DataFrame:
    reader = spark.read.format("commitlog")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(store.path))


def test_only_the_wanted_columns_are_read(spark: SparkSession, store: HandMadeStore) -> None:
    frame = load(spark, store.path).where("length(value) > 9").select("offset")
    assert re.search(r"BatchScan commitlog \(read by the JVM\)\[value#\d+, offset#\d+L\]", plan_of(frame))
    assert load(spark, store.path).count() == len(store.rows("orders"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ignoreCorruptRecords": "true"}, "option ignoreCorruptRecords"),
        ({"values": "json", "schema": "n INT"}, "option values=json"),
        ({"reader": "python"}, "option reader=python"),
    ],
)
def test_explain_says_why_python_reads(
    spark: SparkSession, store: HandMadeStore, options: dict[str, str], reason: str
) -> None:
    reader = spark.read.format("commitlog").option("subscribe", "orders")
    for name, value in options.items():
        reader = reader.schema(value) if name == "schema" else reader.option(name, value)
    assert BY_PYTHON.format(reason) in plan_of(reader.load(str(store.path)))


def test_a_frame_is_a_snapshot(spark: SparkSession, own_store: HandMadeStore) -> None:
    """A loaded frame has the rows of its first use, whatever is made of it; a new one has all."""
    frame = load(spark, own_store.path)
    assert frame.count() == 160
    own_store.lane(3).append("orders", b"later")
    own_store.lane(3).dispatch()
    own_store.lane(3).publish()
    assert frame.union(frame.where("offset > 100")).count() == 160 + 59
    assert frame.alias("a").join(frame.alias("b"), "offset").count() == 160
    assert load(spark, own_store.path).count() == 161


def test_a_schema_of_the_user_s(spark: SparkSession, store: HandMadeStore) -> None:
    """It chooses columns; one that does not fit is an error in the Python source's words."""
    reader = spark.read.format("commitlog").option("subscribe", "orders")
    frame = reader.schema("offset BIGINT, value BINARY").load(str(store.path))
    assert BY_JVM in plan_of(frame)
    assert sorted(row[0] for row in frame.collect()) == sorted(row[1] for row in store.rows("orders"))
    wrong = reader.schema("offset STRING").load(str(store.path))
    assert failure(wrong.collect).startswith("OptionError: schema: column 'offset' is bigint, not string; allowed are")


def test_rows_whose_consume_queue_is_lost(spark: SparkSession, own_store: HandMadeStore) -> None:
    """They are found by a walk of the whole log, over several segments."""
    shutil.rmtree(own_store.directory.lane_directory(3).consumequeue / "orders")
    found = load(spark, own_store.path).select("partition", "offset", "value").collect()
    assert [(row[0], row[1], bytes(row[2])) for row in found] == own_store.rows("orders")


def test_java_knows_the_layout_of_a_record() -> None:
    """Its constants are those of record_layout.py."""
    text = (Path(commitlog.spark.__path__[0]) / "java" / "RecordLayout.java").read_text()
    found = re.findall(r"static final (?:int|long) (\w+) = (\w+);", text)
    assert len(found) > 20
    for name, value in found:
        known = getattr(record_layout, name, getattr(record_layout.SysFlag, name, None))
        if name == "PREPARED":
            known = record_layout.Transaction.PREPARED
        elif name == "CRC_PROPERTY_NAME":
            known = int.from_bytes(record_layout.CRC_PROPERTY_NAME)
        elif name == "CRC_PROPERTY_NAME_BYTES":
            known = len(record_layout.CRC_PROPERTY_NAME)
        elif name.endswith("_SEPARATOR"):
            known = ord(getattr(properties, name))
        elif name == "BORN_TIMESTAMP_AT":
            known = record_layout.LEAD_BYTES - 8
        assert int(value.removesuffix("L"), 0) == known, name


# ---- processes -----------------------------------------------------------------------------------


def planners(spark: SparkSession) -> list[int]:
    """The planners of the session's JVM."""
    own = [pid for pid in pids() if parent_and_state(pid)[0] == jvm_pid(spark)]
    return [pid for pid in own if "jvm_planner" in describe(pid)]


def test_a_planner_that_dies_is_started_again(spark: SparkSession, store: HandMadeStore) -> None:
    expected = checksum(load(spark, store.path))
    (planner,) = planners(spark)
    os.kill(planner, signal.SIGINT)  # Ctrl-C in the driver's terminal
    assert checksum(load(spark, store.path)) == expected
    assert planners(spark) == [planner]
    os.kill(planner, signal.SIGKILL)
    wait_until(lambda: planners(spark) == [], "the planner is gone")
    assert checksum(load(spark, store.path)) == expected
    assert len(planners(spark)) == 1


def test_no_python_worker_reads(spark: SparkSession, store: HandMadeStore) -> None:
    """A batch of the JVM has no Python worker, so no row passes through one."""
    frame = load(spark, store.path)
    assert "Python" not in plan_of(frame)
    before = {pid for pid in pids() if "pyspark" in describe(pid)}
    assert checksum(frame)[0] == len(store.rows("orders"))
    assert {pid for pid in pids() if "pyspark" in describe(pid)} <= before
