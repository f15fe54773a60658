"""Reads a schema as users declare it: Arrow, text, a dataclass, a NamedTuple, a pydantic model."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum, EnumType
from typing import Annotated, Any, Literal, NewType, Union

import pyarrow as pa

from commitlog.errors import SchemaError
from commitlog.schemas.ddl import parse_ddl
from commitlog.schemas.types import NESTING_MAX, stored_fields

_OF_PYTHON: dict[object, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us", "UTC"),
    datetime.date: pa.date32(),
    decimal.Decimal: pa.decimal128(38, 18),  # as Spark has it
}


def declared_schema(declared: object) -> pa.Schema:
    """The schema that is declared by Arrow, as text, or by a class: see the module.

    In a class, `int` is a column without nulls and `int | None` one with nulls. An annotation
    `Annotated[int, pa.int32()]` names Arrow's type. An Enum and a Literal are what their values
    are. Raises SchemaError.
    """
    try:
        return pa.schema(stored_fields(list(_as_declared(declared))))
    except RecursionError:
        raise SchemaError(
            f"schema {declared!r:.80}: it is nested too deep, or a class of it contains itself; a column has at most "
            f"{NESTING_MAX} levels"
        ) from None
    except UnicodeError as error:
        raise SchemaError(f"schema {declared!r:.80}: a column's name is no Unicode text ({error})") from None


def _as_declared(declared: object) -> pa.Schema:
    """The same, before its types are those that are stored."""
    if isinstance(declared, str):
        return parse_ddl(declared)
    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, type) and (fields := _fields_of(declared)) is not None:
        return pa.schema(fields)
    if hasattr(declared, "__arrow_c_schema__"):
        return _of_capsule(declared)
    raise SchemaError(
        f"a schema is a pyarrow.Schema, a text such as 'id BIGINT, name STRING', a dataclass, a NamedTuple or a pydantic "
        f"model, not {declared!r:.80}"
    )


def _of_capsule(declared: Any) -> pa.Schema:
    """The schema of another library, by Arrow's PyCapsule interface."""
    try:
        return pa.schema(declared)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"{declared!r:.80} has no columns: {error}") from None


def _fields_of(declared: type) -> list[pa.Field] | None:
    """The columns of a dataclass or a model, or None for another class."""
    if dataclasses.is_dataclass(declared):
        names = [field.name for field in dataclasses.fields(declared)]
    elif issubclass(declared, tuple) and hasattr(declared, "_fields"):  # a NamedTuple
        names = list(declared._fields)
    elif isinstance(model := getattr(declared, "model_fields", None), Mapping):  # pydantic's
        names = list(model)
    else:
        return None
    try:
        hints = typing.get_type_hints(declared, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise SchemaError(f"{declared.__name__}: {error}; annotate with types that its module knows") from None
    return [_field(name, hints.get(name), f"{declared.__name__}.{name}") for name in names]


def _field(name: str, hint: Any, where: str) -> pa.Field:
    hint, nullable = _without_none(hint)
    return pa.field(name, _type_of(hint, where), nullable)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The hint without `| None`, and whether it had that, also within Annotated."""
    if typing.get_origin(hint) is Annotated:
        inner, nullable = _without_none(typing.get_args(hint)[0])
        return Annotated[(inner, *hint.__metadata__)], nullable
    if typing.get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if len(kinds) == 1:
            return _without_none(kinds[0])[0], True
    if typing.get_origin(hint) is Literal and None in (values := typing.get_args(hint)) and len(values) > 1:
        return Literal[tuple(value for value in values if value is not None)], True
    return hint, False


def _type_of(hint: Any, where: str) -> pa.DataType:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        named = [extra for extra in arguments[1:] if isinstance(extra, pa.DataType)]
        return named[0] if named else _type_of(arguments[0], where)
    if isinstance(hint, Hashable) and hint in _OF_PYTHON:
        return _OF_PYTHON[hint]
    values = list(hint) if isinstance(hint, EnumType) else arguments if origin is Literal else ()
    if len(kinds := {type(value.value if isinstance(value, Enum) else value) for value in values}) == 1:
        return _type_of(kinds.pop(), where)
    if isinstance(hint, type) and (fields := _fields_of(hint)) is not None:
        return pa.struct(fields)
    if isinstance(hint, NewType):
        return _type_of(hint.__supertype__, where)
    if (origin in (list, Sequence) and len(arguments) == 1) or (origin is tuple and arguments[1:] == (...,)):
        return pa.list_(_field("element", arguments[0], where))
    if origin in (dict, Mapping) and len(arguments) == 2:
        value, nullable = _without_none(arguments[1])
        return pa.map_(_type_of(arguments[0], where), pa.field("value", _type_of(value, where), nullable))
    raise SchemaError(
        f"{where}: {hint!r:.80} says no type of a column; name it, as in Annotated[int, pyarrow.int32()], or use bool, int, "
        "float, str, bytes, datetime, date, Decimal, an Enum or a Literal with values of one of these, list[…], "
        "tuple[…, ...], dict[…, …] or another dataclass"
    )
