"""Where a reader without a name is: the next queue offset of each queue that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from commitlog.message import Message

Places = dict[tuple[str, int], int]
"""(topic, lane) → next queue offset."""


class GivenPlaces:
    """Notes the messages that a reader has given out, a piece of the log at a time.

    It hardly costs a reader anything: where queues have no gaps, the last messages of a piece tell
    what its other messages are. With `has_gaps` each message is looked at.
    """

    def __init__(self, *, has_gaps: bool) -> None:
        self._has_gaps = has_gaps
        self._next: Places = {}

    def begin(self, places: Mapping[tuple[str, int], int]) -> None:
        """Notes where queues begin. Others begin at their first message."""
        self._next = dict(places)

    def note(self, piece: Sequence[Message]) -> None:
        """Notes messages that were read, in the order of their queues. Twice is as good as once."""
        unseen, ends = len(piece), Places()
        for message in reversed(piece):
            key, end = (message.topic, message.partition), message.offset + 1
            if key in ends:
                continue
            ends[key] = end
            unseen -= end - self._next.get(key, end)
            if not unseen and not self._has_gaps:
                break  # all others of the piece are before these, in their queues
        self._next |= ends

    def places(self, taken: Iterable[Message], left: Iterable[Message]) -> Places:
        """Where the queues are behind these, which need not be noted, if some are not given out."""
        ends = {(message.topic, message.partition): message.offset + 1 for message in taken}
        first: Places = {}
        for message in left:
            first.setdefault((message.topic, message.partition), message.offset)
        return self._next | ends | first
