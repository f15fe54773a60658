"""Arrow columns that others made: which ones become a topic's, and nulls where none may be."""

from __future__ import annotations

import pyarrow as pa

from commitlog.errors import SchemaError
from commitlog.schemas.types import FLOATS, INTEGERS, LISTS, stored_type


def may_cast(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's cast to a topic's type keeps each value, or raises an error for it.

    Both are of one family. Between floats and decimals, every cast would round in silence.
    """
    if pa.types.is_null(kind):
        return True
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        return [field.name for field in kind.fields] == [field.name for field in wanted.fields] and all(
            may_cast(field.type, other.type) for field, other in zip(kind.fields, wanted.fields, strict=True)
        )
    if pa.types.is_map(kind) and pa.types.is_map(wanted):
        return may_cast(kind.key_type, wanted.key_type) and may_cast(kind.item_type, wanted.item_type)
    if any(is_list(kind) for is_list in LISTS) and pa.types.is_list(wanted):
        return may_cast(kind.value_type, wanted.value_type)
    try:
        stored = stored_type(kind, "")
    except SchemaError:
        return False
    return stored == wanted or {_family(stored), _family(wanted)} in _CAST_BETWEEN


def _family(kind: pa.DataType) -> str:
    if kind in INTEGERS:
        return "integer"
    if kind in FLOATS:
        return "float"
    return "decimal" if pa.types.is_decimal(kind) else str(kind)


_CAST_BETWEEN = ({"integer"}, {"float"}, {"decimal"}, {"integer", "float"}, {"integer", "decimal"})


def is_null_where_none_may_be(column: pa.ChunkedArray | pa.Array, field: pa.Field) -> bool:
    """Whether there is a null in a column that is NOT NULL, or in such a part of its values."""
    if isinstance(column, pa.ChunkedArray):
        return any(is_null_where_none_may_be(chunk, field) for chunk in column.chunks)
    if column.null_count and not field.nullable:
        return True
    kind = field.type
    if not any(map(_is_checked, _parts(kind))):
        return False
    values = column.drop_null()  # what a null has within says nothing
    if pa.types.is_struct(kind):
        return any(map(is_null_where_none_may_be, values.flatten(), kind.fields))
    if pa.types.is_map(kind):
        ends = values.offsets
        start = ends[0].as_py()
        return is_null_where_none_may_be(values.items.slice(start, ends[-1].as_py() - start), kind.item_field)
    return is_null_where_none_may_be(values.flatten(), kind.value_field)


def _parts(kind: pa.DataType) -> list[pa.Field]:
    """The columns within a type. Arrow itself looks for nulls among the keys of a map."""
    return [kind.item_field] if pa.types.is_map(kind) else [kind.field(index) for index in range(kind.num_fields)]


def _is_checked(part: pa.Field) -> bool:
    return not part.nullable or any(map(_is_checked, _parts(part.type)))
