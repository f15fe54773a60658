"""Arrow columns that others made: which ones become a topic's, and nulls where none may be."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from commitlog.errors import SchemaError
from commitlog.schemas.types import FLOATS, INTEGERS, LISTS, stored_type


def may_cast(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether `cast` to a topic's type keeps each value, or raises an error for it.

    Both are of one family. Between floats and decimals, every cast would round in silence. A struct
    is one by the names of its columns; those that it lacks are null.
    """
    if pa.types.is_null(kind):
        return True
    if pa.types.is_dictionary(kind):
        return may_cast(kind.value_type, wanted)
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        names, types = [field.name for field in kind.fields], {field.name: field.type for field in wanted.fields}
        return len({*names}) == len(names) and all(
            field.name in types and may_cast(field.type, types[field.name]) for field in kind.fields
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


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array as a type that it `may_cast` to. Raises ArrowException for other values.

    Only what the rows have is cast, at every depth. Arrow's own cast would also refuse rows for
    what lies outside of a slice, for what a null hides, and for a category that no row has.
    """
    if column.type == kind:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if pa.types.is_dictionary(column.type):
        return cast(_without_views(column.dictionary).take(column.indices), kind)
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        parts = dict(zip((field.name for field in column.type.fields), column.flatten(), strict=True))
        missing = pa.nulls(len(column))
        columns = [cast(parts.get(field.name, missing), field.type) for field in kind.fields]
        return pa.StructArray.from_arrays(columns, fields=kind.fields, mask=mask)
    if pa.types.is_map(kind):
        entries = _as_lists(column)
        keys, items = entries.flatten().flatten()
        offsets = _offsets(entries)
        return pa.MapArray.from_arrays(offsets, cast(keys, kind.key_type), cast(items, kind.item_type), kind, mask=mask)
    if pa.types.is_list(kind):
        values = cast(column.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(_offsets(column), values, kind, mask=mask)
    if pa.types.is_decimal(kind):
        return _as_decimal(column, kind)
    made = column.cast(kind)
    if kind == pa.float32() and column.type == pa.float64():
        _refuse_new_infinities(column, made)
    return made


def _as_decimal(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Integers or decimals as a type of decimals.

    Arrow's cast has two faults. Of an integer it asks for the digits of the largest one. And where
    digits are added after the point, it may not see that the number has become too large, and gives
    another number. With 76 digits there is room for all.
    """
    if pa.types.is_integer(column.type):
        column = column.cast(pa.decimal128(20, 0))
    return column.cast(pa.decimal256(76, kind.scale)).cast(kind)


def _without_views(values: pa.Array) -> pa.Array:
    """Arrow has no `take` for the views that Polars has."""
    if pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    return values.cast(pa.binary()) if pa.types.is_binary_view(values.type) else values


def _as_lists(maps: pa.MapArray) -> pa.ListArray:
    """The entries of each map. Only an array of lists knows those that its rows have."""
    entries = pa.StructArray.from_arrays([maps.keys, maps.items], ["key", "value"])
    return pa.Array.from_buffers(
        pa.list_(entries.type), len(maps), maps.buffers()[:2], offset=maps.offset, children=[entries]
    )


def _offsets(lists: pa.Array) -> pa.Array:
    """Where the lists begin and end in what `flatten` gives: nulls have no items there."""
    from pyarrow import compute  # takes 25 ms of a core to load: no plan and few reads need it

    ends = np.cumsum(compute.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    return pa.array(np.concatenate(([0], ends))).cast(pa.int32())


def _refuse_new_infinities(doubles: pa.Array, floats: pa.Array) -> None:
    """Raises ArrowException for a number that is too large for a FLOAT. Rounding is no error."""
    from pyarrow import compute

    infinite = compute.is_inf(floats)
    if compute.any(infinite).as_py() and compute.any(compute.and_(infinite, compute.is_finite(doubles))).as_py():
        raise pa.ArrowInvalid("a number is too large for a FLOAT")


def is_null_where_none_may_be(column: pa.ChunkedArray | pa.Array, field: pa.Field) -> bool:
    """Whether a column that is NOT NULL, or a NOT NULL part of its values, has a null."""
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
