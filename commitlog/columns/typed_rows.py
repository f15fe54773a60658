"""Decodes the messages of a typed topic into its columns.

A message has one Arrow record batch. Its buffers are used where they lie in the mapped segment, so
that only the wanted columns are copied, once. Small batches are put together, because each batch
costs Spark about a millisecond.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa

from commitlog.columns.arrays import aligned
from commitlog.columns.arrow_columns import Decoder
from commitlog.columns.metadata import metadata_columns
from commitlog.columns.unpacked_size import UNPACKED_BYTES_MAX, TooMuchUnpacked, check_batch_size, is_compressed
from commitlog.errors import CorruptRecord, SchemaConflict
from commitlog.message import Message
from commitlog.record.record_layout import SysFlag
from commitlog.record.row_headers import (
    COMPRESSION_HEADER,
    CONTENT_TYPE,
    CONTENT_TYPE_HEADER,
    ROWS_HEADER,
    SCHEMA_HEADER,
    version_of,
)
from commitlog.schemas.evolution import is_wider
from commitlog.schemas.topic_schemas import TopicSchema, TopicSchemas
from commitlog.schemas.types import METADATA_COLUMNS

MESSAGES_BYTES_MAX = 4 << 20
"""Messages are read in pieces of this size, as they are in the log."""
ROWS_TOGETHER_MAX = 50_000
"""Messages are put together until they have this number of rows."""


class WrongRows(CorruptRecord):
    """Messages that have no rows of the topic: number in the decoder → what is wrong."""

    def __init__(self, wrong: dict[int, str], decoder: Decoder) -> None:
        self.wrong = wrong
        number, reason = next(iter(wrong.items()))
        row = f"topic {decoder.queue.topic}, lane {decoder.queue.lane}, offset {decoder.places.offset + number}"
        where = decoder.segment.start + int(decoder.places.at[number])
        super().__init__(f"{row}: {reason}", where, str(decoder.segment.path))


@dataclass
class TypedRows:
    """Makes batches of `schema`: columns of the topic, and metadata columns.

    `schemas` has the versions with which messages were written. `read_anew` is the advice in
    errors: how the user gets the newest schema.
    """

    schemas: TopicSchemas
    schema: pa.Schema
    read_anew: str
    _columns: list[pa.Field] = field(init=False)
    _metadata: list[str] = field(init=False)
    _added: set[tuple[str, int, str]] = field(init=False, default_factory=set)
    """Topic, version, and a column that a later version of the topic is known to have."""

    def __post_init__(self) -> None:
        self._columns = [column for column in self.schema if column.name not in METADATA_COLUMNS]
        self._metadata = [name for name in self.schema.names if name in METADATA_COLUMNS]

    def batches(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        """All rows of the decoder's messages, in order.

        Raises WrongRows and TooMuchUnpacked before it yields anything. Raises SchemaConflict if
        `schema` can't hold a message, and StoreDamaged if a version is missing.
        """
        messages = self._messages(decoder)
        begin, rows = 0, 0
        for index, (version, batch) in enumerate(messages):
            if begin < index and (rows + batch.num_rows > ROWS_TOGETHER_MAX or version is not messages[begin][0]):
                yield self._together(decoder, messages[begin:index], begin)
                begin, rows = index, 0
            rows += batch.num_rows
        if rows:
            yield self._together(decoder, messages[begin:], begin)

    def _messages(self, decoder: Decoder) -> list[tuple[TopicSchema, pa.RecordBatch]]:
        """The version and the batch of each message, with those wanted columns that it has."""
        found: list[tuple[TopicSchema, pa.RecordBatch]] = []
        wrong, unpacked = {}, 0
        facts = zip(*(_texts(decoder, name) for name in _HEADERS), _values(decoder), strict=True)
        for number, (content_type, version, rows, compression, value) in enumerate(facts):
            try:
                found.append(self._message(decoder.queue.topic, content_type, version, rows, compression, value))
            except MemoryError:
                raise  # Arrow's is an ArrowException too, and the message is right
            except _NO_ROWS as error:
                wrong[number] = _reason(error)
                continue
            unpacked += found[-1][1].nbytes
            if unpacked > UNPACKED_BYTES_MAX and decoder.count > 1:
                raise TooMuchUnpacked
        if wrong:
            raise WrongRows(wrong, decoder)
        return found

    def _message(
        self,
        topic: str,
        content_type: str | None,
        version: str | None,
        rows: str | None,
        compression: str | None,
        value: pa.Buffer,
    ) -> tuple[TopicSchema, pa.RecordBatch]:
        if content_type != CONTENT_TYPE or version is None or rows is None:
            raise ValueError(_NO_ROWS_SENT)
        schema = self.schemas.version(topic, int(version))
        wanted = tuple(index for column in self._columns if (index := schema.columns.get_field_index(column.name)) >= 0)
        return schema, _batch(schema.columns, wanted, int(rows), compression, value)

    def _together(
        self, decoder: Decoder, messages: list[tuple[TopicSchema, pa.RecordBatch]], first: int
    ) -> pa.RecordBatch:
        """One batch of messages of the same version. `first` is the number of the first one."""
        batches = [batch for _, batch in messages]
        counts = np.array([batch.num_rows for batch in batches], np.int64)
        total = int(counts.sum())
        together = aligned(batches[0]) if len(batches) == 1 else pa.concat_batches(batches)
        columns = {
            column.name: self._from_older_version(together, column, messages[0][0], total) for column in self._columns
        }
        if self._metadata:
            numbers = np.arange(first, first + len(counts))
            columns |= metadata_columns(decoder, self._metadata, numbers, counts)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _from_older_version(self, batch: pa.RecordBatch, column: pa.Field, schema: TopicSchema, rows: int) -> pa.Array:
        """Fits a column to the wanted type: nulls if the version lacks it, wider if it grew."""
        index = batch.schema.get_field_index(column.name)
        if index < 0:
            if not column.nullable:
                raise self._too_old(schema, f"column {column.name}, which is NOT NULL there, is missing")
            added = (schema.topic, schema.version, column.name)
            if added not in self._added and not self.schemas.is_added_later(column.name, schema):
                raise self._too_old(schema, f"there is no column {column.name}, nor in a later version")
            self._added.add(added)
            return pa.nulls(rows, column.type)
        found = batch.column(index)
        if found.null_count and not column.nullable:
            raise self._too_old(schema, f"column {column.name}, which is NOT NULL there, has nulls")
        if found.type == column.type:
            return found
        try:
            if found.type == pa.float64() and column.type == pa.float32():
                raise pa.ArrowInvalid("they would be rounded")
            if not _may_be_read_as(column.type, found.type):
                raise pa.ArrowInvalid(f"they are {found.type}")
            return found.cast(column.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._too_old(
                schema, f"column {column.name} has values that are no {column.type} ({error})"
            ) from None

    def _too_old(self, schema: TopicSchema, reason: str) -> SchemaConflict:
        return SchemaConflict(
            f"topic {schema.topic}: messages of {schema} do not fit the schema that is read with: {reason}. "
            f"{self.read_anew}, so that the newest schema is taken"
        )


def _may_be_read_as(wanted: pa.DataType, found: pa.DataType) -> bool:
    """Whether versions of one schema may have both types: then a cast keeps the values."""
    are_decimals = pa.types.is_decimal(wanted) and pa.types.is_decimal(found)
    return are_decimals or is_wider(wanted, found) or is_wider(found, wanted) or _are_alike(wanted, found)


def _are_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types have the same fields at any depth, wherever nulls are allowed."""
    if not pa.types.is_nested(one):
        return bool(one == other)
    if one.id != other.id or one.num_fields != other.num_fields:
        return False
    fields = [(one.field(index), other.field(index)) for index in range(one.num_fields)]
    names_count = pa.types.is_struct(one)  # the item of a list has any name
    return all((not names_count or a.name == b.name) and _are_alike(a.type, b.type) for a, b in fields)


_NO_ROWS = (pa.ArrowException, OSError, EOFError, ValueError, StopIteration, struct.error)
"""What decoding a message raises whose value is not what its headers say."""
_NO_ROWS_SENT = "the message has a value and no rows: it was sent by `send` and not by `send_rows`"
_NO_BATCH = "its headers say rows, and its value is no record batch"
_HEADERS = (CONTENT_TYPE_HEADER, SCHEMA_HEADER, ROWS_HEADER, COMPRESSION_HEADER)


def _texts(decoder: Decoder, header: str) -> list[str | None]:
    """One header of each message as text. Only a foreign header has bytes that are not UTF-8."""
    values = decoder.property_values(header.encode(), pa.binary()).to_pylist()
    return [None if value is None else value.decode(errors="replace") for value in values]


def rows_of(message: Message, schemas: TopicSchemas) -> pa.RecordBatch:
    """The rows of one message, with the columns that it was written with.

    Raises CorruptRecord where it has none, and StoreDamaged if its version is missing.
    """
    version = version_of(message.headers)
    try:
        if version is None:
            raise ValueError(_NO_ROWS_SENT)
        columns, rows = schemas.version(message.topic, version).columns, int(message.headers[ROWS_HEADER])
        compression = message.headers.get(COMPRESSION_HEADER)
        return _batch(columns, tuple(range(len(columns))), rows, compression, pa.py_buffer(message.value))
    except MemoryError:
        raise
    except _NO_ROWS as error:
        raise CorruptRecord(_reason(error), message.physical_offset) from error


def _batch(
    columns: pa.Schema, wanted: tuple[int, ...], rows: int, compression: str | None, value: pa.Buffer
) -> pa.RecordBatch:
    """The wanted columns of a value. Raises one of _NO_ROWS where it has not these rows."""
    if compression is None:
        if is_compressed(value):
            raise ValueError("its batch is compressed, and its headers do not say so")
        batch = pa.ipc.read_record_batch(value, columns)
    else:  # only the wanted columns are unpacked
        batch = _unpacked(value, columns, wanted)
    batch = batch.select([columns.names[index] for index in wanted])
    batch.validate(full=True)
    if batch.num_rows != rows:
        raise ValueError(f"the message has {batch.num_rows} rows in place of {rows}")
    return batch


def _reason(error: BaseException) -> str:
    is_text = not isinstance(error, struct.error)  # which tells of bytes of ours, and of no message
    return (is_text and str(error).partition("\n")[0]) or _NO_BATCH


_COUNT = re.compile("[0-9]{1,9}")


def row_counts(decoder: Decoder) -> list[int]:
    """How many rows each message says that it has, 0 where it says nothing."""
    return [int(text) if text and _COUNT.fullmatch(text) else 0 for text in _texts(decoder, ROWS_HEADER)]


def _values(decoder: Decoder) -> Iterator[pa.Buffer]:
    """The value of each message, where it lies in the segment."""
    if (decoder.sys_flag & SysFlag.COMPRESSED).any():  # by another client of RocketMQ's format
        yield from map(pa.py_buffer, decoder.values(pa.binary()).to_pylist())
        return
    buffer = decoder.segment.buffer
    for start, end in zip(decoder.body.start.tolist(), decoder.body.end.tolist(), strict=True):
        yield buffer.slice(start, end - start)


@lru_cache(maxsize=16)
def _stream_start(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize())


def _unpacked(value: pa.Buffer, schema: pa.Schema, wanted: tuple[int, ...]) -> pa.RecordBatch:
    """The wanted columns of a compressed batch. Only a stream can leave columns out."""
    check_batch_size(value)
    some = sorted(wanted) or [0]  # none would mean all
    options = pa.ipc.IpcReadOptions(included_fields=some, use_threads=False)
    with pa.ipc.open_stream(pa.py_buffer(_stream_start(schema) + value.to_pybytes()), options=options) as stream:
        return stream.read_next_batch()
