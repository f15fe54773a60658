"""The columns that a DataFrame can have: those of the Kafka source, and others on request."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from commitlog.columns.arrow_columns import COLUMN_TYPES
from commitlog.errors import OptionError
from commitlog.planning.options import SourceOptions


def spark_type(kind: pa.DataType) -> DataType:
    """Spark's type for a type of Arrow."""
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


ALL_COLUMNS: dict[str, DataType] = {name: spark_type(kind) for name, kind in COLUMN_TYPES.items()}
HEADERS_TYPE = ALL_COLUMNS["headers"]


def schema_of(names: Iterable[str]) -> StructType:
    """The schema with these columns, in this order."""
    return StructType([StructField(name, ALL_COLUMNS[name]) for name in names])


def check_given(schema: StructType, options: SourceOptions) -> None:
    """Raises OptionError if a user gave a schema, and an option that names other columns."""
    if "columns" in options.given and tuple(schema.names) != options.columns:
        raise OptionError("option columns: give either it or .schema(...), not both")
    if "headers" in options.columns and "headers" not in schema.names:
        raise OptionError("option includeHeaders: the schema that you gave has no column headers; add it there")


def check_schema(schema: StructType) -> None:
    """Checks a schema that a user gave with `.schema(...)`.

    Raises OptionError if it has no column, an unknown one, one twice, or one of another type.
    """
    check_names_once(schema)
    for field in schema.fields:
        expected = ALL_COLUMNS.get(field.name)
        if expected is None:
            raise OptionError(f"schema: there is no column {field.name!r}; allowed are {allowed_columns()}")
        if field.dataType.simpleString() != expected.simpleString():
            raise OptionError(
                f"schema: column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}; "
                f"allowed are {allowed_columns()}"
            )
        check_nulls(field, expected, ("key", "headers", "tags"))


def check_nulls(field: StructField, expected: DataType, may_be_null: Collection[str]) -> None:
    """Raises OptionError for a column that a user wants without nulls, and that may have some.

    It is so for the columns that are named, and for nulls within a column. Spark would look for
    none: it reads 0 in their place, or finds no row of `IS NULL`.
    """
    within = field.dataType in (expected, with_nulls(field).dataType)
    if not within or (not field.nullable and field.name in may_be_null):
        where = "" if within else ", within its values"
        raise OptionError(
            f"schema: column {field.name!r} may have nulls{where}; leave NOT NULL and containsNull=False out"
        )


def with_nulls(field: StructField) -> StructField:
    """The same column, which may have nulls at any depth."""
    return StructType([field]).toNullable()[0]


def check_names_once(schema: StructType) -> None:
    """Raises OptionError if a schema names no column, or one twice."""
    if len(set(schema.names)) != len(schema.names):
        raise OptionError("schema: a column is named twice; name each once")
    if not schema.fields:
        raise OptionError(f"schema: name at least one column of {allowed_columns()}")


def allowed_columns() -> str:
    return ", ".join(f"{name} {kind.simpleString()}" for name, kind in ALL_COLUMNS.items())
