"""How a reader of a live store waits: until a stage wakes it, or it sees that words have changed.

Messages that are committed or flushed are published by a stage, which wakes all readers that sleep.
A producer wakes no reader, because it would pay for that at each message. So a reader of accepted
messages looks at the words for a while. Later the producer's next message wakes the committer, and
that wakes the readers. In RocketMQ the broker wakes consumers, in PullRequestHoldService.
"""

from __future__ import annotations

from commitlog.native import core
from commitlog.reading.rests import Rest
from commitlog.reading.view import POSITION_WORDS
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import LANE_ROW_WORDS, LANE_ROWS, Stage
from commitlog.shm.region import Region, RegionError

_PUBLISHER = {"accepted": "committer", "committed": "committer", "flushed": "flusher"}
"""How far a log is read → the stage that wakes its readers."""
_BUSY_NS = 25_000_000
"""So long after a message the next accepted one is looked for."""
_PART_OF_BUSY, _SHORTEST_NS = 200, 50_000
_WARM_NS = 2_000_000
"""While so busy, a reader goes back to Python this often, which keeps its code in the caches."""


class WatchedWords:
    """The positions of a pool's lanes. A thread may sleep here while another closes the reader."""

    def __init__(self, control: ControlRegion, isolation: str) -> None:
        """Raises OSError, RegionError."""
        self.control = control
        publisher = control.stage_row_at(_PUBLISHER[isolation])
        region = Region.attach(control.region.path)  # of its own, which is unmapped when nobody sleeps there
        if region.inode != control.region.inode:
            raise RegionError(f"{region.path} is another pool by now")
        self._is_looked_for, self._wakes = isolation == "accepted", publisher + Stage.WAKES_READERS
        self._words = region.words
        first = control.row_at(0) + POSITION_WORDS[isolation]
        self._watch = core.Watch(region.words, first, LANE_ROW_WORDS, LANE_ROWS, publisher + Stage.ACTIONS)

    @property
    def are_published(self) -> bool:
        """Whether the stage wakes those that sleep here."""
        return bool(self._words[self._wakes])

    def look(self, seen: bytes) -> tuple[bytes, list[int]]:
        """The positions now, and the lanes whose position is not the one in `seen`."""
        return self._watch.look(seen)

    def wait(self, seen: bytes, rest: Rest, limit_ns: int) -> None:
        """Sleeps until the positions are not those in `seen`, or for so long, or until a signal."""
        if self._is_looked_for and rest.idle_ns < _BUSY_NS:
            limit_ns = min(limit_ns, _BUSY_NS - rest.idle_ns, _WARM_NS)
            self._watch.look_for(seen, rest.idle_ns, _PART_OF_BUSY, _SHORTEST_NS, limit_ns)
        else:
            self._watch.wait(seen, limit_ns)
