"""Frames and Arrow columns, made into a topic's columns: what fits, and what is refused."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.errors import IllegalRow
from commitlog.schemas.row_batches import as_table
from commitlog.schemas.topic_schemas import TopicSchema
from tests.builders.arrow_layouts import relaid
from tests.builders.fitted_rows import rows_of, topic
from tests.builders.typed_data import schemas_with_rows

NOON = datetime.datetime(2024, 2, 3, 12, tzinfo=datetime.UTC)
NAIVE = datetime.datetime(2024, 2, 3, 12)
NANOSECONDS = pd.Timestamp("2024-02-03T12:00:00.123456789")


def test_frames_of_other_libraries() -> None:
    """pandas, Polars and DuckDB, by Arrow's PyCapsule interface."""
    declared = "id INT NOT NULL, name STRING, at TIMESTAMP, day DATE, xs ARRAY<BIGINT>"
    rows: list[dict[str, Any]] = [
        {"id": 1, "name": "a", "at": NOON, "day": NOON.date(), "xs": [1, 2]},
        {"id": 2, "name": None, "at": None, "day": None, "xs": None},
    ]
    frame = pd.DataFrame(rows, index=[5, 9])
    assert rows_of(frame, declared) == rows
    assert rows_of(frame.set_index("id"), declared) == rows
    assert rows_of(pl.DataFrame(rows), declared) == rows
    arrow_table = table = pa.Table.from_pylist(rows)
    with duckdb.connect(config={"threads": 1}) as database:
        assert rows_of(database.sql("SELECT * FROM arrow_table"), declared) == rows
    assert rows_of(table, declared) == rows
    assert rows_of(table.to_batches()[0], declared) == rows
    assert rows_of(table.to_reader(), declared) == rows
    assert rows_of(table.to_struct_array().chunk(0), declared) == rows
    assert rows_of(table.select(["xs", "id", "name"]), "id BIGINT, name STRING, xs ARRAY<SMALLINT>, more STRING") == [
        {"id": row["id"], "name": row["name"], "xs": row["xs"], "more": None} for row in rows
    ]
    assert arrow_table is table
    categories = pl.DataFrame({"name": ["a", "b", "a"]}, schema={"name": pl.Categorical})
    assert rows_of(categories, "name STRING") == [{"name": "a"}, {"name": "b"}, {"name": "a"}]
    assert rows_of(pl.DataFrame({"xs": [[], None]}), "xs ARRAY<STRING>") == [{"xs": []}, {"xs": None}]
    words = {"xs": [["a", None], None, []], "s": [{"x": "b"}, None, {"x": None}], "ys": [[["c"]], [None], None]}
    for kind in (pl.String, pl.Categorical):
        typed = {"xs": pl.List(kind), "s": pl.Struct({"x": kind}), "ys": pl.Array(pl.List(kind), 1)}
        made = pl.DataFrame(words, schema=typed)
        for start in range(3):
            assert (
                rows_of(made[start:], "xs ARRAY<STRING>, s STRUCT<x: STRING>, ys ARRAY<ARRAY<STRING>>")
                == pl.DataFrame(words)[start:].to_dicts()
            )


def test_missing_numbers_of_pandas() -> None:
    """A column of whole floats with NaN, as pandas has integers with gaps: NaN is its null."""
    frame = pd.DataFrame({"id": [1, None, 3]})
    assert rows_of(frame, "id INT") == [{"id": 1}, {"id": None}, {"id": 3}]
    assert rows_of(frame.astype("Int64"), "id INT") == [{"id": 1}, {"id": None}, {"id": 3}]
    assert rows_of(frame.astype(object), "id INT") == [{"id": 1}, {"id": None}, {"id": 3}]
    for nothing in (pd.DataFrame({"name": [np.nan, np.nan]}), pd.DataFrame({"name": [np.nan, pd.NaT]}, dtype=object)):
        for kind in ("STRING NOT NULL", "DATE NOT NULL"):
            with pytest.raises(IllegalRow, match="row 0, column name: it is NOT NULL"):
                as_table(nothing, topic(f"name {kind}"))
        for kind in ("STRING", "DATE", "ARRAY<INT>", "STRUCT<x: INT>", "MAP<INT,INT>"):
            assert rows_of(nothing, f"name {kind}") == [{"name": None}] * 2
            assert rows_of(nothing[:0], f"name {kind}") == []


BERLIN = datetime.datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("kind", "good", "bad", "stored"),
    [
        ("TIMESTAMP", BERLIN, NAIVE, BERLIN),
        ("TIMESTAMP_NTZ", NAIVE, BERLIN, NAIVE),
        ("TIMESTAMP_NTZ", np.datetime64(NAIVE), NANOSECONDS, NAIVE),
        ("TIMESTAMP_NTZ", NAIVE, np.datetime64("300000-01-01", "s"), NAIVE),
        ("ARRAY<TIMESTAMP>", [BERLIN], [pd.Timestamp(np.datetime64("300000-01-01", "s"), tz="UTC")], [BERLIN]),
        ("ARRAY<TIMESTAMP>", [BERLIN, None], [BERLIN, NAIVE], [BERLIN, None]),
        ("ARRAY<TIMESTAMP_NTZ>", np.array([NAIVE, None], "M8[ns]"), [NAIVE, BERLIN], [NAIVE, None]),
        ("STRUCT<t: TIMESTAMP>", {"t": BERLIN}, {"t": NAIVE}, {"t": BERLIN}),
        ("DATE", NAIVE.date(), NAIVE, NAIVE.date()),
        ("BINARY", b"x", "x", b"x"),
        ("STRING", "x", b"x", "x"),
        ("INT", 1.0, 1.5, 1),
        ("INT", Decimal(1), float("inf"), 1),
        ("ARRAY<INT>", [np.timedelta64("NaT", "s"), 1], [np.timedelta64(1, "s")], [None, 1]),
        ("DECIMAL(5,2)", Decimal(1), np.timedelta64(1, "s"), Decimal(1)),
        ("ARRAY<INT>", np.array([1, np.nan]), np.array([1.5]), [1, None]),
        ("ARRAY<DOUBLE>", np.array([1, np.nan]), ["x"], [1.0, None]),
        ("FLOAT", 1.5, 1e39, 1.5),
        ("DECIMAL(5,2)", Decimal("1.5"), 2.5, Decimal("1.5")),
        ("BOOLEAN", True, 2, True),
        ("STRUCT<a: INT, b: STRING>", {"b": "x", "a": 1}, {"c": 1}, {"a": 1, "b": "x"}),
        ("STRUCT<a: ARRAY<INT>, b: STRING>", {"b": pd.NA, "a": np.nan}, {"a": "x"}, {"a": None, "b": None}),
        ("MAP<STRING,INT>", [("a", 1)], [("a", "b")], [("a", 1)]),
    ],
)
def test_objects_of_pandas_are_looked_at_one_by_one(kind: str, good: Any, bad: Any, stored: Any) -> None:
    """None takes the type of another one. They are refused where the same dictionaries are."""
    frames = [pd.DataFrame({"c": pd.Series([good, None, bad, good, bad], dtype=object)})]
    if not isinstance(good, list | dict | np.ndarray):  # which can't be categories
        frames.append(frames[0].astype("category"))
    for frame in frames:
        with pytest.raises(IllegalRow, match="row 2, column c: ") as caught:
            as_table(frame, topic(f"c {kind}"))
        assert caught.value.row == 2
        assert rows_of(frame[:2], f"c {kind}") == [{"c": stored}, {"c": None}]


def test_an_index_with_a_name_is_a_column() -> None:
    """Also the one that counts, which pandas does not keep as values."""
    frame = pd.DataFrame({"name": ["a", "b"]}, index=pd.RangeIndex(2, name="id"))
    assert rows_of(frame, "id BIGINT, name STRING") == [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}]
    half = frame.set_index(pd.MultiIndex.from_arrays([[5, 6], ["x", "y"]], names=["id", None]))
    assert rows_of(half, "id BIGINT, name STRING") == [{"id": 5, "name": "a"}, {"id": 6, "name": "b"}]
    times = pd.DataFrame({"id": [1, 2]}, index=pd.Index([BERLIN, NAIVE], dtype=object, name="t"))
    assert rows_of(times[:1], "id BIGINT, t TIMESTAMP") == [{"id": 1, "t": BERLIN}]
    with pytest.raises(IllegalRow, match="row 1, column t: "):
        as_table(times, topic("id BIGINT, t TIMESTAMP"))
    with pytest.raises(IllegalRow, match="DataFrame of rows: cannot insert id, already exists"):
        as_table(frame.assign(id=1), topic("id BIGINT, name STRING"))


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (pa.DictionaryArray.from_arrays([1, 1, None], [300, 5]), "TINYINT", [5, 5, None]),
        (pa.array([["a"], None, ["b"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), "ARRAY<STRING>", None),
        (
            pa.array([{"x": "a"}, None], pa.struct({"x": pa.dictionary(pa.int8(), pa.string())})),
            "STRUCT<x: STRING>",
            None,
        ),
        (pa.array([["a"], [], None], pa.list_view(pa.string_view())), "ARRAY<STRING>", None),
        (pa.array([[b"a"], None], pa.list_(pa.binary_view(), 1)), "ARRAY<BINARY>", None),
        (
            pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string_view(), pa.int64())),
            "MAP<STRING,INT>",
            None,
        ),
        (
            pa.array([{"y": 1}, None], pa.struct({"y": pa.int64()})),
            "STRUCT<x: STRING, y: INT>",
            [{"x": None, "y": 1}, None],
        ),
        (pa.array([1, None, -128]), "DECIMAL(5,2)", [Decimal("1.00"), None, Decimal("-128.00")]),
        (pa.array([300, 1], pa.int64())[1:], "TINYINT", [1]),
        (pa.array([[300], [1], None])[1:], "ARRAY<TINYINT>", [[1], None]),
        (pa.array([float("inf"), float("nan"), None, 1e-50]), "FLOAT", None),
        (pa.array([None, None], pa.float64()), "STRING", [None, None]),
    ],
)
def test_a_column_is_cast_for_what_its_rows_have(column: pa.Array, kind: str, expected: Any) -> None:
    """At every depth. Categories without a row, and what lies outside of a slice, are no values."""
    for chunks in ([column], [column[:1], column[1:]]):
        found = rows_of(pa.table({"c": pa.chunked_array(chunks)}), f"c {kind}")
        assert repr([row["c"] for row in found][:3]) == repr((expected or column.to_pylist())[:3])


@given(schemas_with_rows(), st.data())
@settings(max_examples=60)
def test_rows_in_any_layout_are_the_same_rows(
    made: tuple[pa.Schema, list[dict[str, Any]]], data: st.DataObject
) -> None:
    """As views, large types, dictionaries and wider types, sliced, at every depth."""
    schema, rows = made

    def pick(choices: list[Any]) -> Any:
        return choices[data.draw(st.integers(0, len(choices) - 1))]

    table = pa.Table.from_pylist(rows, schema).combine_chunks()
    columns = [relaid(column.chunk(0), pick) for column in table.columns]
    start = data.draw(st.integers(0, len(rows)))
    found = as_table(pa.table(columns, names=schema.names).slice(start), TopicSchema("t", 1, schema))
    found.validate(full=True)
    assert found.schema.equals(schema)
    assert repr(found.to_pylist()) == repr(table.slice(start).to_pylist())


def test_what_a_null_hides_is_no_value() -> None:
    """Arrow keeps bytes where it says null: they may be of any size."""
    inner = pa.StructArray.from_arrays([pa.array([300, 1])], ["x"], mask=pa.array([True, False]))
    assert rows_of(pa.table({"c": inner}), "c STRUCT<x: TINYINT>") == [{"c": None}, {"c": {"x": 1}}]
    lists = pa.ListArray.from_arrays([0, 1, 2], pa.array([300, 1]), mask=pa.array([True, False]))
    assert rows_of(pa.table({"c": lists}), "c ARRAY<TINYINT>") == [{"c": None}, {"c": [1]}]
    maps = pa.MapArray.from_arrays([0, 1, 2], pa.array([300, 1]), pa.array([300, 1]), mask=pa.array([True, False]))
    assert rows_of(pa.table({"c": maps}), "c MAP<TINYINT,TINYINT>") == [{"c": None}, {"c": [(1, 1)]}]


@pytest.mark.parametrize(
    ("column", "kind", "reason"),
    [
        (pa.array([1, 2, 300]), "TINYINT", "row 2, column c: 300 is no TINYINT"),
        (pa.array([1.0, 2.0, 2.5]), "INT", "row 2, column c: 2.5 is no INT"),
        (
            pa.array([1.0, 2.0, 1e39]),
            "FLOAT",
            r"row 2, column c: 1e\+39 is no FLOAT: it takes a float or an int, at most 3.4028235e\+38",
        ),
        (pa.array([[1.0], None, [2.0, -1e39]]), "ARRAY<FLOAT>", r"row 2, column c\[1\]: -1e\+39 is no FLOAT"),
        (pa.array([1.0, 2.0, 1e39]).dictionary_encode(), "FLOAT", "row 2, column c: .* is no FLOAT"),
        (pa.array([1, 2, 1000]), "DECIMAL(5,2)", "row 2, column c: 1000 is no DECIMAL"),
        (pa.array([1, 2, 2**62]), "DECIMAL(38,30)", "row 2, column c: 4611686018427387904 is no DECIMAL"),
        (pa.array([0, 0, 10**30], pa.decimal128(38, 1)), "DECIMAL(38,18)", r"row 2, column c: Decimal\('10{30}"),
        (
            pa.array([{"x": 1.0}, {"x": 2.0}, {"x": 1e39}]),
            "STRUCT<x: FLOAT>",
            r"row 2, column c\.x: 1e\+39 is no FLOAT",
        ),
        (
            pa.array([[("a", 1.0)], [], [("a", 1e39)]], pa.map_(pa.string(), pa.float64())),
            "MAP<STRING,FLOAT>",
            "row 2,",
        ),
        (pa.array([{"x": 1}] * 2 + [{"x": None}]), "STRUCT<x: INT NOT NULL>", "row 2, column c: it has a null within"),
        (pa.array([1, 2, 2**53 + 1]), "DOUBLE", "row 2, column c: 9007199254740993 is no DOUBLE"),
        (pa.array([1.0, 2.0, 2.5]), "DECIMAL(5,2)", "Arrow's double is no DECIMAL"),
        (pa.array([Decimal("1.25")] * 3), "DOUBLE", "Arrow's decimal128.* is no DOUBLE"),
        (pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("2.25")]), "DECIMAL(5,1)", "row 2, column c: Decimal"),
        (pa.array([True] * 3), "INT", "Arrow's bool is no INT"),
        (pa.array(["x"] * 3), "BINARY", "Arrow's string is no BINARY"),
        (
            pa.array([NAIVE] * 3),
            "TIMESTAMP",
            "Arrow's timestamp.* is no TIMESTAMP; its times have no time zone.*tz_localize",
        ),
        (pa.array([NOON] * 3), "TIMESTAMP_NTZ", "Arrow's timestamp.* is no TIMESTAMP_NTZ"),
        (pa.array([NOON] * 3), "DATE", "Arrow's timestamp.* is no DATE"),
        (pa.array([0, 1000, 1], pa.timestamp("ns")), "TIMESTAMP_NTZ", "row 2, column c: .* without nanoseconds"),
        (pa.array([0, 0, 2**62], pa.timestamp("s", "UTC")), "TIMESTAMP", "row 2, column c: .* is no TIMESTAMP"),
        (
            pa.array([0, 0, 1], pa.date64()).cast(pa.int64()).view(pa.date64()),
            "DATE",
            "buffers of column c .*date64",
        ),
        (
            pa.array([b"x", b"x", b"\xff"]).view(pa.string()),
            "STRING",
            "buffers of column c .*UTF8",
        ),
        (pa.array([[1], [1], [2**40]]), "ARRAY<INT>", r"row 2, column c\[0\]: 1099511627776 is no INT"),
        (pa.array([{"a": 1, "b": 1}] * 3), "STRUCT<a: INT>", "Arrow's struct<.*> is no STRUCT"),
        (pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())), "MAP<INT,INT>", "Arrow's map<.*> is no MAP"),
        (pa.array([1, 2, 3], pa.duration("s")), "BIGINT", r"Arrow's duration\[s\] is no BIGINT"),
        (pa.array([1, 2, None], pa.int64()), "INT NOT NULL", "row 2, column c: it is NOT NULL and has no value"),
        (pa.array([1, 2, None], pa.int32()), "INT NOT NULL", "row 2, column c: it is NOT NULL and has no value"),
    ],
)
def test_a_column_of_another_type_is_refused(column: pa.Array, kind: str, reason: str) -> None:
    """Also where Arrow would cast it, and lose what the type has no place for."""
    for table in (pa.table({"c": column}), pa.table({"c": pa.chunked_array([column[:1], column[1:]])})):
        with pytest.raises(IllegalRow, match=reason) as caught:
            as_table(table, topic(f"c {kind}"))
        assert "\n" not in str(caught.value)


def test_a_table_that_says_not_null_and_has_nulls() -> None:
    """Arrow does not look at what a schema says of nulls."""
    schema = topic("a INT NOT NULL, s STRUCT<x: INT NOT NULL>")
    struct = pa.StructArray.from_arrays([pa.array([1, None], pa.int32())], fields=list(schema.columns.field("s").type))
    good = pa.array([1, 2], pa.int32())
    for columns, reason in (
        ([pa.array([1, None], pa.int32()), struct], "row 1, column a: it is NOT NULL and has no value"),
        ([good, struct], "row 1, column s: it has a null within"),
    ):
        with pytest.raises(IllegalRow, match=reason):
            as_table(pa.Table.from_arrays(columns, schema=schema.columns), schema)
    hidden = pa.StructArray.from_arrays(
        [pa.array([1, None], pa.int32())], fields=list(schema.columns.field("s").type), mask=pa.array([False, True])
    )
    assert as_table(pa.Table.from_arrays([good, hidden], schema=schema.columns), schema).num_rows == 2


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (pa.table({"id": [1], "x": [1]}), "there is no column 'x'; topic orders has version 1: id INT"),
        (pa.table([[1], [1]], names=["id", "id"]), "column id is there twice"),
        (pd.DataFrame([[1, 1]], columns=["id", "id"]), "DataFrame of rows: Duplicate column"),
        (pd.DataFrame({"id": [1], 5: [1], "5": [1]}), "DataFrame of rows: column 5 is there twice"),
        (pd.DataFrame({"id": [1, "x"]}), "row 1, column id: 'x' is no INT: it takes an int"),
        (pd.DataFrame({"id": [object()]}), "row 0, column id: <object"),
        (pd.DataFrame({"id": pd.arrays.SparseArray([0, 1])}), "DataFrame of rows: Sparse"),
        (pd.DataFrame({"id": [Decimal("sNaN")]}), "DataFrame of rows: .*InvalidOperation"),
        (pl.DataFrame({"raw": [object()]}), "column raw: Arrow has no type for Polars' Object; cast it before"),
        (
            pl.DataFrame({"id": [1]}, schema={"id": pl.Int128}),
            "column id: Arrow has no type for Polars' Int128; cast it",
        ),
        (pl.LazyFrame({"id": [1]}), "or dataclasses, not LazyFrame; give what its collect"),
        (pd.DataFrame({"id": ["x" * 99]}, dtype=object), "row 0, column id: '" + "x" * 79 + "… is no INT"),
        (pa.array([1, 2]), "Array of rows: "),
        (pl.Series([1]), "Series of rows: "),
    ],
)
def test_a_frame_that_does_not_fit(rows: Any, reason: str) -> None:
    with pytest.raises(IllegalRow, match=reason) as caught:
        as_table(rows, topic("id INT, raw BINARY"))
    assert "\n" not in str(caught.value)
