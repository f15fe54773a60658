"""The types of the arguments of `send` and `send_batch`, and the checks of these arguments."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from commitlog.errors import IllegalMessage

_FLAG_MAX, _TIMESTAMP_MAX = (1 << 31) - 1, (1 << 63) - 1


class _ArrowArray(Protocol):
    """A pyarrow array, chunked or not. The pyarrow package itself has no types."""

    @property
    def null_count(self) -> int: ...
    @property
    def type(self) -> Any: ...


Value = bytes | bytearray | memoryview
Values = Sequence[bytes] | Sequence[Value] | npt.NDArray[np.uint8] | _ArrowArray


def as_bytes(value: Any) -> bytes:
    """Returns a value as bytes. Raises IllegalMessage for anything that is not bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = "bytes"
    if isinstance(value, str):
        hint = "value.encode()"
    elif isinstance(value, dict | list):
        hint = "orjson.dumps(value)"
    raise IllegalMessage(f"a value is bytes, not {type(value).__name__}: send {hint}")


def check_numbers(flag: int, born_timestamp: int) -> None:
    """Raises IllegalMessage for numbers that are too large for their fields of a record.

    Readers would read other numbers there.
    """
    try:
        fits = 0 <= index(flag) <= _FLAG_MAX and 0 <= index(born_timestamp) <= _TIMESTAMP_MAX
    except TypeError:
        fits = False
    if not fits:
        raise IllegalMessage(
            f"flag and born_timestamp are whole numbers from 0 to {_FLAG_MAX} and of milliseconds since 1970, not "
            f"{flag!r:.40} and {born_timestamp!r:.40}"
        )


def check_keys(keys: object, key: str | None, count: int) -> None:
    """Raises IllegalMessage for keys that do not belong to a batch of `count` values."""
    if not isinstance(keys, Sequence) or isinstance(keys, str | bytes | bytearray | memoryview):
        raise IllegalMessage(
            f"keys are a list of str or None, one for each value, not {type(keys).__name__}; see also key="
        )
    if key is not None:
        raise IllegalMessage("key and keys are both given; key is for all messages of a batch, keys has one for each")
    if len(keys) != count:
        raise IllegalMessage(f"{len(keys):,} keys for {count:,} values; give one for each, None for one without")
