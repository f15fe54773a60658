"""How objects show themselves: by a short repr, and in a notebook by a table of HTML.

What is shown may be anybody's bytes. So every text is cut, made printable and escaped here, and no
class writes HTML of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from itertools import islice
from typing import Any, ClassVar

from commitlog.text.lines import printable

CELL_CHARACTERS_MAX, REPR_CHARACTERS_MAX = 200, 60
"""Longer values are cut: in a cell of a table, and in a repr."""
ROWS_MAX = 50
"""A longer table is cut, too. The first rows are shown."""


def shortened(value: object, most: int = REPR_CHARACTERS_MAX) -> str:
    """A value's repr on one line. A long text, or long bytes, are cut, and their length is told."""
    if isinstance(value, str | bytes) and len(value) > most:
        return f"{value[:most]!r}… ({len(value):,} {'characters' if isinstance(value, str) else 'bytes'})"
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


def html_table(title: str, rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """A table of HTML. Texts are shown as they are, other values as Python writes them."""
    lines = [f"<caption>{_cell(title)}</caption>"]
    if heads:
        lines.append(f"<tr>{''.join(f'<th>{_cell(head)}</th>' for head in heads)}</tr>")
    left = iter(rows)
    lines += [f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in islice(left, ROWS_MAX)]
    more = sum(1 for _ in left)
    if more:
        lines.append(f"<tr><td>… {more:,} more</td></tr>")
    return f"<table>{''.join(lines)}</table>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str) and len(value) <= CELL_CHARACTERS_MAX:
        return escape(printable(value))
    return escape(printable(shortened(value, CELL_CHARACTERS_MAX)))


class ShownByFields:
    """Shows a dataclass: the fields named in `_IN_REPR` by its repr, and all in a table."""

    __slots__ = ()
    _IN_REPR: ClassVar[tuple[str, ...]]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={shortened(getattr(self, name))}" for name in self._IN_REPR)
        return f"{type(self).__name__}({shown}, …)"

    def _repr_html_(self) -> str:
        itself: Any = self
        return html_table(type(self).__name__, ((field.name, getattr(self, field.name)) for field in fields(itself)))
