"""Reads ahead from a server in a thread of its own, for a Reader by URL.

The user's thread never waits for the network: it takes what is there, and sleeps a little where
nothing is. So Ctrl-C, `close`, `poll` and asyncio work as with a directory.

If the server is away, what it has not sent is asked for again, for PATIENCE_SECONDS.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from commitlog.appending.program_end import close_at_end
from commitlog.columns.read_plan import ReadOptions
from commitlog.columns.whole_records import RECORD_COLUMNS
from commitlog.disk.consume_queue import is_light
from commitlog.errors import (
    CommitLogError,
    CorruptRecord,
    DamagedFile,
    DataLoss,
    NotEnoughThreads,
    OffsetOutOfRange,
    ServerBusy,
    ServerError,
    ServerUnavailable,
)
from commitlog.planning.resolving import beyond_end, lost
from commitlog.reading.message_source import Wanted
from commitlog.reading.skipped_damage import LogError
from commitlog.remote.flight_connection import BUSY_PATIENCE_SECONDS, PATIENCE_SECONDS, connection_of
from commitlog.remote.record_pieces import Merged, QueueKey, Records, Waiting, merged, records_of, table_of
from commitlog.remote.remote_index import RemoteIndex
from commitlog.remote.remote_rows import ticket_of
from commitlog.remote.requests import NAMED_WAIT_MS_MAX
from commitlog.system.clock import Clock
from commitlog.system.threads import Background

if TYPE_CHECKING:
    import pyarrow as pa

    from commitlog.columns.read_plan import Slice
    from commitlog.record.table import RecordTable

AHEAD_BYTES = 16 << 20
"""What may wait for the user's thread. It may be passed by one piece."""
_PIECE_BYTES_MOST, _PIECE_BYTES_LEAST = 4 << 20, 64 << 10
"""A queue is read in pieces: no stream is open while the user works."""
_FIRST_ROWS = 64
"""Messages of the first piece of a queue, when nobody knows how large they are."""
_GROWTH = 32
_CLOSE_SECONDS = 5.0
_END_AGAIN_SECONDS = 0.02
_AWAY = (ServerUnavailable, ServerBusy)
_LOOK_AGAIN_SECONDS = 0.1
"""The rest after a failure."""


@dataclass
class _Queue:
    next: int
    """The next queue offset to ask the server for."""
    end: int
    is_light: bool
    waiting: Waiting = field(default_factory=Waiting)
    record_bytes: float = 0.0
    rows: int = 1
    damage: LogError | None = None

    @property
    def is_unfinished(self) -> bool:
        return self.next < self.end and self.damage is None


class Ended(Exception):
    """Says that the user has closed the reader."""


class Fetching:
    """What a server has of the wanted queues, as pieces in their order.

    `next` has the queue offset to begin with, by topic and lane. From `start` on, the index is this
    object's alone.
    """

    def __init__(self, index: RemoteIndex, wanted: Wanted, first: dict[QueueKey, int], clock: Clock) -> None:
        self._index, self._wanted, self._clock = index, wanted, clock
        self._connection = connection_of(index.address)
        isolation = index.isolation
        self._options = ReadOptions(isolation, True, wanted.ignore_corrupt, "records", reader="reader")
        self._one_log, self._path = index.one_log, index.path
        self._store_id, self._identity, self.epoch = index.store_id, index.identity, index.epoch
        self._queues: dict[QueueKey, _Queue] = {}
        self._first = first
        self._failing_since_ns: int | None = None
        self._has_news = False
        """Whether the index has seen what this object has not taken over."""
        self._changed = threading.Condition()
        self._pieces: list[Merged | str] = []
        """What was read, with the texts of warnings between it."""
        self._ahead_bytes = 0
        self._error: Exception | None = None
        self._is_done = self._is_ended = False
        self._thread: Background | None = None
        self._reads = False
        """Whether messages are asked for. Without, the thread only looks which there are."""
        self._waiter, self._waits, self._waits_before = secrets.token_hex(8), 0, 0
        """The name of waits at the server, the number of the present one or 0, that of the last."""
        self._look(self._index)

    # ---- the user's side ------------------------------------------------------------------------

    def take(self) -> Merged | str | None:
        """The next piece, or the text of a warning, or None if there is neither yet.

        Raises what reading raises, and StopIteration when all was read. After damage, reading goes
        on with `go_on`.
        """
        if not self._reads:
            self._begin(reads=True)
        with self._changed:
            if self._pieces:
                piece = self._pieces.pop(0)
                if isinstance(piece, Merged):
                    self._ahead_bytes -= piece.bytes
                    self._changed.notify_all()
                return piece
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._is_done:
                raise StopIteration
            return None

    def wait(self, seconds: float) -> None:
        """Returns when there is something to take, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._error or self._is_done or self._is_ended, seconds)

    def go_on(self) -> None:
        """Looks at damage again, if that is where reading has stopped.

        Raises what has ended the looking, where nobody asks for messages and so hears of it.
        """
        with self._changed:
            if isinstance(self._error, CorruptRecord | DamagedFile) and not self._pieces:
                self._error = None
                self._changed.notify_all()
            elif self._error is not None and not self._reads:
                raise self._error.with_traceback(None)

    def follow(self) -> None:
        """Keeps the index up to date, although nobody asks for messages."""
        if self._thread is None:
            self._begin(reads=False)

    def _begin(self, *, reads: bool) -> None:
        with self._changed:
            self._reads = reads
            self._changed.notify_all()
        if self._thread is None:
            self._thread = Background(self._run, "commitlog-reads")
            close_at_end(self, Fetching._leave_to_parent, holds_data=False)
        elif self._waits:
            Background(self._end_wait, "commitlog-wakes")

    def close(self) -> None:
        """Ends the thread and waits for it."""
        self._end()
        self._end_wait()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _leave_to_parent(self) -> None:
        """The child has no such thread."""

    def end(self) -> None:
        """Ends the thread, soon. What was read ahead is dropped."""
        self._end()
        if self._waits:
            with contextlib.suppress(NotEnoughThreads):  # then it ends some seconds later
                Background(self._end_wait, "commitlog-ends")

    def _end_wait(self) -> None:
        """Ends a wait of the thread at the server, which may only begin there now."""
        number = self._waits
        with contextlib.suppress(CommitLogError, MemoryError):  # a server that is away waits no more
            while number and self._waits == number:
                self._index.end_wait(self._waiter)
                self._clock.sleep(_END_AGAIN_SECONDS)

    def _end(self) -> None:
        with self._changed:
            self._is_ended = True
            self._pieces.clear()
            self._changed.notify_all()

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        """Reads until the end, an error, or `end`."""
        try:
            while self._step():
                pass
        except Ended:
            pass
        except Exception as error:  # the user's thread raises it
            self._post_error(error)
        with self._changed:
            self._is_done = True
            self._changed.notify_all()

    def _step(self) -> bool:
        """Reads a piece of each queue that needs it. False at the end."""
        if not self._reads:
            self._look_again(NAMED_WAIT_MS_MAX)
            return True
        while hungry := {key: queue for key, queue in self._queues.items() if self._is_hungry(queue)}:
            self._fetch(hungry)
        unfinished = [queue.waiting for queue in self._queues.values() if queue.is_unfinished]
        piece = merged([queue.waiting for queue in self._queues.values()], unfinished)
        if piece is not None:
            self._post(piece)
            return True
        if unfinished:
            return True
        damage = next((queue.damage for queue in self._queues.values() if queue.damage is not None), None)
        if damage is not None:
            self._post_error(damage)
            self._wait_for_go()
            self._look_again(0)
            return True
        if not self._wanted.follow:
            return False
        self._look_again(NAMED_WAIT_MS_MAX)
        return True

    def _is_hungry(self, queue: _Queue) -> bool:
        return queue.is_unfinished and not queue.waiting.records

    def _post(self, piece: Merged) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ahead_bytes < AHEAD_BYTES or self._is_ended)
            if self._is_ended:
                raise Ended
            self._pieces.append(piece)
            self._ahead_bytes += piece.bytes
            self._changed.notify_all()

    def warn(self, text: str) -> None:
        """Has the user's thread warn."""
        with self._changed:
            self._pieces.append(text)
            self._changed.notify_all()

    def _post_error(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _wait_for_go(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is None or self._is_ended)
            if self._is_ended:
                raise Ended

    def _check_end(self) -> None:
        if self._is_ended:
            raise Ended

    # ---- what there is --------------------------------------------------------------------------

    def _look_again(self, wait_ms: int) -> None:
        """Looks for more, and waits for it at the server. One that is away is asked for a while."""
        while True:
            try:
                self._waits_before += bool(wait_ms)
                self._waits = self._waits_before if wait_ms else 0
                began_ns, reads = self._clock.monotonic_ns(), self._reads
                self._check_end()
                self._has_news |= self._index.refresh(wait_ms, self._waiter, patient=False)
                self._waits = 0
                if self._has_news or not wait_ms:
                    self._look(self._index)
                    self._has_news = False
                else:
                    self._failing_since_ns = None
                    self._rest_since(began_ns, reads)
            except _AWAY as error:
                self._rest_after(error)
            else:
                return
            finally:
                self._waits = 0

    def _rest_since(self, began_ns: int, reads: bool) -> None:
        """Rests where the server has not waited, because too many others do."""
        left = _LOOK_AGAIN_SECONDS - (self._clock.monotonic_ns() - began_ns) / 1e9
        with self._changed:
            self._changed.wait_for(lambda: self._is_ended or self._reads != reads, max(left, 0.0))

    def _rest_after(self, error: CommitLogError) -> None:
        """Raises the error if there was nothing but errors for too long."""
        now = self._clock.monotonic_ns()
        if self._failing_since_ns is None:
            self._failing_since_ns = now
        patience = BUSY_PATIENCE_SECONDS if isinstance(error, ServerBusy) else PATIENCE_SECONDS
        if now - self._failing_since_ns >= patience * 1e9:
            raise error
        with self._changed:
            self._changed.wait_for(lambda: self._is_ended, _LOOK_AGAIN_SECONDS)

    def _look(self, index: RemoteIndex) -> None:
        """Takes over which queues there are, and where they end.

        A queue that appears later is read from its beginning.
        """
        self.check_store(index)
        topics = self._wanted.topics
        named = [topic for topic in index.topics() if not is_light(topic)] if topics is None else sorted(topics)
        for topic in named:
            known = index.ranges(topic)
            for lane in known:
                if lane not in self._wanted.lanes:
                    continue
                key = (topic, lane)
                try:
                    bounds = known[lane]
                except DamagedFile as error:
                    self._queues.setdefault(key, _Queue(self._first.get(key, 0), 0, is_light(topic))).damage = error
                    continue
                queue = self._queues.get(key)
                if queue is None:
                    queue = _Queue(self._first.get(key, bounds.first), 0, is_light(topic))
                    self._queues[key] = queue
                queue.damage = None
                if self._reads:  # otherwise somebody else does, and says what is lost
                    self._check_queue(index, key, queue, bounds.first, bounds.end)
                queue.end = max(queue.next, bounds.end)

    def _check_queue(self, index: RemoteIndex, key: QueueKey, queue: _Queue, first: int, end: int) -> None:
        """Raises DataLoss if messages are gone that were to be read, or were read.

        Of several hosts, one may be a copy that is behind: then the end goes back for a while. It
        does so, too, where a store that was killed is read before it is started again.
        """
        if queue.next < min(first, end):
            raise DataLoss(f"{self._path}: {lost(*key, queue.next, first, first)}: make a new reader")
        if end < queue.next and len(index.address.hosts) == 1 and not index.warning:
            raise DataLoss(f"{self._path}: {beyond_end(*key, queue.next, end, live=index.live)}: make a new reader")

    def check_store(self, index: RemoteIndex) -> None:
        """Raises DataLoss if the store at the address is not what was read."""
        if index.store_id != self._store_id:
            raise DataLoss(
                f"{self._path} is another store ({index.store_id}) than the one that was read ({self._store_id}): make a "
                "new reader"
            )
        if index.epoch != self.epoch:
            self._check_epoch(index)
        elif index.identity != self._identity and len(index.address.hosts) == 1:
            is_committed = self._options.isolation == "committed"
            booted = (
                ", or its machine was started again, and may have lost what was not flushed" if is_committed else ""
            )
            raise DataLoss(f"{self._path} is a restored copy of the store that was read{booted}: make a new reader")
        self._identity = index.identity

    def _check_epoch(self, index: RemoteIndex) -> None:
        """Checks that the store still has all messages that were read in an earlier epoch."""
        read = {key: queue.next for key, queue in self._queues.items() if queue.next}
        for (topic, lane), end in sorted(index.shared_ends(self.epoch, read).items()):
            had = read[topic, lane]
            if end < had:
                raise DataLoss(
                    f"{self._path}: the messages {end:,} to {had - 1:,} of topic {topic}, lane {lane} are lost, and new ones "
                    "get their offsets: make a new reader. One with a name begins with the new messages"
                )
        self.epoch = index.epoch

    # ---- what the server sends ------------------------------------------------------------------

    def _fetch(self, hungry: dict[QueueKey, _Queue]) -> None:
        """Reads a piece of each of these queues, or what comes of it before the server is away."""
        most = max(min(_PIECE_BYTES_MOST, 2 * AHEAD_BYTES // len(self._queues)), _PIECE_BYTES_LEAST)
        parts = {key: self._index.slices({key: (queue.next, self._stop(queue, most))}) for key, queue in hungry.items()}
        light = [key for key in parts if hungry[key].is_light]
        groups = [[key for key in parts if key not in light], *([key] for key in light)]
        for group in filter(None, groups):
            self._check_end()
            self._fetch_group({key: parts[key][0] for key in group})

    def _stop(self, queue: _Queue, most: int) -> int:
        if queue.is_light and self._wanted.ignore_corrupt:
            return queue.next + 1  # its records don't say which of them were left out
        if queue.record_bytes:
            queue.rows = max(min(int(most / queue.record_bytes), queue.rows * _GROWTH), 1)
        else:
            queue.rows = _FIRST_ROWS
        return min(queue.next + queue.rows, queue.end)

    def _fetch_group(self, parts: dict[QueueKey, Slice]) -> None:
        try:
            for records in self._records(parts):
                self._add(records)
                self._failing_since_ns = None
                self._check_end()
        except _AWAY as error:
            self._rest_after(error)
            return
        except OffsetOutOfRange as error:  # of another epoch, or of a copy that is behind
            self._rest_after(error)
            self._look_again(0)
            return
        except (CorruptRecord, DamagedFile) as error:
            self._note_damage(parts, error)
            return
        self._failing_since_ns = None
        for key, part in parts.items():
            self._queues[key].next = part.end

    def _note_damage(self, parts: dict[QueueKey, Slice], error: LogError) -> None:
        """Finds the queue of an error. The server has sent all good records before it."""
        suspects = {key: part for key, part in parts.items() if self._queues[key].next < part.end}
        if len(suspects) == 1:
            (key,) = suspects
            self._queues[key].damage = error
            return
        if not suspects:
            raise error
        for key, part in suspects.items():
            (rest,) = self._index.slices({key: (self._queues[key].next, part.end)})
            self._fetch_group({key: rest})

    def _add(self, records: Records) -> None:
        queue = self._queues[records.key]
        queue.waiting.add(records)
        queue.record_bytes = records.bytes / len(records)
        queue.next = int(records.table.queue_offsets[-1]) + 1 if not queue.is_light else queue.next + len(records)

    def _records(self, parts: dict[QueueKey, Slice]) -> Iterator[Records]:
        plan = replace(self._index.plan(tuple(parts.values()), self._options), epoch=self.epoch)
        ticket = ticket_of(plan, RECORD_COLUMNS, self._index.address.store)
        for batch, metadata in self._connection.read(ticket, patient=False):
            if metadata:
                text = metadata.decode(errors="replace").removeprefix(f"{self._index.address.store}: ")
                self.warn(f"{self._path}: {text}")
            if batch.num_rows:
                yield self._records_of(batch.column(0), parts)

    def _records_of(self, column: pa.Array, parts: dict[QueueKey, Slice]) -> Records:
        """The records of a batch, which are those that come next of one of the queues."""
        table, buffer = table_of(column, self._path)
        key = table.topics[0], int(table.queue_ids[0])
        if len(parts) == 1:
            (key,) = parts
        queue = self._queues[key] if key in parts else None
        if queue is None or not (queue.is_light or self._comes_next(table, key, queue)):
            raise ServerError(f"{self._path}: the server has sent other records than it was asked for: {key}")
        least, offset = queue.waiting.last, queue.next if queue.is_light else -1
        return records_of(key, table, buffer, by_place=self._one_log, least=least, light_offset=offset)

    def _comes_next(self, table: RecordTable, key: QueueKey, queue: _Queue) -> bool:
        is_one = table.topics == [key[0]] and bool((table.queue_ids == key[1]).all())
        offsets = table.queue_offsets
        if self._wanted.ignore_corrupt:
            return is_one and int(offsets[0]) >= queue.next and bool((np.diff(offsets) > 0).all())
        return is_one and int(offsets[0]) == queue.next and bool((np.diff(offsets) == 1).all())
