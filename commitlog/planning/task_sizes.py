"""Turns ranges of queue offsets into Spark tasks of about 250,000 rows or 64 MiB each.

A task costs Spark 12 to 70 ms, so small ranges share a task. Large ranges are cut into even tasks
for all cores. They can be cut at any row, because the consume queue finds every row by its number.
The cost of planning is linear in ranges and tasks. Only a few sizes are read here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from commitlog.columns.read_plan import Slice

ROWS_PER_TASK = 250_000
BYTES_PER_TASK = 64 << 20
ROWS_PER_SLICE = 1_000
"""The cost of beginning with another queue, as a number of rows."""
SLACK = 0.1
"""How much larger the tasks may get, as a part of a task, before one more task is made."""
SLACK_OF_WAVES = 0.25
"""The part by which each task may grow if that saves a wave.

Spark runs as many tasks at a time as it has cores. In a last wave of few tasks, the other cores
have nothing to do.
"""


@dataclass(frozen=True, slots=True)
class Work:
    """A slice and the mean size of its records in bytes."""

    slice: Slice
    record_bytes: float

    @property
    def per_row(self) -> float:
        """The part of a task's size that one row takes."""
        return max(1 / ROWS_PER_TASK, self.record_bytes / BYTES_PER_TASK)


def plan(
    work: Sequence[Work], min_tasks: int | None = None, max_rows: int | None = None, cores: int = 1
) -> list[tuple[Slice, ...]]:
    """Shares the slices out among tasks, in their order.

    A task has at most `max_rows` rows. At least `min_tasks` tasks are made if there are that many
    rows. If the user asks for neither, and there are more tasks than `cores`, they are made in
    whole waves.
    """
    work = [item for item in work if item.slice.rows > 0]
    rows = sum(item.slice.rows for item in work)
    if not rows:
        return []
    overhead = 0.0 if min_tasks or max_rows else ROWS_PER_SLICE / ROWS_PER_TASK  # a user's size is kept
    load = sum(overhead + item.slice.rows * item.per_row for item in work)
    count = max(math.ceil(load - SLACK), min_tasks or 1, math.ceil(rows / max_rows) if max_rows else 1)
    if count > cores > 1 and not min_tasks and not max_rows:
        count = cores * math.ceil(load / (1 + SLACK_OF_WAVES) / cores)
    rows_limit = max_rows or rows
    if min_tasks:
        rows_limit = min(rows_limit, max(rows // min_tasks, 1))
    share = load / count
    tasks: list[tuple[Slice, ...]] = []
    current: list[Slice] = []
    room, rows_left = share, rows_limit
    for item in work:
        rest = item.slice
        while rest.rows:
            if current and (room <= 0 or rows_left <= 0):
                tasks.append(tuple(current))
                current, room, rows_left = [], share, rows_limit
            if rest.start == item.slice.start:
                room -= overhead
            fits = math.ceil(room / item.per_row - 1e-9)
            taken = max(1, min(rest.rows, fits, rows_left))
            is_all = taken == rest.rows  # as of most slices, where there are many
            current.append(rest if is_all else replace(rest, end=rest.start + taken))
            rest = replace(rest, start=rest.start + taken)
            room -= taken * item.per_row
            rows_left -= taken
    tasks.append(tuple(current))
    return tasks


def share_out(backlog: dict[tuple[str, int], int], limit: int) -> dict[tuple[str, int], int]:
    """Returns how many rows a batch of at most `limit` rows takes from each queue.

    The shares are in proportion to the queues' backlogs, and the whole limit is used. Rows that are
    left over after rounding go first to queues that would get none, then to the others.
    """
    waiting = {queue: rows for queue, rows in backlog.items() if rows > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    shares = {queue: rows * limit // total for queue, rows in waiting.items()}
    left = limit - sum(shares.values())
    for queue in sorted(waiting, key=lambda queue: (shares[queue] > 0, -waiting[queue], queue)):
        if left <= 0:
            break
        if shares[queue] < waiting[queue]:
            shares[queue] += 1
            left -= 1
    return {queue: rows for queue, rows in shares.items() if rows}
