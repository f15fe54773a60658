"""The bodies of a batch: a sequence of bytes, a 2-D numpy array or an Arrow binary array.

A body is the field BODY of RocketMQ's record, so this room says body where the user says value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from commitlog.errors import IllegalMessage, RecordError
from commitlog.native import core
from commitlog.record.byte_ranges import Ints, crcs_of_rows
from commitlog.record.crc import CRC_MASK, crc32

_ARROW_OFFSETS = {"binary": np.int32, "large_binary": np.int64}


class Bodies:
    """The bodies of a batch with their sizes, in one form for all that a user may give.

    - `count`: how many bodies
    - `total_bytes`: the bytes of all bodies
    - `size`: the size of each body if all have the same size, otherwise None
    """

    def __init__(self, count: int, total_bytes: int, size: int | None) -> None:
        self.count, self.total_bytes, self.size = count, total_bytes, size
        self._sizes: Ints | None = None
        self._largest: int | None = size
        # they are in one of three forms: a sequence, a matrix, or one buffer and the bounds of each
        self._sequence: list[bytes] = []
        self._is_list_of_bytes = False
        self._matrix: npt.NDArray[np.uint8] | None = None
        self._spans: tuple[npt.NDArray[np.uint8], Ints] | None = None

    @classmethod
    def of(cls, bodies: Any) -> Bodies:
        """Makes the bodies of a batch from a sequence of bytes, a numpy array or an Arrow array.

        The numpy array has the shape (count, bytes) and the dtype uint8. The Arrow array has the
        type binary, large_binary or fixed_size_binary, and may be chunked; pyarrow itself is not
        imported. Raises IllegalMessage for anything else, and RecordError for an Arrow array that
        holds nulls.
        """
        if isinstance(bodies, Bodies):
            return bodies
        if isinstance(bodies, np.ndarray):
            return cls._of_matrix(bodies)
        if hasattr(bodies, "null_count") and hasattr(bodies, "type"):
            return cls._of_arrow(bodies)
        if isinstance(bodies, str | bytes | bytearray | memoryview | dict) or not isinstance(bodies, Sequence):
            raise IllegalMessage(
                f"a batch is a sequence of bytes, not {type(bodies).__name__}; one value goes to send()"
            )
        return cls._of_sequence(bodies)

    @classmethod
    def _of_sequence(cls, bodies: Sequence[bytes]) -> Bodies:
        bodies = list(bodies)  # the caller may change its own before the records are made
        count = len(bodies)
        if core is not None and (measured := core.measure(bodies)):
            total, largest, smallest = measured
            made = cls(count, total, largest if largest == smallest else None)
            made._sequence, made._is_list_of_bytes, made._largest = bodies, True, largest
            return made
        if count and not isinstance(bodies[0], bytes | bytearray | memoryview):
            _refuse(bodies)  # the other bodies are checked when they are read
        try:
            if len({*map(len, bodies)}) <= 1:
                size = len(bodies[0]) if count else 0
                made = cls(count, count * size, size)
            else:
                sizes = _lengths(bodies)
                made = cls(count, int(sizes.sum()), None)
                made._sizes = sizes
        except TypeError:
            _refuse(bodies)
        made._sequence = bodies
        return made

    @classmethod
    def _of_matrix(cls, array: npt.NDArray[Any]) -> Bodies:
        if array.ndim != 2 or array.dtype != np.uint8:
            raise IllegalMessage(
                f"a numpy batch is of shape (count, bytes) and dtype uint8, not {array.shape} and {array.dtype}: "
                f"use .view(numpy.uint8).reshape(count, -1)"
            )
        count, size = array.shape
        made = cls(count, count * size, size)
        made._matrix = array
        return made

    @classmethod
    def _of_arrow(cls, array: Any) -> Bodies:
        if hasattr(array, "combine_chunks"):
            array = array.combine_chunks()
        if array.null_count:
            raise RecordError(f"a value can't be null, and {array.null_count} of the Arrow array are; fill_null(b'')")
        kind, count, skip = str(array.type), len(array), array.offset
        if kind.startswith("fixed_size_binary"):
            size = array.type.byte_width
            data = array.buffers()[1]
            flat = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
            return cls._of_matrix(flat[skip * size : (skip + count) * size].reshape(count, size))
        if kind not in _ARROW_OFFSETS:
            raise IllegalMessage(f"an Arrow batch is a binary array, not {kind}; use .cast('binary')")
        if not count:
            return cls(0, 0, 0)
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, _ARROW_OFFSETS[kind])[skip : skip + count + 1].astype(np.int64)
        sizes = np.diff(ends)
        flat = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        flat = flat[ends[0] : ends[-1]]
        if (sizes == sizes[0]).all():
            return cls._of_matrix(flat.reshape(count, int(sizes[0])))
        made = cls(count, len(flat), None)
        made._sizes, made._spans = sizes, (flat, ends - ends[0])
        return made

    def lent(self) -> tuple[list[bytes] | npt.NDArray[np.uint8], Ints | None] | None:
        """The bodies as the native core takes them, or None if it does not.

        They are a list of bytes and None, or one buffer and the bounds of the bodies in it, which
        are one number more than there are bodies.
        """
        if self._spans is not None:
            return self._spans
        if self._matrix is not None:
            return np.ascontiguousarray(self._matrix).reshape(-1), np.arange(self.count + 1) * (self.size or 0)
        if self._is_list_of_bytes:
            return self._sequence, None
        return None

    @property
    def sizes(self) -> Ints:
        """The size of each body in bytes, as int64."""
        if self._sizes is None:
            self._sizes = _lengths(self._sequence) if self.size is None else np.full(self.count, self.size, np.int64)
        return self._sizes

    @property
    def largest(self) -> int:
        """Size of the largest body in bytes, 0 for an empty batch."""
        if self._largest is None:
            self._largest = int(self.sizes.max(initial=0))
        return self._largest

    def first(self) -> bytes:
        """The first body."""
        return self.items(0, 1)[0]

    def items(self, start: int, stop: int) -> Sequence[bytes]:
        """The bodies [start, stop) as bytes."""
        if self._spans is not None:
            flat, bounds = self._spans
            return [flat[begin:end].tobytes() for begin, end in pairwise(bounds[start : stop + 1].tolist())]
        if self._matrix is None:
            return self._sequence[start:stop]
        rows = self.rows(start, stop)
        return [b""] * (stop - start) if rows is None else rows.tolist()

    def rows(self, start: int, stop: int) -> npt.NDArray[np.void] | None:
        """The bodies [start, stop) of one size as items of numpy, or None if they are empty."""
        if not self.size:
            return None
        if self._matrix is not None:
            part = np.ascontiguousarray(self._matrix[start:stop])
        else:
            try:
                joined = b"".join(self._sequence[start:stop])
            except TypeError:
                _refuse(self._sequence)
            if len(joined) != (stop - start) * self.size:
                raise IllegalMessage("a value is of bytes: a memoryview must be of format 'B'")
            part = np.frombuffer(joined, np.uint8)
        return part.view(f"V{self.size}").ravel()

    def crcs(self, start: int, stop: int) -> npt.NDArray[np.uint32]:
        """Masked CRC-32 of the bodies [start, stop)."""
        count = stop - start
        if self._matrix is not None:
            size, rows = self.size or 0, np.ascontiguousarray(self._matrix[start:stop])
            return crcs_of_rows(rows.data.cast("B") if rows.size else memoryview(b""), 0, size, size, count)
        try:
            return np.fromiter(map(crc32, self.items(start, stop)), np.uint32, count) & np.uint32(CRC_MASK)
        except TypeError:
            _refuse(self._sequence)


def _lengths(bodies: Sequence[bytes]) -> Ints:
    return np.fromiter(map(len, bodies), np.int64, len(bodies))


def _refuse(bodies: Sequence[Any]) -> NoReturn:
    """Raises an IllegalMessage that names the first body that is not bytes."""
    for index, body in enumerate(bodies):
        if not isinstance(body, bytes | bytearray | memoryview):
            hint = (
                "; use .encode()" if isinstance(body, str) else "; use orjson.dumps()" if isinstance(body, dict) else ""
            )
            raise IllegalMessage(f"value {index} of the batch is {type(body).__name__}, not bytes{hint}")
    raise IllegalMessage("a value of the batch is not contiguous bytes")
