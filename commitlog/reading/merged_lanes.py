"""Merges the messages of several lanes by their places in an order, many at a time.

The order is that of `heapq.merge`, which takes one message at a time: among equal places the
earlier lane goes first, and a message with a lower place than the one before it in its lane follows
that one at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic

import numpy as np

from commitlog.reading.forms import Item, Piece
from commitlog.record.byte_ranges import Ints


class _Lane(Generic[Item]):
    """The next messages of one lane. `places` never go down."""

    def __init__(self, source: Iterator[Piece[Item]]) -> None:
        self._source, self._last = source, np.iinfo(np.int64).min
        self.places: Ints = np.empty(0, np.int64)
        self.items: Sequence[Item] = ()

    def fill(self) -> Iterator[Sequence[Item]]:
        """Reads the lane's next messages if none are left. Gives the empty pieces before them."""
        while not len(self.items):
            piece = next(self._source, None)
            if piece is None:
                return
            places, self.items = piece
            if len(places):
                self.places = np.maximum.accumulate(np.maximum(places, self._last))
                self._last = self.places[-1]
            else:
                yield self.items

    def take(self, count: int) -> tuple[Ints, Sequence[Item]]:
        """The next `count` messages, with their places."""
        taken = self.places[:count], self.items[:count]
        self.places, self.items = self.places[count:], self.items[count:]
        return taken


def merged(sources: Iterable[Iterator[Piece[Item]]]) -> Iterator[Sequence[Item]]:
    """All messages of the lanes in their order. Some of what it gives may be empty."""
    sources = list(sources)
    if len(sources) == 1:
        for _, items in sources[0]:
            yield items
        return
    lanes = [_Lane(source) for source in sources]
    for lane in lanes:
        yield from lane.fill()
    lanes = [lane for lane in lanes if lane.items]
    while len(lanes) > 1:
        cut = min(lane.places[-1] for lane in lanes)
        # The first lane that ends at `cut` may go on with that place, before the lanes behind it.
        ends = next(number for number, lane in enumerate(lanes) if lane.places[-1] == cut)
        taken = [
            lane.take(int(np.searchsorted(lane.places, cut, side="right" if number <= ends else "left")))
            for number, lane in enumerate(lanes)
        ]
        order = np.argsort(np.concatenate([places for places, _ in taken]), kind="stable")
        items = [item for _, part in taken for item in part]
        yield [items[number] for number in order.tolist()]
        for lane in lanes:
            yield from lane.fill()
        lanes = [lane for lane in lanes if lane.items]
    for lane in lanes:
        while lane.items:
            yield lane.take(len(lane.items))[1]
            yield from lane.fill()
