"""Option `maxRowsPerTrigger`: how many messages of a typed topic have so many rows.

A message says its number of rows in a property. So only the heads and properties of the next
messages are read, and no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from commitlog.columns import arrays
from commitlog.columns.arrow_columns import Decoder
from commitlog.columns.segments import SegmentCache
from commitlog.columns.slice_reader import SliceReader
from commitlog.columns.typed_rows import row_counts
from commitlog.spark.resolving import QueueKey, Resolver


@dataclass
class RowLimit:
    """Shares the rows of a query's batches out among its queues: at most `most` rows a batch.

    The shares are in proportion to the queues' messages. What is left over goes to queues that have
    more. A message is never cut. So the queues take turns to be the first one, which gives one
    message in any case: no queue waits for ever because its next message has more rows than are
    left, or more than `most`. In that last case the message is a batch of its own.
    """

    most: int
    _first: QueueKey = ("", -1)
    """The queue that was the first one of the last batch."""

    def ends(self, resolver: Resolver, ranges: Mapping[QueueKey, tuple[int, int]]) -> dict[QueueKey, int]:
        """How far to read each of the queue ranges in the next batch.

        Raises what SliceReader raises.
        """
        ends = {key: begin for key, (begin, _) in ranges.items()}
        waiting = {key: ranges[key][1] - begin for key, begin in ends.items() if begin < ranges[key][1]}
        if not waiting:
            return ends
        self._first = min((key for key in waiting if key > self._first), default=min(waiting))
        queues = {key: _Queue(resolver, key, *ranges[key]) for key in sorted(waiting, key=self._turn)}
        total = sum(waiting.values())
        shares = {key: self.most * messages // total for key, messages in waiting.items()}
        taken = queues[self._first].take()
        shares[self._first] -= taken
        left = self.most - taken
        for key, queue in queues.items():
            left -= queue.take_up_to(min(shares[key], left))
        for queue in queues.values():
            left -= queue.take_up_to(left)
        return ends | {key: queue.end for key, queue in queues.items()}

    def _turn(self, key: QueueKey) -> tuple[bool, QueueKey]:
        return key < self._first, key


class _Queue:
    """A range of a queue: `end` says how far its messages are taken. What has no rows is free."""

    def __init__(self, resolver: Resolver, key: QueueKey, begin: int, end: int) -> None:
        self.end = begin
        self._messages = _messages(resolver, key, begin, end)
        self._next = next(self._messages)

    def take(self) -> int:
        """Takes the next message. Returns how many rows it has."""
        rows, self.end = self._next
        self._next = next(self._messages, self._next)
        return rows

    def take_up_to(self, most: int) -> int:
        """Takes messages of at most so many rows together. Returns how many rows they have."""
        taken = 0
        while self._next[1] > self.end and taken + self._next[0] <= most:
            taken += self.take()
        return taken


def _messages(resolver: Resolver, key: QueueKey, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The rows of each message, and the offset behind it. At last none, and the range's end.

    Messages that retention has removed, or that are left out as corrupt, are passed over.
    """
    plan = resolver.read_plan(tuple(work.slice for work in resolver.work(*key, begin, end)))
    segments = SegmentCache(limit=1)
    for piece in plan.slices:
        for batch in SliceReader(plan, piece, segments).batches(_count_rows):
            yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    yield 0, end


def _count_rows(decoder: Decoder) -> list[pa.RecordBatch]:
    counts = arrays.fixed(np.array(row_counts(decoder), np.int64), pa.int64())
    behind = arrays.fixed(np.arange(decoder.count, dtype=np.int64) + decoder.places.offset + 1, pa.int64())
    return [pa.RecordBatch.from_arrays([counts, behind], names=["rows", "behind"])]
