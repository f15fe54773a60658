"""Option `maxRowsPerTrigger`: finds how many messages of a typed topic have this many rows.

A property of the message has its number of rows. So only the heads and properties of the next
messages are read, and no values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

QueueKey = tuple[str, int]
"""Topic and lane."""

Messages = Iterator[tuple[int, int]]
"""For each message its number of rows, and the queue offset behind the message."""


def limit_rows(
    ranges: Mapping[QueueKey, tuple[int, int]], most: int, first: QueueKey, messages: Callable[[QueueKey], Messages]
) -> dict[QueueKey, int]:
    """Returns how far to read each queue range in a batch of at most `most` rows.

    The shares are in proportion to the queues' messages. Rows that are left over go to queues that
    have more. A message is never cut. So one queue, `first`, gives one message in any case, and the
    queues take turns in that (`next_first`). Otherwise a queue would wait for ever if its next
    message has more rows than are left. A message with more than `most` rows is a batch of its own.
    `messages` gives the messages of a range. Its errors are raised here.
    """
    ends = {key: begin for key, (begin, _) in ranges.items()}
    waiting = {key: end - begin for key, (begin, end) in ranges.items() if begin < end}
    if not waiting:
        return ends
    turns = sorted(waiting, key=lambda key: (key < first, key))
    queues = {key: _Queue(messages(key), ranges[key]) for key in turns}
    total = sum(waiting.values())
    shares = {key: most * count // total for key, count in waiting.items()}
    taken = queues[turns[0]].take()
    shares[turns[0]] -= taken
    left = most - taken
    for key, queue in queues.items():
        left -= queue.take_up_to(min(shares[key], left))
    for queue in queues.values():
        left -= queue.take_up_to(left)
    return ends | {key: queue.end for key, queue in queues.items()}


def next_first(ranges: Mapping[QueueKey, tuple[int, int]], last: QueueKey) -> QueueKey:
    """Returns the queue that is `first` in the next batch, after `last`."""
    waiting = [key for key, (begin, end) in ranges.items() if begin < end]
    return min((key for key in waiting if key > last), default=min(waiting, default=last))


class _Queue:
    """A range of a queue. `end` says how far its messages are taken.

    Messages without rows are free.
    """

    def __init__(self, messages: Messages, bounds: tuple[int, int]) -> None:
        self.end, self._stop = bounds
        self._messages = messages
        self._next = self._after()

    def _after(self) -> tuple[int, int]:
        return next(self._messages, (0, self._stop))

    def take(self) -> int:
        """Takes the next message. Returns how many rows it has."""
        rows, self.end = self._next
        self._next = self._after()
        return rows

    def take_up_to(self, most: int) -> int:
        """Takes messages with at most `most` rows in all. Returns how many rows they have."""
        taken = 0
        while self._next[1] > self.end and taken + self._next[0] <= most:
            taken += self.take()
        return taken
