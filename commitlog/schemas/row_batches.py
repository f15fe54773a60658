"""Rows as users have them, made into Arrow record batches of a topic's schema.

A message of a typed topic has one record batch. Its value is Arrow's encapsulated message (the
metadata and the buffers, without the schema). Three headers say how to read it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from commitlog.errors import IllegalArgument, IllegalRow, SchemaError
from commitlog.schemas.ddl import ddl_type
from commitlog.schemas.topic_schemas import TopicSchema
from commitlog.schemas.types import is_number, stored_type

CONTENT_TYPE_HEADER, SCHEMA_HEADER, ROWS_HEADER = "content-type", "schema-version", "row-count"
COMPRESSION_HEADER = "content-encoding"
CONTENT_TYPE = "application/x.arrow-record-batch"

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_SHOWN = 80
_NO_VALUE = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value that is not one of a type."""


def as_table(rows: Any, schema: TopicSchema) -> pa.Table:
    """The rows as a table that has exactly the schema's columns. Nothing is copied if it fits.

    `rows` is an Arrow table or batch, a frame with Arrow's PyCapsule interface (pandas, Polars,
    DuckDB), or a list of dictionaries, dataclasses or pydantic models. Columns that may be null may
    be missing. Raises IllegalRow, which names row and column, and IllegalArgument.
    """
    if isinstance(rows, pa.Table):
        table = rows
    elif isinstance(rows, pa.RecordBatch):
        table = pa.Table.from_batches([rows])
    elif hasattr(rows, "__arrow_c_stream__"):
        table = pa.table(rows)
    elif hasattr(rows, "__arrow_c_array__"):
        table = pa.Table.from_batches([pa.record_batch(rows)])
    elif isinstance(rows, Iterable) and not isinstance(rows, str | bytes | Mapping):
        return _table_of_rows(list(rows), schema)
    else:
        raise IllegalArgument(
            f"rows are an Arrow table or batch, a frame of pandas or Polars, or a list of dictionaries or dataclasses, not "
            f"{type(rows).__name__}"
        )
    if table.schema.equals(schema.columns):
        return table
    return _fitted(table, schema)


def _fitted(table: pa.Table, schema: TopicSchema) -> pa.Table:
    names = [name for name in table.column_names if not _PANDAS_INDEX.fullmatch(name)]
    _refuse_unknown(names, schema)
    for name in names:
        if names.count(name) > 1:
            raise IllegalRow(f"column {name} is there twice; {_wanted(schema)}")
    columns = []
    for field in schema.columns:
        if field.name in names:
            column = table.column(field.name)
            if column.type != field.type:
                column = _cast(column, field)
        else:
            column = pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        _refuse_nulls(column, field, schema)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema.columns)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """The column as the schema's type, if both hold the same values, and no value is lost by it."""
    if not _may_cast(column.type, field):
        raise IllegalRow(f"column {field.name}: Arrow's {column.type} is no {ddl_type(field.type)}; cast it before")
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        row = _first_bad(len(column), lambda start, end: column.slice(start, end - start).cast(field.type))
        raise _illegal(row, field, column[row].as_py(), error) from None


def _may_cast(kind: pa.DataType, field: pa.Field) -> bool:
    if pa.types.is_null(kind):
        return True
    try:
        stored = stored_type(kind, field.name)
    except SchemaError:
        return False
    return stored == field.type or (is_number(stored) and is_number(field.type))


def _first_bad(count: int, convert: Callable[[int, int], object]) -> int:
    """The first row for which `convert(start, end)` fails, as it does for all rows."""
    start, end = 0, count
    while end - start > 1:
        middle = (start + end) // 2
        try:
            convert(start, middle)
            start = middle
        except _NO_VALUE:
            end = middle
    return start


def _illegal(row: int, field: pa.Field, value: object, error: Exception) -> IllegalRow:
    reason = str(error).partition("\n")[0]
    return IllegalRow(
        f"row {row}, column {field.name}: {value!r:.{_SHOWN}} is no {ddl_type(field.type)}: {reason}", row
    )


def _refuse_unknown(names: Iterable[str], schema: TopicSchema, row: int = -1) -> None:
    for name in names:
        if schema.columns.get_field_index(name) < 0:
            where = f"row {row}: " if row >= 0 else ""
            raise IllegalRow(f"{where}there is no column {name!r}; {_wanted(schema)}", row)


def _wanted(schema: TopicSchema) -> str:
    return f"topic {schema.topic} has {schema}"


def _refuse_nulls(column: pa.ChunkedArray | pa.Array, field: pa.Field, schema: TopicSchema) -> None:
    if not field.nullable and column.null_count:
        row = column.is_null().index(True).as_py()
        raise IllegalRow(f"row {row}, column {field.name}: it is NOT NULL and has no value; {_wanted(schema)}", row)


def _table_of_rows(rows: list[Any], schema: TopicSchema) -> pa.Table:
    values = [row if type(row) is dict else _mapping(row, number) for number, row in enumerate(rows)]
    known = set(schema.columns.names)
    for number, row in enumerate(values):
        if not known.issuperset(row):
            _refuse_unknown(map(str, row), schema, number)
    try:
        whole = pa.array(values, pa.struct(list(schema.columns)))
    except _NO_VALUE:  # which one it is takes longer to find
        columns = [_array([row.get(field.name) for row in values], field) for field in schema.columns]
    else:
        columns = whole.flatten()
    for column, field in zip(columns, schema.columns, strict=True):
        _refuse_nulls(column, field, schema)
    return pa.Table.from_arrays(columns, schema=schema.columns)


def _mapping(row: Any, number: int) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {field.name: _plain(getattr(row, field.name)) for field in dataclasses.fields(row)}
    if callable(dump := getattr(row, "model_dump", None)):  # pydantic's
        dumped: Mapping[str, Any] = dump()
        return dumped
    raise IllegalRow(
        f"row {number}: a row is a dictionary, a dataclass or a pydantic model, not {row!r:.{_SHOWN}}", number
    )


def _plain(value: Any) -> Any:
    """A dataclass within a row, as the dictionary that Arrow makes a struct of."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _array(items: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(items, field.type)
    except _NO_VALUE as error:
        row = _first_bad(len(items), lambda start, end: pa.array(items[start:end], field.type))
        raise _illegal(row, field, items[row], error) from None


def messages(table: pa.Table, max_rows: int, max_bytes: int, compression: str | None) -> Iterator[tuple[int, bytes]]:
    """The table as the values of messages: how many rows each has, and its bytes.

    No message has more than `max_rows` rows, or more than `max_bytes` bytes if it has two rows.
    """
    for batch in table.combine_chunks().to_batches(max_chunksize=max_rows):
        yield from _split(batch, max_bytes, compression)


def _split(batch: pa.RecordBatch, max_bytes: int, compression: str | None) -> Iterator[tuple[int, bytes]]:
    count = batch.num_rows
    parts = min(-(-batch.nbytes // max_bytes), count)  # before it is compressed; few are split once more
    if parts <= 1:
        value = encode_batch(batch, compression)
        if len(value) <= max_bytes or count <= 1:
            yield count, value
            return
        parts = 2
    rows = -(-count // parts)
    for start in range(0, count, rows):
        yield from _split(batch.slice(start, rows), max_bytes, compression)


def encode_batch(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    """Arrow's encapsulated message of the batch."""
    if compression is None:
        return bytes(batch.serialize())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    found = pa.ipc.MessageReader.open_stream(sink.getvalue())
    found.read_next_message()  # the schema, which only a stream has
    return bytes(found.read_next_message().serialize())
