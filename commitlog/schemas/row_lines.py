"""Rows as lines of JSON: what `cat --rows` writes, and `produce --rows` reads.

JSON has no word for some values. Times are ISO texts, decimals their digits, bytes base64; a number
that is none is "NaN", "Infinity" or "-Infinity", and a map a list of its pairs. A time outside the
years 1 to 9999 is written as Arrow writes it, and can't be read: Python has no such time.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

Convert = Callable[[Any], Any]

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NANOSECONDS = re.compile(r"[.,][0-9]{6}0*[1-9]")
_NO_TIME = (ValueError, OverflowError)


# ---- writing -----------------------------------------------------------------------------------


def lines_of(batch: pa.RecordBatch) -> Iterator[bytes]:
    """A line for each row, with its end."""
    names = batch.schema.names
    for row in zip(*map(_values, batch.columns), strict=True):
        yield orjson.dumps(dict(zip(names, row, strict=True)), _text, orjson.OPT_APPEND_NEWLINE)


def _values(column: pa.Array) -> list[Any]:
    try:
        values = column.to_pylist()
    except _NO_TIME:  # one row is enough, and it must not change how the others are written
        values = [_value(column.slice(row, 1)) for row in range(len(column))]
    write = _writer(column.type)
    return values if write is None else [value if value is None else write(value) for value in values]


def _value(one: pa.Array) -> Any:
    try:
        return one.to_pylist()[0]
    except _NO_TIME:
        return one.cast(_with_times_as_text(one.type)).to_pylist()[0]


def _with_times_as_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_map(kind):
        return pa.map_(_with_times_as_text(kind.key_type), _with_times_as_text(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_with_times_as_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_times_as_text(field.type)) for field in kind.fields])
    return kind


def _writer(kind: pa.DataType) -> Convert | None:
    """Makes texts of the numbers in a value that JSON would write as null. None: it has none."""
    if pa.types.is_floating(kind):
        return _number
    return _of_nested(kind, _writer)


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


# ---- reading -----------------------------------------------------------------------------------


def reader_of(columns: pa.Schema) -> Convert:
    """Makes a row of the JSON of a line.

    What is no text of its column's type stays as it is: `send_rows` refuses it, and says where.
    """
    readers = {field.name: reader for field in columns if (reader := _reader(field.type)) is not None}
    return partial(_converted, readers)


def _reader(kind: pa.DataType) -> Convert | None:
    for is_kind, read in _READERS:
        if is_kind(kind):
            return partial(_of_text, read)
    return _of_nested(kind, _reader)


def _of_text(read: Callable[[str], Any], value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return read(value)
    except (ValueError, KeyError, ArithmeticError, binascii.Error):
        return value


def _time(text: str) -> datetime.datetime:
    if _NANOSECONDS.search(text):
        raise ValueError("it would be rounded")
    return datetime.datetime.fromisoformat(text)


def _decimal(text: str) -> decimal.Decimal:
    found = decimal.Decimal(text)
    if not found.is_finite():
        raise ValueError("no number")
    return found


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]], ...] = (
    (pa.types.is_floating, _NOT_FINITE.__getitem__),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_date, datetime.date.fromisoformat),
    (pa.types.is_timestamp, _time),
    (pa.types.is_binary, partial(base64.b64decode, validate=True)),
)


# ---- both --------------------------------------------------------------------------------------


def _of_nested(kind: pa.DataType, convert_of: Callable[[pa.DataType], Convert | None]) -> Convert | None:
    """What converts the values within one of a nested type, or None where none is to be."""
    if pa.types.is_map(kind):
        both = convert_of(kind.key_type), convert_of(kind.item_type)
        return partial(_pairs, both) if any(both) or convert_of is _reader else None
    if pa.types.is_list(kind):
        convert = convert_of(kind.value_type)
        return None if convert is None else partial(_items, convert)
    if pa.types.is_struct(kind):
        fields = {field.name: convert for field in kind.fields if (convert := convert_of(field.type)) is not None}
        return partial(_converted, fields) if fields else None
    return None


def _items(convert: Convert, value: Any) -> Any:
    return [None if item is None else convert(item) for item in value] if isinstance(value, list) else value


def _converted(fields: dict[str, Convert], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        name: convert(item) if item is not None and (convert := fields.get(name)) is not None else item
        for name, item in value.items()
    }


def _pairs(both: tuple[Convert | None, Convert | None], value: Any) -> Any:
    """A list of pairs; what JSON has as an object or as a list of lists."""
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        return value
    return [
        tuple(
            item if item is None or convert is None else convert(item) for convert, item in zip(both, pair, strict=True)
        )
        for pair in pairs
    ]
