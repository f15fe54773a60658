"""Items and CRCs at many positions of a buffer at once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from commitlog.record import CRC_MASK, crc32

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]

_COPY_BYTES_MAX = 479
"""The largest bytes object that Python's own allocator serves (512 less the header). Up to it, numpy makes objects of
void items three times as fast as Python slices a memoryview; beyond it, copying costs more than slicing."""
_BLOCK_BYTES = 1 << 20
"""Ranges are copied in blocks of this size, which stay in the processor's cache."""


def first_false(mask: Mask) -> int:
    """Index of the first False, the length if there is none."""
    return len(mask) if mask.all() else int(mask.argmin())


def gather(view: ByteArray, dtype: str, positions: Ints) -> npt.NDArray[Any]:
    """Items at any positions, aligned or not: taken from an overlapping view whose stride is one byte.

    Every item must be within the view; the result owns its memory.
    """
    width = np.dtype(dtype).itemsize
    if not len(positions) or not width:
        return np.empty(len(positions), dtype)
    windows = np.ndarray((len(view) - width + 1,), dtype, view.data, 0, (1,))
    items: npt.NDArray[Any] = windows[positions]
    return items


def crcs_of_rows(buffer: memoryview, start: int, stride: int, size: int, count: int) -> npt.NDArray[np.uint32]:
    """Masked CRC-32 of `count` ranges of `size` bytes, the first at `start` and each `stride` after the last."""
    items: Any
    if not size:
        return np.zeros(count, np.uint32)
    if size <= _COPY_BYTES_MAX:
        items = np.ndarray((count,), f"V{size}", buffer, start, (stride,)).tolist()
    else:
        items = [buffer[at : at + size] for at in range(start, start + count * stride, stride)]
    return np.fromiter(map(crc32, items), np.uint32, count) & np.uint32(CRC_MASK)


def crcs_of(view: ByteArray, positions: Ints, sizes: Ints) -> Ints:
    """Masked CRC-32 of byte ranges within the view."""
    count = len(positions)
    crcs = np.empty(count, np.int64)
    if not count:
        return crcs
    mean = int(sizes.sum()) // count
    step = max(_BLOCK_BYTES // max(mean, 1), 1)
    for at in range(0, count, step):
        crcs[at : at + step] = _crcs_of_block(view, positions[at : at + step], sizes[at : at + step], mean)
    return crcs & CRC_MASK


def _crcs_of_block(view: ByteArray, positions: Ints, sizes: Ints, mean: int) -> list[int]:
    size, ends = int(sizes[0]), positions + sizes
    if 0 < size <= _COPY_BYTES_MAX and (sizes == size).all():
        return list(map(crc32, gather(view, f"V{size}", positions).tolist()))
    first, last = int(positions.min()), int(ends.max())
    source: memoryview | bytes = view.data
    # a slice of bytes is cheaper than one of a memoryview, as long as little is copied
    if mean <= _COPY_BYTES_MAX and last - first <= 4 * _BLOCK_BYTES:
        source = view[first:last].tobytes()
        positions, ends = positions - first, ends - first
    bounds = zip(positions.tolist(), ends.tolist(), strict=True)
    return [crc32(source[start:end]) for start, end in bounds]


@lru_cache(maxsize=1)
def five_digits() -> npt.NDArray[np.bytes_]:
    """0 to 99,999 as five digits, the least significant first: halves of the CRC property's digits."""
    numbers = np.arange(100_000)
    powers = 10 ** np.arange(5)
    return (48 + numbers[:, None] // powers % 10).astype(np.uint8).view("S5").ravel()
