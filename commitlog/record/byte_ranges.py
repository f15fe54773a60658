"""Reads items and computes CRCs at many positions of a buffer at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from commitlog.record.crc import CRC_MASK, crc32

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]

_COPY_BYTES_MAX = 479
"""The largest bytes object that Python's own allocator serves (512 less the header).

Up to this size numpy makes bytes objects from void items much faster than Python slices a
memoryview. To copy a larger range costs more than to make a view of it.
"""
_STRIDED_LEAST = 32
"""From this number of items on it is checked whether they are evenly spaced.

numpy copies evenly spaced items several times as fast as others.
"""
_BLOCK_BYTES = 1 << 20
"""Ranges are copied in blocks of this size, which stay in the processor's cache."""


def first_false(mask: Mask) -> int:
    """The index of the first False, or the length if there is none."""
    return len(mask) if mask.all() else int(mask.argmin())


def gather(view: ByteArray, dtype: str, positions: Ints) -> npt.NDArray[Any]:
    """The items at any positions, aligned or not.

    Every item must be within the view. The result owns its memory.
    """
    width = np.dtype(dtype).itemsize
    if not len(positions) or not width:
        return np.empty(len(positions), dtype)
    if stride := stride_of(positions):
        return evenly(view, dtype, int(positions[0]), stride, len(positions)).copy()
    return evenly(view, dtype, 0, 1, len(view) - width + 1)[positions]


def evenly(view: ByteArray, dtype: npt.DTypeLike, start: int, stride: int, count: int) -> npt.NDArray[Any]:
    """`count` items, the first at `start` and each `stride` bytes after the one before.

    Nothing is copied: the result is a view of the same memory.
    """
    return np.ndarray((count,), dtype, view.data, start, (stride,))


def stride_of(positions: Ints) -> int:
    """The step from each position to the next, or 0 if the steps differ or the items are few.

    In a run of records of one size, all steps are the same.
    """
    if len(positions) < _STRIDED_LEAST:
        return 0
    step = int(positions[1] - positions[0])
    if int(positions[-1] - positions[0]) != step * (len(positions) - 1):
        return 0  # this finds most positions that are not evenly spaced
    return step if (positions[1:] - positions[:-1] == step).all() else 0


def crcs_of_rows(buffer: memoryview, start: int, stride: int, size: int, count: int) -> npt.NDArray[np.uint32]:
    """The masked CRC-32 of `count` ranges of `size` bytes.

    The first range begins at `start`, and each `stride` bytes after the one before.
    """
    rows: Any
    if not size:
        return np.zeros(count, np.uint32)
    if size <= _COPY_BYTES_MAX:
        rows = np.ndarray((count,), f"V{size}", buffer, start, (stride,)).tolist()
    else:
        rows = np.ndarray((count, size), np.uint8, buffer, start, (stride, 1))
    return np.fromiter(map(crc32, rows), np.uint32, count) & np.uint32(CRC_MASK)


def crcs_of(view: ByteArray, positions: Ints, sizes: Ints) -> Ints:
    """The masked CRC-32 of byte ranges within the view."""
    count = len(positions)
    crcs = np.empty(count, np.int64)
    if not count:
        return crcs
    mean = int(sizes.sum()) // count
    step = max(_BLOCK_BYTES // max(mean, 1), 1)
    for at in range(0, count, step):
        crcs[at : at + step] = _crcs_of_block(view, positions[at : at + step], sizes[at : at + step], mean)
    return crcs & CRC_MASK


def _crcs_of_block(view: ByteArray, positions: Ints, sizes: Ints, mean: int) -> npt.ArrayLike:
    size, ends = int(sizes[0]), positions + sizes
    same = bool((sizes == size).all())
    if same and (stride := stride_of(positions)):
        return crcs_of_rows(view.data, int(positions[0]), stride, size, len(positions))
    if same and 0 < size <= _COPY_BYTES_MAX:
        return list(map(crc32, gather(view, f"V{size}", positions).tolist()))
    first, last = int(positions.min()), int(ends.max())
    source: memoryview | bytes = view.data
    # a slice of bytes is cheaper than one of a memoryview, as long as little is copied
    if mean <= _COPY_BYTES_MAX and last - first <= 4 * _BLOCK_BYTES:
        source = view[first:last].tobytes()
        positions, ends = positions - first, ends - first
    bounds = zip(positions.tolist(), ends.tolist(), strict=True)
    return [crc32(source[start:end]) for start, end in bounds]
