"""From ranges of queue offsets to Spark tasks, by work: about 250,000 rows or 64 MiB each.

A task costs Spark 12 to 70 ms, so small ranges share one; large ranges are cut at any row, because
the consume queue finds every row by its number, and into even tasks for all cores. The cost is
linear in ranges and tasks; nothing is read here but a few sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

ROWS_PER_TASK = 250_000
BYTES_PER_TASK = 64 << 20
ROWS_PER_SLICE = 1_000
"""What it costs to begin with another queue, counted in rows."""
SLACK = 0.1
"""Tasks grow by so much of one before one more is made."""
SLACK_OF_WAVES = 0.25
"""The same where it saves a wave: Spark runs as many tasks at a time as it has cores, and in a last
wave of few the others wait."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows [start, end) of one topic in one lane.

    `walk_from` is the log offset of a record from which those rows can be found that have no
    consume queue entry yet, none of them beyond `limit` (bytes, both); −1 where all have one.
    """

    topic: str
    lane: int
    start: int
    end: int
    walk_from: int
    limit: int

    @property
    def rows(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Work:
    """A slice and the mean size of its records in bytes."""

    slice: Slice
    record_bytes: float

    @property
    def per_row(self) -> float:
        """Tasks that a row makes."""
        return max(1 / ROWS_PER_TASK, self.record_bytes / BYTES_PER_TASK)


def plan(
    work: Sequence[Work], min_tasks: int | None = None, max_rows: int | None = None, cores: int = 1
) -> list[tuple[Slice, ...]]:
    """Shares the slices out among tasks, in their order. `max_rows` caps the rows of a task; at
    least `min_tasks` come out if there are as many rows. More tasks than `cores` are made in whole
    waves, where nobody asks for a size.
    """
    work = [item for item in work if item.slice.rows > 0]
    rows = sum(item.slice.rows for item in work)
    if not rows:
        return []
    overhead = 0.0 if min_tasks or max_rows else ROWS_PER_SLICE / ROWS_PER_TASK  # who asks for a size gets it
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
            current.append(replace(rest, end=rest.start + taken))
            rest = replace(rest, start=rest.start + taken)
            room -= taken * item.per_row
            rows_left -= taken
    tasks.append(tuple(current))
    return tasks


def share_out(backlog: dict[tuple[str, int], int], limit: int) -> dict[tuple[str, int], int]:
    """How many rows of each queue a batch of at most `limit` rows takes: in proportion to its
    backlog.

    All of the limit is used. What is left over after rounding goes to queues that would get
    nothing, then to the others.
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
