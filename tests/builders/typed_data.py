"""Schemas and rows of all types that a topic can have, at random."""

from __future__ import annotations

import datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from commitlog.schemas.types import METADATA_COLUMNS

_NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6).filter(
    lambda name: name.lower() not in METADATA_COLUMNS
)
_PLAIN = (
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
)
_DECIMALS = st.integers(1, 38).flatmap(lambda digits: st.builds(pa.decimal128, st.just(digits), st.integers(0, digits)))
PLAIN_TYPES = st.sampled_from(_PLAIN) | _DECIMALS


def _fields(kinds: st.SearchStrategy[pa.DataType], most: int) -> st.SearchStrategy[list[pa.Field]]:
    fields = st.builds(pa.field, _NAMES, kinds, nullable=st.booleans())
    return st.lists(fields, min_size=1, max_size=most, unique_by=lambda field: field.name.lower())


TYPES = st.recursive(
    PLAIN_TYPES,
    lambda kinds: (
        st.builds(pa.list_, kinds)
        | st.builds(pa.map_, PLAIN_TYPES.filter(lambda kind: not pa.types.is_floating(kind)), kinds)
        | st.builds(pa.struct, _fields(kinds, 3))
    ),
    max_leaves=4,
)


def schemas(most: int = 4) -> st.SearchStrategy[pa.Schema]:
    """Schemas of up to `most` columns."""
    return st.builds(pa.schema, _fields(TYPES, most))


def values(field: pa.Field) -> st.SearchStrategy[Any]:
    """Values of a column as Python has them, with nulls where the column may have them."""
    made = _values_of(field.type)
    return st.none() | made if field.nullable else made


def _values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return st.integers(-most, most - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda digits: Decimal(digits).scaleb(-kind.scale, _EXACT))
    if pa.types.is_timestamp(kind):
        return st.datetimes(timezones=st.just(datetime.UTC)) if kind.tz else st.datetimes()
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: values(field) for field in kind.fields})
    if pa.types.is_list(kind):
        return st.lists(values(kind.value_field), max_size=3)
    if pa.types.is_map(kind):
        keys = values(kind.key_field)
        return st.lists(st.tuples(keys, values(kind.item_field)), max_size=3, unique_by=lambda pair: repr(pair[0]))
    return {
        pa.bool_(): st.booleans(),
        pa.string(): st.text(max_size=5),
        pa.binary(): st.binary(max_size=5),
        pa.date32(): st.dates(),
    }[kind]


_EXACT = Context(prec=60)


@st.composite
def schemas_with_rows(draw: st.DrawFn, most_rows: int = 5) -> tuple[pa.Schema, list[dict[str, Any]]]:
    """A schema, and some rows of it."""
    schema = draw(schemas())
    row = st.fixed_dictionaries({field.name: values(field) for field in schema})
    return schema, draw(st.lists(row, min_size=1, max_size=most_rows))
