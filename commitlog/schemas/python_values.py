"""Which values of Python a column takes.

Arrow alone would take too much: it makes 1 of 1.5, a date of a time, bytes of a string, and forgets
what a struct has no column for. So a value has to be one of its column's type. As the types of all
values are looked at together, this costs little.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

_INT: tuple[type, ...] = (int, np.integer)
_FLOAT = (float, np.floating, *_INT)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_Kinds = tuple[type, ...]
_TAKEN: tuple[tuple[Callable[[pa.DataType], bool], _Kinds, _Kinds, str], ...] = (
    (pa.types.is_boolean, (bool, np.bool_), (), "True or False"),
    (pa.types.is_integer, _INT, (bool,), "an int"),
    (pa.types.is_floating, _FLOAT, (bool,), "a float or an int"),
    (pa.types.is_decimal, (Decimal, *_INT), (bool,), "a Decimal or an int"),
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
    """What a value of this type is, in words."""
    if pa.types.is_timestamp(kind):
        zone = "without a time zone" if kind.tz is None else "with a time zone"
        return f"a datetime {zone} and without nanoseconds"
    name = next(name for is_kind, _, _, name in _TAKEN if is_kind(kind))
    if pa.types.is_list(kind):
        return f"{name} where each item is {wanted(kind.value_type)}"
    if pa.types.is_map(kind):
        return f"{name} where each key is {wanted(kind.key_type)}, and each value {wanted(kind.item_type)}"
    return name


def fits(values: Iterable[Any], kind: pa.DataType) -> bool:
    """Whether all values, or nulls, are of this type. Whether they are too large, Arrow finds."""
    values = values if isinstance(values, list) else list(values)
    taken, refused = next((taken, refused) for is_kind, taken, refused, _ in _TAKEN if is_kind(kind))
    classes = set(map(type, values)) - {type(None)}
    if not all(issubclass(one, taken) and not issubclass(one, refused) for one in classes):
        return False
    if not (pa.types.is_nested(kind) or pa.types.is_timestamp(kind)):
        return True
    found = [value for value in values if value is not None]
    if pa.types.is_timestamp(kind):
        has_zone = kind.tz is not None
        is_plain = classes <= {datetime.datetime}  # pandas' own have nanoseconds, and one that is none
        without_zone = list(map(attrgetter("tzinfo"), found)).count(None)
        return without_zone == (0 if has_zone else len(found)) and (
            is_plain or not any(getattr(value, "nanosecond", 0) for value in found)
        )
    if pa.types.is_map(kind):
        pairs = [list(value.items()) if isinstance(value, dict) else value for value in found]
        return _are_pairs(chain.from_iterable(pairs), kind)
    if pa.types.is_list(kind):
        return all(np.ndim(value) == 1 for value in found if isinstance(value, np.ndarray)) and fits(
            chain.from_iterable(found), kind.value_type
        )
    if pa.types.is_struct(kind):
        names = {field.name for field in kind.fields}
        return all(map(names.issuperset, found)) and all(
            fits((value.get(field.name) for value in found), field.type) for field in kind.fields
        )
    return True


def times_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Datetimes that fit as an Arrow array of timestamps.

    Arrow asks the zone of each value for its distance to UTC. Where all have one zone without
    summer time, they are subtracted from one moment, and that takes a ninth of the time.
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
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 and pair[0] is not None for pair in pairs):
        return False
    return fits((pair[0] for pair in pairs), kind.key_type) and fits((pair[1] for pair in pairs), kind.item_type)


def plain(value: Any) -> Any:
    """The value with dictionaries in place of the dataclasses and pydantic models in it."""
    columns = columns_of(value)
    if columns is not None:
        value = columns
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(plain, value))  # pairs have to be tuples
    return value


def columns_of(row: Any) -> dict[str, Any] | None:
    """The columns of a mapping, a dataclass or a pydantic model, by name; None for all else."""
    if isinstance(row, Mapping):
        return row if type(row) is dict else dict(row)  # a defaultdict would make what is missing
    if isinstance(row, type):
        return None
    if dataclasses.is_dataclass(row):
        return {field.name: getattr(row, field.name, None) for field in dataclasses.fields(row)}
    if isinstance(fields := getattr(type(row), "model_fields", None), Mapping):  # pydantic's
        return {name: getattr(row, name, None) for name in fields} | (getattr(row, "model_extra", None) or {})
    return None
