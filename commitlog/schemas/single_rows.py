"""Rows that come one by one: each is checked and copied alone, before others come to it.

Arrow checks a thousand rows in less time than it takes to call it for one. So the values of usual
classes are checked here, by a plan for all rows that have the same columns and classes. Arrow has
only the others: decimals, lists, structs, and what is no value of a column.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa

from commitlog.schemas.python_values import plain
from commitlog.schemas.row_batches import check_names, check_value, columns_of_row, encode_batch
from commitlog.schemas.topic_schemas import TopicSchema

_PLANS = 1000
"""Plans that are kept: a topic's rows may lack any of their columns."""
_UNUSUAL = (struct.error, OverflowError, UnicodeEncodeError)
"""What a number is that is too large, and a text with half a pair of surrogates."""
_CODES = {pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q", pa.float32(): "f"}
_ZONES = frozenset((datetime.timezone, ZoneInfo))
_FIRST_YEAR, _LAST_YEAR = 2, 9998
"""Of usual times: in UTC they are within the calendar, too."""
_Values = Callable[[tuple[Any, ...]], tuple[Any, ...]]


Taken = tuple[dict[str, Any], bool]
"""A copy of a row that fits, and whether it may be that no message has room for it.

The caller may change its own: nothing of it is shared.
"""


class _Plan(NamedTuple):
    """How rows are checked whose values have the same classes. Numbers are places of columns."""

    numbers: tuple[Callable[..., object], _Values] | None
    texts: _Values | None
    times: list[tuple[int, bool]]  # whether they have a zone
    unusual: Sequence[int]  # for Arrow


class SingleRows:
    """Takes rows of one version of a topic's schema. A message has at most `bytes_max` bytes."""

    def __init__(self, schema: TopicSchema, bytes_max: int) -> None:
        self.schema = schema
        self._plans: dict[tuple[type, ...], _Plan] = {}
        columns = schema.columns
        self._names = columns.names
        self._values = itemgetter(*columns.names) if len(columns) > 1 else lambda row: (row[columns.names[0]],)
        nothing = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in columns.types], columns.names)
        # places, lengths, padding, and what compression adds to buffers that it can't make smaller
        self._room = bytes_max - 2 * len(encode_batch(nothing))

    def take(self, row: Any) -> Taken:
        """Checks and copies a row. Raises IllegalRow, which names the column."""
        made: dict[str, Any] = row.copy() if type(row) is dict else columns_of_row(row).copy()
        try:
            values = self._values(made)
        except KeyError:
            values = tuple(map(made.get, self._names))
            check_names(made, self.schema)
        if len(made) > len(values):
            check_names(made, self.schema)
        kinds = (*map(type, values),)
        numbers, texts, times, unusual = self._plans.get(kinds) or self._plan(kinds)
        size = 0
        try:
            if numbers is not None:
                pack, numbers_of = numbers
                pack(*numbers_of(values))
            if texts is not None:
                text = "".join(texts(values))
                size = len(text) if text.isascii() else len(text.encode())
        except _UNUSUAL:
            unusual = range(len(values))
        for index, has_zone in times:
            time = values[index]
            zone = time.tzinfo
            if not ((type(zone) in _ZONES if has_zone else zone is None) and _FIRST_YEAR <= time.year <= _LAST_YEAR):
                unusual = range(len(values))
        for index in unusual:
            field = self.schema.columns[index]
            name, value = field.name, plain(values[index], field.type, _kept)
            size += check_value(value, field, self.schema)
            if value is not None:  # else it may be missing
                made[name] = value
        return made, size > self._room

    def _plan(self, kinds: tuple[type, ...]) -> _Plan:
        numbers, texts, codes = list[int](), list[int](), "="
        times, unusual = list[tuple[int, bool]](), list[int]()
        for index, (field, kind) in enumerate(zip(self.schema.columns, kinds, strict=True)):
            how = _usual(field, kind)
            if how is None:
                unusual.append(index)
            elif how == "number":
                numbers.append(index)
                codes += _CODES[field.type]
            elif how == "text":
                texts.append(index)
            elif how == "time":
                times.append((index, field.type.tz is not None))
        packed = (struct.Struct(codes).pack, _getter(numbers)) if numbers else None
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        made = self._plans[kinds] = _Plan(packed, _getter(texts) if texts else None, times, unusual)
        return made


def _usual(field: pa.Field, found: type) -> str | None:
    """How values of a usual class are checked; None of another class. Usual ones can't change."""
    kind = field.type
    if found is type(None):
        return "null" if field.nullable else None
    if (found is int and pa.types.is_integer(kind)) or (found is float and pa.types.is_float32(kind)):
        return "number"
    if (
        (found is float and pa.types.is_float64(kind))
        or (found is bool and pa.types.is_boolean(kind))
        or (found is datetime.date and pa.types.is_date(kind))
    ):
        return "any"
    if found is str and pa.types.is_string(kind):
        return "text"
    return "time" if found is datetime.datetime and pa.types.is_timestamp(kind) else None


def _kept(value: Any, _kind: pa.DataType) -> Any:
    """The value as one that nobody changes."""
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _getter(places: list[int]) -> _Values:
    if len(places) == 1:
        (place,) = places
        return lambda values: (values[place],)
    return itemgetter(*places)
