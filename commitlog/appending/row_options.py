"""The arguments of `send_rows` that all its messages have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commitlog.errors import IllegalArgument, IllegalProperty
from commitlog.record.row_headers import ROW_HEADERS

COMPRESSIONS = (None, "lz4", "zstd")
_MOST = (1 << 63) - 1


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= _MOST


@dataclass(frozen=True)
class RowOptions:
    """The options of `Producer.send_rows`, which explains them.

    Raises IllegalArgument.
    """

    key: str | None = None
    headers: Mapping[str, str] | None = None
    tags: str | None = None
    wait: bool = True
    max_rows: int = 10_000
    max_bytes: int = 1 << 20
    compression: str | None = None

    def __post_init__(self) -> None:
        if not (_is_count(self.max_rows) and _is_count(self.max_bytes)):
            raise IllegalArgument(
                f"max_rows={self.max_rows!r}, max_bytes={self.max_bytes!r}: numbers of rows and bytes, from 1 to {_MOST}"
            )
        if self.headers is not None and not isinstance(self.headers, Mapping):
            raise IllegalProperty(f"headers are a dictionary of str, not {type(self.headers).__name__}")
        for name in ROW_HEADERS.intersection(self.headers or ()):
            raise IllegalProperty(f"header {name!r} says how to read the rows: send_rows sets it; choose another name")
        if self.compression not in COMPRESSIONS:
            raise IllegalArgument(f"compression={self.compression!r}: it is None, 'lz4' or 'zstd'")
