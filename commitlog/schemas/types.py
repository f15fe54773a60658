"""The types that a column can have: those that Arrow and Spark share.

Many Arrow types differ only in how they lie in memory, as string and large_string do. Spark has one
of them, so a column is stored as that one. Types that Spark does not have at all are refused,
except unsigned numbers: the next larger type holds all their values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa

from commitlog.errors import SchemaError

DECIMAL_DIGITS_MAX = 38
NESTING_MAX = 32
"""How deep lists, structs and maps may be nested. Arrow's messages have a limit of 64."""
_TIME_ZONE = "UTC"

METADATA_COLUMNS: dict[str, pa.DataType] = {
    "_topic": pa.string(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_row": pa.int32(),
    "_timestamp": pa.timestamp("us", _TIME_ZONE),
    "_key": pa.binary(),
}
"""Columns that tell a row's message, and its number there. A schema can't have these names."""

_SAME: dict[pa.DataType, pa.DataType] = {
    **{kind: kind for kind in (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())},
    **{kind: kind for kind in (pa.string(), pa.binary(), pa.date32())},
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
"""Type → the type as which it is stored."""

INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
FLOATS = (pa.float32(), pa.float64())


def stored_type(kind: pa.DataType, column: str, level: int = 0) -> pa.DataType:
    """Returns the type as which a column of this type is stored.

    Raises SchemaError for a type that Spark does not have, and for a type that is nested too deep.
    """
    if level > NESTING_MAX:
        raise SchemaError(f"column {column:.200}: lists, structs and maps are nested at most {NESTING_MAX} deep")
    if kind in _SAME:
        return _SAME[kind]
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else _TIME_ZONE)
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type, column, level)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(stored_type(kind.key_type, column, level + 1), _stored(kind.item_field, column, level + 1))
    if pa.types.is_struct(kind):
        return pa.struct(stored_fields(kind.fields, f"{column}.", level + 1))
    if any(is_list(kind) for is_list in LISTS):
        return pa.list_(_stored(kind.value_field, column, level + 1))
    raise SchemaError(
        f"column {column}: Spark has no type for Arrow's {kind}; convert it, for example to a string or a number"
    )


LISTS: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def _stored(field: pa.Field, column: str, level: int) -> pa.Field:
    return pa.field(field.name, stored_type(field.type, column, level), field.nullable)


def stored_fields(fields: list[pa.Field], prefix: str = "", level: int = 0) -> list[pa.Field]:
    """Returns the columns as they are stored, without their own metadata.

    Raises SchemaError if there is no column, a name is empty or that of a metadata column, or two
    names differ in case only, which Spark takes for one.
    """
    if not fields:
        raise SchemaError(
            f"struct {prefix.removesuffix('.')} has no columns; leave it out"
            if prefix
            else "a schema has at least one column; a topic of values (bytes) needs no schema: just send to it"
        )
    names = [field.name.lower() for field in fields]
    counts = Counter(names)
    for field, name in zip(fields, names, strict=True):
        if not name:
            raise SchemaError(f"a column of {prefix or 'the schema '}has no name; give it one")
        if not prefix and name in METADATA_COLUMNS:
            raise SchemaError(
                f"column {field.name}: readers show here where a row comes from; give your column another name"
            )
        if counts[name] > 1:
            raise SchemaError(f"column {prefix}{field.name} is there twice (Spark ignores the case): rename one")
    return [_stored(field, f"{prefix}{field.name}", level) for field in fields]
