"""Rows that come one by one: each is checked and copied alone, before others come to it.

Arrow checks a thousand rows in less time than it takes to call it for one. So values of usual
classes are checked here, by a function that is compiled for the schema: a call for each value would
cost more than all its checks. Arrow has only the others: decimals, lists, structs, and what is no
value of a column.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from commitlog.schemas.python_values import plain
from commitlog.schemas.row_batches import (
    as_table,
    check_names,
    check_value,
    columns_of_row,
    encode_batch,
    table_of_checked,
)
from commitlog.schemas.topic_schemas import TopicSchema


def _has_bytes(text: str) -> bool:
    """Whether a text can be stored. Half a pair of surrogates can't."""
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


_USED = {
    "date": datetime.date,
    "datetime": datetime.datetime,
    "zones": frozenset((datetime.timezone, ZoneInfo)),
    "has_bytes": _has_bytes,
}
"""What the compiled functions name."""
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


class SingleRows:
    """Takes rows of one version of a topic's schema. A message has at most `bytes_max` bytes."""

    def __init__(self, schema: TopicSchema, bytes_max: int) -> None:
        self.schema = schema
        self.names = names = schema.columns.names
        nothing = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in schema.columns.types], names)
        # places, lengths, padding, and what compression adds to buffers that it can't make smaller
        self._room = bytes_max - 2 * len(encode_batch(nothing))

        self.take: Callable[[Any], Taken]
        self._check: Callable[[tuple[Any, ...]], Taken]
        self.take, self._check = self._compiled()

    def _compiled(self) -> tuple[Callable[[Any], Taken], Callable[[tuple[Any, ...]], Taken]]:
        """`take(row)` checks and copies a row; it raises IllegalRow, which names the column.

        `check(values)` does the same with the values of a row in the order of the columns. The
        source has nothing but what is written here.
        """
        names = [f"v{place}" for place in range(len(self.names))]
        check = [f"{', '.join(names)}, = values", "unusual, size = (), 0"]
        for place, (name, field) in enumerate(zip(names, self.schema.columns, strict=True)):
            check += _lines(place, name, field)
        check += ["if unusual or size > room: return unusual_row(values, unusual, size)"]
        take = ["if type(row) is not dict or len(row) != count: return other_row(row)"]
        take += ["try: values = values_of(row)", "except KeyError: return other_row(row)"]
        end = "return values, False, taker"
        get = itemgetter(*self.names)
        made: dict[str, Any] = {
            **_USED,
            "count": len(names),
            "values_of": get if len(names) > 1 else lambda row: (get(row),),
            "room": self._room,
            "taker": self,
            "other_row": self._take_other,
            "unusual_row": self._take_unusual,
        }
        exec("\n ".join(["def take(row):", *take, *check, end]) + "\n", made)
        exec("\n ".join(["def check(values):", *check, end]) + "\n", made)
        return made["take"], made["check"]

    def _take_other(self, row: Any) -> Taken:
        """Takes a row that is no dictionary, or lacks columns, or has other ones."""
        columns = row if type(row) is dict else columns_of_row(row)
        check_names(columns, self.schema)
        return self._check((*map(columns.get, self.names),))

    def _take_unusual(self, values: tuple[Any, ...], places: tuple[int, ...], size: int) -> Taken:
        """Takes the values of a row that is large, or has values that only Arrow can check."""
        if places:
            values, more = self._by_arrow(values, places)
            size += more
        return values, size > self._room, self

    def _by_arrow(self, values: tuple[Any, ...], places: Sequence[int]) -> tuple[tuple[Any, ...], int]:
        """Has Arrow check the values at these places. Gives all values, and how large these are."""
        kept, size = list(values), 0
        for place in places:
            field = self.schema.columns[place]
            kept[place] = plain(values[place], field.type, _kept)
            size += check_value(kept[place], field, self.schema)
        return tuple(kept), size


Taken = tuple[tuple[Any, ...], bool, SingleRows]
"""The values of a row that fits; whether it may be that no message has room for it; who took it.

The caller may change its own row: nothing of it is shared.
"""


def table_of(rows: Sequence[Taken], schema: TopicSchema) -> pa.Table:
    """Rows that were taken, as a table of the topic's schema, which may have grown meanwhile.

    Raises IllegalRow where one of them fits no more.
    """
    if {taker.schema.version for taker in {*map(itemgetter(2), rows)}} == {schema.version}:
        return table_of_checked([*zip(*map(itemgetter(0), rows), strict=True)], schema)
    return as_table([dict(zip(taker.names, values, strict=True)) for values, _, taker in rows], schema)


# ---- what is compiled --------------------------------------------------------------------------


def _lines(place: int, name: str, field: pa.Field) -> list[str]:
    """The lines that check the value `name` of a column. What is not usual there is for Arrow."""
    is_usual, size = _usual(name, field.type)
    is_null = f" or {name} is None" if field.nullable else ""
    if not size:
        return [f"if not ({is_usual}{is_null}): unusual += ({place},)"]
    return [f"if {is_usual}: size += {size}", f"elif not ({is_usual}{is_null}): unusual += ({place},)"]


def _usual(name: str, kind: pa.DataType) -> tuple[str, str]:
    """Says whether the value `name` is usual, so that nobody can change it, and how large it is."""
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return f"type({name}) is int and {-most} <= {name} < {most}", ""
    if pa.types.is_float32(kind):
        return f"type({name}) is float and {-_LARGEST_FLOAT} <= {name} <= {_LARGEST_FLOAT}", ""
    if pa.types.is_float64(kind):
        return f"type({name}) is float", ""
    if pa.types.is_boolean(kind):
        return f"type({name}) is bool", ""
    if pa.types.is_date(kind):
        return f"type({name}) is date", ""
    if pa.types.is_timestamp(kind):
        zone = f"{name}.tzinfo is None" if kind.tz is None else f"type({name}.tzinfo) in zones"
        # near the ends of the calendar the time may be outside of it in UTC
        return f"type({name}) is datetime and {zone} and 1 < {name}.year < 9999", ""
    if pa.types.is_string(kind):
        return f"type({name}) is str and ({name}.isascii() or has_bytes({name}))", f"4 * len({name})"
    if pa.types.is_binary(kind):
        return f"type({name}) is bytes", f"len({name})"
    return "False", ""


def _kept(value: Any, _kind: pa.DataType) -> Any:
    """The value as one that nobody changes."""
    return bytes(value) if isinstance(value, bytearray | memoryview) else value
