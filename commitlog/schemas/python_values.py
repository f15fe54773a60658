"""Which values of Python a column takes.

Arrow alone would take too much: it makes 1 of 1.5, a date of a time, bytes of a string, and forgets
what a struct has no column for. So a value has to be one of its column's type. As the types of all
values are looked at together, this costs little.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from itertools import chain
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from commitlog.text.quantities import counted

_INT: tuple[type, ...] = (int, np.integer)
_FLOAT = (float, np.floating, *_INT)
_NO_INT: tuple[type, ...] = (bool, np.timedelta64)  # numpy has spans of time as integers, without their unit
_NO_FLOAT = (*_NO_INT, np.longdouble)  # one has more digits than any column
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_Kinds = tuple[type, ...]
_TAKEN: tuple[tuple[Callable[[pa.DataType], bool], _Kinds, _Kinds, str], ...] = (
    (pa.types.is_boolean, (bool, np.bool_), (), "True or False"),
    (pa.types.is_integer, _INT, _NO_INT, "an int"),
    (pa.types.is_float32, _FLOAT, _NO_FLOAT, f"a float or an int, at most {np.finfo(np.float32).max:.8g}"),
    (pa.types.is_floating, _FLOAT, _NO_FLOAT, "a float or an int"),
    (pa.types.is_decimal, (Decimal, int), (bool,), "a Decimal or an int"),
    (pa.types.is_string, (str,), (), "a str"),
    (pa.types.is_binary, (bytes, bytearray, memoryview), (), "bytes"),
    (pa.types.is_date, (datetime.date,), (datetime.datetime,), "a date without a time"),
    (pa.types.is_timestamp, (datetime.datetime,), (), "a datetime"),
    (pa.types.is_map, (dict, list, tuple), (), "a dictionary, or a list of pairs"),
    (pa.types.is_list, (list, tuple, np.ndarray), (), "a list"),
    (pa.types.is_struct, (dict,), (), "a dictionary of its columns, a dataclass or a model"),
)
"""Of each type: the classes of its values, those of their subclasses that are none, and a name."""


def wanted(kind: pa.DataType) -> str:
    """Describes the values of a type in words, for errors."""
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            return "a datetime without a time zone and without nanoseconds, in the years 1 to 9999"
        return "a datetime with a time zone and without nanoseconds, in the years 1 to 9999 of UTC"
    name = next(name for is_kind, _, _, name in _TAKEN if is_kind(kind))
    if pa.types.is_list(kind):
        return f"{name} where each item is {wanted(kind.value_type)}"
    if pa.types.is_map(kind):
        return f"{name} where each key is {wanted(kind.key_type)}, and each value {wanted(kind.item_type)}"
    return name


def room(kind: pa.DataType) -> str:
    """Describes which of these values the type has room for, for errors."""
    if pa.types.is_integer(kind):
        return f"an int from {-(1 << kind.bit_width - 1):,} to {(1 << kind.bit_width - 1) - 1:,}"
    if pa.types.is_decimal(kind):
        before = counted(kind.precision - kind.scale, "digit")
        return f"a Decimal or an int with at most {before} before the point, and {kind.scale} after it"
    if pa.types.is_float64(kind):
        return "a float, or an int that a float holds exactly"
    if pa.types.is_string(kind):
        return "a str that UTF-8 can have, so without half a surrogate pair"
    return wanted(kind)


def too_large_part(value: Any, kind: pa.DataType) -> tuple[str, Any, pa.DataType]:
    """Finds the part of a value that its type has no room for: its place, the part, and its type.

    All parts are of their types' classes: `fits` says so. The place of the value itself is "".
    """
    parts: Iterable[tuple[str, Any, pa.DataType]] = ()
    if pa.types.is_struct(kind) and isinstance(value, dict):
        parts = ((f".{field.name}", value.get(field.name), field.type) for field in kind.fields)
    elif pa.types.is_map(kind):
        pairs = list(value.items() if isinstance(value, dict) else value)
        keys = ((f"[{key!r:.80}]", key, kind.key_type) for key, _ in pairs)
        parts = chain(keys, ((f"[{key!r:.80}]", item, kind.item_type) for key, item in pairs))
    elif pa.types.is_list(kind):
        parts = ((f"[{number}]", item, kind.value_type) for number, item in enumerate(value))
    for place, part, part_kind in parts:
        if not _has_room(part, part_kind):
            deeper, found, found_kind = too_large_part(part, part_kind)
            return place + deeper, found, found_kind
    return "", value, kind


def _has_room(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return fits((value,), kind)


def fits(values: Iterable[Any], kind: pa.DataType) -> bool:
    """Whether all values are nulls or of this type. Arrow finds out whether one is too large."""
    values = values if isinstance(values, list) else list(values)
    taken, refused = next((taken, refused) for is_kind, taken, refused, _ in _TAKEN if is_kind(kind))
    classes = set(map(type, values)) - {type(None)}
    if not all(issubclass(one, taken) and not issubclass(one, refused) for one in classes):
        return False
    if not (pa.types.is_nested(kind) or pa.types.is_timestamp(kind) or pa.types.is_float32(kind)):
        return True
    found = [value for value in values if value is not None]
    if pa.types.is_float32(kind):
        return _are_floats(found)
    if pa.types.is_timestamp(kind):
        has_zone = kind.tz is not None
        if not classes <= {datetime.datetime} and not all(map(_has_place, found)):
            return False
        zones = list(map(attrgetter("tzinfo"), found))
        if zones.count(None) != (0 if has_zone else len(found)):
            return False
        return not has_zone or zones.count(datetime.UTC) == len(found) or all(map(_is_in_calendar, found))
    if pa.types.is_map(kind):
        pairs = [list(value.items()) if isinstance(value, dict) else value for value in found]
        return _are_pairs(chain.from_iterable(pairs), kind)
    if pa.types.is_list(kind):
        if any(issubclass(one, np.ndarray) for one in classes):
            if any(issubclass(one, np.ma.MaskedArray) for one in classes):
                return False  # Arrow takes what is under the mask; `plain` makes nulls of it
            if not all(value.ndim == 1 for value in found if isinstance(value, np.ndarray)):
                return False
            if not pa.types.is_float32(kind.value_type):
                found = list(map(_to_look_at, found))
        return fits(chain.from_iterable(found), kind.value_type)
    if pa.types.is_struct(kind):
        names = {field.name for field in kind.fields}
        return all(map(names.issuperset, found)) and all(
            fits((value.get(field.name) for value in found), field.type) for field in kind.fields
        )
    return True


def _to_look_at(items: Any) -> Any:
    """The items of a list that have to be looked at: in an array of numpy all are of one class."""
    return items[:1] if isinstance(items, np.ndarray) and items.dtype.kind != "O" else items


def _has_place(value: datetime.datetime) -> bool:
    """Whether a time of a subclass is one that Python's own class can have.

    A time of pandas has nanoseconds, and any year. Arrow makes 1970 or 1972 of a year that is not
    within 1 to 9999.
    """
    return not getattr(value, "nanosecond", 0) and _has_year(value)


def _has_year(value: datetime.datetime) -> bool:
    return datetime.MINYEAR <= value.year <= datetime.MAXYEAR


def _is_in_calendar(value: datetime.datetime) -> bool:
    """Whether a time with a zone has a year that Python can have, 1 to 9999, in UTC, too."""
    if 1 < value.year < 9999:
        return True
    try:
        return _has_year(value.astimezone(datetime.UTC))
    except OverflowError:
        return False


def _are_floats(values: list[Any]) -> bool:
    """Whether no value is too large for a FLOAT. Arrow would turn such a value into infinity."""
    try:
        struct.pack(f"<{len(values)}f", *values)
    except (OverflowError, struct.error):  # the latter for a large int
        return False
    return True


def times_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Makes an Arrow array of timestamps from datetimes that fit.

    Arrow asks the zone of each value for its distance to UTC. If all values have one zone without
    summer time, one moment is subtracted from all of them, which takes a ninth of the time.
    """
    if kind.unit == "us" and {*map(type, values)} == {datetime.datetime}:
        zone = values[0].tzinfo
        if _has_one_offset(zone) and list(map(attrgetter("tzinfo"), values)).count(zone) == len(values):
            epoch = _EPOCH.replace(tzinfo=None) if zone is None else _EPOCH.astimezone(zone)
            return pa.array([value - epoch for value in values], pa.duration("us")).view(kind)
    return pa.array(values, kind)


def _has_one_offset(zone: datetime.tzinfo | None) -> bool:
    """Whether the difference of two times in the zone is that of their clocks.

    A class that is not Python's own may name its offset in winter when it is asked for none.
    """
    return zone is None or (type(zone) in (datetime.timezone, ZoneInfo) and zone.utcoffset(None) is not None)


def _are_pairs(values: Iterable[Any], kind: pa.DataType) -> bool:
    pairs = list(values)
    if not all(isinstance(pair, tuple) and len(pair) == 2 and pair[0] is not None for pair in pairs):
        return False
    return fits((pair[0] for pair in pairs), kind.key_type) and fits((pair[1] for pair in pairs), kind.item_type)


def plain(value: Any, kind: pa.DataType, leaf: Callable[[Any, pa.DataType], Any] | None = None) -> Any:
    """The value as one that `fits`, if it holds the same.

    Dataclasses, models and other rows become dictionaries. The pairs of a map become tuples.
    Members of an Enum become their values. `leaf` makes anything else.
    """
    if isinstance(value, Enum):
        value = value.value
    if not pa.types.is_nested(kind):
        if pa.types.is_decimal(kind) and isinstance(value, np.integer) and not isinstance(value, _NO_INT):
            return int(value)
        return value if leaf is None else leaf(value, kind)
    if pa.types.is_struct(kind) and (columns := columns_of(value)) is not None:
        kinds = {field.name: field.type for field in kind.fields}
        return {name: plain(item, kinds[name], leaf) if name in kinds else item for name, item in columns.items()}
    if pa.types.is_map(kind):
        columns = None if isinstance(value, tuple) else columns_of(value)
        pairs = value if columns is None else list(columns.items())
        return [_pair(pair, kind, leaf) for pair in pairs] if isinstance(pairs, list | tuple) else value
    if pa.types.is_list(kind) and (
        isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    ):
        items = value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else value
        return [plain(item, kind.value_type, leaf) for item in items]
    return value if leaf is None else leaf(value, kind)


def _pair(pair: Any, kind: pa.DataType, leaf: Callable[[Any, pa.DataType], Any] | None) -> Any:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return pair
    return plain(pair[0], kind.key_type, leaf), plain(pair[1], kind.item_type, leaf)


def columns_of(row: Any) -> dict[str, Any] | None:
    """Returns the columns of a row by name; None if it is no row, or has a name twice.

    A row is a mapping, a dataclass, a pydantic model, a NamedTuple, or a row of sqlite3 or Spark.
    """
    if isinstance(row, Mapping):
        return row if type(row) is dict else dict(row)  # a defaultdict would make what is missing
    if isinstance(row, type):
        return None
    if dataclasses.is_dataclass(row):
        return {field.name: getattr(row, field.name, None) for field in dataclasses.fields(row)}
    if isinstance(fields := getattr(type(row), "model_fields", None), Mapping):  # pydantic's
        return {name: getattr(row, name, None) for name in fields} | (getattr(row, "model_extra", None) or {})
    names: list[str] = []
    if isinstance(row, tuple):
        names = list(getattr(row, "_fields", getattr(row, "__fields__", ())))  # Spark's
    elif hasattr(row, "keys") and hasattr(row, "__getitem__"):
        names = list(row.keys())
    return dict(zip(names, row, strict=True)) if names and len({*names}) == len(names) else None
