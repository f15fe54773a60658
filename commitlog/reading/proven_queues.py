"""The consume queues of one lane, believed only where the log proves them.

Consume queues are an index, and an index may be damaged. The ends that a bisection finds must name
records of that topic, lane and queue offset. A damaged entry between the ends is found when its
record is read, because each reader checks the records that it gets.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from commitlog.disk.consume_queue import ConsumeQueue, is_light
from commitlog.disk.quarantine import is_noted
from commitlog.errors import CorruptRecord, DamagedFile
from commitlog.reading.log_holes import Hole
from commitlog.reading.nameless_damage import nameless_damage
from commitlog.reading.queue_bounds import NamedQueue, QueueBounds, record_of_entry
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.readable_log import ReadableLog
from commitlog.reading.rocketmq_bounds import rocketmq_bounds
from commitlog.reading.small_queues import have_records, small_queues
from commitlog.reading.view import LaneLimits
from commitlog.record.record import Record
from commitlog.record.record_layout import RECORD_BYTES_MIN
from commitlog.shm.layout import segment_start

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What this process may lack says nothing of a consume queue."""


class ProvenQueues:
    """The consume queues of one lane, and the records that their entries name."""

    def __init__(self, log: ReadableLog) -> None:
        self._log, self._view, self._directory = log, log.view, log.lane_directory

    def topics(self) -> list[str]:
        """The topics that have a consume queue here. Raises DoubtfulQueue."""
        try:
            return self._view.channel.list(self._directory.consumequeue)
        except NotADirectoryError as error:
            raise DoubtfulQueue(f"{self._directory.consumequeue} is no directory") from error

    def open(self, topic: str) -> ConsumeQueue:
        """Opens the topic's consume queue; the caller closes it."""
        return ConsumeQueue(self._directory.queue_path(topic), channel=self._view.channel)

    def named(self, topic: str) -> NamedQueue:
        """Topic and lane, which all records of a consume queue have in common."""
        return NamedQueue(topic, self._log.lane, offset_is_stored=not (self._view.one_log and is_light(topic)))

    def bounds(self, topics: Iterable[str], limits: LaneLimits) -> Iterator[tuple[str, Bounds]]:
        """The bounds of each topic's records that are below `dispatched` and not deleted.

        Entries behind them may name records that were lost with a pool. Raises DoubtfulQueue,
        and OSError for what this process lacks.
        """
        wanted, known = list(topics), dict[str, Bounds]()
        if not self._view.one_log:
            known = self._bounds_of_small(wanted, limits)
        for topic in wanted:
            yield topic, known[topic] if topic in known else Bounds(*self._bounds(topic, limits))

    def _bounds_of_small(self, topics: list[str], limits: LaneLimits) -> dict[str, Bounds]:
        """The bounds of those queues that are small, and proven."""
        small = small_queues(self._directory, topics, limits.first, limits.dispatched, self._view.channel)
        proven = have_records(self._log.segments, self._log.lane, small)
        firsts = small.firsts if limits.first > 0 else np.zeros_like(small.firsts)
        columns = small.topics, firsts.tolist(), small.ends.tolist(), small.record_bytes.tolist(), proven.tolist()
        return {topic: Bounds(*bounds) for topic, *bounds, is_proven in zip(*columns, strict=True) if is_proven}

    def _bounds(self, topic: str, limits: LaneLimits) -> tuple[int, int]:
        with self.open(topic) as queue:
            try:
                if self._view.one_log:
                    return rocketmq_bounds(queue, limits, partial(self.record_of, topic, queue))
                first, end = QueueBounds(queue, limits.first, limits.dispatched).find()
                for offset in {first, end - 1} if first < end else ():
                    self._check_entry(topic, queue, offset)
            except (DamagedFile, CorruptRecord, OSError, OverflowError, ValueError) as error:
                if getattr(error, "errno", None) in _SHORTAGES:
                    raise
                raise DoubtfulQueue(f"topic {topic}: {error}") from error
        return (0 if limits.first <= 0 else first), end  # if nothing was deleted, all before `first` are lost

    def _check_entry(self, topic: str, queue: ConsumeQueue, offset: int) -> None:
        try:
            self.record_of(topic, queue, offset)
        except (DamagedFile, CorruptRecord):
            entry = queue.entries(offset, 1)
            if not len(entry):
                raise
            where, size = int(entry["physical_offset"][0]), int(entry["size"][0])
            deleted_since = where < self._view.limits(self._log.lane).first
            if not deleted_since and not is_noted(self._directory, where) and not self._is_in_hole(where, size):
                raise

    def _is_in_hole(self, where: int, size: int) -> bool:
        """Whether an entry points into a hole of the log. Then the entry itself may be right."""
        if self._view.one_log or where < 0 or size < RECORD_BYTES_MIN:
            return False
        for piece in self._log.pieces(segment_start(where, self._view.segment_bytes), self._log.limit_now()):
            if isinstance(piece, Hole) and piece.start <= where and where + size <= piece.end:
                return True
            if (piece.end if isinstance(piece, Hole) else piece.next_where) > where:
                break
        return False

    def nameless_holes(self, first: int, queues: Mapping[str, QueueRange]) -> Iterator[int]:
        """Where noted holes begin of which these queues do not name all messages.

        Damage may have been healed since it was noted, so the log itself is asked, too.
        """
        noted = nameless_damage(self._directory, first, queues, self.open, self._view.channel)
        limit = self._log.limit_now()
        return (where for where in noted if where < limit and not self._log.holes.has_record(where))

    def record(self, topic: str, offset: int) -> Record:
        """The record that the entry of a queue offset names.

        Raises CorruptRecord for an entry that names another record, DamagedFile.
        """
        with self.open(topic) as queue:
            return self.record_of(topic, queue, offset)

    def record_of(self, topic: str, queue: ConsumeQueue, offset: int, *, check_crc: bool = False) -> Record:
        """The same, of a queue that is open already."""
        entry = queue.entries(offset, 1)
        if not len(entry) or not entry["size"][0]:
            raise DamagedFile(f"{queue.directory}: there is no entry {offset}")
        where, size = int(entry["physical_offset"][0]), int(entry["size"][0])
        return record_of_entry(self._log.segments, self.named(topic), offset, where, size, check_crc=check_crc)


class Bounds(NamedTuple):
    """The queue offsets [first, end), and the mean size of these records; 0 if nobody knows it."""

    first: int
    end: int
    record_bytes: float = 0


class DoubtfulQueue(Exception):
    """Something in a consume queue can't be right; the text says what."""
