"""The JVM reads batches of typed topics: the same rows as the Python source, or the same error."""

from __future__ import annotations

import datetime
import shutil
import struct
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from commitlog.record.record import Record
from commitlog.record.row_headers import ROW_HEADERS
from commitlog.spark.message_layouts import layouts
from tests.builders.hand_made import BEGIN_MS, HandMadeStore
from tests.builders.random_damage import Damage, damage, damages
from tests.builders.typed_data import schemas_with_rows
from tests.builders.typed_topic import append_rows, declare
from tests.nightly import with_nightly
from tests.spark.jvm_frames import BY_JVM, TaskReader, error_line, failure, load_columns, plan_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from commitlog.schemas.topic_schemas import TopicSchema

FIRST = (
    "id BIGINT NOT NULL, ok BOOLEAN, tiny TINYINT, small SMALLINT, number INT, half FLOAT, whole DOUBLE, offset STRING, "
    "raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(10,2), big DECIMAL(38,10), "
    "tags ARRAY<STRING>, marks MAP<STRING, INT>, s STRUCT<a: INT, b: ARRAY<DOUBLE>, c: STRUCT<x: BIGINT, y: STRING>>, "
    "pairs ARRAY<STRUCT<k: INT, v: BINARY>>, deep MAP<INT, ARRAY<MAP<STRING, BOOLEAN>>>"
)
GROWN = FIRST.replace("NOT NULL", "").replace("tiny TINYINT", "tiny BIGINT").replace("half FLOAT", "half DOUBLE")
GROWN = GROWN.replace("DECIMAL(10,2)", "DECIMAL(25,6)") + ", _more ARRAY<INT>"
FEW = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller case would take hundreds of queries
)


def row(number: int) -> dict[str, Any]:
    """Each column is null in some of the rows."""
    whole = {
        "ok": number % 2 == 0,
        "tiny": number % 200 - 100,
        "small": -number,
        "number": number * 99_999,
        "half": number / 4,
        "whole": number / 3,
        "offset": "é" * (number % 3) + f"text {number}",
        "raw": bytes([number % 256]) * (number % 4),
        "day": datetime.date(1800 + number, 2, 3),
        "at": datetime.datetime(1800 + number, 2, 3, 4, 5, 6, number, tzinfo=datetime.UTC),
        "local": datetime.datetime(2000, 1, 1, 0, 0, number % 60),
        "price": Decimal(number - 100) / 4,
        "big": Decimal(-1234567890123456789012345).scaleb(-7) * number,
        "tags": [None, "x" * number, "y"][: number % 4],
        "marks": {f"k{key}": (key if key % 2 else None) for key in range(number % 3)},
        "s": {"a": number, "b": [0.5] * (number % 3), "c": {"x": number, "y": "z"} if number % 2 else None},
        "pairs": [{"k": number, "v": b"1"}, None][: number % 3],
        "deep": {number: [{"a": True, "b": None}, None]},
    }
    return {"id": number} | {name: value for place, (name, value) in enumerate(whole.items()) if (number + place) % 5}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    """Two versions of a schema in two lanes, whose last messages have no entries yet.

    No test changes it.
    """
    store = HandMadeStore(tmp_path_factory.mktemp("typed") / "store", 1 << 17)
    first = declare(store, "orders", FIRST)
    for lane in (0, 1):
        for message, size in enumerate((1, 30, 7, 64, 65)):
            begin = 200 * lane + 40 * message
            append_rows(store.lane(lane), first, map(row, range(begin, begin + size)), key=("k", None)[message % 2])
            store.lane(lane).append("values", b"x" * message)
    grown = declare(store, "orders", GROWN, evolve=True)
    for lane in (0, 1):
        append_rows(store.lane(lane), grown, [row(500 + lane) | {"_more": [1, None]}, row(600)])
        store.lane(lane).dispatch(6)
        store.lane(lane).publish()
    return store


def both(spark: SparkSession, store: HandMadeStore, schema: str = "", **options: object) -> list[DataFrame]:
    frames = [
        load_columns(spark, store, schema, **options),
        load_columns(spark, store, schema, reader="python", **options),
    ]
    assert BY_JVM in plan_of(frames[0])
    assert BY_JVM not in plan_of(frames[1])
    assert frames[0].schema == frames[1].schema
    return frames


def in_order(frame: DataFrame) -> list[str]:
    return sorted(str(found.asDict(recursive=True)) for found in frame.collect())


def test_all_types_and_both_versions(spark: SparkSession, typed: HandMadeStore) -> None:
    """All columns and all metadata, with nulls; old messages as the newest version has them."""
    by_jvm, by_python = both(spark, typed, metadata=True)
    assert in_order(by_jvm) == in_order(by_python)
    assert by_jvm.count() == 2 * (1 + 30 + 7 + 64 + 65 + 2)


@pytest.mark.parametrize(
    ("schema", "options"),
    with_nightly(
        [("s STRUCT<a: INT, b: ARRAY<DOUBLE>, c: STRUCT<x: BIGINT, y: STRING>>, _row INT", {})],
        [
            ("tiny SMALLINT, price DECIMAL(11,3), id BIGINT", {"endingOffsets": '{"orders": {"0": 3, "1": 2}}'}),
            ("", {"columns": "_key,_row,_offset,whole", "maxRecordsPerPartition": 2, "isolation": "committed"}),
        ],
    ),
)
def test_some_columns(spark: SparkSession, typed: HandMadeStore, schema: str, options: dict[str, object]) -> None:
    """A user's own schema may be wider than a message's, or narrower, if the values fit."""
    by_jvm, by_python = both(spark, typed, schema, **options)
    assert in_order(by_jvm) == in_order(by_python)


def test_the_jvm_itself_reads_message_by_message(spark: SparkSession, tmp_path: Path) -> None:
    """Python would put them together."""
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "orders", FIRST)
    for size in (1, 30, 7):
        append_rows(store.lane(0), schema, map(row, range(size)))
    store.publish()
    assert TaskReader(spark, store.path, values="columns").sizes() == [1, 30, 7]


@pytest.mark.nightly
def test_filters_and_pruning(spark: SparkSession, typed: HandMadeStore) -> None:
    """Filters on metadata cut the plan; one on a column that is named `offset` is Spark's own."""
    filters = [
        "_offset > 1 AND _partition = 1",
        "offset = 'text 42'",
        "_topic = 'orders' AND _offset = 3 AND id < 150",
        f"_timestamp >= timestamp_millis({BEGIN_MS + 6_000})",
    ]
    by_jvm, by_python = both(spark, typed, metadata=True)
    for condition in filters:
        found = by_jvm.where(condition)
        expected = in_order(by_python.where(condition))
        assert in_order(found) == expected
        assert found.count() == len(expected) > 0
    plan = plan_of(load_columns(spark, typed, metadata=True).where("_offset > 1").select("number"))
    assert "PushedFilters: [_offset IS NOT NULL, _offset > 1]" in plan
    assert "(read by the JVM)[number#" in plan
    pruned = [frame.select("s.c.y", "pairs.v").collect() for frame in both(spark, typed)]
    assert sorted(map(str, pruned[0])) == sorted(map(str, pruned[1]))


@pytest.mark.nightly
def test_nulls_that_the_schema_does_not_allow(spark: SparkSession, typed: HandMadeStore) -> None:
    with_null = "_more ARRAY<INT> NOT NULL"
    said = failure(load_columns(spark, typed, with_null).collect)
    assert said == failure(load_columns(spark, typed, with_null, reader="python").collect)
    assert said.startswith("SchemaConflict: ")


def check_random(spark: SparkSession, path: Path, schema_and_rows: Any) -> None:
    schema, rows = schema_and_rows
    with TemporaryDirectory(dir=path) as place:
        store = HandMadeStore(Path(place) / "store")
        declared = declare(store, "orders", schema)
        for part in (rows, rows[:1]):
            append_rows(store.lane(0), declared, part)
        store.publish()
        by_jvm, by_python = both(spark, store)
        assert by_jvm.collect() == by_python.collect()


@pytest.mark.nightly
@settings(FEW)
@given(schema_and_rows=schemas_with_rows())
def test_any_types(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, schema_and_rows: Any) -> None:
    check_random(spark, tmp_path_factory.getbasetemp(), schema_and_rows)


@pytest.mark.nightly
@settings(FEW, max_examples=300)
@given(schema_and_rows=schemas_with_rows())
def test_any_types_many(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, schema_and_rows: Any) -> None:
    check_random(spark, tmp_path_factory.getbasetemp(), schema_and_rows)


# ---- damage --------------------------------------------------------------------------------------


def outcome_of(frame: DataFrame) -> list[str] | str:
    try:
        return in_order(frame)
    except PySparkException as error:
        return error_line(error)


def check_damaged(spark: SparkSession, undamaged: HandMadeStore, damages: list[Damage]) -> None:
    with TemporaryDirectory(dir=undamaged.path.parent) as place:
        path = Path(place) / "store"
        shutil.copytree(undamaged.path, path)
        damage(path / "lanes" / "0", damages, "commitlog")
        store = HandMadeStore.__new__(HandMadeStore)
        store.path = path
        # Damaged dates may be none of Python's, so Spark shows all as text.
        by_jvm, by_python = (
            outcome_of(load_columns(spark, store, reader=reader).selectExpr("to_json(struct(*))"))
            for reader in ("any", "python")
        )
        assert by_jvm == by_python


SMALL = "a ARRAY<STRING>, s STRUCT<b: ARRAY<STRUCT<n: INT, t: STRING>>, d: DECIMAL(9,2)>, m MAP<STRING, BIGINT>"
SMALL_ROWS = [{"a": []}, {"a": ["x", None]}, {"s": {"b": [], "d": Decimal(1)}, "m": {"k": None}}, {}]

wrong_numbers = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from([-(1 << 63), -1, 0, 1, 3, 8, 201, 1 << 31, 1 << 32])),
    min_size=1,
    max_size=2,
)
"""Numbers of eight bytes: which one of a message is replaced, and by what."""


def append_value(store: HandMadeStore, whole: Record, value: bytearray) -> None:
    """Appends a record that is like another one, but for its value."""
    headers = {name: text for name, text in whole.properties.items() if name in ROW_HEADERS}
    store.lane(0).append("orders", bytes(value), properties=headers)
    store.publish()


def check_wrong_numbers(spark: SparkSession, path: Path, rows: list[dict[str, Any]], wrong: Any) -> None:
    with TemporaryDirectory(dir=path) as place:
        store = HandMadeStore(Path(place) / "store")
        schema = declare(store, "orders", SMALL)
        whole = append_rows(store.lane(0), schema, rows)
        value = bytearray(whole.body)
        for number, replacement in wrong:
            struct.pack_into("<q", value, 4 * number % (len(value) - 7), replacement)
        append_value(store, whole, value)
        by_jvm, by_python = (outcome_of(frame.selectExpr("to_json(struct(*))")) for frame in both(spark, store))
        assert by_jvm == by_python


@settings(FEW)
@given(rows=st.lists(st.sampled_from(SMALL_ROWS), min_size=1, max_size=9), wrong=wrong_numbers)
def test_wrong_numbers_in_a_message(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], wrong: Any
) -> None:
    """A record that is whole, whose value is not: the rows or the error are the Python source's."""
    check_wrong_numbers(spark, tmp_path_factory.getbasetemp(), rows, wrong)


def store_of_a_wrong_number(path: Path) -> tuple[HandMadeStore, TopicSchema]:
    """A whole message, and the same with a wrong number of its empty list."""
    store = HandMadeStore(path)
    schema = declare(store, "orders", "n BIGINT, a ARRAY<STRING>")
    whole = append_rows(store.lane(0), schema, [{"n": 7, "a": []}])
    (layout,) = layouts(store.path, ["orders"])
    value = bytearray(whole.body)
    offsets_of_texts = 5  # behind bits and numbers, bits and offsets of lists, and bits of texts
    struct.pack_into("<q", value, layout["buffers_at"] + 16 * offsets_of_texts, 201)
    append_value(store, whole, value)
    return store, schema


@pytest.mark.nightly
def test_a_number_of_an_empty_list(spark: SparkSession, tmp_path: Path) -> None:
    """It leads nowhere, and is wrong all the same: a place that no buffer can have."""
    store, _ = store_of_a_wrong_number(tmp_path / "store")
    said = [failure(frame.collect) for frame in both(spark, store)]
    assert said[0] == said[1]
    assert "did not start on 8-byte aligned offset: 201" in said[0]


@pytest.mark.nightly
def test_each_query_leaves_out_the_same_messages(spark: SparkSession, tmp_path: Path) -> None:
    """A message with one damaged column is left out also where another column is wanted."""
    store, schema = store_of_a_wrong_number(tmp_path / "store")
    append_rows(store.lane(0), schema, [{"n": 8, "a": ["x"]}])
    store.publish()
    for reader in ("any", "python"):
        frame = load_columns(spark, store, reader=reader, ignoreCorruptRecords="true")
        assert frame.count() == 2
        assert sorted(frame.select("n").collect()) == [(7,), (8,)]


@pytest.mark.nightly
@settings(FEW)
@given(damages=damages)
def test_damage_never_gives_other_rows(spark: SparkSession, typed: HandMadeStore, damages: list[Damage]) -> None:
    """Whatever happens to the segments, the rows or the error are the Python source's."""
    check_damaged(spark, typed, damages)
