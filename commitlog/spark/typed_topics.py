"""Option `values`: a DataFrame has the columns of its topic, or the fields of JSON values."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import NoSchema, OptionError, SchemaError
from commitlog.planning.options import SourceOptions
from commitlog.remote.store_index import typed_topics
from commitlog.schemas.topic_schemas import TopicSchema, TopicSchemas, no_schema
from commitlog.schemas.types import METADATA_COLUMNS, is_wider, stored_type
from commitlog.spark.columns import check_names_once, spark_type


def topic_schema(options: SourceOptions) -> TopicSchema:
    """The newest schema of the topics, which all have the same. Raises NoSchema, OptionError."""
    if options.address is not None:
        known = typed_topics(options.address)
    else:
        schemas = TopicSchemas(StoreDirectory(options.path))
        known = {topic: latest for topic in schemas.topics() if (latest := schemas.latest(topic))}
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


def typed_schema(options: SourceOptions) -> StructType:
    """The schema where the user gave none: that of the topic, or option `columns` of it."""
    topic = topic_schema(options)
    names = options.columns or (*topic.columns.names, *(METADATA_COLUMNS if options.metadata else ()))
    return from_arrow_schema(pa.schema([_column(topic, name) for name in names]), prefer_timestamp_ntz=True)


def _column(topic: TopicSchema, name: str) -> pa.Field:
    if name in METADATA_COLUMNS:
        return pa.field(name, METADATA_COLUMNS[name])
    index = topic.columns.get_field_index(name)
    if index < 0:
        raise OptionError(
            f"there is no column {name!r}; topic {topic.topic} has {topic}, and {_metadata()} are there too"
        )
    return topic.columns.field(index)


def _metadata() -> str:
    return ", ".join(METADATA_COLUMNS)


def check_typed_schema(schema: StructType, options: SourceOptions) -> None:
    """Checks a schema that a user gave: columns of the topic, which may be wider there.

    A query that began with an older schema has that one. Raises OptionError, NoSchema.
    """
    check_names_once(schema)
    topic = topic_schema(options)
    for field in schema.fields:
        expected, wanted = _column(topic, field.name).type, to_arrow_type(field.dataType, timezone="UTC")
        if not (_equal(wanted, expected) or is_wider(wanted, expected) or is_wider(expected, wanted)):
            raise OptionError(
                f"schema: column {field.name!r} of topic {topic.topic} is {expected}, not {field.dataType.simpleString()}"
            )


def _equal(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types are the same for Spark, which has its own names for the items of a list."""
    return bool(spark_type(one).simpleString() == spark_type(other).simpleString())


def check_json_schema(schema: StructType, options: SourceOptions) -> None:
    """Checks the fields that a user wants of JSON values.

    Raises OptionError for a metadata column, or the corrupt column, that has another type, and for
    a field whose type is none of JSON's.
    """
    check_names_once(schema)
    fixed = {**METADATA_COLUMNS, options.json_options.corrupt_column: pa.string()}
    for field in schema.fields:
        if field.name in fixed:
            expected = spark_type(fixed[field.name])
            if field.dataType != expected:
                raise OptionError(
                    f"schema: column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}"
                )
            continue
        if not field.nullable:
            raise OptionError(
                f"schema: column {field.name!r} can't be NOT NULL: a value may lack it; leave NOT NULL out"
            )
        try:
            kind = to_arrow_type(field.dataType, timezone="UTC")
            stored_type(kind, field.name)
        except (SchemaError, PySparkTypeError):
            raise OptionError(
                f"schema: column {field.name!r}: JSON has no {field.dataType.simpleString()}; read it as a string"
            ) from None
