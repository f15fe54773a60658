"""Checks whether the records that a walk meets continue their queues.

Queue offsets have no gaps. If a record's topic, queue offset or transaction bits are damaged, its
queue has a gap, or the record appears where another record is next. So such damage is seen without
a CRC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from commitlog.reading.queue_range import QueueRange
from commitlog.record.byte_ranges import Ints
from commitlog.record.table import RecordTable


@dataclass(frozen=True, slots=True)
class Fault:
    """A record that does not continue its queue.

    A stray is a record that does not belong to the queue at all. A record that is no stray belongs
    to the queue, but the records before it, from queue offset `expected` on, are missing.
    """

    topic: str
    expected: int
    is_stray: bool
    reason: str


class QueueOrder:
    """Knows the next queue offset of each topic in one lane."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._behind_hole: set[str] = set()
        """Topics without a record since the last hole, in which records of theirs may have been."""

    def begin(self, topic: str, offset: int) -> None:
        """Notes the first queue offset of a topic. A topic that has one already keeps it."""
        self._next.setdefault(topic, offset)

    def raise_to(self, topic: str, offset: int) -> None:
        """Notes that the records of a topic before this queue offset were trimmed."""
        if self._next.get(topic, offset) < offset:
            self._next[topic] = offset

    def ends(self) -> Mapping[str, int]:
        """Topic → the queue offset of the next record."""
        return self._next

    @property
    def has_no_gap(self) -> bool:
        """Whether no topic's next record may be missing in a hole."""
        return not self._behind_hole

    def advance(self, ends: Mapping[str, int]) -> None:
        """Notes the queue offsets of the next records, where no topic may have a gap."""
        self._next.update(ends)

    def pass_hole(self) -> None:
        """Notes that the walk leaves out a hole of the log.

        Each topic's next gap is no fault: the missing records may have been in the hole.
        """
        self._behind_hole.update(self._next)

    def continues(self, table: RecordTable, rows: Ints) -> bool:
        """Whether each record of these rows is the next one in its queue."""
        topics = table.topic_index[rows]
        order = np.argsort(topics.astype(np.uint16), kind="stable") if len(table.topics) > 1 else slice(None)
        counts = np.bincount(topics, minlength=len(table.topics))
        begins = np.array([self._next.get(topic, -1) for topic in table.topics])
        begins -= np.cumsum(counts) - counts
        expected = np.repeat(begins, counts) + np.arange(len(rows))
        return bool((table.queue_offsets[rows][order] == expected).all())

    def pass_rows(self, table: RecordTable, rows: Ints) -> None:
        """Notes that the records in these rows were given out or left out."""
        ends = np.full(len(table.topics), -1)
        ends[table.topic_index[rows]] = table.queue_offsets[rows] + 1  # of several, numpy keeps the last
        for topic, end in zip(table.topics, ends.tolist(), strict=True):
            if end >= 0:
                self._next[topic] = end
                self._behind_hole.discard(topic)

    def faults(
        self, table: RecordTable, rows: Ints, first_where: int, is_good: Callable[[int], bool]
    ) -> dict[int, Fault]:
        """Returns the rows whose records do not continue their queues, each with its fault.

        Retention has deleted the log below offset `first_where` meanwhile, so any queue offset is
        right there. `is_good` checks the record of a row. It is called only if the records behind
        that record do not tell whether it is a stray.
        """
        expected, behind_hole = dict(self._next), set(self._behind_hole)
        found: dict[int, Fault] = {}
        for row, following in zip(rows.tolist(), _following(table, rows), strict=True):
            topic, offset = table.topics[table.topic_index[row]], int(table.queue_offsets[row])
            is_known = table.buffer_start + int(table.positions[row]) >= first_where
            wanted = expected.get(topic, -1) if is_known else offset
            if offset != wanted:
                is_stray = (
                    offset < wanted or wanted < 0 or (following <= offset if following >= 0 else not is_good(row))
                )
                if is_stray:
                    reason = f"a record says that it is offset {offset:,} of topic {topic}, which is not next there"
                    found[row] = Fault(topic, wanted, True, reason)
                    continue
                if topic not in behind_hole:
                    found[row] = Fault(topic, wanted, False, _missing(topic, wanted, offset))
            expected[topic] = offset + 1
            behind_hole.discard(topic)
        return found

    def ends_missing(self, queues: Mapping[str, QueueRange]) -> Iterator[Fault]:
        """Gives a fault for each queue whose last records were not met in the whole log."""
        for topic, wanted in self._next.items():
            known = queues.get(topic)
            if known is not None and wanted < known.end and topic not in self._behind_hole:
                yield Fault(topic, wanted, False, _missing(topic, wanted, known.end))

    def pass_end(self, topic: str, end: int) -> None:
        """Notes that the records of a topic before this queue offset are left out."""
        self._next[topic] = end


class LogOrder:
    """Checks the order of queues in a walk that gives out no messages: of `verify` or a recovery.

    `begin` returns a topic's next queue offset at the begin of the walk; None if nobody knows it.
    """

    def __init__(self, begin: Callable[[str], int | None]) -> None:
        self._order, self._begin = QueueOrder(), begin
        self._met: set[str] = set()
        self._has_hole = False

    def pass_hole(self) -> None:
        """Notes that the walk passes a hole, in which records of any topic may have been."""
        self._order.pass_hole()
        self._has_hole = True

    def faults(self, table: RecordTable, count: int) -> list[tuple[int, str]]:
        """Checks the first `count` records of a table, all of which have good CRCs.

        Returns the log offset and the reason of each record that does not continue its queue.
        """
        rows = np.flatnonzero(table.in_queue[:count])
        for number, topic in enumerate(table.topics):
            if topic not in self._met and len(own := rows[table.topic_index[rows] == number]):
                self._met.add(topic)
                known = None if self._has_hole else self._begin(topic)
                self._order.begin(topic, int(table.queue_offsets[own[0]]) if known is None else known)
        found: dict[int, Fault] = {}
        if not self._order.continues(table, rows):
            found = self._order.faults(table, rows, 0, lambda _row: True)
        strays = [row for row, fault in found.items() if fault.is_stray]
        self._order.pass_rows(table, np.setdiff1d(rows, strays))
        return [(int(table.physical_offsets[row]), fault.reason) for row, fault in found.items()]


def _following(table: RecordTable, rows: Ints) -> list[int]:
    """Returns for each row the queue offset of its topic's next row; −1 for the last row."""
    behind: dict[int, int] = {}
    found = []
    for row in rows[::-1].tolist():
        topic = int(table.topic_index[row])
        found.append(behind.get(topic, -1))
        behind[topic] = int(table.queue_offsets[row])
    return found[::-1]


def _missing(topic: str, begin: int, end: int) -> str:
    which = f"offset {begin:,}" if end - begin == 1 else f"the offsets [{begin:,}, {end:,})"
    return f"the log has no record of {which} of topic {topic}, which was stored"
