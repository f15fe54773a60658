"""Filters and limits that Spark's JVM takes over: the same rows as by Spark, and fewer are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions

from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import append_rows, declare
from tests.nightly import with_nightly
from tests.spark.jvm_frames import failure, harm, load, load_columns, plan_of, store_of_all_kinds, store_of_one_lane

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    """No test changes it."""
    return store_of_all_kinds(tmp_path_factory.mktemp("kinds") / "store")


@pytest.fixture
def own_store(tmp_path: Path) -> HandMadeStore:
    return store_of_one_lane(tmp_path / "store")


PUSHED = (
    "offset = 5",
    "offset <=> 5",
    "offset BETWEEN 10 AND 20",
    "10 > offset AND offset >= 3",
    "offset > 9223372036854775806",
    "offset <= -1",
    "partition = 1",
    "partition IN (1, 7)",
    "partition <> 1 AND offset < 70",
    "topic = 'orders'",
    "topic IN ('other', 'nobody')",
    "topic >= 'os'",
    "topic <> 'orders' AND partition = 0",
    "partition NOT IN (0, 7)",
    "NOT topic > 'orders'",
    "isnotnull(offset)",
    "isnull(partition)",
    "offset IN (3, 60, 61, 9999, -1)",
    "offset NOT IN (1, 2, 30)",
    "NOT offset = 5",
    "offset <> 0 AND offset NOT BETWEEN 7 AND 49",
    "offset = 5 OR partition = 1",
    "NOT (offset < 5 OR partition = 1 AND offset > 9)",
)
LEFT = (
    "offset = 5 OR key = 'key 7'",
    "offset + 1 = 5",
    "topic LIKE 'o%'",
    "topic = key",
    "timestamp >= '2023-11-14 22:14:00+00:00'",
)


@pytest.mark.parametrize("step", with_nightly([3], [1]))
def test_filters_that_are_pushed_keep_the_right_rows(spark: SparkSession, store: HandMadeStore, step: int) -> None:
    """One frame is filtered in many ways, by filters of which only some are pushed, and joined."""
    conditions = (PUSHED + LEFT)[::step]
    by_jvm = load(spark, store.path, subscribe="orders,other", maxRecordsPerPartition=37)
    by_python = load(spark, store.path, subscribe="orders,other", reader="python")
    answers = [functions.expr(condition).alias(condition) for condition in conditions]  # one job for all of them
    expected = by_python.select("topic", "partition", "offset", *answers).collect()
    for condition in conditions:
        frame = by_jvm.where(condition).select("topic", "partition", "offset")
        assert sorted(frame.collect()) == sorted(row[:3] for row in expected if row[condition]), condition
        assert bool(re.search(r"\bFilter\b", plan_of(frame))) == (condition in LEFT), condition
    both = by_jvm.where("offset < 9").union(by_jvm.where("offset > 50 AND partition = 0"))
    assert both.count() == sum(row.offset < 9 or (row.offset > 50 and row.partition == 0) for row in expected)
    assert by_jvm.count() == len(expected)


def test_rows_that_a_filter_leaves_out_are_not_read(spark: SparkSession, own_store: HandMadeStore) -> None:
    """Neither those with an entry nor those that are walked to."""
    harm(own_store, 41, 2)
    frame = load(spark, own_store.path)
    assert [row[0] for row in frame.where("offset >= 150").select("offset").collect()] == list(range(150, 160))
    assert frame.where("offset < 32").count() == 32
    assert "CorruptRecord" in failure(frame.where("offset = 32").collect)


def test_a_range_that_is_left_out_may_be_damaged(spark: SparkSession, own_store: HandMadeStore) -> None:
    """Python reads the other ranges of the task, and no row between them."""
    harm(own_store, 41, 2)  # offset 32
    own_store.directory.lane_directory(3).quarantine.mkdir()
    (own_store.directory.lane_directory(3).quarantine / "corrupt-").touch()
    frame = load(spark, own_store.path)
    found = frame.where("offset IN (3, 4, 31, 33, 150) OR offset > 157").select("offset").collect()
    assert [row[0] for row in found] == [3, 4, 31, 33, 150, 158, 159]
    assert [row[0] for row in frame.where("offset <> 32").select("offset").collect()] == [*range(32), *range(33, 160)]
    assert "offset 32: " in failure(frame.where("offset <> 31").collect)


_COMPARISONS = st.one_of(
    st.builds(
        "{} {} {}".format,
        st.just("offset"),
        st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"]),
        st.integers(-1, 70),
    ),
    st.builds("partition {} {}".format, st.sampled_from(["=", "<>", "<", ">="]), st.integers(-1, 2)),
    st.builds(
        "topic {} '{}'".format, st.sampled_from(["=", "<>", "<", ">="]), st.sampled_from(["orders", "other", "p"])
    ),
    st.builds(
        "offset {} ({})".format,
        st.sampled_from(["IN", "NOT IN"]),
        st.lists(st.integers(-1, 70), min_size=1, max_size=20).map(lambda found: ", ".join(map(str, found))),
    ),
    st.sampled_from(["isnotnull(offset)", "isnull(topic)", "length(value) > 300"]),
)
_CONDITIONS = st.recursive(
    _COMPARISONS,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("(NOT {})".format, inner),
    ),
    max_leaves=6,
)
FEW = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])


@pytest.fixture(scope="module")
def rows(spark_session: SparkSession, store: HandMadeStore) -> list[Row]:
    """All rows of the store, as Python reads them."""
    frame = load(spark_session, store.path, subscribe="orders,other", reader="python")
    return frame.select("topic", "partition", "offset", "value").collect()


def check_condition(spark: SparkSession, store: HandMadeStore, rows: list[Row], condition: str) -> None:
    frame = load(spark, store.path, subscribe="orders,other", maxRecordsPerPartition=50)
    found = frame.where(condition).select("topic", "partition", "offset", "value").collect()
    expected = spark.createDataFrame(rows, frame.select("topic", "partition", "offset", "value").schema)
    assert sorted(found) == sorted(expected.where(condition).collect()), condition


@pytest.mark.nightly
@settings(FEW, max_examples=8)
@given(condition=_CONDITIONS)
def test_any_condition(spark: SparkSession, store: HandMadeStore, rows: list[Row], condition: str) -> None:
    check_condition(spark, store, rows, condition)


@pytest.mark.nightly
@settings(FEW, max_examples=400)
@given(condition=_CONDITIONS)
def test_any_condition_many(spark: SparkSession, store: HandMadeStore, rows: list[Row], condition: str) -> None:
    check_condition(spark, store, rows, condition)


@pytest.mark.nightly
def test_metadata_of_a_typed_topic(spark: SparkSession, tmp_path: Path) -> None:
    """Its own columns of those names are other ones, and Spark filters them."""
    made = HandMadeStore(tmp_path / "store", 1 << 14)
    schema = declare(made, "orders", "offset BIGINT, topic STRING")
    for number in range(40):
        append_rows(made.lane(number % 2), schema, [{"offset": 100 - number, "topic": "t"}] * (number % 3 + 1))
    made.lane(0).dispatch(12)
    made.publish()
    by_jvm, by_python = (load_columns(spark, made, metadata=True, reader=reader) for reader in ("any", "python"))
    for condition in (
        "_offset IN (3, 7, 8, 19)",
        "_offset NOT IN (0, 1, 2) AND _partition <=> 1",
        "_topic = 'orders' AND _offset <> 4",
        "_partition IN (0, 5) OR _offset = 2",
    ):
        assert not re.search(r"\bFilter\b", plan_of(by_jvm.where(condition))), condition
        assert sorted(by_jvm.where(condition).collect()) == sorted(by_python.where(condition).collect())
    assert re.search(r"\bFilter\b", plan_of(by_jvm.where("offset IN (80, 90)")))
    assert by_jvm.where("offset IN (80, 90)").count() == by_python.where("offset IN (80, 90)").count() > 0


# ---- limits --------------------------------------------------------------------------------------


def tasks_of(frame: DataFrame) -> int:
    """How many tasks read, also where a limit is above them."""
    return int(frame.rdd.getNumPartitions())


@pytest.mark.nightly
def test_a_limit_plans_fewer_tasks(spark: SparkSession, store: HandMadeStore) -> None:
    """No more than have so many rows together. Spark cuts what the last one has more."""
    frame = load(spark, store.path, subscribe="orders,other", maxRecordsPerPartition=10).where("offset >= 5")
    count = frame.count()
    assert tasks_of(frame) > 20
    for limit, tasks in ((1, 1), (25, 4), (10_000, tasks_of(frame))):
        few = frame.limit(limit)
        assert re.search(rf"PushedFilters: \[.*offset >= 5\] Limit: {limit}\b", plan_of(few))
        assert few.count() == len(few.collect()) == min(limit, count)
        assert tasks_of(few) <= tasks
    both = load(spark, store.path)
    assert both.limit(30).union(both.limit(7)).count() == 37
    assert both.offset(3).limit(7).count() == 7
    assert both.count() == len(store.rows("orders"))


@pytest.mark.parametrize("options", with_nightly([{"ignoreCorruptRecords": "true"}], [{}, {"failOnDataLoss": "false"}]))
def test_a_limit_where_rows_are_missing(spark: SparkSession, own_store: HandMadeStore, options: dict[str, str]) -> None:
    """A damaged record does not count as a row, where it is left out."""
    harm(own_store, 6, 2)  # offset 4
    frame = load(spark, own_store.path, maxRecordsPerPartition=5, **options)
    assert len(frame.limit(3).collect()) == 3
    if "ignoreCorruptRecords" in options:
        assert {row[0] for row in frame.select("offset").limit(159).collect()} == {*range(160)} - {4}
    else:
        assert "CorruptRecord" in failure(frame.limit(159).collect)


@pytest.mark.nightly
def test_a_limit_of_a_typed_topic(spark: SparkSession, tmp_path: Path) -> None:
    """It counts rows, of which a message may have many."""
    made = HandMadeStore(tmp_path / "store", 1 << 14)
    schema = declare(made, "orders", "id BIGINT")
    for size in (2, 30, 4):
        append_rows(made.lane(0), schema, [{"id": size}] * size)
    made.publish()
    for reader in ("any", "python"):
        frame = load_columns(spark, made, reader=reader, maxRecordsPerPartition=2)
        assert [frame.limit(limit).count() for limit in (1, 3, 31, 34, 99)] == [1, 3, 31, 34, 36]


@pytest.mark.nightly
def test_a_limit_reads_only_what_it_needs(spark: SparkSession, own_store: HandMadeStore) -> None:
    """Damage behind the wanted rows is no matter of the query."""
    harm(own_store, 191, 2)  # offset 152
    frame = load(spark, own_store.path, maxRecordsPerPartition=20)
    assert "CorruptRecord" in failure(frame.limit(160).collect)
    assert frame.limit(140).groupBy().count().first() == (140,)
