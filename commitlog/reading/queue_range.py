"""The messages of one queue that may be read. A queue is one topic in one lane."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(slots=True)
class QueueRange:
    """The queue offsets [first, end) of one topic in one lane.

    Messages below offset `indexed` have an entry in the consume queue.
    """

    first: int
    end: int
    indexed: int
    waypoints: list[tuple[int, int]] = field(default_factory=list)
    """(queue offset, log offset) of some records that may have no entry yet, ascending."""
    record_bytes: float = 0
    """The mean size of the records of a small queue, at the last look; 0 if nobody has looked."""

    def walk_from(self, offset: int) -> int:
        """A log offset from which a walk finds this queue offset and all later ones.

        It is −1 if there is nothing to walk.
        """
        at = bisect_right(self.waypoints, (offset, 1 << 63)) - 1
        return self.waypoints[max(at, 0)][1] if self.waypoints else -1
