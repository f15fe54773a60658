"""Merges the values of several lanes by their timestamps, many at a time.

The order is that of `heapq.merge`, which takes one message at a time: among equal timestamps the
earlier lane goes first, and a message that is older than the one before it in its lane follows that
one at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from commitlog.reading.cursors import Values
from commitlog.record.byte_ranges import Ints


class _Lane:
    """The next values of one lane. `times` never go down."""

    def __init__(self, source: Iterator[Values]) -> None:
        self._source, self._last = source, np.iinfo(np.int64).min
        self.times: Ints = np.empty(0, np.int64)
        self.values: Sequence[bytes | memoryview] = []
        self.fill()

    def fill(self) -> None:
        """Reads the lane's next values if none are left."""
        while not len(self.values):
            piece = next(self._source, None)
            if piece is None:
                return
            times, self.values = piece
            if len(times):
                self.times = np.maximum.accumulate(np.maximum(times, self._last))
                self._last = self.times[-1]

    def take(self, count: int) -> tuple[Ints, Sequence[bytes | memoryview]]:
        """The next `count` values, with their times."""
        taken = self.times[:count], self.values[:count]
        self.times, self.values = self.times[count:], self.values[count:]
        return taken


def merged_values(sources: Iterable[Iterator[Values]]) -> Iterator[Sequence[bytes | memoryview]]:
    """All values of the lanes, in the order in which a Reader gives the messages."""
    lanes = [lane for lane in map(_Lane, sources) if lane.values]
    while len(lanes) > 1:
        cut = min(lane.times[-1] for lane in lanes)
        # The first lane that ends at `cut` may go on with that time, before the lanes behind it.
        ends = next(number for number, lane in enumerate(lanes) if lane.times[-1] == cut)
        taken = [
            lane.take(int(np.searchsorted(lane.times, cut, side="right" if number <= ends else "left")))
            for number, lane in enumerate(lanes)
        ]
        order = np.argsort(np.concatenate([times for times, _ in taken]), kind="stable")
        values = [value for _, part in taken for value in part]
        yield [values[number] for number in order.tolist()]
        for lane in lanes:
            lane.fill()
        lanes = [lane for lane in lanes if lane.values]
    for lane in lanes:
        while lane.values:
            yield lane.take(len(lane.values))[1]
            lane.fill()
