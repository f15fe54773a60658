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

from commitlog.errors import IllegalRow
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
    "utc": datetime.UTC,
    "zone_utc": ZoneInfo("UTC"),
    "has_bytes": _has_bytes,
}
"""What the compiled functions name."""
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


class SingleRows:
    """Takes rows of one version of a topic's schema. A message has at most `bytes_max` bytes."""

    def __init__(self, schema: TopicSchema, bytes_max: int, refused: Refused) -> None:
        self.schema, self._refused = schema, refused
        self.names = names = schema.columns.names
        nothing = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in schema.columns.types], names)
        # places, lengths, padding, and what compression adds to buffers that it can't make smaller
        self._room = bytes_max - 2 * len(encode_batch(nothing))

        self.take: Callable[[Any], Taken]
        self._check: Callable[[tuple[Any, ...]], Taken]
        self.take, self._check = self._compiled()

    def _compiled(self) -> tuple[Callable[[Any], Taken], Callable[[tuple[Any, ...]], Taken]]:
        """`take(row)` checks and copies a row; it raises IllegalRow, which names the column.

        `check(values)` does the same with the values of a row in the order of the columns. It tells
        apart what `take` only finds not to be usual. The source has nothing but what is written
        here.
        """
        names = [f"v{place}" for place in range(len(self.names))]
        listed = ", ".join(names)
        columns = list(zip(names, self.schema.columns, strict=True))
        take = ["if type(row) is not dict or len(row) != count: return other_row(row)"]
        take += [f"try: {listed} = values_of(row)", "except KeyError: return other_row(row)"]
        take += [f"if {_all_usual(columns)}: return {listed}, taker", f"return check(({listed},))"]
        check = [f"{listed}, = values", "unusual, size = (), 0"]
        for place, (name, field) in enumerate(columns):
            check += _lines(place, name, field)
        check += ["if unusual or size > room: return unusual_row(values, unusual, size)"]
        check += [f"return {listed}, taker"]
        made: dict[str, Any] = {
            **_USED,
            "count": len(names),
            "values_of": itemgetter(*self.names),
            "room": self._room,
            "taker": self,
            "other_row": self._take_other,
            "unusual_row": self._take_unusual,
        }
        exec("\n ".join(["def take(row):", *take]) + "\n", made)
        exec("\n ".join(["def check(values):", *check]) + "\n", made)
        return made["take"], made["check"]

    def _take_other(self, row: Any) -> Taken:
        """Takes a row that is no dictionary, or lacks columns, or has other ones."""
        try:
            columns = row if type(row) is dict else columns_of_row(row)
            check_names(columns, self.schema)
        except IllegalRow as error:
            return self._refused(row, self.schema, error)
        return self._check((*map(columns.get, self.names),))

    def _take_unusual(self, values: tuple[Any, ...], places: tuple[int, ...], size: int) -> Taken:
        """Takes the values of a row that is large, or has values that only Arrow can check."""
        if places:
            try:
                values, more = self._by_arrow(values, places)
            except IllegalRow as error:
                return self._refused(dict(zip(self.names, values, strict=True)), self.schema, error)
            size += more
        taken = (*values, self)
        return LargeRow(taken) if size > self._room else taken

    def _by_arrow(self, values: tuple[Any, ...], places: Sequence[int]) -> tuple[tuple[Any, ...], int]:
        """Has Arrow check the values at these places. Gives all values, and how large these are."""
        kept, size = list(values), 0
        for place in places:
            field = self.schema.columns[place]
            kept[place] = plain(values[place], field.type, _kept)
            size += check_value(kept[place], field, self.schema)
        return tuple(kept), size


Taken = tuple[Any, ...]
"""The values of a row that fits, and last the SingleRows that took it.

The caller may change its own row: nothing of it is shared.
"""


Refused = Callable[[Any, TopicSchema, IllegalRow], Taken]
"""What is asked about a row that does not fit a schema: it takes the row otherwise, or raises."""


class LargeRow(Taken):
    """A row that was taken, and for which it may be that no message has room."""


def table_of(rows: Sequence[Taken], schema: TopicSchema) -> pa.Table:
    """Rows that were taken, as a table of the topic's schema, which may have grown meanwhile.

    Raises IllegalRow where one of them fits no more.
    """
    if {taker.schema.version for taker in {*map(itemgetter(-1), rows)}} == {schema.version}:
        *columns, _ = zip(*rows, strict=True)
        return table_of_checked(columns, schema)
    return as_table([dict(zip(row[-1].names, row, strict=False)) for row in rows], schema)


# ---- what is compiled --------------------------------------------------------------------------


def _all_usual(columns: Sequence[tuple[str, pa.Field]]) -> str:
    """Says whether all values are usual, or nulls where those may be, and small together."""
    usual, sizes = [], []
    for name, field in columns:
        is_usual, size = _usual(name, field.type)
        if is_usual == "False":
            return "False"  # what is usual in the other columns would be looked at twice
        if field.nullable:
            is_usual, size = f"({is_usual} or {name} is None)", size and f"({name} is not None and {size})"
        usual.append(is_usual)
        sizes += [size] * bool(size)
    return " and ".join(usual + [f"{' + '.join(sizes)} <= room"] * bool(sizes))


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
        zone = f"{name}.tzinfo is None"
        if kind.tz is not None:
            # near the ends of the calendar the time of another zone may be outside of it in UTC
            other = f"type(zone) in zones and 1 < {name}.year < 9999"
            zone = f"((zone := {name}.tzinfo) is utc or zone is zone_utc or {other})"
        return f"type({name}) is datetime and {zone}", ""
    if pa.types.is_string(kind):
        return f"type({name}) is str and ({name}.isascii() or has_bytes({name}))", f"4 * len({name})"
    if pa.types.is_binary(kind):
        return f"type({name}) is bytes", f"len({name})"
    return "False", ""


def _kept(value: Any, _kind: pa.DataType) -> Any:
    """The value as one that nobody changes."""
    return bytes(value) if isinstance(value, bytearray | memoryview) else value
