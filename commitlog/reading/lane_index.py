"""Which topics a lane has, and which queue offsets of each may be read now.

The consume queues know what is dispatched. Records that are flushed (or committed) and not
dispatched yet are found by walking the log, so a slow or dead dispatcher costs readers only time.
The order of the steps matters: first read `dispatched`, then the ends of the consume queues, then
the limit; then walk [dispatched, limit). So everything below this `dispatched` is in the queues,
and everything above it is walked.

Consume queues are an index, and an index may be damaged. So no entry is believed without a check:

- The ends that a bisection finds must name records of that topic, lane and queue offset.
- The ends of all topics must add up to what was counted when the store was stopped.
- The walk must go on where the ends are.

If one of these checks fails, the lane is walked from its first record, with a ReadingWarning. A
damaged entry between the ends is found when its record is read, because each reader checks the
records that it gets.

Messages that were trimmed (disk/trim_marks.py) are below `first`, as if retention had taken them.
Every reader of messages asks this index where a queue begins.

The log may be damaged too. A hole of the log (log_holes.py) hides only the records that were in it:
the walk goes on behind the hole. Readers of the records meet the hole themselves.

A LaneIndex remembers how far it has walked. So another look costs next to nothing while nothing has
moved.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Mapping

import numpy as np

from commitlog.disk.trim_marks import TrimMark, TrimMarks
from commitlog.errors import DamagedFile, DataLoss, ReadingWarning
from commitlog.reading.log_holes import Hole
from commitlog.reading.log_walk import Step
from commitlog.reading.proven_queues import DoubtfulQueue, ProvenQueues
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.readable_log import ReadableLog, RetentionWasQuicker
from commitlog.reading.view import LaneLimits, LogView, PoolKey
from commitlog.record.record_layout import RECORD_BYTES_MIN
from commitlog.shm.layout import segment_start
from commitlog.text.lines import for_shell

WALK_RATHER_BYTES = 8192
"""How many bytes of new log, for each of a lane's queues, the index walks at most.

If the log has grown more, the ends of all consume queues of the lane are read again instead of a
walk.
"""
WAYPOINT_BYTES = 1 << 20
"""Bytes between two waypoints of a topic above `dispatched`.

With the waypoints, a reader of a part walks little more than that part.
"""


class LaneIndex:
    """The queues of one lane.

    `log` is the lane's log, and `consume_queues` are what the disk says. `queues` is what may be
    read of each topic: it comes of both.
    """

    def __init__(self, view: LogView, lane: int, isolation: str) -> None:
        self.view, self.lane = view, lane
        self.log = ReadableLog(view, lane, isolation)
        self.consume_queues = ProvenQueues(self.log)
        self.queues: dict[str, QueueRange] = {}
        self.limit = 0
        """The log offset up to which the index knows the log."""
        self.records_end = 0
        """Where the last whole record below the limit ends: the limit may lie inside the next."""
        self.open_hole: int | None = None
        """Where a hole begins that no record follows. Nobody knows the topics of its messages."""
        self.nameless_holes: tuple[int, ...] = ()
        """Where noted holes begin of which the consume queues do not name all messages."""
        self.passed_holes: tuple[int, ...] = ()
        """Where other holes begin, of which only records behind them tell."""
        self.first = -1
        """The log offset of the first record that was not deleted."""
        self._walked_to = -1
        self._indexed_to = 0
        self._read_to = 0
        self._pool: PoolKey | None = None
        """The pool that had what was read, as long as it may not all be flushed."""
        self._trusts_queues = True
        self._has_told_of_nothing = False
        self._hole_end = 0  # end of the last hole that was walked past
        self._met: set[str] = set()  # topics whose consume queues reach up to the walk, as it has shown
        self._trims = TrimMarks(self.log.lane_directory, view.channel)

    def refresh(self) -> bool:
        """Looks how far the lane has come. Returns whether anything has moved.

        If retention deletes a segment during the look, it looks again at the rest. Raises
        DamagedFile, OSError.
        """
        is_trimmed = not self.view.one_log and self._trims.refresh(self.view.store_id)
        limits = self.view.limits(self.lane)
        if self.log.isolation != "flushed":
            self._check_pool()
        if self.view.live and limits.dispatched < self._indexed_to:
            self.forget()  # a sync of the consume queues failed: until lost entries are placed again, records are walked
        elif self.log.limit_of(limits) < self.limit and self.view.is_replica:
            limits = self.view.limits(self.lane)  # once more: the first look may have met a write
            if self.log.limit_of(limits) < self.limit:
                self.forget()  # `commitlog rejoin` has cut it
        elif self.log.limit_of(limits) <= self.limit and limits.first <= self.first:
            self._trim()
            return is_trimmed
        try:
            return self._look(limits)
        finally:
            self._trim()

    def note_read(self, where: int, ends: Mapping[str, int]) -> None:
        """Notes that somebody has read on, up to a log offset, since the last look.

        `ends` has where topics go on. So what a later look finds lost is missed.
        """
        self._read_to = max(self._read_to, where)
        for topic, end in ends.items():
            if (known := self.queues.get(topic)) is not None:
                known.end = max(known.end, end)

    def _check_pool(self) -> None:
        """Raises DataLoss where a pool is gone with messages that were read and not yet flushed.

        Another pool begins with what is flushed. New messages get the offsets of those lost.
        """
        known, pool, reached = self._pool, self.view.pool_key, max(self.limit, self._read_to)
        kept = reached if known in (None, pool) else self.view.kept_of(known, self.lane)
        if kept is None:  # the next start will tell
            return
        self._pool = pool
        if kept < reached:
            raise DataLoss(
                f"{self.view.path}: lane {self.lane} was read up to offset {reached:,} of its log before all of that was "
                f"flushed, and what is behind {kept:,} was lost with its shared memory: start again"
            )

    def _look(self, limits: LaneLimits) -> bool:
        while True:
            try:
                self._follow(limits)
                return True
            except RetentionWasQuicker:
                limits = self.view.limits(self.lane)
            except DoubtfulQueue as doubt:
                before, limits = limits, self.view.limits(self.lane)
                if limits.first > before.first or limits.entries < 0 <= before.entries:
                    continue  # nothing is wrong: what was looked at was deleted, or is counted anew
                if self.view.one_log:
                    raise DamagedFile(
                        f"{doubt}; a RocketMQ that opens the root builds its consume queues anew"
                    ) from doubt
                self._distrust(str(doubt))

    @property
    def trims(self) -> dict[str, TrimMark]:
        """Topic → which of its messages were trimmed here."""
        return self._trims.marks

    def _trim(self) -> None:
        """Raises the first offset of each trimmed queue to its trim mark.

        The mark may be beyond the queue's end if a killed store is not recovered yet.
        """
        for topic, mark in self._trims.marks.items():
            if known := self.queues.get(topic):
                known.first = max(known.first, min(mark.before, known.end))

    def is_deleted(self, topic: str) -> bool:
        """Whether the topic was deleted, and has had no message here since."""
        mark, known = self._trims.marks.get(topic), self.queues.get(topic)
        return mark is not None and mark.deleted and (known is None or known.end <= mark.before)

    def forget(self) -> None:
        """Makes the next look read everything anew."""
        self.queues.clear()
        self._met.clear()
        self.limit, self.first, self._walked_to, self._indexed_to = 0, -1, -1, 0
        self.records_end, self.open_hole, self.nameless_holes, self.passed_holes = 0, None, (), ()

    def _distrust(self, reason: str) -> None:
        """Stops using the consume queues of this lane.

        From now on the log is walked for everything.
        """
        warnings.warn(
            f"lane {self.lane}: {reason}: the consume queues are passed over and the whole log is walked, which is slow; "
            f"`commitlog run` on {self.view.path} builds them anew",
            ReadingWarning,
            stacklevel=2,
        )
        self.forget()
        self._trusts_queues = False

    def _follow(self, limits: LaneLimits) -> None:
        limit = self.log.limit_of(limits)
        self.log.segments.forget_below(limits.first)
        if self._trusts_queues and (
            self._walked_to < max(limits.first, 0)
            or limits.dispatched - self._walked_to > WALK_RATHER_BYTES * len(self.queues)
        ):
            self._read_queues(limits)
            if self.first < 0 and not self.view.one_log:
                self.nameless_holes = tuple(self.consume_queues.nameless_holes(limits.first, self.queues))
            self._walked_to = max(self._walked_to, self._proving_from(limits), limits.first)
            self._indexed_to = limits.dispatched
            limit = max(limit, self.log.limit_of(self.view.limits(self.lane)))
        elif limits.first > self.first:
            if self._trusts_queues:
                self._read_firsts(limits)
            else:  # nobody knows where the queues begin now
                self.queues.clear()
                self.passed_holes = ()
                self._walked_to = limits.first
        self.first = max(self.first, limits.first)
        self.open_hole = None
        for piece in self.log.pieces(self._walked_to, limit):
            if isinstance(piece, Step):
                self._note(piece)
            elif piece.is_open:  # it may be closed by what comes next
                self.open_hole = piece.start
                self._tell_of_nothing(piece)
            else:
                self._hole_end = self._walked_to = piece.end
                if not self.view.one_log and piece.end > self._indexed_to:
                    self.passed_holes += (piece.start,)
        self.limit = limit
        self.records_end = min(self._walked_to, limit) if self.open_hole is None else limit

    def _tell_of_nothing(self, hole: Hole) -> None:
        """Warns once of a lane that has lost everything, because no topic shows that it existed."""
        if not self.queues and not self._has_told_of_nothing:
            self._has_told_of_nothing = True
            warnings.warn(
                f"lane {self.lane}: nothing of it can be read: {hole.error}; put its files back, or see "
                f"`commitlog verify {for_shell(self.view.path)}`",
                ReadingWarning,
                stacklevel=2,
            )

    def _proving_from(self, limits: LaneLimits) -> int:
        """The log offset from which a walk also checks the consume queues.

        If a store was not stopped properly, it may be a copy that was made while the store ran, and
        its consume queues may be older than its `positions`. So the last segment below `dispatched`
        is walked as well in such a store.
        """
        if self.view.live or self.view.one_log or limits.stopped_properly:
            return limits.dispatched
        return segment_start(max(limits.dispatched - 1, 0), self.view.segment_bytes)

    # ---- consume queues -------------------------------------------------------------------------

    def _read_queues(self, limits: LaneLimits) -> None:
        self._met.clear()
        total = 0
        for topic, (first, end, record_bytes) in self.consume_queues.bounds(self.consume_queues.topics(), limits):
            total += end
            if not end:
                continue
            known = self.queues.setdefault(topic, QueueRange(first, end, end))
            known.first, known.end, known.indexed = first, max(end, known.end), max(end, known.indexed)
            known.record_bytes = record_bytes
        if limits.entries not in (-1, total):
            raise DoubtfulQueue(f"its consume queues end at {total:,} in all, not at {limits.entries:,}")
        self._forget_waypoints(limits.first)

    def _read_firsts(self, limits: LaneLimits) -> None:
        """Finds the first offset of each queue again, after retention has deleted segments."""
        for topic, (first, end, _) in self.consume_queues.bounds(self.queues, limits):
            known = self.queues[topic]
            end = min(end, known.end)
            if end:
                known.first = max(min(first, end), known.first)
                known.indexed = max(end, known.indexed)
        self._forget_waypoints(limits.first)

    def _forget_waypoints(self, first_where: int) -> None:
        """Drops the waypoints of records that have entries by now, or lie below `first_where`."""
        for known in self.queues.values():
            at = bisect_right(known.waypoints, (known.indexed, 1 << 63)) - 1
            del known.waypoints[: max(at, 0)]
            known.waypoints = [(offset, max(where, first_where)) for offset, where in known.waypoints]

    # ---- the walk -------------------------------------------------------------------------------

    def _note(self, step: Step) -> None:
        table = step.table
        in_queue = table.in_queue
        for index, topic in enumerate(table.topics):
            rows = np.flatnonzero((table.topic_index == index) & in_queue)
            if not len(rows):
                continue
            first = int(table.queue_offsets[rows[0]])
            # A number may be damaged. It hides no message, and the log can hold all up to the end.
            end = max(int(table.queue_offsets[rows[-1]]) + 1, first + len(rows))
            most = (step.next_where - max(self.first, 0)) // RECORD_BYTES_MIN
            where = table.buffer_start + int(table.positions[rows[0]])
            known = self.queues.get(topic)
            is_after_hole = self._hole_end > 0 and topic in self._met  # what is missing was in it
            mark = self._trims.marks.get(topic, TrimMark(0))  # a topic goes on there where all else of it is gone
            if self._trusts_queues and first > max(known.end if known else 0, mark.before) and not is_after_hole:
                raise DoubtfulQueue(
                    f"topic {topic}: the consume queue ends before offset {first:,}, the next in the log"
                )
            if known is None:
                begin = 0 if self.first <= 0 else first  # if nothing was deleted, the others are damaged
                known = self.queues[topic] = QueueRange(begin, begin, 0)
                if begin < first:
                    known.waypoints.append((begin, max(self.first, 0)))
            known.end = max(known.end, min(end, max(known.first, mark.before) + most))
            self._met.add(topic)
            last = known.waypoints[-1][1] if known.waypoints else -1
            if last < 0 or where - last >= WAYPOINT_BYTES or last < self._hole_end:
                known.waypoints.append((first, where))
        self._walked_to = step.next_where
