"""Option `values`: a DataFrame has the columns of its topic, or the fields of JSON values."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from commitlog.errors import OptionError, SchemaError
from commitlog.planning.options import SourceOptions
from commitlog.planning.topic_columns import shared_schema, typed_column, typed_columns
from commitlog.remote.path_or_url import newest_schemas
from commitlog.schemas.evolution import is_wider
from commitlog.schemas.topic_schemas import TopicSchema
from commitlog.schemas.types import METADATA_COLUMNS, stored_type
from commitlog.spark.columns import check_names_once, check_nulls, spark_type


def topic_schema(options: SourceOptions) -> TopicSchema:
    """The newest schema of the topics, which all have the same. Raises NoSchema, OptionError."""
    return shared_schema(options, newest_schemas(options.place))


def typed_schema(options: SourceOptions) -> StructType:
    """The schema for a user who gave none: the topic's, or its columns in option `columns`."""
    return from_arrow_schema(typed_columns(options, topic_schema(options)), prefer_timestamp_ntz=True)


def check_typed_schema(schema: StructType, options: SourceOptions) -> None:
    """Checks a schema that a user gave: columns of the topic, which may be wider there.

    A query that began with an older schema keeps that schema. Raises OptionError, NoSchema.
    """
    check_names_once(schema)
    topic = topic_schema(options)
    for field in schema.fields:
        expected, wanted = typed_column(topic, field.name).type, to_arrow_type(field.dataType, timezone="UTC")
        if not (_equal(wanted, expected) or is_wider(wanted, expected) or is_wider(expected, wanted)):
            raise OptionError(
                f"schema: column {field.name!r} of topic {topic.topic} is {spark_type(expected).simpleString()}, not "
                f"{field.dataType.simpleString()}"
            )
        check_nulls(field, spark_type(expected), ("_key",))


def _equal(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types are the same for Spark, which has its own names for the items of a list."""
    return bool(spark_type(one).simpleString() == spark_type(other).simpleString())


def check_json_schema(schema: StructType, options: SourceOptions) -> None:
    """Checks the fields that a user wants of JSON values.

    Raises OptionError for a metadata column, or the corrupt column, that has another type, and for
    a field whose type is none of JSON's.
    """
    check_names_once(schema)
    fixed = {**METADATA_COLUMNS, options.read.corrupt_column: pa.string()}
    for field in schema.fields:
        if field.name in fixed:
            expected = spark_type(fixed[field.name])
            if field.dataType != expected:
                raise OptionError(
                    f"schema: column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}"
                )
            check_nulls(field, expected, ("_key", options.read.corrupt_column))
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
