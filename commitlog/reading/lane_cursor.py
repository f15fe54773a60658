"""Where a reader is in one lane, and how it passes damage."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from commitlog.errors import CorruptRecord, DamagedFile, DataLoss
from commitlog.message import Message, message_of
from commitlog.native import core
from commitlog.reading.forms import BYTES_AT_ONCE, MESSAGES, MESSAGES_AT_ONCE, Form, Item, Piece
from commitlog.reading.lane_index import LaneIndex
from commitlog.reading.log_holes import LogHoles
from commitlog.reading.log_walk import RecentSegments, Step
from commitlog.reading.queue_order import Fault, QueueOrder
from commitlog.reading.skipped_damage import LogError, SkippedDamage
from commitlog.reading.starting_point import LATEST, QueueStarts, resolve
from commitlog.reading.time_search import find_by_time
from commitlog.record.byte_ranges import Ints
from commitlog.record.lost_crc import LOST_CRC, is_in_good_order, up_to_lost_crc
from commitlog.record.record import Record, decode
from commitlog.record.record_layout import Buffer, Transaction
from commitlog.record.table import RecordGatherer, RecordTable
from commitlog.shm.layout import segment_start

_UNUSUAL = MESSAGES.unwanted | Transaction.PREPARED
"""A record with one of these bits in its SYSFLAG has no plain value, or may be in no queue."""


def _ends_of_pieces(sizes: Ints) -> Iterator[int]:
    """Where each piece of records with these sizes ends."""
    begin, ends = 0, np.cumsum(sizes)
    while begin < len(sizes):
        most = int(ends[begin]) + BYTES_AT_ONCE
        begin = max(min(int(np.searchsorted(ends, most)), begin + MESSAGES_AT_ONCE), begin + 1)
        yield begin


def _checked(table: RecordTable, rows: Ints, buffer: Buffer, unwanted: int, holes: LogHoles) -> RecordTable | None:
    """Checks the CRCs of some records and returns their table.

    None if one of them is damaged, or has one of the `unwanted` bits in its SYSFLAG.
    """
    records = RecordGatherer(buffer, table.buffer_start, queue_id=None, check_crc=True, require_crc=False)
    checked = records.tabulate(table.positions[rows], table.sizes[rows])
    if not checked.has_crc.all() and holes.expects_crc:
        checked = up_to_lost_crc(checked, buffer)
    return None if len(checked) < len(rows) or (checked.sys_flags & unwanted).any() else checked


class LaneCursor:
    """Where a reader is in one lane: `where` is an offset of the log.

    It gives out the messages of each topic from a queue offset on.
    """

    def __init__(self, index: LaneIndex, topics: set[str] | None, starts: QueueStarts, ignore_corrupt: bool) -> None:
        self._index, self._topics, self._ignore_corrupt = index, topics, ignore_corrupt
        self.damage: LogError | None = None
        """The damage at which the last `read` stopped before the limit."""
        self.looked_to = 0
        """The lane's end as of the last `follow`."""
        self._skipped = SkippedDamage(f"lane {index.lane}")
        self._first: dict[str, int] = {}  # topic → the first queue offset to give out
        self._order = QueueOrder()
        self._limit = 0  # of the last `read`
        self._checked = -1  # the limit up to which the ends of all queues were met
        self._given: dict[str, int] = {}
        self._segments = RecentSegments(index.log.lane_directory, index.view.segment_bytes, index.view.channel)
        self._from: dict[str, int] = {}
        self.where = index.records_end
        if starts.is_everything and topics is None:
            self.where = max(index.first, 0)  # everything is read: no need to ask the consume queues
            self._from = {topic: mark.before for topic, mark in index.trims.items()}
            self._begin()
            return
        for topic, known in index.queues.items():
            if topics is not None and topic not in topics:
                continue
            where = f"{topic}, lane {index.lane}"
            offset = resolve(
                starts.of(topic, index.lane), known.first, known.end, partial(find_by_time, index, topic), where=where
            )
            mark = index.trims.get(topic)
            self._from[topic] = max(offset, mark.before) if mark else offset
            if offset < known.end:
                self.where = min(self.where, self._place(topic, offset))
        if index.open_hole is not None and starts.wants_old(topics, index.lane):
            self.where = min(self.where, index.open_hole)  # it may have had the next message of any topic
        wanted = index.queues if topics is None else topics
        old = [topic for topic in wanted if starts.of(topic, index.lane) != LATEST]
        holes = [hole for hole in index.nameless_holes if self._begins_before(hole, old)]
        holes += [hole for hole in index.passed_holes if self._ends_before(hole, old)]
        self.where = min([self.where, *holes])
        self._begin()

    def begins(self) -> dict[tuple[str, int], int]:
        """Where queues begin, by topic and lane: the others do at their first message."""
        return {(topic, self._index.lane): offset for topic, offset in self._from.items()}

    def _ends_before(self, hole: int, topics: Sequence[str]) -> bool:
        """Whether one of the topics has no record behind the hole that begins at this log offset.

        Such a topic may have had messages in the hole. A record of the topic behind the hole would
        tell how many are lost.
        """
        ends = [(topic, self._index.queues.get(topic)) for topic in topics]
        return any(known is None or self._place(topic, known.end - 1) < hole for topic, known in ends)

    def _begins_before(self, hole: int, topics: Sequence[str]) -> bool:
        """Whether the hole that begins at this log offset may have had messages for this reader.

        The hole has none of a queue that was read, or trimmed, up to a record behind the hole.
        """
        befores = [(topic, self._from.get(topic, 0)) for topic in topics]
        return any(not before or self._place(topic, before - 1) <= hole for topic, before in befores)

    def _place(self, topic: str, offset: int) -> int:
        """Finds the log offset from which a walk meets the record of this queue offset.

        If the record's entry can't be believed, it is the log's first offset.
        """
        known = self._index.queues[topic]
        if offset >= known.indexed:
            return max(known.walk_from(offset), 0)
        try:
            return self._index.consume_queues.record(topic, offset).physical_offset
        except (CorruptRecord, DamagedFile):
            return max(self._index.first, 0)

    def end(self) -> int:
        """The log offset up to which the lane may be read now."""
        return self._index.log.limit_now()

    def _open(self, start: int) -> Buffer:
        """The bytes of a segment.

        Raises DataLoss if retention has deleted what this reader has not read yet, and DamagedFile.
        """
        try:
            return self._segments.open(start)
        except FileNotFoundError as error:
            first = self._index.view.limits(self._index.lane).first
            if first <= start:
                path = self._index.log.lane_directory.segment_path(start)
                raise DamagedFile(f"{path}: missing, `commitlog verify` says more") from error
            raise DataLoss(
                f"lane {self._index.lane}: the log below {first:,} was deleted for its age or size before this reader, "
                f"at {self.where:,}, had read it: start it again, or raise retention.reserved_hours or retention.max_bytes"
            ) from error

    def read(self, form: Form[Item]) -> Iterator[Piece[Item]]:
        """Gives the wanted messages from `where` to the lane's limit, in the log's order.

        Their places in the order are their timestamps. It stops at damage, and stores the error in
        `damage`. Raises DataLoss.
        """
        self.damage = None
        before, limit = self._limit, self._index.limit
        if limit < before and limit < self.where:
            raise DataLoss(
                f"lane {self._index.lane} was read up to offset {self.where:,} of its log, and was cut back to {limit:,} "
                "(by `commitlog rejoin`, or a start that found a loss): other messages come there, so make a new reader"
            )
        self._limit = limit
        self._segments.forget_below(self._index.first)
        if self.where >= limit == self._checked:
            return
        self._begin()
        try:
            for piece in self._index.log.walk(self._open, self.where, limit):
                if isinstance(piece, Step):
                    if not (yield from self._pieces(piece, form)):
                        return
                    self.where = piece.next_where
                elif not self._ignore_corrupt:
                    self.where, self.damage = piece.start, piece.error
                    return
                else:
                    self._skipped.add(piece.start, piece.error)
                    self._order.pass_hole()
                    self.where = piece.start if piece.is_open else piece.end
        except DamagedFile as error:  # of the write buffers. Other lanes must come to the end of their pieces
            self.damage = error.with_traceback(None)
            return
        if limit == self._index.limit and not self._check_ends(limit):
            return
        if self._skipped:
            self._skipped.tell(self._missing())

    def follow(self, form: Form[Item]) -> Iterator[Piece[Item]]:
        """Gives the few messages that have come since the index has looked.

        It stops before anything unusual: a new topic, damage, more than one piece. The next look of
        the index, and `read`, know what that is.
        """
        self.looked_to = end = self.end()
        if self.where < self._index.limit or self.damage is not None or self._skipped:
            return
        if core is not None and form is MESSAGES and not self._ignore_corrupt and self._order.has_no_gap:
            yield from self._follow_natively(end)
            if self.where >= end:
                return
        pieces = self._index.log.walk(self._open, self.where, end)
        while True:
            try:
                piece = next(pieces, None)
            except DamagedFile:  # of the write buffers: `read` meets it
                return
            if not isinstance(piece, Step):
                return
            table = piece.table
            rows = self._wanted(table)
            if len(rows):
                checked = None
                if int(table.sizes[rows].sum()) <= BYTES_AT_ONCE and self._order.continues(table, rows):
                    checked = _checked(table, rows, piece.buffer, form.unwanted, self._index.log.holes)
                if checked is None:
                    return
                self._count(checked)
                yield checked.store_timestamps, form.of_table(checked, piece.buffer)
                self._order.pass_rows(table, rows)
            self.where = piece.next_where
            self._index.note_read(self.where, self._order.ends())

    def _follow_natively(self, end: int) -> Iterator[Piece[Any]]:
        """The same as `follow`, up to what only Python looks at."""
        log, order = self._index.log, self._order
        while self.where < end:
            try:
                part = log.part(self._open, self.where, min(end, self.where + BYTES_AT_ONCE))
                if part is None:
                    return
                buffer, start, stop = part
                place = start, self._index.lane, _UNUSUAL
                messages, reached, ends = core.follow(
                    buffer, self.where - start, stop - start, place, order.ends(), self._topics
                )
            except DamagedFile:  # `read` meets it
                return
            if start + reached == self.where:
                return
            if messages:
                yield [message.timestamp for message in messages], messages
            order.advance(ends)
            self.where = start + reached
            self._index.note_read(self.where, ends)

    def _pieces(self, step: Step, form: Form[Item]) -> Generator[Piece[Item], None, bool]:
        """Gives the wanted messages of a step. Returns False if it stopped at damage."""
        table = step.table
        rows = self._wanted(table)
        if not len(rows):
            yield rows, ()
            return True
        buffer = step.buffer
        faults = {} if self._order.continues(table, rows) else self._faults(table, rows, buffer)
        begin = 0
        for end in _ends_of_pieces(table.sizes[rows]):
            some = rows[begin:end]
            checked = None if faults else _checked(table, some, buffer, form.unwanted, self._index.log.holes)
            if checked is not None:
                self._count(checked)
                yield checked.store_timestamps, form.of_table(checked, buffer)
            else:
                # up to the damage; or all of them, because some are compressed
                messages: list[Message] = []
                is_good = self._one_by_one(table, rows, begin, end, faults, buffer, messages)
                times = [message.timestamp for message in messages]
                yield np.array(times, np.int64), [form.of_message(message) for message in messages]
                if not is_good:
                    return False
            begin = end
        strays = [row for row, fault in faults.items() if fault.is_stray]
        self._order.pass_rows(table, np.setdiff1d(rows, strays) if strays else rows)
        return True

    def _one_by_one(
        self,
        table: RecordTable,
        rows: Ints,
        begin: int,
        end: int,
        faults: dict[int, Fault],
        buffer: Buffer,
        messages: list[Message],
    ) -> bool:
        """Adds the messages of rows[begin:end]. At damage it stops and returns False."""
        for number, row in enumerate(rows[begin:end].tolist(), begin):
            position = int(table.positions[row])
            where = table.buffer_start + position
            if row in faults:
                if not self._pass(where, self._missing_record(faults[row], where)):
                    self._order.pass_rows(table, rows[:number])
                    return False
                if faults[row].is_stray:
                    continue
            try:
                message = message_of(self._decode(buffer, position, where))
            except CorruptRecord as error:
                start = segment_start(where, self._index.view.segment_bytes)
                path = self._index.log.lane_directory.segment_path(start)
                if not self._pass(where, CorruptRecord(error.reason, where, str(path))):
                    self._order.pass_rows(table, rows[:number])
                    return False
                continue
            if self._ignore_corrupt:
                self._given[message.topic] = self._given.get(message.topic, 0) + 1
            messages.append(message)
        return True

    def _decode(self, buffer: Buffer, position: int, where: int) -> Record:
        """The record at a position, which is `where` in the log. Raises CorruptRecord."""
        record = decode(buffer, position, physical_offset=where)
        is_bare = bool(record.raw_properties) and not record.has_crc
        if is_bare and self._index.log.holes.expects_crc and not is_in_good_order(record.raw_properties):
            raise CorruptRecord(LOST_CRC, where)
        return record

    def _count(self, table: RecordTable) -> None:
        if self._ignore_corrupt:
            counts = np.bincount(table.topic_index, minlength=len(table.topics)).tolist()
            for topic, count in zip(table.topics, counts, strict=True):
                self._given[topic] = self._given.get(topic, 0) + count

    def _wanted(self, table: RecordTable) -> Ints:
        """Returns the rows of a table to be given out. Raises DataLoss if one was trimmed."""
        # outside of the queues a record has the offset 0: with another one, its sys_flag is damaged
        wanted = table.in_queue | (table.queue_offsets != 0)
        for number, topic in enumerate(table.topics):
            if self._topics is not None and topic not in self._topics:
                wanted &= table.topic_index != number
                continue
            if first := self._from.get(topic):
                wanted &= (table.topic_index != number) | (table.queue_offsets >= first)
            if topic in self._index.trims:
                self._check_trimmed(topic, table.queue_offsets[wanted & (table.topic_index == number)])
        return np.flatnonzero(wanted)

    # ---- damage ---------------------------------------------------------------------------------

    def _pass(self, where: int, error: CorruptRecord) -> bool:
        """Goes on behind damage if it may; otherwise returns False, with the error in `damage`.

        In both cases the next read begins at `where`.
        """
        if self._ignore_corrupt:
            self._skipped.add(error.offset, error)
            return True
        self.where, self.damage = where, error
        return False

    def _faults(self, table: RecordTable, rows: Ints, buffer: Buffer) -> dict[int, Fault]:
        """Returns the rows whose records do not continue their queues, each with its fault."""

        def is_good(row: int) -> bool:
            known = self._index.queues.get(table.topics[table.topic_index[row]])
            position = int(table.positions[row])
            try:
                record = self._decode(buffer, position, table.buffer_start + position)
            except CorruptRecord:
                return False
            return known is not None and record.queue_offset < known.end

        return self._order.faults(table, rows, self._index.first, is_good)

    def _missing_record(self, fault: Fault, where: int) -> CorruptRecord:
        """Makes the error of a fault that was found at a log offset.

        If the consume queue knows the place of a missing record, the error names that place.
        """
        if not fault.is_stray:
            queues = self._index.consume_queues
            with suppress(DamagedFile, OSError, OverflowError, ValueError), queues.open(fault.topic) as queue:
                entries = queue.entries(fault.expected, 1)
                if len(entries) and entries["size"][0] > 0 and 0 <= (at := int(entries["physical_offset"][0])) < where:
                    where = at
        path = self._index.log.lane_directory.segment_path(segment_start(where, self._index.view.segment_bytes))
        return CorruptRecord(fault.reason, where, str(path))

    def _check_ends(self, limit: int) -> bool:
        """Checks that the walk met the last record below the limit in every queue.

        Returns False if one is missing and the reader must stop.
        """
        for fault in list(self._order.ends_missing(self._index.queues)):
            if not self._pass(limit, self._missing_record(fault, limit)):
                return False
            self._order.pass_end(fault.topic, self._index.queues[fault.topic].end)
        self._checked = limit
        return True

    def _check_trimmed(self, topic: str, offsets: npt.NDArray[Any]) -> None:
        """Raises DataLoss if one of these offsets, which are to be given out, was trimmed."""
        before = self._index.trims[topic].before
        if (lost := int((offsets < before).sum())) > 0:
            raise DataLoss(
                f"topic {topic}, lane {self._index.lane}: the messages below offset {before:,} were trimmed before this "
                f"reader had read them, at least {lost:,} from {int(offsets[0]):,} on: start it again"
            )

    def _begin(self) -> None:
        """Notes the first queue offset to give out of each topic.

        Behind it, queue offsets have no gaps: an offset that is not given out is a missing message.
        """
        for topic, known in self._index.queues.items():
            if topic not in self._first and (self._topics is None or topic in self._topics):
                self._first[topic] = max(self._from.get(topic, 0), known.first)
                self._order.begin(topic, self._first[topic])
        for topic, mark in self._index.trims.items():
            self._order.raise_to(topic, mark.before)

    def _missing(self) -> int:
        ends = {topic: self._index.queues[topic].end for topic in self._first if topic in self._index.queues}
        return sum(max(end - self._first[topic] - self._given.get(topic, 0), 0) for topic, end in ends.items())
