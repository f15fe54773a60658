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

import numpy as np
import pandas as pd
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
from tests.builders.fitted_rows import rows_of, topic
from tests.builders.typed_data import schemas_with_rows

NOON = datetime.datetime(2024, 2, 3, 12, tzinfo=datetime.UTC)
NAIVE = datetime.datetime(2024, 2, 3, 12)
NANOSECONDS = pd.Timestamp("2024-02-03T12:00:00.123456789")


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


FAR = pd.Timestamp(np.datetime64("300000-01-01", "s"))
EARLY = pd.Timestamp(np.datetime64("-0044-03-15", "s"))
try:
    FAR_IN_UTC = pd.Timestamp(np.datetime64("10000-01-01T01", "s"), tz="UTC").tz_convert("America/New_York")
except NotImplementedError:  # pandas 3 makes none
    FAR_IN_UTC = FAR.tz_localize("UTC")
SPAN = np.timedelta64(5000, "ms")
REFUSED = {
    "BOOLEAN": (1, 0.0, "x", "True"),
    "TINYINT": (True, 1.0, 1.5, 128, -129, "1", Decimal(1), np.float32(1), np.bool_(True)),
    "BIGINT": (True, 1.5, 2**63, Decimal("1.23"), np.datetime64("2020-01-01"), uuid.uuid4(), pd.NA, NOON, SPAN),
    "FLOAT": (True, "1", Decimal(1), 1e39, -1e39, 2**24 + 1, 10**400, np.float64(1e39), np.longdouble("1e39")),
    "DOUBLE": (True, "1", Decimal(1), 2**53 + 1, np.longdouble("0.1"), np.longdouble("1e400"), SPAN),
    "ARRAY<FLOAT>": ([1.5, 1e39], np.array([1e39])),
    "MAP<STRING,STRUCT<x: FLOAT>>": ({"a": {"x": 1e39}}, [["a", {"x": -1e39}]]),
    "STRING": (b"x", 1, "\ud800", uuid.uuid4(), FAR.tz_localize("UTC")),
    "BINARY": ("x", 1, [1], uuid.uuid4()),
    "DATE": (NOON, NAIVE, 1, "2020-01-01", pd.NaT, NANOSECONDS, FAR.tz_localize("UTC")),
    "TIMESTAMP": (
        NAIVE,
        datetime.date(2020, 1, 1),
        1,
        "2020",
        pd.NaT,
        NANOSECONDS.tz_localize("UTC"),
        FAR.tz_localize("UTC"),
        EARLY.tz_localize("UTC"),
        FAR_IN_UTC,
    ),
    "TIMESTAMP_NTZ": (
        NOON,
        datetime.date(2020, 1, 1),
        1,
        pd.NaT,
        NANOSECONDS,
        np.datetime64("2020-01-01"),
        FAR,
        EARLY,
    ),
    "MAP<STRING,ARRAY<STRUCT<t: TIMESTAMP>>>": ({"a": [{"t": FAR.tz_localize("UTC")}]}, {"a": [{"t": FAR_IN_UTC}]}),
    "DECIMAL(5,2)": (1.5, Decimal("1.234"), Decimal("1234"), Decimal("NaN"), Decimal("sNaN"), True, "1", SPAN),
    "ARRAY<INT>": ("x", b"x", {1, 2}, [1.5], [True], np.array([1.5]), np.array([[1]]), np.array(1), [[1]], {1: 2}),
    "ARRAY<DECIMAL(5,2)>": ([SPAN], np.array([SPAN])),
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
        ("ARRAY<BIGINT>", np.ma.masked_array([1, 2], mask=[False, True]), [1, None]),
        ("ARRAY<DOUBLE>", np.ma.masked_array([1.5, 2.5], mask=[True, False]), [None, 2.5]),
        ("MAP<STRING,ARRAY<INT>>", {"a": np.ma.masked_array([1], mask=[True], dtype=np.int32)}, [("a", [None])]),
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


MS = pa.timestamp("ms", "UTC")
TINY = "it takes an int from -128 to 127"
DIGITS = r"10 is no DECIMAL\(3,2\): it takes a Decimal or an int with at most 1 digit before the point, and 2 after it"


@pytest.mark.parametrize(
    ("kind", "rows", "says"),
    [
        ("DECIMAL(3,2)", [{"c": 10}], f"column c: {DIGITS}"),
        ("DECIMAL(3,2)", pa.table({"c": [10]}), f"column c: {DIGITS}"),
        (
            "DECIMAL(3,2)",
            [{"c": Decimal("NaN")}],
            r"column c: Decimal\('NaN'\) is no DECIMAL\(3,2\): it takes a Decimal",
        ),
        ("ARRAY<DECIMAL(3,2)>", [{"c": [1, 10]}], rf"column c\[1\]: {DIGITS}"),
        ("STRUCT<x: STRUCT<y: DECIMAL(3,2)>>", [{"c": {"x": {"y": 10}}}], rf"column c\.x\.y: {DIGITS}"),
        ("MAP<STRING, TINYINT>", [{"c": {"a": 300}}], rf"column c\['a'\]: 300 is no TINYINT: {TINY}"),
        ("TINYINT", [{"c": 1 << 70}], f"is no TINYINT: {TINY}"),
        ("TINYINT", pd.DataFrame({"c": [300]}), f"300 is no TINYINT: {TINY}"),
        ("DOUBLE", [{"c": 2**53 + 1}], "is no DOUBLE: it takes a float, or an int that a float holds exactly"),
        (
            "STRING",
            [{"c": "\ud800"}],
            "is no STRING: it takes a str that UTF-8 can have, so without half a surrogate pair",
        ),
        (
            "TIMESTAMP",
            pa.table({"c": pa.array([2**62], MS)}),
            "column c: 4611686018427387904 is no TIMESTAMP: it takes a",
        ),
    ],
)
def test_what_a_type_has_no_room_for_is_named(kind: str, rows: Any, says: str) -> None:
    """Column, part, value, and what fits: no text of Arrow's own."""
    with pytest.raises(IllegalRow, match=f"row 0, .*{says}[^:]*$"):
        as_table(rows, topic(f"c {kind}"))


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
@example({"": None}, "MAP<STRING,ARRAY<STRUCT<t: TIMESTAMP>>>")
@example({"": {}}, "MAP<STRING,STRUCT<x: FLOAT>>")
@settings(max_examples=200)
def test_any_value_is_stored_as_it_is_or_refused(value: Any, kind: str) -> None:
    try:
        (row,) = rows_of([{"c": value}], f"c {kind}")
    except IllegalRow:
        return
    stored = row["c"]
    if "FLOAT" in kind or kind == "DOUBLE" or stored != stored:
        return
    if kind.startswith("MAP<") and value is not None:
        value = list(value.items()) if isinstance(value, dict) else list(map(tuple, value))
    value = completed(value, stored)
    assert stored == value or list(stored) == list(value)


def completed(value: Any, stored: Any) -> Any:
    """The value with nulls for the columns of structs that it lacks, also within."""
    if isinstance(value, dict) and isinstance(stored, dict):
        return {name: completed(value.get(name), item) for name, item in stored.items()} | {
            name: item for name, item in value.items() if name not in stored
        }
    if isinstance(value, list | tuple) and isinstance(stored, list | tuple) and len(value) == len(stored):
        return type(stored)(map(completed, value, stored))
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
