"""Rows as users have them, made into a topic's record batches: what fits, and what is refused."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
import uuid
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from commitlog.errors import IllegalArgument, IllegalRow
from commitlog.schemas.declaring import declared_schema
from commitlog.schemas.row_batches import as_table, encode_batch, messages
from commitlog.schemas.topic_schemas import TopicSchema
from tests.builders.typed_data import schemas_with_rows

NOON = datetime.datetime(2024, 2, 3, 12, tzinfo=datetime.UTC)
NAIVE = datetime.datetime(2024, 2, 3, 12)
NANOSECONDS = pd.Timestamp("2024-02-03T12:00:00.123456789")


def topic(declared: Any) -> TopicSchema:
    return TopicSchema("orders", 1, declared_schema(declared))


def rows_of(rows: Any, declared: Any) -> list[dict[str, Any]]:
    table = as_table(rows, topic(declared))
    table.validate(full=True)
    assert table.schema.equals(declared_schema(declared))
    found: list[dict[str, Any]] = table.to_pylist()
    return found


@given(schemas_with_rows())
@settings(max_examples=60)
def test_rows_of_all_types(made: tuple[pa.Schema, list[dict[str, Any]]]) -> None:
    """Rows become what Arrow makes of them, and come back from the messages' bytes."""
    schema, rows = made
    table = as_table(rows, TopicSchema("t", 1, schema))
    assert table.equals(pa.Table.from_pylist(rows, schema))
    assert as_table(table, TopicSchema("t", 1, schema)).equals(table)
    for compression in (None, "lz4", "zstd"):
        (count, value), *more = messages(table, 100, 1 << 20, compression)
        assert (count, more) == (len(rows), [])
        if compression is None:
            assert pa.Table.from_batches([pa.ipc.read_record_batch(value, schema)]).equals(table)


REFUSED = {
    "BOOLEAN": (1, 0.0, "x", "True"),
    "TINYINT": (True, 1.0, 1.5, 128, -129, "1", Decimal(1), np.float32(1), np.bool_(True)),
    "BIGINT": (True, 1.5, 2**63, Decimal("1.23"), np.datetime64("2020-01-01"), uuid.uuid4(), pd.NA, NOON),
    "FLOAT": (True, "1", Decimal(1), 1e39, -1e39, 2**24 + 1, 10**400, np.float64(1e39), np.longdouble("1e39")),
    "DOUBLE": (True, "1", Decimal(1), 2**53 + 1, np.longdouble("0.1"), np.longdouble("1e400")),
    "ARRAY<FLOAT>": ([1.5, 1e39], np.array([1e39])),
    "MAP<STRING,STRUCT<x: FLOAT>>": ({"a": {"x": 1e39}}, [["a", {"x": -1e39}]]),
    "STRING": (b"x", 1, "\ud800", uuid.uuid4()),
    "BINARY": ("x", 1, [1], uuid.uuid4()),
    "DATE": (NOON, NAIVE, 1, "2020-01-01", pd.NaT, NANOSECONDS),
    "TIMESTAMP": (NAIVE, datetime.date(2020, 1, 1), 1, "2020", pd.NaT, NANOSECONDS.tz_localize("UTC")),
    "TIMESTAMP_NTZ": (NOON, datetime.date(2020, 1, 1), 1, pd.NaT, NANOSECONDS, np.datetime64("2020-01-01")),
    "DECIMAL(5,2)": (1.5, Decimal("1.234"), Decimal("1234"), Decimal("NaN"), True, "1"),
    "ARRAY<INT>": ("x", b"x", {1, 2}, [1.5], [True], np.array([1.5]), np.array([[1]]), np.array(1), [[1]], {1: 2}),
    "ARRAY<STRING>": ("abc", [b"x"], [1]),
    "MAP<STRING,INT>": (
        [1],
        {"a": 1.5},
        {1: 1},
        {b"a": 1},
        {None: 1},
        [("a",)],
        [(None, 1)],
        "x",
        ["ab"],
        [["a"]],
        [["a", 1.5]],
    ),
    "STRUCT<a: INT, b: STRING>": ({"a": 1, "c": 2}, {b"a": 1}, {1: 1}, [("a", 1)], "x", {"a": 1.5}, object()),
    "ARRAY<STRUCT<a: ARRAY<DATE>>>": ([{"a": [NOON]}], [{"b": None}], [[]]),
}


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in REFUSED.items() for value in values])
def test_a_value_of_another_type_is_refused(kind: str, value: Any) -> None:
    """Nothing is cut, rounded, converted or left out in silence. The error names row and column."""
    good: dict[str, Any] = {"c": None}
    with pytest.raises(IllegalRow, match=r"^row 2, column c: .* is no ") as caught:
        as_table([good, good, {"c": value}, good, {"c": value}], topic(f"c {kind}"))
    assert caught.value.row == 2
    assert "\n" not in str(caught.value)


class Color(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("TINYINT", np.int64(-128), -128),
        ("BOOLEAN", np.bool_(True), True),
        ("DOUBLE", 3, 3.0),
        ("DOUBLE", np.float32(1.5), 1.5),
        ("FLOAT", float("inf"), float("inf")),
        ("FLOAT", 3.4028235e38, float(np.finfo(np.float32).max)),
        ("FLOAT", 1e-50, 0.0),
        ("DECIMAL(5,2)", np.int64(7), Decimal("7.00")),
        ("ARRAY<DECIMAL(5,2)>", np.array([7]), [Decimal("7.00")]),
        ("STRING", np.str_("x"), "x"),
        ("BINARY", bytearray(b"x"), b"x"),
        ("BINARY", memoryview(b"x"), b"x"),
        ("DECIMAL(5,2)", 7, Decimal("7.00")),
        ("DECIMAL(5,2)", Decimal("1E+2"), Decimal("100.00")),
        ("TIMESTAMP", NOON.astimezone(datetime.timezone(datetime.timedelta(hours=5))), NOON),
        ("TIMESTAMP", pd.Timestamp(NOON), NOON),
        ("TIMESTAMP_NTZ", pd.Timestamp(NAIVE), NAIVE),
        ("ARRAY<BIGINT>", np.array([1, 2]), [1, 2]),
        ("ARRAY<BIGINT>", (1, None), [1, None]),
        ("MAP<STRING,INT>", {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        ("MAP<STRING,INT>", [("a", 1)], [("a", 1)]),
        ("MAP<STRING,INT>", {}, []),
        ("MAP<STRING,INT>", [["a", 1], ("b", None)], [("a", 1), ("b", None)]),
        ("ARRAY<MAP<STRING,MAP<INT,INT>>>", [[["a", [[1, 2]]]]], [[("a", [(1, 2)])]]),
        ("STRING", Color.RED, "red"),
        ("MAP<STRING,ARRAY<INT>>", {Color.RED: [Size.BIG]}, [("red", [3])]),
        ("STRUCT<a: INT, b: STRING>", {"b": "x"}, {"a": None, "b": "x"}),
    ],
)
def test_a_value_of_the_type(kind: str, value: Any, expected: Any) -> None:
    assert rows_of([{"c": value}, {}], f"c {kind}") == [{"c": expected}, {"c": None}]


@dataclass
class Item:
    name: str
    marks: list[int] = field(default_factory=list)


@dataclass
class Order:
    id: int
    items: list[Item]
    by_name: dict[str, Item]
    first: Item | None = None


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    marks: list[int] = []


def test_dataclasses_models_and_mappings() -> None:
    """Also within one another. Columns that may be null may be missing."""
    order = Order(1, [Item("a", [1])], {"b": Item("b")})
    expected = {
        "id": 1,
        "items": [{"name": "a", "marks": [1]}],
        "by_name": [("b", {"name": "b", "marks": []})],
        "first": None,
    }
    given_rows = [
        order,
        {"id": 1, "items": [Model(name="a", marks=[1])], "by_name": {"b": Item("b")}},
        OrderedDict(id=1, items=[Item("a", [1])], by_name=[("b", Model(name="b"))]),
        UserDict(id=1, items=[{"name": "a", "marks": (1,)}], by_name={"b": Item("b")}),
    ]
    assert rows_of(given_rows, Order) == [expected] * 4
    assert rows_of((row for row in given_rows), Order) == [expected] * 4
    assert rows_of([Model(name="x")], Model) == [{"name": "x", "marks": []}]
    with pytest.raises(IllegalRow, match="row 1: there is no column 'more'"):
        as_table([Model(name="x"), Model(name="x", more=1)], topic(Model))  # type: ignore[call-arg]


class Named(NamedTuple):
    id: int
    name: str | None = None


Plain = namedtuple("Plain", "name id")


def sqlite(query: str) -> list[Any]:
    """The rows of the query, which name their columns."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.row_factory = sqlite3.Row
        return database.execute(query).fetchall()


@pytest.mark.parametrize(
    "row",
    [
        Named(1, "a"),
        Plain("a", 1),
        sqlite("SELECT 'a' AS name, 1 AS id")[0],
        Row(name="a", id=1),
        pd.Series({"id": 1, "name": "a"}),
    ],
    ids=lambda row: type(row).__name__,
)
def test_rows_of_other_makers(row: Any) -> None:
    """What names its columns is a row, also within another one."""
    assert rows_of([row], "id INT, name STRING") == [{"id": 1, "name": "a"}]
    assert rows_of([{"s": row}], "s STRUCT<name: STRING, id: INT>") == [{"s": {"name": "a", "id": 1}}]
    with pytest.raises(IllegalRow, match="row 1: there is no column 'name'"):
        as_table([{"id": 1}, row], topic("id INT"))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"id": 1}, {"id": 2, "x": 1}], "row 1: there is no column 'x'; topic orders has version 1: id INT NOT NULL"),
        ([{"id": 1}, {"id": 1, 5: 1}], "row 1: there is no column 5"),
        ([{"id": 1}, {"name": "x"}], "row 1, column id: it is NOT NULL and has no value"),
        ([{"id": 1}, {"id": None}], "row 1, column id: it is NOT NULL and has no value"),
        ([{"id": 1}, 5], "row 1: a row is a dictionary, a dataclass, .* each column once; it is not 5"),
        ([{"id": 1}, (1, "x")], "row 1: a row is"),
        ([{"id": 1}, Order], "row 1: a row is"),
        ([{"id": 1}, *sqlite("SELECT 1 AS id, 2 AS id")], "row 1: a row is"),
        ([Row("id", "id")(1, 2)], "row 0: a row is"),
        ([{"id": 1, "s": {"a": None}}], "row 0, column s: it has a null within"),
        ([{"id": 1}, {"id": 1, "l": [[{"a": 1}], [{"a": 1}, {}]]}], "row 1, column l: it has a null within"),
        (
            [{"id": 1, "m": {"k": {"a": 1}}}, {"id": 1, "m": {"k": {}}}],
            "column m: it has a null within, where none may",
        ),
    ],
)
def test_a_row_that_does_not_fit(rows: Any, reason: str) -> None:
    schema = topic(
        "id INT NOT NULL, name STRING, s STRUCT<a: INT NOT NULL>, l ARRAY<ARRAY<STRUCT<a: INT NOT NULL>>>, "
        "m MAP<STRING, STRUCT<a: INT NOT NULL>>"
    )
    with pytest.raises(IllegalRow, match=reason):
        as_table(rows, schema)
    nulls = [{"id": 1, "s": None, "l": [None, [None]], "m": {"k": None}}]
    assert as_table(nulls, schema).num_rows == 1


def test_what_a_column_of_lists_takes_is_named_with_its_items() -> None:
    with pytest.raises(IllegalRow, match=r"\['x'\] is no ARRAY<INT>: it takes a list where each item is an int$"):
        as_table([{"l": ["x"]}], topic("l ARRAY<INT>"))
    with pytest.raises(IllegalRow, match="a list of pairs where each key is a str, and each value a float"):
        as_table([{"m": {1: 1.5}}], topic("m MAP<STRING,DOUBLE>"))


def test_a_dictionary_that_makes_missing_values() -> None:
    """Its row has what it holds, and asking it for a column does not add one."""
    row = defaultdict(int, id=1, x=3)
    with pytest.raises(IllegalRow, match="row 0: there is no column 'x'"):
        as_table([row], topic("id INT, price INT"))
    assert row == {"id": 1, "x": 3}
    assert rows_of([defaultdict(int, price=2)], "id INT, price INT") == [{"id": None, "price": 2}]


def test_a_column_called_by_a_number_is_not_the_numbers() -> None:
    with pytest.raises(IllegalRow, match="there is no column 1"):
        as_table([{1: 5}], topic("`1` INT"))


@pytest.mark.parametrize("rows", [5, None, "rows", b"rows", {"id": 1}])
def test_what_are_no_rows(rows: Any) -> None:
    with pytest.raises(IllegalArgument, match="rows are an Arrow table"):
        as_table(rows, topic("id INT"))


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
        ("ARRAY<TIMESTAMP>", [BERLIN, None], [BERLIN, NAIVE], [BERLIN, None]),
        ("ARRAY<TIMESTAMP_NTZ>", np.array([NAIVE, None], "M8[ns]"), [NAIVE, BERLIN], [NAIVE, None]),
        ("STRUCT<t: TIMESTAMP>", {"t": BERLIN}, {"t": NAIVE}, {"t": BERLIN}),
        ("DATE", NAIVE.date(), NAIVE, NAIVE.date()),
        ("BINARY", b"x", "x", b"x"),
        ("STRING", "x", b"x", "x"),
        ("INT", 1.0, 1.5, 1),
        ("INT", Decimal(1), float("inf"), 1),
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
            r"row 2, column c: 1e\+39 is no FLOAT: the largest FLOAT is 3.40282e\+38",
        ),
        (pa.array([[1.0], None, [2.0, -1e39]]), "ARRAY<FLOAT>", "row 2, column c: .* is no ARRAY<FLOAT>: the largest"),
        (pa.array([1.0, 2.0, 1e39]).dictionary_encode(), "FLOAT", "row 2, column c: .* the largest FLOAT"),
        (pa.array([1, 2, 1000]), "DECIMAL(5,2)", "row 2, column c: 1000 is no DECIMAL"),
        (pa.array([1, 2, 2**62]), "DECIMAL(38,30)", "row 2, column c: 4611686018427387904 is no DECIMAL"),
        (pa.array([0, 0, 10**30], pa.decimal128(38, 1)), "DECIMAL(38,18)", r"row 2, column c: Decimal\('10{30}"),
        (pa.array([{"x": 1.0}, {"x": 2.0}, {"x": 1e39}]), "STRUCT<x: FLOAT>", "row 2, column c: .* the largest FLOAT"),
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
        (pa.array([NAIVE] * 3), "TIMESTAMP", "Arrow's timestamp.* is no TIMESTAMP; cast it before"),
        (pa.array([NOON] * 3), "TIMESTAMP_NTZ", "Arrow's timestamp.* is no TIMESTAMP_NTZ"),
        (pa.array([NOON] * 3), "DATE", "Arrow's timestamp.* is no DATE"),
        (pa.array([0, 1000, 1], pa.timestamp("ns")), "TIMESTAMP_NTZ", "row 2, column c: .* would lose data"),
        (pa.array([0, 0, 2**62], pa.timestamp("s", "UTC")), "TIMESTAMP", "row 2, column c: .* is no TIMESTAMP"),
        (pa.array([0, 0, 1], pa.date64()).cast(pa.int64()).view(pa.date64()), "DATE", "Table of rows: .*date64"),
        (pa.array([b"x", b"x", b"\xff"]).view(pa.string()), "STRING", "Table of rows: .*UTF8"),
        (pa.array([[1], [1], [2**40]]), "ARRAY<INT>", "row 2, column c: .* is no ARRAY<INT>"),
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
        (pl.DataFrame({"raw": [object()]}), "column raw: Arrow has no type for Polars' Object; cast it before"),
        (
            pl.DataFrame({"id": [1]}, schema={"id": pl.Int128}),
            "column id: Arrow has no type for Polars' Int128; cast it",
        ),
        (pa.array([1, 2]), "Array of rows: "),
        (pl.Series([1]), "Series of rows: "),
    ],
)
def test_a_frame_that_does_not_fit(rows: Any, reason: str) -> None:
    with pytest.raises(IllegalRow, match=reason) as caught:
        as_table(rows, topic("id INT, raw BINARY"))
    assert "\n" not in str(caught.value)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.binary()
        | st.dates()
        | st.datetimes()
        | st.decimals()
        | st.times()
        | st.timedeltas()
        | st.uuids(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
        max_leaves=5,
    ),
    st.sampled_from([*REFUSED, "INT", "SMALLINT"]),
)
@example((None, {}), "ARRAY<STRUCT<a: ARRAY<DATE>>>")
@settings(max_examples=200)
def test_any_value_is_stored_as_it_is_or_refused(value: Any, kind: str) -> None:
    try:
        (row,) = rows_of([{"c": value}], f"c {kind}")
    except IllegalRow:
        return
    stored = row["c"]
    if "FLOAT" in kind or kind == "DOUBLE" or stored != stored:
        return
    if kind == "MAP<STRING,INT>" and value is not None:
        value = list(value.items()) if isinstance(value, dict) else list(map(tuple, value))
    else:
        value = completed(value, stored)
    assert stored == value or list(stored) == list(value)


def completed(value: Any, stored: Any) -> Any:
    """The value with nulls for the columns of structs that it lacks, also within."""
    if isinstance(value, dict) and isinstance(stored, dict):
        return {name: completed(value.get(name), item) for name, item in stored.items()} | {
            name: item for name, item in value.items() if name not in stored
        }
    if isinstance(value, list | tuple) and isinstance(stored, list) and len(value) == len(stored):
        return list(map(completed, value, stored))
    return value


class _SummerTime(datetime.tzinfo):
    """A zone of a user's own. It names its offset in winter where it is not asked for a time."""

    def utcoffset(self, when: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(hours=2 if when is not None and 3 < when.month < 10 else 1)

    def dst(self, _: datetime.datetime | None) -> None:
        return None

    def tzname(self, _: datetime.datetime | None) -> None:
        return None


ZONES = [
    datetime.UTC,
    ZoneInfo("UTC"),
    ZoneInfo("Europe/Berlin"),
    ZoneInfo("Etc/GMT+3"),
    datetime.timezone(datetime.timedelta(hours=5, minutes=30)),
    _SummerTime(),
]


@given(st.data())
def test_times_of_any_zone_are_the_same_moments(data: st.DataObject) -> None:
    days = st.datetimes(datetime.datetime(1, 1, 3), datetime.datetime(9999, 12, 29))
    zones = data.draw(st.lists(st.sampled_from(ZONES), min_size=1, max_size=2))
    times = data.draw(st.lists(st.builds(lambda day, zone: day.replace(tzinfo=zone), days, st.sampled_from(zones))))
    stored = rows_of(
        [{"c": time, "local": time.replace(tzinfo=None)} for time in times], "c TIMESTAMP, local TIMESTAMP_NTZ"
    )
    assert [row["c"] for row in stored] == [time.astimezone(datetime.UTC) for time in times]
    assert [row["local"] for row in stored] == [time.replace(tzinfo=None) for time in times]


@given(
    st.integers(0, 40),
    st.integers(1, 20),
    st.integers(1, 3000),
    st.sampled_from([None, "lz4", "zstd"]),
    st.integers(0, 5),
)
@settings(max_examples=60)
def test_messages_have_few_rows_and_bytes(
    count: int, max_rows: int, max_bytes: int, how: str | None, skip: int
) -> None:
    """All rows, in order, each once; a message of two rows keeps both limits."""
    schema = declared_schema("id INT, name STRING, xs ARRAY<BIGINT>")
    rows = [{"id": row, "name": "x" * (row * 7 % 50), "xs": list(range(row % 5))} for row in range(count + skip)]
    table = pa.concat_tables(
        [pa.Table.from_pylist(rows[start : start + 7], schema) for start in range(0, count + skip, 7)]
        or [schema.empty_table()]
    ).slice(skip)
    found: list[dict[str, Any]] = []
    for number, value in messages(table, max_rows, max_bytes, how):
        assert 1 <= number <= max_rows
        assert number == 1 or len(value) <= max_bytes
        stream = schema.serialize().to_pybytes() + value
        with pa.ipc.open_stream(stream) as batches:
            found += batches.read_next_batch().to_pylist()
    assert found == rows[skip:]


def test_a_message_of_a_slice_has_only_its_rows() -> None:
    batch = pa.record_batch({"name": ["x" * 100] * 1000})
    assert len(encode_batch(batch.slice(500, 1))) < 500
