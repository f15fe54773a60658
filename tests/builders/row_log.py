"""Stands for a typed topic that a RowWriter sends to: takes any row, and keeps what is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from commitlog.appending.row_writer import Messages


class AsItIs:
    """Takes any row."""

    def __init__(self) -> None:
        self.take: Callable[[Any], tuple[Any, ...]] = lambda row: (row, None)


class Log:
    """Stands for a log that fails now and then: `errors` has what the next calls raise."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors, self.rows = list(errors), list[Any]()

    def messages_of(self, rows: Sequence[Any]) -> Messages:
        for start in range(0, len(rows), 2):
            error = self.errors.pop(0) if self.errors else None
            if error is not None:
                raise error
            yield len(rows[start : start + 2]), partial(self.rows.extend, [row for row, *_ in rows[start : start + 2]])
