"""Which topics and lanes a store has, and which queue offsets of each may be read now.

Each lane has an index of its own (lane_index.py). A TopicIndex lives as long as its reader. Several
threads must not share one.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from commitlog.disk.locks import is_running
from commitlog.disk.schema_versions import declared_topics
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DamagedFile, ReadingWarning
from commitlog.reading.lane_choice import ALL_LANES, LaneChoice
from commitlog.reading.lane_index import LaneIndex
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.time_search import find_by_time
from commitlog.reading.view import LogView
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK

STOPPED_REREAD_NS = 100_000_000
"""The shortest time between two looks at the limits of a store without a pool, in its files."""

REST_NS = 1_000_000_000
"""The shortest time between two looks whether a store with a pool runs."""

LEFT_OUT_NS = 5_000_000_000
"""A damaged lane is looked at again after this time: somebody may have mended it."""


class TopicIndex:
    """All lanes of a store, or all queue ids of a RocketMQ store root.

    `isolation` is "flushed" or "committed". A damaged lane that is not in `chosen` is no error: it
    is left out for seconds, then it is looked at again. `left_out` has what is wrong with them.
    With `names_unwritten`, as readers have it, there is a warning of messages that are only in
    memory, where nobody writes them to the disk.
    """

    def __init__(
        self,
        view: LogView,
        isolation: str = "flushed",
        chosen: LaneChoice = ALL_LANES,
        *,
        names_unwritten: bool = False,
    ) -> None:
        self.view, self.isolation, self._chosen = view, isolation, chosen
        self._names_unwritten = names_unwritten
        self.left_out: dict[int, str] = {}
        self._left_out_ns = LONG_AGO_NS
        self.lanes: dict[int, LaneIndex] = {}
        self._identity = view.identity
        self.epoch = view.epoch
        """The epoch of the store at the last look."""
        self._refreshed_ns = LONG_AGO_NS
        self.rest_warning = ""
        """The warning that a store that nobody runs has more messages than can be read, or ""."""
        self._looked_at_rest_ns = LONG_AGO_NS

    def refresh(self) -> bool:
        """Looks at the store again. Returns whether anything has moved.

        If another store, or a restored copy of this one, is at the path now, the index begins anew.
        In another epoch of the store, all lanes are read anew: queues may end before their old end.
        Raises DamagedFile, CommitLogError.
        """
        self.view.refresh()
        is_another = self.view.identity != self._identity
        if is_another:
            self._identity, self._refreshed_ns, self.rest_warning = self.view.identity, LONG_AGO_NS, ""
            self._looked_at_rest_ns = LONG_AGO_NS
            self.lanes.clear()
            self.left_out.clear()
        if self.view.epoch != self.epoch:
            self.epoch, self._refreshed_ns = self.view.epoch, LONG_AGO_NS
            for known in self.lanes.values():
                known.forget()
        now = SYSTEM_CLOCK.monotonic_ns()
        if not self.view.live:
            if now - self._refreshed_ns < STOPPED_REREAD_NS:
                return False
            self._refreshed_ns = now
        known_damaged = set(self.left_out)
        if now - self._left_out_ns >= LEFT_OUT_NS:
            self._left_out_ns = now
            self.left_out.clear()
        present = [lane for lane in self.view.lanes() if lane not in self.left_out]
        gone = self.lanes.keys() - set(present)  # somebody has removed their directories
        for lane in gone:
            del self.lanes[lane]
        moved = is_another or bool(gone)
        for lane in present:
            index = self.lanes.get(lane)
            if index is None:
                index = self.lanes[lane] = LaneIndex(self.view, lane, self.isolation)
            try:
                moved = index.refresh() or moved
            except DamagedFile as error:
                if lane in self._chosen:
                    raise
                self.left_out[lane] = str(error)
                del self.lanes[lane]
                moved = moved or lane not in known_damaged
        self._warn_of_rest()
        return moved

    def _warn_of_rest(self) -> None:
        """Warns when there is something new to say: see `rest_warning`."""
        known, self.rest_warning = self.rest_warning, self._rest()
        if self.rest_warning not in ("", known):
            warnings.warn(self.rest_warning, ReadingWarning, stacklevel=3)

    def _rest(self) -> str:
        if self.view.one_log:
            return ""
        if self.view.live:
            now = SYSTEM_CLOCK.monotonic_ns()
            if not self._names_unwritten or now - self._looked_at_rest_ns < REST_NS:
                return self.rest_warning
            self._looked_at_rest_ns = now
            if lanes := self.view.left_in_memory(self.isolation):
                return (
                    f"{self.view.path} does not run, and lane {', '.join(map(str, lanes))} has messages that were accepted "
                    f"and are only in memory: they are not read; `commitlog run` on the store writes them to the disk"
                )
            return ""
        lanes = [lane for lane, index in self.lanes.items() if index.log.goes_on(index.limit)]
        if not lanes or self.view.is_replica:
            return ""
        owner = self.view.foreign_owner
        if owner is not None and is_running(StoreDirectory(self.view.path, self.view.channel), None):
            return (
                f"{self.view.path} is run by user {owner}, whose shared memory this user can't see: what its `positions` "
                f"do not say yet, about a second, is read later"
            )
        return (
            f"{self.view.path} was not stopped properly: lane {', '.join(map(str, lanes))} has more than its `positions` "
            f"say, which is not read; `commitlog run` on the store takes in what is whole of it"
        )

    def topics(self, *, deleted: bool = False) -> list[str]:
        """Topics that have, or had, a message in any lane; sorted.

        With `deleted`, topics count too that were deleted and have had no message since. Their
        queue offsets go on, so a reader that remembers an offset looks at them as well.
        """
        lanes = list(self.lanes.values())  # copies, because threads may ask that do not read
        return sorted({topic for lane in lanes for topic in list(lane.queues) if deleted or not lane.is_deleted(topic)})

    def declared_topics(self) -> list[str]:
        """The topics that have a schema now. Raises StoreDamaged, StoreRefused, DiskError."""
        if self.view.one_log:
            return []
        return declared_topics(StoreDirectory(self.view.path, self.view.channel), self.view.channel)

    def ranges(self, topic: str) -> dict[int, QueueRange]:
        """Returns lane → the range of the topic's messages that may be read there."""
        found = {lane: index.queues.get(topic) for lane, index in list(self.lanes.items())}
        return {lane: known for lane, known in found.items() if known is not None}

    def lane(self, number: int) -> LaneIndex:
        """The index of a lane that was there. Raises DamagedFile if it is left out now."""
        if number in self.left_out:
            raise DamagedFile(self.left_out[number])
        return self.lanes[number]

    def find_by_time(self, topic: str, lane: int, timestamp_ms: int) -> int | None:
        """The queue offset of the first message stored at or after a time (ms), or None."""
        return find_by_time(self.lane(lane), topic, timestamp_ms)


@contextlib.contextmanager
def current_index(view: LogView) -> Iterator[TopicIndex]:
    """The index of a view as it is now. The view is closed at the end of the with-block.

    Raises DamagedFile, CommitLogError.
    """
    with contextlib.closing(view):
        index = TopicIndex(view)
        index.refresh()
        yield index
