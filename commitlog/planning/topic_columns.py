"""Chooses the columns of a read: those of the topic's schema, or those that every message has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from difflib import get_close_matches

import pyarrow as pa

from commitlog.columns.arrow_columns import COLUMN_TYPES, KAFKA_COLUMNS
from commitlog.errors import IllegalArgument, NoSchema, OptionError
from commitlog.planning.options import SourceOptions
from commitlog.schemas.ddl import ddl_type
from commitlog.schemas.topic_schemas import TopicSchema, no_schema
from commitlog.schemas.types import METADATA_COLUMNS, stored_type


def columns_of(
    topic: str, typed: pa.Schema | None, columns: Collection[str] | None = None, *, metadata: bool = False
) -> pa.Schema:
    """The columns of a stream of one topic, whose schema is `typed`: all, or some `columns`.

    Raises IllegalArgument for a column that is not there.
    """
    if typed is None:
        if metadata:
            raise IllegalArgument(
                f"metadata=True: topic {topic} has no schema, its columns say already where a row is from"
            )
        available = pa.schema(list(COLUMN_TYPES.items()))
        every = KAFKA_COLUMNS
    else:
        available = pa.schema([*typed, *(pa.field(name, kind) for name, kind in METADATA_COLUMNS.items())])
        every = (*typed.names, *(METADATA_COLUMNS if metadata else ()))
    names: tuple[str, ...] = ()
    if columns is None:
        names = every
    elif isinstance(columns, Collection) and not isinstance(columns, str):
        names = tuple(columns)
    if not names or any(names.count(name) > 1 or name not in available.names for name in names):
        raise IllegalArgument(
            f"columns={columns!r}: {_meant(names, available.names)}give a list of some of {', '.join(available.names)}, each "
            "once"
        )
    return pa.schema([available.field(name) for name in names])


def _meant(names: Collection[object], known: list[str]) -> str:
    """The columns that misspelt names may mean, as a question; "" if there is none like them."""
    texts = [name for name in names if isinstance(name, str) and name not in known]
    found = [like[0] for name in texts if (like := get_close_matches(name, known, n=1))]
    return f"did you mean {' and '.join(found)}? " if found else ""


def shared_schema(options: SourceOptions, known: Mapping[str, TopicSchema]) -> TopicSchema:
    """The schema that all topics of a read have. `known` has the newest schema of typed topics.

    Raises NoSchema, OptionError.
    """
    chosen = options.subscription.chosen(list(known))
    if not chosen:
        listed = ", ".join(known) or "none"
        raise NoSchema(f"{options.path}: no topic that has a schema matches; those that have one: {listed}")
    for topic in chosen:
        if topic not in known:
            raise no_schema(options.path, topic, "leave the option values out", list(known))
    found = [known[topic] for topic in chosen]
    for other in found[1:]:
        if not other.columns.equals(found[0].columns):
            raise OptionError(
                f"option values: topics {found[0].topic} and {other.topic} have different schemas; read each by itself"
            )
    return found[0]


def typed_columns(options: SourceOptions, topic: TopicSchema) -> pa.Schema:
    """The columns of a read of typed topics: those of the schema, or option `columns` of it.

    Raises OptionError.
    """
    names = options.columns or (*topic.columns.names, *(METADATA_COLUMNS if options.metadata else ()))
    return pa.schema([typed_column(topic, name) for name in names])


def typed_column(topic: TopicSchema, name: str) -> pa.Field:
    """A column of a typed topic, or a metadata column. Raises OptionError."""
    if name in METADATA_COLUMNS:
        return pa.field(name, METADATA_COLUMNS[name])
    index = topic.columns.get_field_index(name)
    if index < 0:
        raise OptionError(
            f"there is no column {name!r}; topic {topic.topic} has {topic}, and {', '.join(METADATA_COLUMNS)} are there "
            f"too"
        )
    return topic.columns.field(index)


def check_json_columns(schema: pa.Schema, options: SourceOptions) -> None:
    """Checks the fields that a user wants of JSON values, as Arrow has them.

    Raises OptionError for a field that is named twice, for NOT NULL, and for a metadata column or
    the corrupt column with a wrong type. Raises SchemaError for a type that no column can have.
    """
    fixed = {**METADATA_COLUMNS, options.read.corrupt_column: pa.string()}
    counts = Counter(schema.names)
    for field in schema:
        if counts[field.name] > 1:
            raise OptionError(f"schema: column {field.name!r} is named twice; name each once")
        if field.type != fixed.get(field.name, field.type):
            raise OptionError(
                f"schema: column {field.name!r} is {ddl_type(fixed[field.name])}, not {ddl_type(field.type)}"
            )
        if not field.nullable:
            raise OptionError(
                f"schema: column {field.name!r} can't be NOT NULL: a value may lack it; leave NOT NULL out"
            )
        stored_type(field.type, field.name)
