"""Makes Arrow arrays from positions in a byte buffer, without a Python loop and without pandas.

If pandas is installed, `pa.array` and similar functions import it, which costs each worker 0.3 s
and 40 MB. So everything here is made by `Array.from_buffers`.

A `take` brings bytes together that are not next to each other. For large items it is the native
core's `take`. Without the core, and for small items, it is Arrow's. For Arrow, a binary array is
laid over the whole buffer. Its items are, in turn, a wanted range and the bytes up to the next
wanted range. Then every second item is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from commitlog.columns.mapped_segments import Segment
from commitlog.native import core
from commitlog.record.byte_ranges import Ints, stride_of

SMALL_BYTES = 150
"""Arrow's `take` is quicker for items that have fewer bytes on average."""


class Spans(NamedTuple):
    """Byte ranges [start, end) of a buffer, in ascending order: end[i] ≤ start[i + 1]."""

    start: Ints
    end: Ints


def fixed(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """An array of numbers or timestamps without nulls, over the memory of `values`."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def indices(values: Ints) -> pa.Array:
    """An index array for `take`. Negative values become nulls."""
    missing = values < 0
    if not missing.any():
        return fixed(values, pa.int64())
    bitmap = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [bitmap, pa.py_buffer(np.where(missing, 0, values))])


def take_spans(buffer: pa.Buffer, spans: Spans, kind: pa.DataType, which: Ints | None = None) -> pa.Array:
    """Makes a binary or string array of the spans' bytes.

    `which` gives the number of the span for each item; −1 makes a null. Without `which`, each span
    is one item.
    """
    count = len(spans.start)
    if not count:
        return nulls(kind, 0 if which is None else len(which))
    if which is None and (stride := stride_of(spans.start)) and stride_of(spans.end) == stride:
        length = int(spans.end[0] - spans.start[0])
        return fixed_strings(np.ndarray((count, length), np.uint8, buffer, int(spans.start[0]), (stride, 1)), kind)
    is_small = int(spans.end.sum() - spans.start.sum()) < SMALL_BYTES * count
    return (_taken_by_arrow if core is None or is_small else _taken_natively)(buffer, spans, kind, which)


def _taken_by_arrow(buffer: pa.Buffer, spans: Spans, kind: pa.DataType, which: Ints | None) -> pa.Array:
    count = len(spans.start)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = spans.start
    offsets[1::2] = spans.end
    laid = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), buffer])
    if which is None:
        return laid.take(fixed(np.arange(0, 2 * count, 2, dtype=np.int64), pa.int64()))
    return laid.take(indices(which * 2))


def _taken_natively(buffer: pa.Buffer, spans: Spans, kind: pa.DataType, which: Ints | None) -> pa.Array:
    start, end = spans
    validity = None
    if which is not None:
        start, end = start[which], end[which]
        missing = which < 0
        if missing.any():
            end = np.where(missing, start, end)
            validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    offsets = np.empty(len(start) + 1, np.int32)
    data = np.empty(int(end.sum() - start.sum()), np.uint8)
    core.take(np.frombuffer(buffer, np.uint8), start, end, data, offsets.view(np.uint8))
    return pa.Array.from_buffers(kind, len(start), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def gather_bytes(segment: Segment, spans: Spans) -> tuple[npt.NDArray[np.uint8], Ints]:
    """The spans' bytes one after another, and where each span begins in them.

    The shapes are (bytes,) and (spans + 1,).
    """
    taken = take_spans(segment.buffer, spans, pa.binary())
    _, offsets, data = taken.buffers()
    if not len(taken) or data is None:
        return np.empty(0, np.uint8), np.zeros(len(spans.start) + 1, np.int64)
    ends = np.frombuffer(offsets, np.int32, len(taken) + 1).astype(np.int64)
    return np.frombuffer(data, np.uint8)[: ends[-1]], ends


def constant_strings(text: bytes, count: int) -> pa.Array:
    """An array of `count` times the same string."""
    offsets = np.arange(count + 1, dtype=np.int32) * len(text)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text * count)])


def fixed_strings(characters: npt.NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    """Strings or binaries that all have one length, from their bytes of shape (count, length)."""
    count, length = characters.shape
    offsets = np.arange(count + 1, dtype=np.int32) * length
    data = pa.py_buffer(np.ascontiguousarray(characters))
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), data])


def binaries(values: Sequence[bytes | None]) -> pa.Array:
    """A binary array from a Python list, for the few values that are made in Python."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value or b"") for value in values], out=offsets[1:])
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    validity = None
    if None in values:
        validity = pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(values), [validity, pa.py_buffer(offsets), data])


def nulls(kind: pa.DataType, count: int) -> pa.Array:
    """`count` nulls of a binary or string type."""
    bitmap = pa.py_buffer(bytes((count + 7) // 8))
    offsets = pa.py_buffer(bytes(4 * (count + 1)))
    return pa.Array.from_buffers(kind, count, [bitmap, offsets, pa.py_buffer(b"")])


def lists(kind: pa.DataType, counts: Ints, children: list[pa.Array], *, empty_is_null: bool) -> pa.Array:
    """A list or map array of structs whose fields are `children`.

    Item i has the next `counts[i]` structs.
    """
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    validity = pa.py_buffer(np.packbits(counts > 0, bitorder="little")) if empty_is_null else None
    entry = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
    structs = pa.Array.from_buffers(entry, int(offsets[-1]), [None], children=children)
    return pa.Array.from_buffers(kind, len(counts), [validity, pa.py_buffer(offsets)], children=[structs])


def aligned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy whose buffers begin at multiples of 8, which many readers of Arrow want."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
