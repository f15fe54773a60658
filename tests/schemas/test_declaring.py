"""A schema as users declare it: text, Arrow, a dataclass, a pydantic model."""

from __future__ import annotations

import contextlib
import datetime
import enum
from collections import namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional

import polars as pl
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.errors import SchemaError
from commitlog.schemas.ddl import ddl, parse_ddl
from commitlog.schemas.declaring import declared_schema
from commitlog.schemas.types import METADATA_COLUMNS, NESTING_MAX
from tests.builders.typed_data import schemas

UTC_TIME = pa.timestamp("us", "UTC")


@given(schemas())
def test_a_schema_as_text_is_the_same_schema(schema: pa.Schema) -> None:
    assert parse_ddl(ddl(schema)).equals(schema)
    assert declared_schema(ddl(schema)).equals(schema)
    assert declared_schema(schema).equals(schema)


def test_text_as_spark_has_it() -> None:
    """Upper or lower case, backticks, both ways to write a struct, Spark's other names of types."""
    text = (
        "id bigint not null, `a ``b` STRUCT<x: Int NOT NULL, y STRING>, d dec(4), e NUMERIC(4,1), f REAL, "
        "t Timestamp, n TIMESTAMP_NTZ, l TIMESTAMP_LTZ, m Map<String, Array<Byte>>, "
        "c: INT NOT NULL COMMENT 'a ''b'' \\' , c', comment VarChar(3) comment \"\", "
        "v STRUCT<comment: CHAR(1) COMMENT 'x', z CHARACTER( 5 ) NOT NULL COMMENT \"'\" >"
    )
    assert declared_schema(text).equals(
        pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                ("a `b", pa.struct([pa.field("x", pa.int32(), nullable=False), ("y", pa.string())])),
                ("d", pa.decimal128(4, 0)),
                ("e", pa.decimal128(4, 1)),
                ("f", pa.float32()),
                ("t", UTC_TIME),
                ("n", pa.timestamp("us")),
                ("l", UTC_TIME),
                ("m", pa.map_(pa.string(), pa.list_(pa.int8()))),
                pa.field("c", pa.int32(), nullable=False),
                ("comment", pa.string()),
                ("v", pa.struct([("comment", pa.string()), pa.field("z", pa.string(), nullable=False)])),
            ]
        )
    )


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "a column is missing before 'the end'"),
        ("id", "a type is missing before 'the end'"),
        ("id INT,", "a column's name is missing before 'the end'"),
        ("id INT, ID STRING", "column id is there twice"),
        ("a INT b INT", "',' is missing before 'b INT'"),
        ("a ARRAY<INT", "'>' is missing before 'the end'"),
        ("a STRUCT<>", "a column is missing before '>'"),
        ("a STRUCT<x: INT, X: INT>", "column a.x is there twice"),
        ("a INT NOT", "'NULL' is missing before 'the end'"),
        ("a DECIMAL(39, 1)", "at most 38 digits"),
        ("a DECIMAL(5, 6)", "at most 38 digits"),
        ("a DECIMAL(5, -1)", "is missing before ',? ?-1\\)'"),
        ("a VARCHAR", r"'\(' is missing before 'the end'"),
        ("a CHAR(0)", "a length from 1 on is missing before"),
        ("a VARCHAR(x)", "a number is missing before 'x"),
        ("a:: INT", "a type is missing before ': INT'"),
        ("a INT COMMENT", "a text in quotes is missing before 'the end'"),
        ("a INT COMMENT 'x", 'a name or a type is missing before "COMMENT \'x"'),
        ("a INT COMMENT 'x' NOT NULL", "',' is missing before 'NOT NULL'"),
        ("'a' INT", "a column's name is missing"),
        ("a INT;", "is missing before 'INT;'"),
        ("`\ud800` INT", "no Unicode text"),
        ("`` INT", "a name or a type is missing"),
        ("x\0y INT", "is missing before"),
        ("_Offset BIGINT", "column _Offset: readers show here where a row comes from"),
        ("a " + "ARRAY<" * (NESTING_MAX + 1) + "INT" + ">" * (NESTING_MAX + 1), "at most 32 deep"),
        ("a " + "ARRAY<" * 5000 + "INT" + ">" * 5000, "nested too deep"),
    ],
)
def test_wrong_text_says_where(text: str, where: str) -> None:
    with pytest.raises(SchemaError, match=where) as caught:
        declared_schema(text)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet=" ,<>():`aINTSTRUCTARRAYMAPDECIMAL0123é\0", max_size=60))
def test_any_text_is_a_schema_or_a_schema_error(text: str) -> None:
    with contextlib.suppress(SchemaError):
        declared_schema(text)


@dataclass
class Address:
    street: str
    floor: int | None = None


@dataclass
class Order:
    id: int
    price: Decimal
    paid: bool
    at: datetime.datetime
    day: Optional[datetime.date]  # noqa: UP045
    raw: bytes
    home: Address
    others: list[Address | None] = field(default_factory=list)
    marks: dict[str, float | None] = field(default_factory=dict)
    small: Annotated[int, pa.int32()] = 0
    small_or_none: Annotated[int | None, pa.int16(), "a note"] = None
    none_or_small: Annotated[int, pa.int8()] | None = None
    documented: Annotated[int | None, "a note"] = None


def test_a_dataclass() -> None:
    """`| None` makes a column that may be null, inside and outside of Annotated."""
    address = pa.struct([pa.field("street", pa.string(), nullable=False), ("floor", pa.int64())])
    expected = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(38, 18), nullable=False),
        pa.field("paid", pa.bool_(), nullable=False),
        pa.field("at", UTC_TIME, nullable=False),
        pa.field("day", pa.date32()),
        pa.field("raw", pa.binary(), nullable=False),
        pa.field("home", address, nullable=False),
        pa.field("others", pa.list_(address), nullable=False),
        pa.field("marks", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("small", pa.int32(), nullable=False),
        pa.field("small_or_none", pa.int16()),
        pa.field("none_or_small", pa.int8()),
        pa.field("documented", pa.int64()),
    ]
    assert declared_schema(Order).equals(pa.schema(expected))


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    BIG = 3


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class Nothing(enum.Enum):
    pass


Maker = NewType("Maker", Annotated[int, pa.int32()])


class Shirt(NamedTuple):
    color: Color
    size: Size | None
    sleeve: Literal["long", "short", None]
    collar: Literal["wide", None] | None
    maker: Maker
    other: tuple[Literal[1, 2], ...]
    by_color: dict[Color, Literal[True]]


def test_enums_literals_and_named_tuples() -> None:
    """They are columns of what their values are; a NewType is what it was made of."""
    expected = "color STRING NOT NULL, size BIGINT, sleeve STRING, collar STRING, maker INT NOT NULL"
    made = declared_schema(Shirt)
    assert pa.schema(list(made)[:5]).equals(parse_ddl(expected))
    assert made.field("other").type == pa.list_(pa.field("element", pa.int64(), nullable=False))
    assert made.field("by_color").type == pa.map_(pa.string(), pa.field("value", pa.bool_(), nullable=False))
    assert declared_schema(dataclass(type("D", (), {"__annotations__": {"s": Shirt}}))).field("s").type.num_fields == 7


def test_a_pydantic_model() -> None:
    class Model(pydantic.BaseModel):
        id: Annotated[int, pydantic.Field(gt=0)]
        names: list[str] | None = None

    names = pa.list_(pa.field("element", pa.string(), nullable=False))
    assert declared_schema(Model).equals(pa.schema([pa.field("id", pa.int64(), nullable=False), ("names", names)]))


def test_a_schema_of_another_library() -> None:
    """Polars' own, by Arrow's PyCapsule interface."""
    made = declared_schema(pl.Schema([("id", pl.UInt32()), ("names", pl.List(pl.String))]))
    assert made.equals(pa.schema({"id": pa.int64(), "names": pa.list_(pa.string())}))


@dataclass
class Node:
    """It contains itself."""

    value: int
    children: list[Node]


@dataclass
class Misspelled:
    value: "intt"  # type: ignore[name-defined]  # noqa: F821, UP037


@dataclass
class HalfWritten:
    value: "int |"  # type: ignore[valid-type]  # noqa: F722


@dataclass
class NoType:
    value: "print(3)"  # type: ignore[valid-type]  # noqa: UP037


@dataclass
class TwoTypes:
    value: int | str


Plain = namedtuple("Plain", "a b")


@dataclass
class MixedEnum:
    value: Mixed


@dataclass
class EmptyEnum:
    value: Nothing


@dataclass
class MixedLiteral:
    value: Literal[1, "x"]


@dataclass
class Empty:
    pass


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (Node, "contains itself"),
        (Misspelled, "Misspelled: name 'intt' is not defined"),
        (HalfWritten, "HalfWritten: Forward reference"),
        (NoType, "NoType"),
        (TwoTypes, r"TwoTypes.value: int \| str says no type"),
        (MixedEnum, "MixedEnum.value: <enum 'Mixed'> says no type"),
        (EmptyEnum, "EmptyEnum.value: <enum 'Nothing'> says no type"),
        (MixedLiteral, r"MixedLiteral.value: typing.Literal\[1, 'x'\] says no type"),
        (Plain, "Plain.a: None says no type"),
        (Empty, "at least one column"),
        (Empty(), "a schema is a pyarrow.Schema"),
        (None, "a schema is a pyarrow.Schema"),
        (dict, "a schema is a pyarrow.Schema"),
        (pa.int8(), "no columns"),
        (pa.schema([]), "at least one column"),
        (pa.schema({"": pa.int8()}), "no name"),
        (pa.schema({"a": pa.struct([])}), "struct a has no columns"),
        (pa.schema({"a": pa.null()}), "column a: Spark has no type for Arrow's null"),
        (pa.schema({"a": pa.list_(pa.duration("s"))}), "column a: Spark has no type"),
        (pa.schema({"a": pa.time64("us")}), "Spark has no type"),
        (pa.schema({"a": pa.decimal256(39, 0)}), "Spark has no type"),
        (pa.schema({"a": pa.decimal128(5, -2)}), "Spark has no type"),
        (pa.schema({"a": pa.uuid()}), "Spark has no type"),
    ],
)
def test_what_is_no_schema(declared: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        declared_schema(declared)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string_view()), pa.string()),
        (pa.binary(16), pa.binary()),
        (pa.timestamp("ns", "Europe/Berlin"), UTC_TIME),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.date64(), pa.date32()),
        (pa.large_list(pa.uint16()), pa.list_(pa.int32())),
        (pa.map_(pa.large_string(), pa.float16()), pa.map_(pa.string(), pa.float32())),
        (pa.decimal32(5, 2), pa.decimal128(5, 2)),
    ],
)
def test_a_type_is_stored_as_the_one_that_spark_has(kind: pa.DataType, stored: pa.DataType) -> None:
    made = declared_schema(pa.schema([pa.field("a", kind, metadata={"x": "y"})], metadata={"x": "y"}))
    assert made.equals(pa.schema({"a": stored}), check_metadata=True)


@pytest.mark.parametrize("name", METADATA_COLUMNS)
def test_a_nested_column_may_have_the_name_of_metadata(name: str) -> None:
    assert declared_schema(f"a STRUCT<{name}: INT>").names == ["a"]
