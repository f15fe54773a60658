"""Decodes values that are JSON objects into columns: option `values=json`.

Arrow's JSON reader parses many values at a time. It takes them as one stream, in which a value that
is cut off could run into the next one. So each value gets its number as a first field, and a parse
counts only if all numbers come back in order. Values that Arrow refuses are looked at one by one,
by the rules of Spark's JSON reader: if a column can't hold a field, it gets null, and the value
counts as malformed.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from commitlog.columns import arrays
from commitlog.columns.arrays import Spans
from commitlog.columns.arrow_columns import BATCH_ROWS_MAX, Decoder
from commitlog.columns.metadata import metadata_columns
from commitlog.columns.read_plan import ReadOptions
from commitlog.columns.spark_times import checked, day_number, microseconds, times_of
from commitlog.errors import MalformedValue
from commitlog.record.byte_ranges import Mask
from commitlog.schemas.types import METADATA_COLUMNS

MALFORMED = (
    "topic %s, lane %s, offset %s: %s is no JSON object of this schema; option mode=PERMISSIVE shows null where a column "
    "can't hold it, DROPMALFORMED leaves it out"
)
_NUMBER = "\x01number"
_PREFIX_DIGITS = 9
_ONE_BY_ONE = 32
"""A group of values that Arrow refuses is halved until it has this number of values."""
_SHOWN_BYTES = 80
_DEPTH_MOST = 500
"""Values that are nested deeper are malformed, because Python's parser would overflow its stack."""
_NOT_NUMBERS = {"NaN": math.nan} | {
    text: float(text) for text in ("Infinity", "+Infinity", "+INF", "-Infinity", "-INF")
}
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""The texts that Java takes for a decimal. Python takes others too, such as ` 1` and `1_0`."""
_REFUSED = (pa.ArrowException, ValueError, ArithmeticError, OSError)


@dataclass
class JsonRows:
    """Makes batches of `schema`: fields of JSON objects, metadata columns, the corrupt column."""

    schema: pa.Schema
    options: ReadOptions
    _fields: list[pa.Field] = field(init=False)
    _reading: pa.Schema | None = field(init=False)
    _decimals: list[int] = field(init=False)
    """The numbers of the fields that have decimals in them."""

    def __post_init__(self) -> None:
        special = {*METADATA_COLUMNS, self.options.corrupt_column}
        self._fields = [column for column in self.schema if column.name not in special]
        kinds = [_parsed_as(column.type) for column in self._fields]
        self._decimals = [place for place, column in enumerate(self._fields) if "decimal" in str(column.type)]
        self._reading = None  # Arrow's reader can't do it
        if None not in kinds:
            names = [column.name for column in self._fields]
            self._reading = pa.schema([(_NUMBER, pa.int64()), *zip(names, kinds, strict=True)])

    def batches(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        """Gives the rows of the decoder's messages: one for each message that is not left out.

        Raises MalformedValue in mode FAILFAST.
        """
        values = decoder.values(pa.binary())
        parsed, malformed = self._parse(values)
        rows = np.arange(decoder.count)
        if malformed.any():
            if self.options.mode == "FAILFAST":
                raise _malformed(decoder, values, int(np.argmax(malformed)))
            if self.options.mode == "DROPMALFORMED":
                rows = np.flatnonzero(~malformed)
                parsed = parsed.take(arrays.fixed(rows, pa.int64()))
        names = [name for name in self.schema.names if name in METADATA_COLUMNS]
        columns = metadata_columns(decoder, names, rows, np.ones(len(rows), np.int64))
        columns |= dict(zip(parsed.schema.names, parsed.columns, strict=True))
        if self.options.corrupt_column in self.schema.names:
            columns[self.options.corrupt_column] = _texts(values, malformed).take(arrays.fixed(rows, pa.int64()))
        yield pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _parse(self, values: pa.BinaryArray) -> tuple[pa.RecordBatch, Mask]:
        """The fields of each value, and which values are malformed."""
        count = len(values)
        parsed = None if self._reading is None else self._parse_together(values)
        if parsed is not None:
            return parsed, np.zeros(count, np.bool_)
        if count <= _ONE_BY_ONE or self._reading is None:
            return self._parse_each(values)
        halves = [self._parse(values[: count // 2]), self._parse(values[count // 2 :])]
        return pa.concat_batches([batch for batch, _ in halves]), np.concatenate([mask for _, mask in halves])

    # ---- many at a time -------------------------------------------------------------------------

    def _parse_together(self, values: pa.BinaryArray) -> pa.RecordBatch | None:
        """The fields of all values, or None if any of them needs a closer look."""
        count = len(values)
        offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + count + 1]
        sizes = np.diff(offsets)
        if not count or (sizes < 2).any() or any(map(_may_be_deep, values.filter(sizes > _DEPTH_MOST).to_pylist())):
            return None
        data = np.frombuffer(values.buffers()[2], np.uint8)
        if (data[offsets[:-1]] != ord("{")).any() or (data[offsets[:-1] + 1] != ord('"')).any():
            return None  # no object, or an empty one
        spans = Spans(offsets[:-1].astype(np.int64) + 1, offsets[1:].astype(np.int64))
        rest = arrays.take_spans(values.buffers()[2], spans, pa.binary())
        text = pc.binary_join_element_wise(_prefixes(BATCH_ROWS_MAX)[:count], rest, b"")
        first, last = (int(number) for number in np.frombuffer(text.buffers()[1], np.int32)[[0, count]])
        stream = text.buffers()[2].slice(first, last - first)
        try:
            values.cast(pa.string())  # it fails where one is no UTF-8
            table = pyarrow.json.read_json(
                pa.BufferReader(stream),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(stream) + 1),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=self._reading, newlines_in_values=True, unexpected_field_behavior="ignore"
                ),
            )
            if table.num_rows != count or (table.column(0).to_numpy() != np.arange(count)).any():
                return None
            columns = [
                _with_times(table.column(place).combine_chunks(), column.type)
                for place, column in enumerate(self._fields, 1)
            ]
            for place in self._decimals:
                columns[place].validate(full=True)  # Arrow's reader takes more digits than the type has
        except _REFUSED:
            return None
        return pa.RecordBatch.from_arrays(columns, names=[column.name for column in self._fields])

    # ---- one by one -----------------------------------------------------------------------------

    def _parse_each(self, values: pa.BinaryArray) -> tuple[pa.RecordBatch, Mask]:
        malformed = np.zeros(len(values), np.bool_)
        rows: list[list[Any]] = []
        for number, value in enumerate(values.to_pylist()):
            row: list[Any] = [None] * len(self._fields)
            try:
                found = _parsed(value)
            except (ValueError, RecursionError, ArithmeticError):
                malformed[number] = True
                found = {}
            for place, column in enumerate(self._fields):
                try:
                    row[place] = _converted(found.get(column.name), column.type)
                except _Part as part:
                    row[place], malformed[number] = part.value, True
                except _REFUSED:
                    malformed[number] = True
            rows.append(row)
        columns = [pa.array([row[place] for row in rows], kind.type) for place, kind in enumerate(self._fields)]
        return pa.RecordBatch.from_arrays(columns, names=[column.name for column in self._fields]), malformed


@cache
def _prefixes(count: int) -> pa.Array:
    """A first field `{"\\u0001number": 17,` for each value, in place of its bracket."""
    head, tail = b'\n{"\\u0001number":', b","
    width = len(head) + _PREFIX_DIGITS + len(tail)
    numbers = np.char.rjust(np.arange(count).astype(f"S{_PREFIX_DIGITS}"), _PREFIX_DIGITS)
    made = np.empty((count, width), np.uint8)
    made[:, : len(head)] = np.frombuffer(head, np.uint8)
    made[:, len(head) : width - len(tail)] = numbers.view(np.uint8).reshape(count, _PREFIX_DIGITS)
    made[:, width - len(tail) :] = np.frombuffer(tail, np.uint8)
    return arrays.fixed_strings(made, pa.binary())


def _parsed_as(kind: pa.DataType) -> pa.DataType | None:
    """The type that Arrow's reader reads a column as. None if it can't read it as Spark does.

    Times are read as texts: Arrow takes other ones than Spark.
    """
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        item = _parsed_as(kind.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_struct(kind):
        fields = [(child.name, _parsed_as(child.type)) for child in kind.fields]
        return None if any(child is None for _, child in fields) else pa.struct(fields)
    return None if pa.types.is_map(kind) or pa.types.is_binary(kind) else kind


def _with_times(read: pa.Array, kind: pa.DataType) -> pa.Array:
    """Turns an array of the type from `_parsed_as` into its final type.

    Raises ValueError for unusual times.
    """
    if read.type == kind:
        return read
    if pa.types.is_temporal(kind):
        return times_of(read, kind)
    validity = read.buffers()[0]
    if pa.types.is_list(kind):
        offsets = read.buffers()[1]
        values = _with_times(read.values, kind.value_type)
        return pa.Array.from_buffers(kind, len(read), [validity, offsets], offset=read.offset, children=[values])
    children = [_with_times(read.field(place), child.type) for place, child in enumerate(kind.fields)]
    return pa.Array.from_buffers(kind, len(read), [validity], offset=read.offset, children=children)


def _texts(values: pa.BinaryArray, malformed: Mask) -> pa.Array:
    """The text of malformed values, null for the others."""
    texts = values.to_pylist() if malformed.any() else repeat(b"")
    found = [text.decode(errors="replace") if bad else None for text, bad in zip(texts, malformed, strict=False)]
    return pa.array(found, pa.string())


def _malformed(decoder: Decoder, values: pa.BinaryArray, number: int) -> MalformedValue:
    text, row = values[number].as_py()[:_SHOWN_BYTES], decoder.places.offset + number
    return MalformedValue(MALFORMED % (decoder.queue.topic, decoder.queue.lane, row, repr(text)))


def _parsed(value: bytes) -> dict[str, Any]:
    """The JSON object that a value begins with. An empty value has no fields. Raises ValueError."""
    text = value.decode().lstrip()
    if not text:
        return {}
    if _may_be_deep(value) and _depth(text) > _DEPTH_MOST:
        raise ValueError("too deep")
    found, _ = _DECODER.raw_decode(text)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _may_be_deep(value: bytes) -> bool:
    return value.count(b"[") + value.count(b"{") > _DEPTH_MOST


def _depth(text: str) -> int:
    """How deep the objects and arrays of a JSON text are nested."""
    deep = most = 0
    for token in _TOKENS.findall(text):
        deep += 1 if token in "[{" else -1 if token in "]}" else 0
        most = max(most, deep)
    return most


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)
_DIGITS_MOST = 1000
"""Whole numbers with more digits become a Decimal: an int would take long, or Python refuses it."""


class _MinusZero(int):
    """The whole number -0. As a float it differs from 0."""

    def __float__(self) -> float:
        return -0.0


def _whole_number(text: str) -> int | decimal.Decimal:
    if len(text) > _DIGITS_MOST:
        return decimal.Decimal(text)
    return _MinusZero() if text == "-0" else int(text)


_DECODER = json.JSONDecoder(parse_float=decimal.Decimal, parse_int=_whole_number)


class _Part(Exception):
    """Some fields of structs in a value can't be held. `value` has the others."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _converted(value: Any, kind: pa.DataType) -> Any:
    """Converts a value of JSON to a type as Spark does. Raises ValueError."""
    if value is None:
        return None
    for is_kind, convert in _CONVERT:
        if is_kind(kind):
            return convert(value, kind)
    raise ValueError(f"no conversion to {kind}")


def _boolean(value: Any, _: pa.DataType) -> bool:
    if not isinstance(value, bool):
        raise ValueError("no boolean")
    return value


def _integer(value: Any, kind: pa.DataType) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("no whole number")
    pa.scalar(value, kind)  # its bounds
    return value


def _float(value: Any, _: pa.DataType) -> float:
    if isinstance(value, str):
        if value not in _NOT_NUMBERS:
            raise ValueError("no number")
        return _NOT_NUMBERS[value]
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        raise ValueError("no number")
    try:
        return float(value)
    except OverflowError:  # of an int; a Decimal gives infinity by itself
        return math.inf if value > 0 else -math.inf


def _decimal(value: Any, kind: pa.DataType) -> decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, int | str | decimal.Decimal):
        raise ValueError("no number")
    if isinstance(value, str):
        value = value.replace(",", "")  # between thousands, as in Spark
        if not _DECIMAL.fullmatch(value):
            raise ValueError("no number")
    try:
        with decimal.localcontext(prec=100, rounding=decimal.ROUND_HALF_UP):
            found = decimal.Decimal(value).quantize(decimal.Decimal(1).scaleb(-kind.scale))
    except decimal.InvalidOperation:
        raise ValueError("no number") from None
    pa.scalar(found, kind)
    return found


def _string(value: Any, _: pa.DataType) -> str:
    if isinstance(value, str):
        value.encode()  # half a surrogate pair is no text
        return value
    if isinstance(value, decimal.Decimal):
        return str(_finite(value))
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_finite)
    text.encode()
    return text


def _finite(value: decimal.Decimal) -> float:
    found = float(value)
    if math.isinf(found):
        raise ValueError("a number that is too large")
    return found


def _date(value: Any, _: pa.DataType) -> int:
    if not isinstance(value, str):
        raise ValueError("no date")
    return day_number(value)


def _timestamp(value: Any, kind: pa.DataType) -> int:
    has_zone = kind.tz is not None
    if isinstance(value, int) and not isinstance(value, bool) and has_zone:
        return checked(value * 1_000_000)  # seconds, as in Spark
    if not isinstance(value, str):
        raise ValueError("no time")
    return microseconds(value, has_zone=has_zone)


def _binary(value: Any, _: pa.DataType) -> bytes:
    if not isinstance(value, str):
        raise ValueError("no base64")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _list(value: Any, kind: pa.DataType) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("no array")
    return _held(value, kind.value_type)


def _held(values: Iterable[Any], kind: pa.DataType) -> list[Any]:
    """Converts the values of an array or a map.

    Raises _Part if only fields of structs can't be held.
    """
    found, is_whole = [], True
    for value in values:
        try:
            found.append(_converted(value, kind))
        except _Part as part:
            found.append(part.value)
            is_whole = False
    if not is_whole:
        raise _Part(found)
    return found


def _struct(value: Any, kind: pa.DataType) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no object")
    found: dict[str, Any] = {}
    is_whole = True
    for child in kind.fields:
        try:
            found[child.name] = _converted(value.get(child.name), child.type)
        except _Part as part:
            found[child.name], is_whole = part.value, False
        except _REFUSED:
            found[child.name], is_whole = None, False
    if not is_whole:
        raise _Part(found)
    return found


def _map(value: Any, kind: pa.DataType) -> list[tuple[Any, Any]]:
    if not isinstance(value, dict):
        raise ValueError("no object")
    keys = _held(value, kind.key_type)
    try:
        return list(zip(keys, _held(value.values(), kind.item_type), strict=True))
    except _Part as part:
        raise _Part(list(zip(keys, part.value, strict=True))) from None


_CONVERT: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], Any]], ...] = (
    (pa.types.is_string, _string),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_date32, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_binary, _binary),
    (pa.types.is_list, _list),
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
)
