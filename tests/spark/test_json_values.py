"""Option `values=json` where Python reads: the rows of Spark's own from_json, and Spark's modes."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from commitlog.columns.json_rows import JsonRows
from commitlog.columns.mapped_segments import SegmentCache
from commitlog.columns.read_plan import ReadOptions, ReadPlan, Slice
from commitlog.columns.slice_reader import SliceReader
from commitlog.errors import MalformedValue, OptionError
from commitlog.schemas.row_lines import lines_of
from commitlog.spark.source import CommitLogDataSource
from tests.builders.hand_made import HandMadeStore
from tests.builders.json_values import ALIKE, SCHEMA, SHAPES, SHAPES_SCHEMA, STRICTER, TIMES
from tests.nightly import by_url_nightly, with_nightly
from tests.served import place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("both_ways")


def store_of(path: Path, values: list[bytes]) -> HandMadeStore:
    store = HandMadeStore(path)
    for value in values:
        store.lane(0).append("orders", value)
    store.publish()
    return store


@by_url_nightly
def test_rows_are_those_of_from_json(tmp_path: Path, spark_session: SparkSession) -> None:
    from pyspark.sql.functions import col, from_json

    store = store_of(tmp_path / "store", [*ALIKE, *STRICTER])
    reader = spark_session.read.format("commitlog").option("subscribe", "orders").option("reader", "python")
    ours = reader.option("values", "json").schema(f"{SCHEMA}, _offset BIGINT").load(place_of(store.path))
    text = from_json(col("value").cast("string"), SCHEMA, {"columnNameOfCorruptRecord": "_corrupt_record"})
    bare = spark_session.read.format("commitlog").option("subscribe", "orders").load(place_of(store.path))
    theirs = bare.select(text.alias("j"), col("offset").alias("_offset")).select("j.*", "_offset")
    found, expected = ({row["_offset"]: repr(row.asDict(True)) for row in frame.collect()} for frame in (ours, theirs))
    different = {value for at, value in enumerate([*ALIKE, *STRICTER]) if found[at] != expected[at]}
    assert different == set(STRICTER)
    corrupt = {row["_offset"] for row in ours.where("_corrupt_record IS NOT NULL").collect()}
    assert {ALIKE.index(b'{"a":1'), ALIKE.index(b"[]"), len(ALIKE)} <= corrupt
    with pytest.raises(PySparkException, match="MalformedValue: topic orders, lane 0, offset 2: "):
        reader.option("mode", "FAILFAST").schema("a INT").load(place_of(store.path)).collect()
    kept = reader.option("mode", "DROPMALFORMED").schema("a INT, _offset BIGINT").load(place_of(store.path))
    assert {row["_offset"] for row in kept.collect()}.isdisjoint({2, len(ALIKE)})


@pytest.mark.nightly
@by_url_nightly
@pytest.mark.parametrize(
    ("schema", "values", "shown"),
    with_nightly(
        [(SHAPES_SCHEMA, SHAPES, "to_json(struct(*))")],
        [
            (
                "t TIMESTAMP, n TIMESTAMP_NTZ, d DATE, _corrupt_record STRING",
                [json.dumps({"t": time, "n": time, "d": time}).encode() for time in TIMES],
                "unix_micros(t), unix_micros(CAST(n AS TIMESTAMP)), unix_date(d), _corrupt_record",
            )
        ],
    ),
    ids=["shapes", "times"],
)
def test_columns_are_those_of_from_json(
    tmp_path: Path, spark_session: SparkSession, schema: str, values: list[bytes], shown: str
) -> None:
    """Dates and times in all their forms, and fields that can't be held at every depth."""
    from pyspark.sql.functions import col, from_json

    store = store_of(tmp_path / "store", values)
    source = spark_session.read.format("commitlog").option("subscribe", "orders").option("reader", "python")
    ours = source.option("values", "json").schema(f"{schema}, _offset BIGINT").load(place_of(store.path))
    text = from_json(col("value").cast("string"), schema, {"columnNameOfCorruptRecord": "_corrupt_record"})
    bare = spark_session.read.format("commitlog").option("subscribe", "orders").load(place_of(store.path))
    theirs = bare.select(text.alias("j"), col("offset").alias("_offset")).select("j.*", "_offset")
    found, expected = (
        dict(
            zip(
                values,
                frame.orderBy("_offset").drop("_offset").selectExpr(*shown.split(", ")).collect(),
                strict=True,
            )
        )
        for frame in (ours, theirs)
    )
    assert found == expected


def decoded(store: HandMadeStore, count: int, schema: pa.Schema, options: ReadOptions) -> list[dict[str, Any]]:
    piece = Slice("orders", 0, 0, count, -1, 0)
    plan = ReadPlan(str(store.path), store.id, store.segment_bytes, (piece,))
    build = JsonRows(schema, options).batches
    found: list[dict[str, Any]] = []
    for batch in SliceReader(plan, piece, SegmentCache()).batches(build):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


JSON = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(ALIKE),
    st.builds(lambda number: b'{"a":%d,"s":"%d"}' % (number, number), st.integers(-(2**33), 2**33)),
    st.sampled_from(
        [
            b'{"s":"\xff"}',
            b'{"s":["\\ud800"]}',
            b'{"a":1,"z":1e99999999999999999999}',
            b'{"a":1}{"a":2}',
            b'{"a":1',
            b'"}',
            b'{"a":{',
            b"}}",
            b'{"\\u0001number":3,"a":1}',
            b'{"s":"',
            b'{"s":"x","z":' + b"9" * 5000 + b"}",
            b'{"d":-0}',
        ]
    ),
)


@pytest.mark.nightly
@by_url_nightly
@given(values=st.lists(JSON, min_size=1, max_size=80))
def test_a_value_never_changes_the_rows_of_others(
    values: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each value gives the row that it gives alone, also where one before it is cut off."""
    schema = pa.schema(
        [("a", pa.int32()), ("s", pa.string()), ("d", pa.decimal128(10, 2)), ("_corrupt_record", pa.string())]
    )
    together = decoded(store_of(tmp_path_factory.mktemp("all"), values), len(values), schema, ReadOptions())
    assert len(together) == len(values)
    for value, row in dict(zip(values, together, strict=True)).items():
        assert [row] == decoded(store_of(tmp_path_factory.mktemp("one"), [value]), 1, schema, ReadOptions())


def _pieces(names: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, values))


_CLOCKS = st.datetimes(timezones=st.none() | st.just(dt.UTC)).map(lambda time: time.isoformat())
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3), _CLOCKS,
    st.sampled_from([*TIMES, "NaN", "Infinity", "1.25", "-0", "1e5", "aGk=", 1e400, -0.0, 1e-400, 0.125, 10**310]),
)  # fmt: skip
_FIELDS = (
    _LEAVES | st.lists(_LEAVES, max_size=2) | _pieces(["x", "t", "d", "f"], _LEAVES | st.lists(_LEAVES, max_size=2))
)
_KINDS = {
    "a": pa.int32(), "i": pa.int64(), "s": pa.string(), "f": pa.float64(), "g": pa.float32(), "b": pa.bool_(),
    "n": pa.decimal128(10, 2), "t": pa.timestamp("us", "UTC"), "l": pa.timestamp("us"), "d": pa.date32(),
    "xs": pa.list_(pa.timestamp("us", "UTC")), "o": pa.struct([("x", pa.list_(pa.int8())), ("t", pa.timestamp("us", "UTC"))]),
    "os": pa.list_(pa.struct([("d", pa.date32()), ("f", pa.float32())])),
}  # fmt: skip


_VALUES, _DEPTHS = _pieces(list(_KINDS), _FIELDS), st.sampled_from([0, 0, 0, 1, 499, 500, 501, 990, 5000])


@pytest.mark.parametrize("both_ways", ["path"], indirect=True)
@given(value=_VALUES, deep=_DEPTHS)
@example(value={"t": "0000-01-01T00:00:00Z"}, deep=0)
@settings(max_examples=40)
def test_a_value_gives_the_same_beside_any_neighbour(
    value: dict[str, Any], deep: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Beside none, beside a good one, and beside one that is malformed: of every type."""
    check_neighbours(value, deep, tmp_path_factory.mktemp("beside"))


@pytest.mark.nightly
@pytest.mark.parametrize("both_ways", ["path"], indirect=True)
@given(value=_VALUES, deep=_DEPTHS)
@settings(max_examples=1000)
def test_many_values_give_the_same_beside_any_neighbour(
    value: dict[str, Any], deep: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Twenty-five times as many of them."""
    check_neighbours(value, deep, tmp_path_factory.mktemp("beside"))


def check_neighbours(value: dict[str, Any], deep: int, path: Path) -> None:
    text = json.dumps(value).encode()
    if deep:
        text = text[:-1] + (b", " if value else b"") + b'"deep": ' + b"[" * deep + b"]" * deep + b"}"
    schema = pa.schema([*((name, kind) for name, kind in _KINDS.items()), ("_corrupt_record", pa.string())])
    store = store_of(path, [text, b'{"a":1}', text, b'{"a":"x"}'])
    alone, beside_good, beside_bad = (lines(store, *places, schema)[0] for places in ((0, 1), (0, 2), (2, 4)))
    assert alone == beside_good == beside_bad


def lines(store: HandMadeStore, start: int, end: int, schema: pa.Schema) -> list[bytes]:
    """The rows [start, end) as texts, also with times that Python does not have."""
    piece = Slice("orders", 0, start, end, -1, 0)
    plan = ReadPlan(str(store.path), store.id, store.segment_bytes, (piece,))
    (batch,) = SliceReader(plan, piece, SegmentCache()).batches(JsonRows(schema, ReadOptions()).batches)
    batch.validate(full=True)
    return list(lines_of(batch))


@by_url_nightly
def test_values_are_parsed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Good values do not take the slow way, and one bad value sends few others there."""
    looked_at = []
    original = JsonRows._parse_each

    def look(self: JsonRows, values: pa.BinaryArray) -> Any:
        looked_at.append(len(values))
        return original(self, values)

    monkeypatch.setattr(JsonRows, "_parse_each", look)
    values = [b'{"a":%d,"s":"x"}' % number for number in range(5000)]
    schema = pa.schema([("a", pa.int32()), ("_row", pa.int32())])
    found = decoded(store_of(tmp_path / "good", values), 5000, schema, ReadOptions())
    assert [row["a"] for row in found] == list(range(5000))
    assert not looked_at
    values[1234] = b'{"a":'
    found = decoded(store_of(tmp_path / "bad", values), 5000, schema, ReadOptions(mode="DROPMALFORMED"))
    assert [row["a"] for row in found] == [number for number in range(5000) if number != 1234]
    assert sum(looked_at) <= 64


@pytest.mark.parametrize("value", [b'{"s":"\xff"}', b'{"s":["\\ud800"]}', b'{"s":"x","z":1e99999999999999999999}'])
def test_a_value_is_malformed_alone_and_among_others(tmp_path: Path, value: bytes) -> None:
    schema = pa.schema([("s", pa.string()), ("_corrupt_record", pa.string())])
    good = b'{"s":"y"}'
    for number, values in enumerate(([value], [good, value], [b"{", value, good])):
        rows = decoded(store_of(tmp_path / str(number), values), len(values), schema, ReadOptions())
        assert rows[values.index(value)] == {"s": None, "_corrupt_record": value.decode(errors="replace")}


@by_url_nightly
@pytest.mark.parametrize("value", [b"12345", b'"12345"', b"1e4", b"-99999", b"1000", b"999.995"])
@pytest.mark.parametrize("shape", [b'{"d":%s}', b'{"ds":[1,%s]}', b'{"st":{"d":%s}}'])
def test_a_number_with_too_many_digits(tmp_path: Path, value: bytes, shape: bytes) -> None:
    """It is malformed, alone and among others. Arrow's reader takes it for a DECIMAL(5, 2)."""
    kind = pa.decimal128(5, 2)
    schema = pa.schema(
        [("d", kind), ("ds", pa.list_(kind)), ("st", pa.struct([("d", kind)])), ("_corrupt_record", pa.string())]
    )
    text, good = shape % value, b'{"d":123.45}'
    for number, values in enumerate(([text], [good, text], [b"{", text, good])):
        rows = decoded(store_of(tmp_path / str(number), values), len(values), schema, ReadOptions())
        row = rows[values.index(text)]
        assert (row["d"], row["ds"], row["_corrupt_record"]) == (None, None, text.decode())
        assert row["st"] in (None, {"d": None})


def test_failfast_names_the_value(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", [b'{"a":1}', b"no JSON"])
    with pytest.raises(
        MalformedValue, match=r"^topic orders, lane 0, offset 1: b'no JSON' is no JSON object of this schema"
    ):
        decoded(store, 2, pa.schema([("a", pa.int32())]), ReadOptions(mode="FAILFAST"))


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"values": "json"}, None, "option values: json needs the fields: .schema('id BIGINT, name STRING')"),
        ({"values": "xml"}, None, "option values: 'xml' is not allowed; give bytes or columns or json"),
        (
            {"values": "json", "mode": "LOUD"},
            None,
            "option mode: 'LOUD' is not allowed; give PERMISSIVE or DROPMALFORMED or",
        ),
        ({"mode": "FAILFAST"}, None, "option mode: it is for option values=json; here values=bytes"),
        (
            {"values": "json", "metadata": "true"},
            None,
            "option metadata: it is for option values=columns; here values=json",
        ),
        (
            {"values": "json"},
            "a INTERVAL DAY TO SECOND",
            "schema: column 'a': JSON has no interval day to second",
        ),
        ({"values": "json"}, "_offset STRING", "schema: column '_offset' is bigint, not string"),
        ({"values": "json"}, "_corrupt_record INT", "schema: column '_corrupt_record' is string, not int"),
        ({"values": "json"}, "a INT NOT NULL", "schema: column 'a' can't be NOT NULL: a value may lack it"),
        ({"values": "json"}, "a STRUCT<b: INT NOT NULL>", "schema: column 'a' may have nulls, within its values"),
        ({"values": "json"}, "_key BINARY NOT NULL", "schema: column '_key' may have nulls; leave NOT NULL"),
        ({"values": "json"}, "_corrupt_record STRING NOT NULL", "schema: column '_corrupt_record' may have nulls"),
    ],
)
def test_wrong_options(
    tmp_path: Path, spark_session: SparkSession, options: dict[str, str], schema: str | None, message: str
) -> None:
    from pyspark.sql.types import StructType

    store = store_of(tmp_path / "store", [b"{}"])

    def use() -> None:
        source = CommitLogDataSource({"path": place_of(store.path), "subscribe": "orders", **options})
        source.reader(source.schema() if schema is None else cast(StructType, StructType.fromDDL(schema)))

    with pytest.raises(OptionError) as error:
        use()
    assert str(error.value).startswith(message)


def test_the_corrupt_column_may_have_another_name(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int32()), ("broken", pa.string())])
    store = store_of(tmp_path / "store", [b'{"a":1}', b"{"])
    assert decoded(store, 2, schema, ReadOptions(corrupt_column="broken")) == [
        {"a": 1, "broken": None},
        {"a": None, "broken": "{"},
    ]
