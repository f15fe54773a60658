"""Rows as users have them, made into Arrow record batches of a topic's schema.

A message of a typed topic has one record batch. Its value is Arrow's encapsulated message (the
metadata and the buffers, without the schema). Its headers (`record/row_headers.py`) say how to
read it.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow as pa

from commitlog.errors import IllegalArgument, IllegalRow
from commitlog.schemas.casting import cast, is_null_where_none_may_be, may_cast
from commitlog.schemas.ddl import ddl_type
from commitlog.schemas.pandas_frames import as_python, columns_of_frame, is_frame, with_integers
from commitlog.schemas.python_values import columns_of, fits, plain, room, times_array, too_large_part, wanted
from commitlog.schemas.topic_schemas import TopicSchema

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_CAPSULES = ("__arrow_c_stream__", "__arrow_c_array__")
_SHOWN = 80
_NO_VALUE = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value that is not one of a type."""


def as_table(rows: Any, schema: TopicSchema) -> pa.Table:
    """The rows as a table that has exactly the schema's columns. Nothing is copied if it fits.

    `rows` is an Arrow table or batch, a frame with Arrow's PyCapsule interface (pandas, Polars,
    DuckDB), or a list of dictionaries, dataclasses, NamedTuples or pydantic models. Columns that
    may be null may be missing. No value is changed: one that is of another type, that is too large,
    or that has too many digits or nanoseconds is an error. Only FLOAT rounds, as floats do.

    Raises IllegalRow, which names row and column, and IllegalArgument.
    """
    return fit(read_rows(rows), schema)


@dataclass(frozen=True)
class Columns:
    """Rows as columns: Arrow's, or a list of Python's values. `count` is the number of rows."""

    count: int
    by_name: dict[str, pa.ChunkedArray | list[Any]]


def read_rows(rows: Any) -> Columns | list[Any]:
    """The rows as columns or a list: some of what has rows can be read only once.

    Raises IllegalRow where Arrow can't read them, and IllegalArgument.
    """
    if isinstance(rows, Iterable) and not _is_arrow(rows) and not isinstance(rows, str | bytes | Mapping):
        return list(rows)
    try:
        if is_frame(rows):
            count, columns = len(rows), columns_of_frame(rows)
        else:
            _refuse_polars_own(rows)
            table = _as_arrow(rows)
            _refuse_invalid(table, rows)
            count, columns = table.num_rows, list(zip(table.column_names, table.columns, strict=True))
    except (*_NO_VALUE, NotImplementedError, ArithmeticError) as error:  # the last for a Decimal sNaN
        raise IllegalRow(f"{type(rows).__name__} of rows: {_one_line(error)}") from None
    columns = [(name, column) for name, column in columns if not _PANDAS_INDEX.fullmatch(name)]
    by_name = dict(columns)
    if len(by_name) < len(columns):
        names = [name for name, _ in columns]
        name = next(name for name in names if names.count(name) > 1)
        raise IllegalRow(f"{type(rows).__name__} of rows: column {name} is there twice")
    return Columns(count, by_name)


def fit(rows: Columns | list[Any], schema: TopicSchema) -> pa.Table:
    """What `as_table` does, of rows that were read."""
    return _table_of_rows(rows, schema) if isinstance(rows, list) else _fitted(rows, schema)


def _refuse_invalid(table: pa.Table, rows: Any) -> None:
    """Raises IllegalRow for a column whose buffers are not what Arrow's format says."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            raise IllegalRow(
                f"{type(rows).__name__} of rows: the buffers of column {name} can't be right, so no row was sent; make the "
                f"column anew from its values (Arrow: {_one_line(error)})"
            ) from None
    table.validate()


def _refuse_polars_own(rows: Any) -> None:
    """Raises IllegalRow for types that only Polars has. It would send addresses of objects."""
    polars = sys.modules.get("polars")
    if polars is None or not isinstance(rows, polars.DataFrame):
        return
    for name, kind in rows.schema.items():
        if kind in (polars.Object, polars.Int128):
            raise IllegalRow(f"column {name}: Arrow has no type for Polars' {kind}; cast it before")


def _is_arrow(rows: Any) -> bool:
    return isinstance(rows, pa.Table | pa.RecordBatch) or any(map(partial(hasattr, rows), _CAPSULES))


def _as_arrow(rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if hasattr(rows, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(rows)])
    instead = "; give what its collect() returns" if hasattr(rows, "collect") else ""
    raise IllegalArgument(
        f"rows are an Arrow table or batch, a frame of pandas or Polars, or a list of dictionaries or dataclasses, not "
        f"{type(rows).__name__}{instead}"
    )


def _fitted(rows: Columns, schema: TopicSchema) -> pa.Table:
    for name in rows.by_name:
        if schema.columns.get_field_index(name) < 0:
            raise IllegalRow(_no_column(name, schema))
    columns = []
    for field in schema.columns:
        column = rows.by_name.get(field.name)
        if isinstance(column, list):
            if pa.types.is_integer(field.type):
                column = with_integers(column)
            column = pa.chunked_array([_array(column, field, as_python)])
        elif column is None or column.null_count == len(column):  # nulls have no type
            column = pa.chunked_array([pa.nulls(rows.count, field.type)])
        elif column.type != field.type:
            column = _cast(column, field)
        _refuse_nulls(column, field, schema)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema.columns)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """The column as the schema's type, if both hold the same values, and no value is lost by it."""
    if not may_cast(column.type, field.type):
        way = "cast it before"
        if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(field.type):
            way = _WITHOUT_ZONE if column.type.tz is None else "its times have a time zone: take it away before"
        raise IllegalRow(f"column {field.name}: Arrow's {column.type} is no {ddl_type(field.type)}; {way}")
    try:
        return _cast_rows(column, field.type, 0, len(column))
    except pa.ArrowException:
        row = _first_bad(len(column), partial(_cast_rows, column, field.type))
        raise _too_large(row, field, _python_value(column[row])) from None


def _cast_rows(column: pa.ChunkedArray, kind: pa.DataType, start: int, end: int) -> pa.ChunkedArray:
    return pa.chunked_array([cast(chunk, kind) for chunk in column.slice(start, end - start).chunks], kind)


def _python_value(scalar: pa.Scalar) -> object:
    """The value for an error's text. Not all of Arrow's are values of Python's."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return getattr(scalar, "value", scalar.type)


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


def _one_line(text: object) -> str:
    return " ".join(str(text).partition("\n")[0].split())


_WITHOUT_ZONE = 'its times have no time zone: give them one, as pandas does by tz_localize("UTC")'


def _illegal(row: int, name: str, value: object, kind: pa.DataType, takes: str) -> IllegalRow:
    more = ""
    if pa.types.is_timestamp(kind) and kind.tz is not None and getattr(value, "tzinfo", kind) is None:
        more = f"; {_WITHOUT_ZONE}"
    return IllegalRow(f"row {row}, column {name}: {_shown(value)} is no {ddl_type(kind)}: it takes {takes}{more}", row)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # what a class of the user's raises; pandas has no text for all times with a zone
        text = f"<{type(value).__name__} that has no text>"
    return " ".join(text[:_SHOWN].split()) + "…" * (len(text) > _SHOWN)


def _too_large(row: int, field: pa.Field, value: object) -> IllegalRow:
    """The error of a value of the right class. Arrow's own text names neither column nor type."""
    place, part, kind = too_large_part(value, field.type)
    return _illegal(row, field.name + place, part, kind, room(kind))


def _wanted(schema: TopicSchema) -> str:
    return f"topic {schema.topic} has {schema}"


def _refuse_nulls(column: pa.ChunkedArray | pa.Array, field: pa.Field, schema: TopicSchema) -> None:
    """Raises IllegalRow for a null where there can't be one, in the column or within its values."""
    if not is_null_where_none_may_be(column, field):
        return
    start, end = 0, len(column)
    while end - start > 1:
        middle = (start + end) // 2
        if is_null_where_none_may_be(column.slice(start, middle - start), field):
            end = middle
        else:
            start = middle
    reason = "has a null within, where none may be" if column[start].is_valid else "is NOT NULL and has no value"
    raise IllegalRow(f"row {start}, column {field.name}: it {reason}; {_wanted(schema)}", start)


def _table_of_rows(rows: list[Any], schema: TopicSchema) -> pa.Table:
    if {*map(type, rows)} != {dict}:
        rows = [row if type(row) is dict else _mapping(row, number) for number, row in enumerate(rows)]
    columns = [_array(items, field) for items, field in zip(_by_column(rows, schema), schema.columns, strict=True)]
    return _made_table(columns, schema)


def table_of_checked(columns: Sequence[Sequence[Any]], schema: TopicSchema) -> pa.Table:
    """The values of each column as a table. `check_value` would take each of them."""
    arrays = [_as_array(items, field) for items, field in zip(columns, schema.columns, strict=True)]
    return _made_table(arrays, schema)


def _made_table(columns: list[pa.Array], schema: TopicSchema) -> pa.Table:
    for column, field in zip(columns, schema.columns, strict=True):
        _refuse_nulls(column, field, schema)
    return pa.Table.from_arrays(columns, schema=schema.columns)


def _by_column(rows: list[Mapping[str, Any]], schema: TopicSchema) -> list[list[Any]]:
    """The values of each of the schema's columns. Raises IllegalRow for any other column."""
    names = schema.columns.names
    if {*map(len, rows)} <= {len(names)}:
        with contextlib.suppress(KeyError):  # as many columns, and none is missing: there is no other one
            return [list(map(itemgetter(name), rows)) for name in names]
    _refuse_names(rows, schema)
    return [list(map(_getter(name), rows)) for name in names]


def _refuse_names(rows: list[Mapping[str, Any]], schema: TopicSchema) -> None:
    known = set(schema.columns.names)
    for number, row in enumerate(rows):
        if not known.issuperset(row):
            name = next(name for name in row if name not in known)
            raise IllegalRow(f"row {number}: {_no_column(name, schema)}", number)


def _no_column(name: object, schema: TopicSchema) -> str:
    if isinstance(name, str):
        return f"there is no column {name!r:.{_SHOWN}}; {_wanted(schema)}"
    way = "decode it" if isinstance(name, bytes) else "use str()"
    return f"there is no column {name!r:.{_SHOWN}}: a column's name is text, so {way}; {_wanted(schema)}"


def _getter(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: row.get(name)


def _mapping(row: Any, number: int) -> dict[str, Any]:
    columns = columns_of(row)
    if columns is None:
        raise IllegalRow(
            f"row {number}: a row is a dictionary, a dataclass, a NamedTuple or a pydantic model, and has each column once; "
            f"it is not {_shown(row)}",
            number,
        )
    return columns


def _array(items: list[Any], field: pa.Field, leaf: Callable[[Any, pa.DataType], Any] | None = None) -> pa.Array:
    """Makes an Arrow array. Values of a frame come with the `leaf` of `plain`: NaN is null."""
    if not fits(items, field.type):
        items = [plain(item, field.type, leaf) for item in items]
        if not fits(items, field.type):
            row = next(row for row, item in enumerate(items) if not fits((item,), field.type))
            raise _illegal(row, field.name, items[row], field.type, wanted(field.type))
    return _as_array(items, field, from_pandas=leaf is not None)


def _as_array(items: Sequence[Any], field: pa.Field, *, from_pandas: bool = False) -> pa.Array:
    """Values of the column's type as Arrow's. Raises IllegalRow for one that is too large."""
    try:
        if pa.types.is_timestamp(field.type):
            return times_array(items, field.type)
        return pa.array(items, field.type, from_pandas=from_pandas)
    except _NO_VALUE:
        row = _first_bad(len(items), lambda start, end: pa.array(items[start:end], field.type))
        raise _too_large(row, field, items[row]) from None


def columns_of_row(row: Any) -> dict[str, Any]:
    """The columns of a single row by name. Raises IllegalRow for what is none."""
    return _mapping(row, 0)


def check_names(row: dict[str, Any], schema: TopicSchema) -> None:
    """Raises IllegalRow for a row with a column that the schema does not have."""
    _refuse_names([row], schema)


def check_value(value: Any, field: pa.Field, schema: TopicSchema) -> int:
    """The bytes of a single row's value as Arrow has them. Raises IllegalRow if it does not fit."""
    column = _array([value], field)
    _refuse_nulls(column, field, schema)
    return int(column.nbytes)


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
