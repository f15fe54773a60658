"""Values as other libraries lay them out: views, large types, dictionaries, wider types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

Pick = Callable[[list[Any]], Any]


def relaid(column: pa.Array, pick: Pick) -> pa.Array:
    """The column in a layout that `pick` chooses, at every depth. It has a topic's type."""
    kind = column.type
    if not len(column):
        return column
    if pa.types.is_list(kind):
        return _relaid_lists(column, pick)
    if pa.types.is_struct(kind):
        parts = [(field.name, relaid(column.field(field.name), pick)) for field in kind.fields]
        names, arrays = zip(*pick([parts, parts[::-1]]), strict=True)
        return pa.StructArray.from_arrays(arrays, names=names, mask=column.is_null())
    if pa.types.is_map(kind):
        keys, items = relaid(column.keys, pick), relaid(column.items, pick)
        return pa.MapArray.from_arrays(column.offsets, keys, items, mask=column.is_null())
    column = pick([column, *map(column.cast, _others(kind))])
    return column.dictionary_encode() if pick([True, False]) and column.type not in _VIEWS else column


def _relaid_lists(column: pa.ListArray, pick: Pick) -> pa.Array:
    values, offsets, mask = relaid(column.values, pick), column.offsets, column.is_null()
    begins, sizes = offsets[:-1], pa.compute.subtract(offsets[1:], offsets[:-1])
    makers: list[Callable[[], pa.Array]] = [
        lambda: pa.ListArray.from_arrays(offsets, values, mask=mask),
        lambda: pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), values, mask=mask),
        lambda: pa.ListViewArray.from_arrays(begins, sizes, values, mask=mask),
        lambda: pa.LargeListViewArray.from_arrays(begins.cast(pa.int64()), sizes.cast(pa.int64()), values, mask=mask),
    ]
    return pick(makers)()


def _others(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_decimal(kind):
        return [pa.decimal256(kind.precision, kind.scale)]
    return _LAYOUTS.get(kind, [])


_VIEWS = (pa.string_view(), pa.binary_view())
_LAYOUTS: dict[pa.DataType, list[pa.DataType]] = {
    pa.string(): [pa.large_string(), pa.string_view()],
    pa.binary(): [pa.large_binary(), pa.binary_view()],
    pa.int8(): [pa.int64()],
    pa.int16(): [pa.int32()],
    pa.float32(): [pa.float64()],
    pa.date32(): [pa.date64()],
}
