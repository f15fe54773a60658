"""Where a reader is in one queue of a RocketMQ store root, and how it passes damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from commitlog.disk.consume_queue import ENTRY_BYTES
from commitlog.errors import CorruptRecord, DamagedFile
from commitlog.message import Message, message_of
from commitlog.reading.forms import BYTES_AT_ONCE, MESSAGES_AT_ONCE, Form, Item, Piece
from commitlog.reading.lane_index import LaneIndex
from commitlog.reading.log_walk import RecentSegments
from commitlog.reading.queue_bounds import record_of_entry
from commitlog.reading.skipped_damage import LogError, SkippedDamage
from commitlog.reading.starting_point import QueueStarts, resolve
from commitlog.reading.time_search import find_by_time
from commitlog.shm.layout import segment_start

_ENTRIES_AT_ONCE = 1_000


def _piece(messages: list[Message], form: Form[Item]) -> Piece[Item]:
    """A piece of a RocketMQ log, whose queues are merged by their records' places in it."""
    places = [message.physical_offset for message in messages]
    return np.array(places, np.int64), [form.of_message(message) for message in messages]


class QueueCursor:
    """Where a reader is in one queue of a RocketMQ store root.

    `where` is the place of its next record in the log.
    """

    def __init__(
        self, index: LaneIndex, topic: str, segments: RecentSegments, starts: QueueStarts, ignore_corrupt: bool
    ) -> None:
        self._index, self._topic, self._segments, self._ignore_corrupt = index, topic, segments, ignore_corrupt
        self._queue = index.consume_queues.named(topic)
        self.damage: LogError | None = None
        """The damage at which the last `read` stopped before the end."""
        known = index.queues[topic]
        self._name = f"{topic}, queue {index.lane}"
        self._skipped = SkippedDamage(self._name)
        self._lost = 0
        self._next = resolve(
            starts.of(topic, index.lane), known.first, known.end, partial(find_by_time, index, topic), where=self._name
        )
        self._stop = known.end
        first, last = (self._entries(offset, 1) for offset in (min(self._next, known.end - 1), known.end - 1))
        self._end = last[0][0] + last[0][1] if last else 0
        self.where = first[0][0] if first and self._next < known.end else self._end

    def begins(self) -> dict[tuple[str, int], int]:
        """Where the queue begins, by topic and lane."""
        return {(self._topic, self._index.lane): self._next}

    def end(self) -> int:
        """The log offset at which the queue's last record ends."""
        return self._end

    def read(self, form: Form[Item]) -> Iterator[Piece[Item]]:
        """Gives the messages from here to the queue's end.

        Their places in the order are their places in the log. At damage it stops, with the error in
        `damage`.
        """
        self.damage = None
        messages: list[Message] = []
        taken = 0
        for message in self._messages():
            messages.append(message)
            taken += len(message.value)
            if len(messages) == MESSAGES_AT_ONCE or taken >= BYTES_AT_ONCE:
                yield _piece(messages, form)
                messages, taken = [], 0
        if messages:
            yield _piece(messages, form)

    def _messages(self) -> Iterator[Message]:
        while self._next < self._stop:
            entries = self._entries(self._next, min(_ENTRIES_AT_ONCE, self._stop - self._next))
            if not entries:
                error = DamagedFile(f"{self._name}: the file with entry {self._next:,} is gone")
                if not self._pass(error, self._next_file()):
                    return
            for where, size, _ in entries:
                try:
                    message = message_of(record_of_entry(self._segments, self._queue, self._next, where, size))
                except (CorruptRecord, DamagedFile) as error:
                    if not self._pass(self._placed(error, where), self._next + 1):
                        return
                    continue
                if not self._queue.offset_is_stored:
                    message = replace(message, topic=self._topic, partition=self._index.lane, offset=self._next)
                yield message
                self.where = where + size
                self._next += 1
        self._skipped.tell(self._lost)

    def _pass(self, error: LogError, upto: int) -> bool:
        """Leaves out the entries before `upto` if it may; otherwise returns False."""
        error = error.with_traceback(None)  # its frames would keep the segments mapped
        if not self._ignore_corrupt:
            self.damage = error
            return False
        self._skipped.add(self._next, error)
        self._lost += upto - self._next
        self._next = upto
        return True

    def _placed(self, error: LogError, where: int) -> LogError:
        """Returns the error with file and offset, which an error of `plain_body` lacks."""
        if not isinstance(error, CorruptRecord) or error.file is not None:
            return error
        start = segment_start(where, self._segments.segment_bytes)
        return CorruptRecord(error.reason, where, str(self._segments.lane_directory.segment_path(start)))

    def _next_file(self) -> int:
        """Finds the first queue offset behind the next one that begins a file of the queue.

        If there is no such file, it is the queue's end.
        """
        with self._index.consume_queues.open(self._topic) as queue:
            begins = (start // ENTRY_BYTES for start in queue.starts())
            return min((begin for begin in begins if self._next < begin < self._stop), default=self._stop)

    def _entries(self, offset: int, count: int) -> list[tuple[int, int, int]]:
        with self._index.consume_queues.open(self._topic) as queue:
            entries: list[tuple[int, int, int]] = queue.entries(offset, count).tolist()
            return entries
