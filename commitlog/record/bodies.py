"""The bodies of a batch: a sequence of bytes, a 2-D numpy array or an Arrow binary array.

A body is the field BODY of RocketMQ's record, so this room says body where the user says value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from commitlog.errors import IllegalMessage, RecordError
from commitlog.native import core
from commitlog.record.byte_ranges import Ints

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
        measured = core.measure(bodies) if core is not None else None
        if measured is None and {*map(type, bodies)} != {bytes}:  # and what is in its buffers
            bodies = [_copied(index, body) for index, body in enumerate(bodies)]
        if measured is None and core is not None:
            measured = core.measure(bodies)
        if measured is not None:
            total, largest, smallest = measured
            made = cls(len(bodies), total, largest if largest == smallest else None)
            made._largest = largest
        elif len({*map(len, bodies)}) <= 1:
            size = len(bodies[0]) if bodies else 0
            made = cls(len(bodies), len(bodies) * size, size)
        else:
            sizes = _lengths(bodies)
            made = cls(len(bodies), int(sizes.sum()), None)
            made._sizes = sizes
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

    def lent(self) -> tuple[list[bytes] | npt.NDArray[np.uint8], Ints | None]:
        """The bodies as the native core takes them.

        They are a list of bytes and None, or one buffer and the bounds of the bodies in it, which
        are one number more than there are bodies.
        """
        if self._spans is not None:
            return self._spans
        if self._matrix is not None:
            return np.ascontiguousarray(self._matrix).reshape(-1), np.arange(self.count + 1) * (self.size or 0)
        return self._sequence, None

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
            part = np.frombuffer(b"".join(self._sequence[start:stop]), np.uint8)
        return part.view(f"V{self.size}").ravel()


def _lengths(bodies: Sequence[bytes]) -> Ints:
    return np.fromiter(map(len, bodies), np.int64, len(bodies))


def _copied(index: int, body: Any) -> bytes:
    """A body as bytes that nobody changes. Raises an IllegalMessage that names one that is none."""
    if isinstance(body, bytes | bytearray | memoryview):
        if isinstance(body, memoryview) and body.itemsize != 1:
            raise IllegalMessage(
                f"value {index} of the batch is a memoryview that is not of format 'B': cast it before"
            )
        return bytes(body)
    hint = "; use .encode()" if isinstance(body, str) else "; use orjson.dumps()" if isinstance(body, dict) else ""
    raise IllegalMessage(f"value {index} of the batch is {type(body).__name__}, not bytes{hint}")
