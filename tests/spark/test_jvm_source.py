"""The JVM reads batches of bytes topics: the same rows as the Python source."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

import commitlog.spark
from commitlog.record import properties, record_layout
from tests.builders.hand_made import BEGIN_MS, HandMadeStore
from tests.nightly import with_nightly
from tests.spark.jvm_frames import (
    ALL,
    BY_JVM,
    BY_PYTHON,
    LONG,
    checksum,
    children,
    error_line,
    failure,
    load,
    plan_of,
    store_of_all_kinds,
    store_of_one_lane,
)
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    """No test changes it."""
    return store_of_all_kinds(tmp_path_factory.mktemp("kinds") / "store")


@pytest.fixture
def own_store(tmp_path: Path) -> HandMadeStore:
    return store_of_one_lane(tmp_path / "store")


@pytest.mark.parametrize(
    "options",
    with_nightly(
        [
            {"columns": ALL, "subscribe": f"orders,other,{LONG}"},
            {"includeHeaders": "true", "subscribePattern": ".*", "subscribe": None, "maxRecordsPerPartition": 17},
        ],
        [{}, {"isolation": "committed", "columns": ALL, "startingOffsets": '{"orders": {"0": 5, "1": -2}}'}],
    ),
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


@pytest.mark.nightly
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(
    options=st.fixed_dictionaries(
        {"columns": st.lists(st.sampled_from(ALL.split(",")), min_size=1, unique=True).map(",".join)},
        optional={
            "subscribe": st.sampled_from(["orders", "other", LONG, f"orders,{LONG}"]),
            "assign": st.sampled_from(['{"orders": [1]}', '{"orders": [0, 1], "other": [0]}']),
            "isolation": st.sampled_from(["flushed", "committed"]),
            "maxRecordsPerPartition": st.integers(1, 100),
            "minPartitions": st.integers(1, 9),
            "startingTimestamp": st.integers(BEGIN_MS, BEGIN_MS + 140_000),
            "endingTimestamp": st.integers(BEGIN_MS, BEGIN_MS + 160_000),
        },
    )
)
def test_any_options(spark: SparkSession, store: HandMadeStore, options: dict[str, object]) -> None:
    """The rows are the Python source's, and so is the error where options do not go together."""
    given = options if "assign" in options else {"subscribe": "orders"} | options
    by_jvm, by_python = (_outcome(spark, store, given | more) for more in ({}, {"reader": "python"}))
    assert by_jvm == by_python


def _outcome(spark: SparkSession, store: HandMadeStore, options: dict[str, object]) -> tuple[int, int] | str:
    try:
        return checksum(_load_as(spark, store, options))
    except PySparkException as error:
        return error_line(error)


def _load_as(spark: SparkSession, store: HandMadeStore, options: dict[str, object]) -> DataFrame:
    reader = spark.read.format("commitlog")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(store.path))


def test_only_the_wanted_columns_are_read(spark: SparkSession, store: HandMadeStore) -> None:
    frame = load(spark, store.path).where("length(value) > 9").select("offset")
    assert re.search(r"BatchScan commitlog \(read by the JVM\)\[value#\d+, offset#\d+L\]", plan_of(frame))
    assert load(spark, store.path).count() == len(store.rows("orders"))


@pytest.mark.parametrize("noted", with_nightly([False], [True]))
def test_one_field_of_headers(spark: SparkSession, tmp_path: Path, noted: bool) -> None:
    """Names are names and values are values, whichever of the two a query wants, whoever reads."""
    made = HandMadeStore(tmp_path / "store", 1 << 14)
    made.lane(0).append("orders", b"one", properties={"name": "välue"})
    made.publish()
    if noted:  # Python reads the task
        made.directory.lane_directory(0).quarantine.mkdir()
        (made.directory.lane_directory(0).quarantine / "corrupt-").touch()
    frame = load(spark, made.path, includeHeaders="true")
    with_more = frame.selectExpr("headers.value", "headers[0].key", "length(value)")
    for found in (frame.selectExpr("headers.value").first(), with_more.first()):
        assert found is not None
        assert [bytes(value) for value in found[0]] == ["välue".encode()]
    assert [row[0] for row in frame.selectExpr("headers[0].key").collect()] == ["name"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"reader": "python", "values": "json", "schema": "n INT"}, "option reader=python"),
        ({"reader": "python"}, "option reader=python"),
        ({"reader": "python", "isolation": None}, "option reader=python"),
    ],
)
def test_explain_says_why_python_reads(
    spark: SparkSession, store: HandMadeStore, options: dict[str, str | None], reason: str
) -> None:
    """An option of None is not given."""
    reader = spark.read.format("commitlog").option("subscribe", "orders")
    for name, value in options.items():
        reader = reader.schema(str(value)) if name == "schema" else reader.option(name, value)
    assert BY_PYTHON.format(reason) in plan_of(reader.load(str(store.path)))


@pytest.mark.nightly
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


def test_a_planner_that_dies_is_started_again(spark: SparkSession, store: HandMadeStore) -> None:
    expected = checksum(load(spark, store.path))
    (planner,) = children(spark, "planner")
    os.kill(planner, signal.SIGINT)  # Ctrl-C in the driver's terminal
    assert checksum(load(spark, store.path)) == expected
    assert children(spark, "planner") == {planner}
    os.kill(planner, signal.SIGKILL)
    wait_until(lambda: not children(spark, "planner"), "the planner is gone")
    assert checksum(load(spark, store.path)) == expected
    assert len(children(spark, "planner")) == 1


@pytest.mark.nightly
def test_compressed_values(spark: SparkSession, tmp_path: Path) -> None:
    """The JVM unpacks zlib. Python reads what does not unpack, and what is compressed otherwise."""
    made = HandMadeStore(tmp_path / "store", 1 << 23)
    plain = [b"", b"a", b"many " * 1000, os.urandom(5000), bytes(4 << 20)]
    bad = [b"", zlib.compress(b"cut")[:-1], b"no zlib", zlib.compress(bytes((4 << 20) + 1))]
    for body in plain:
        made.lane(0).append("orders", zlib.compress(body) + b"behind", key="k", sys_flag=0x301 if body else 1)
        made.lane(0).append("orders", body[:9])
        made.lane(1).append("many", zlib.compress(bytes(4 << 20)), sys_flag=1)
    for number, body in enumerate(bad):
        made.lane(0).append(f"bad{number}", b"good")
        made.lane(0).append(f"bad{number}", body, sys_flag=1)
    made.lane(0).append("LZ4", zlib.compress(b"a"), sys_flag=0x101)
    made.publish()
    settings: Any = spark.sparkContext._jsc.sc().conf()
    before = settings.get("spark.pyspark.python", None)
    frame = load(spark, made.path)
    assert BY_JVM in plan_of(frame)
    settings.set("spark.pyspark.python", "/nowhere/python")  # no task can start a process
    try:
        found = [bytes(row[0]) for row in frame.orderBy("offset").select("value").collect()]
        assert "PythonNotFound" in failure(load(spark, made.path, subscribe="LZ4").select("value").collect)
    finally:
        settings.remove("spark.pyspark.python") if before is None else settings.set("spark.pyspark.python", before)
    assert found == [value for body in plain for value in (body, body[:9])]
    assert load(spark, made.path, subscribe="many").selectExpr("sum(length(value))").first() == (5 << 22,)
    for topic in ("bad0", "bad1", "bad2", "bad3", "LZ4"):
        said = failure(load(spark, made.path, subscribe=topic).select("value").collect)
        assert said == failure(load(spark, made.path, subscribe=topic, reader="python").select("value").collect)


def test_no_python_worker_reads(spark: SparkSession, store: HandMadeStore) -> None:
    """A batch of the JVM has no Python worker, so no row passes through one."""
    frame = load(spark, store.path)
    assert "Python" not in plan_of(frame)
    before = children(spark)
    assert checksum(frame)[0] == len(store.rows("orders"))
    assert children(spark) <= before


NOWHERE = """
import sys
import commitlog.spark
spark = commitlog.spark.session(master="local[1]", config={"spark.pyspark.python": "/nowhere/python"})
try:
    spark.read.format("commitlog").option("subscribe", "orders").load(sys.argv[1])
except Exception as error:
    print(error)
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("quick_java")
def test_a_driver_without_python_says_so(store: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", NOWHERE, store.path], cwd=ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    assert "PythonNotFound: /nowhere/python can't be started" in done.stdout, done.stderr


COUNTED = """
import sys
import commitlog.spark
spark = commitlog.spark.session(master="local[1]")
print(spark.read.format("commitlog").option("subscribe", "orders").load(sys.argv[1]).count())
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("quick_java")
def test_a_path_that_the_locale_has_no_letters_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the JVM's locale nor the encoding of Python's own text changes what is read."""
    made = store_of_one_lane(tmp_path / "größe")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, made.path], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout.strip() == str(len(made.rows("orders"))), done.stderr
