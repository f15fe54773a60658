"""A small table to show.

It is apart from `livetable.py`, so that the job can show tables without loading Arrow.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Grid:
    """A table of text: the first column is aligned to the left, the others to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Grid:
        return cls(values["title"], tuple(values["columns"]), tuple(tuple(row) for row in values["rows"]))
