"""The columns that a DataFrame can have: those of the Kafka source, and others on request."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from commitlog.errors import OptionError

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

KAFKA_COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
ALL_COLUMNS: dict[str, DataType] = {
    **KAFKA_COLUMNS,
    "headers": HEADERS_TYPE,
    "tags": StringType(),
    "bornTimestamp": TimestampType(),
    "properties": MapType(StringType(), StringType()),
    "physicalOffset": LongType(),
    "messageId": StringType(),
    "size": IntegerType(),
    "sysFlag": IntegerType(),
}


def schema_of(names: Iterable[str]) -> StructType:
    """The schema with these columns, in this order."""
    return StructType([StructField(name, ALL_COLUMNS[name]) for name in names])


def check_schema(schema: StructType) -> None:
    """Checks a schema that a user gave with `.schema(...)`.

    Raises OptionError if it has no column, an unknown one, one twice, or one of another type.
    """
    for field in schema.fields:
        expected = ALL_COLUMNS.get(field.name)
        if expected is None:
            raise OptionError(f"schema: there is no column {field.name!r}; allowed are {allowed_columns()}")
        if field.dataType.simpleString() != expected.simpleString():
            raise OptionError(
                f"schema: column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}; "
                f"allowed are {allowed_columns()}"
            )
    if len(set(schema.names)) != len(schema.names):
        raise OptionError("schema: a column is named twice; name each once")
    if not schema.fields:
        raise OptionError(f"schema: name at least one column of {allowed_columns()}")


def allowed_columns() -> str:
    return ", ".join(f"{name} {kind.simpleString()}" for name, kind in ALL_COLUMNS.items())
