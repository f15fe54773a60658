"""Frames of pandas as columns.

Where pandas knows the type, Arrow makes the column. A column of objects stays Python's values, so
that they are looked at one by one: Arrow would guess one type for them all, and change those of
another type to fit. It moves times without a zone, cuts times to dates, and makes bytes of text.
"""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa


def is_frame(rows: Any) -> bool:
    """Whether this is a DataFrame of pandas. Whoever has one has imported pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(rows, pandas.DataFrame)


def columns_of_frame(frame: Any) -> list[tuple[str, pa.ChunkedArray | list[Any]]]:
    """The columns, and the parts of the index that have a name. Missing objects are None."""
    named = [number for number, name in enumerate(frame.index.names) if name is not None]
    if named:
        frame = frame.reset_index(named)
    names = list(map(str, frame.columns))
    columns: dict[int, pa.ChunkedArray | list[Any]] = {}
    for number, kind in enumerate(frame.dtypes):
        if _has_objects(kind):
            columns[number] = _objects(frame.iloc[:, number])
    typed = [number for number in range(len(names)) if number not in columns]
    table = pa.Table.from_pandas(frame.iloc[:, typed], preserve_index=False)
    columns.update(zip(typed, table.columns, strict=True))
    return [(name, columns[number]) for number, name in enumerate(names)]


def _has_objects(kind: Any) -> bool:
    """Whether values of this type may be anything, also as categories."""
    categories = getattr(kind, "categories", None)
    if categories is None:
        return bool(kind == "object")
    return bool(categories.dtype == "object") and not all(isinstance(one, str) for one in categories)


def _objects(column: Any) -> list[Any]:
    column = column.astype(object)
    values: list[Any] = column.tolist()
    for number in np.flatnonzero(column.isna()):
        values[number] = None
    return values


def with_integers(values: list[Any]) -> list[Any]:
    """Values of a column of integers: what `as_python` makes of floats, in a tenth of the time."""
    return [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]


def as_python(value: Any, kind: pa.DataType) -> Any:
    """What pandas has for a value of this type where it has no type for the column.

    Integers with gaps are floats there, a gap is NaN or NaT, and a time may be numpy's.
    """
    if isinstance(value, float | np.floating):
        if math.isnan(value):
            return None
        return int(value) if value.is_integer() and pa.types.is_integer(kind) else value
    pandas = sys.modules["pandas"]
    if isinstance(value, np.timedelta64) and np.isnat(value):
        return None
    if isinstance(value, np.datetime64) and (np.isnat(value) or pa.types.is_timestamp(kind)):
        value = pandas.Timestamp(value)
    if isinstance(value, Decimal) and pa.types.is_integer(kind):
        return int(value) if value.is_finite() and value == value.to_integral_value() else value
    return None if value is pandas.NaT or value is pandas.NA else value
