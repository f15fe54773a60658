"""Collects single rows into messages of many, as Kafka's producer collects records into batches."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from commitlog.appending.program_end import close_at_end
from commitlog.errors import (
    ConcurrentUse,
    ForkedProducer,
    IllegalArgument,
    IllegalRow,
    MessageTooLarge,
    NotEnoughThreads,
    ProducerClosed,
    RecordError,
)
from commitlog.system.forks import settle
from commitlog.system.threads import Background

if TYPE_CHECKING:
    from commitlog.schemas.single_rows import Taken

_INSIDE_SECONDS = 0.05
_WAS_CLOSED = "this writer of rows was closed"
_OF_PARENT = "this writer of rows belongs to the parent process; make a producer in the child"
Messages = Iterator[tuple[int, Callable[[], object]]]
"""Messages of rows: the number of rows in each, and the function that appends it to the log."""


class Taking(Protocol):
    """Checks and copies single rows. `take` may change when the schema has grown."""

    take: Callable[[Any], Taken]


class RowWriter:
    """Collects the rows of one typed topic. `Producer.rows` makes it.

    **A row that is collected is not accepted yet**: it is in this process's memory, and a kill of
    the process loses it. All collected rows are sent, and accepted, when one row more than
    `max_rows` comes, when the oldest row has waited for `linger_ms`, and by `flush` and `close`.
    The end of a with-block closes the writer.

    A row that does not fit the schema, or is too large for a message, is refused by the `append`
    that brings it: IllegalRow, MessageTooLarge. The rows before and after it are sent. A thread
    sends the rows that have waited for `linger_ms`. If this fails, the next call raises the error,
    and until then the thread rests.

    Threads may share a writer, and a signal handler or a finalizer may append to it. After a
    KeyboardInterrupt in a call the rows of one message may be in the log and collected still: then
    they are sent twice.

    `is_inside` says whether this thread is inside a call of the producer: the thread that sends
    rows, and has the lock, may wait for the end of that call. So nobody waits for the lock there.
    """

    def __init__(
        self,
        taking: Taking,
        messages_of: Callable[[Sequence[Taken]], Messages],
        flush: Callable[[float | None], None],
        linger_ms: float,
        max_rows: int,
        is_inside: Callable[[], bool] = lambda: False,
    ) -> None:
        if isinstance(linger_ms, bool) or not isinstance(linger_ms, int | float) or not linger_ms >= 0:
            raise IllegalArgument(f"linger_ms={linger_ms!r}: it is a number of milliseconds from 0 on")
        self._taking, self._messages_of, self._flush, self._max_rows = taking, messages_of, flush, max_rows
        self._linger_seconds = min(linger_ms / 1000, threading.TIMEOUT_MAX)
        self._is_inside = is_inside
        self._rows: deque[Taken] = deque()
        self._error: Exception | None = None
        self._refused: list[RecordError] = []
        self._closed = self._forked = self._is_sending = self._is_idle = False
        self._room = 0  # so many rows `append` collects without the lock; 0: there is something to see to
        self._lock = threading.RLock()  # lets in a signal handler of the thread that holds it
        self._changed = threading.Condition(self._lock)
        self._thread: Background | None = None
        close_at_end(self, RowWriter._leave_to_parent)

    def append(self, row: Any = None, /, **columns: Any) -> None:
        """Collects one row: its columns by name, or a dictionary, a dataclass or a model.

        The row is not accepted yet. The writer copies the row with everything in it, so the caller
        may change his own row. If the call raises, this row is not collected, and all others are
        kept.

        Raises:
        - IllegalRow: the row does not fit the topic's schema. MessageTooLarge: no message holds it.
        - the errors of sending the rows before it. The call may be tried again then
        - ProducerClosed after `close`, and IllegalArgument
        """
        if row is None or columns:
            if row is not None:
                raise IllegalArgument("append takes a row or its columns by name, not both")
            row = columns
        settle()
        take = self._taking.take  # of the newest schema
        taken = take(row)  # outside of the lock: it may run the user's code
        if len(self._rows) < self._room and type(taken) is tuple:
            self._rows.append(taken)
            if not self._room:  # since a moment ago
                self._see_to_collected()
        else:
            self._append(taken)

    def _append(self, taken: Taken) -> None:
        if self._is_kept_out():
            self._collect_inside(taken)
            return
        with self._lock:
            if self._error is not None or self._closed:
                self._raise()
            is_large = type(taken) is not tuple
            if len(self._rows) >= self._max_rows or is_large:
                self._send_all()
            if self._thread is None:
                self._start_thread()
            if self._is_idle:
                self._changed.notify()  # it looks when this call has ended
                self._is_idle = False  # once is enough
            if self._thread is not None:
                self._give_room()
            if is_large and not self._is_sending:
                self._send_alone(taken)
            else:
                self._rows.append(taken)  # nothing after it may raise: who hears an error tries again
            if self._closed:  # by a signal handler meanwhile
                self._send_all()
                self._raise_refused()

    def _is_kept_out(self) -> bool:
        """Whether this thread must not wait for the lock."""
        return self._is_inside() and not self._lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001

    def _collect_inside(self, taken: Taken) -> None:
        if self._closed:
            raise ForkedProducer(_OF_PARENT) if self._forked else ProducerClosed(_WAS_CLOSED)
        self._rows.append(taken)
        self._tell_inside()

    def _tell_inside(self) -> None:
        """Wakes the thread that sends late rows, for a row that came inside a call of the producer.

        A thread that keeps the lock for long is sending rows. It, or the thread that sends late
        rows, looks for more of them afterwards.
        """
        if self._lock.acquire(timeout=_INSIDE_SECONDS):
            try:
                if self._closed and self._rows:  # it came when `close` had sent the others
                    self._rows.pop()
                    raise ProducerClosed(_WAS_CLOSED)
                if self._thread is None:
                    self._start_thread()
                if self._is_idle:
                    try:  # `suppress` takes memory itself
                        self._changed.notify()
                        self._is_idle = False
                    except MemoryError:
                        pass  # the row is collected, so nothing may raise
            finally:
                self._lock.release()

    def _see_to_collected(self) -> None:
        """Sees to a row that came when the writer was closed, or as the thread went to rest."""
        if self._is_kept_out():
            self._tell_inside()
            return
        with self._lock:
            if self._closed:
                self._send_all()
                self._raise_refused()
            elif self._is_idle:
                try:
                    self._changed.notify()
                except MemoryError:
                    return  # the row is collected, so nothing may raise: the next `append` wakes the thread
                self._is_idle = False

    def _give_room(self) -> None:
        """Lets `append` collect rows without the lock, until somebody sets `_room` to 0."""
        self._room = self._max_rows
        if self._closed:  # by a signal handler or a finalizer meanwhile
            self._room = 0

    def _send_alone(self, row: Taken) -> None:
        """Sends a large row at once, so that its own `append` raises if no message holds it."""
        self._is_sending = True
        try:
            for _, send in self._messages_of([row]):
                send()
        finally:
            self._is_sending = False

    def _start_thread(self) -> None:
        with contextlib.suppress(NotEnoughThreads):  # the next `append` tries it again
            self._thread = Background(self._send_late, "commitlog-rows")

    def flush(self, timeout: float | None = None) -> None:
        """Sends the collected rows, and returns when all of them are flushed.

        Raises what `Producer.send_rows` and `Producer.flush` raise, and ConcurrentUse in a signal
        handler that has interrupted a call that sends rows: flush when the handler has ended.
        Raises IllegalRow if a row does not fit any more, because the topic has another schema now.
        """
        settle()
        self._refuse_inside()
        with self._lock:
            if self._error is not None or self._closed:
                self._raise()
            if self._is_sending:
                raise ConcurrentUse("this thread is sending the rows just now: flush when the signal handler has ended")
            self._send_all()
        self._flush(timeout)
        with self._lock:
            self._raise_refused()

    def _refuse_inside(self) -> None:
        if self._is_kept_out():
            raise ConcurrentUse("this thread is inside a call of the producer: do it when that has returned")

    def close(self) -> None:
        """Sends the collected rows: they are accepted when this returns.

        Raises what `Producer.send_rows` raises. Rows that could not be sent are lost then, and a
        note of the error says how many. Raises ConcurrentUse inside a call of the producer; then
        nothing is done.
        """
        settle()
        self._refuse_inside()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._room = 0  # from here on whoever collects a row sends it
            self._changed.notify()
            before, self._error = self._error, None
            try:
                self._send_all()
                self._raise_refused()
            except Exception as error:
                if self._rows and not self._is_sending:
                    error.add_note(f"{len(self._rows)} collected rows were not sent, and are lost")
                if before is not None:
                    error.add_note(f"before that, the thread that sends late rows met: {before}")
                raise
        if before is not None:
            raise before

    def _raise(self) -> None:
        if self._forked:
            raise ForkedProducer(_OF_PARENT)
        error, self._error = self._error, None
        self._changed.notify()  # the thread goes on
        raise error or ProducerClosed(_WAS_CLOSED)

    def _send_all(self) -> None:
        """Sends all rows that are collected now. Those of other threads may come meanwhile.

        After an error those that are not in the log stay collected.
        """
        if self._is_sending:
            return  # a signal handler is inside a call of its own thread, which will send them
        self._is_sending = True
        try:
            while self._rows:
                pop = self._rows.popleft
                try:
                    for count, send in self._messages_of(list(self._rows)):  # `list` lets no thread in
                        sent = repeat(None, count)
                        send()
                        for _ in sent:  # this takes no memory: what is in the log is never collected still
                            pop()
                    break  # not until there are none: other threads may append all the time
                except IllegalRow as error:  # it did fit when it came
                    self._refused.append(error)
                    del self._rows[error.row]
                except MessageTooLarge as error:  # a message of one row, as smaller ones were made before
                    self._refused.append(error)
                    del self._rows[0]
        finally:
            self._is_sending = False
        if self._closed and self._rows:  # by a signal handler or a finalizer, which has left it to this call
            self._send_all()

    def _raise_refused(self) -> None:
        """Raises the error of a row that was refused after its `append`.

        Errors of further rows are its notes.
        """
        refused, self._refused = self._refused, []
        if refused:
            for other in refused[1:]:
                refused[0].add_note(f"another row was refused: {other}")
            raise refused[0]

    def _send_late(self) -> None:
        """Sends rows that have waited for long enough, until the writer is closed."""
        with self._lock:
            try:
                while not self._closed:
                    self._room = 0  # first: a row that comes from here on is seen here, or sees this
                    is_idle = self._is_idle = not self._rows or self._error is not None
                    if not is_idle:
                        self._give_room()
                    self._changed.wait(None if is_idle else self._linger_seconds)
                    if is_idle or self._closed:
                        continue
                    try:
                        self._send_all()
                    except Exception as error:
                        self._error = error
            except MemoryError as error:  # there was none to wait with: the next call hears of it, and starts another
                self._error, self._thread, self._room = error, None, 0

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _leave_to_parent(self) -> None:
        self._closed = self._forked = True
        self._room = 0
        self._rows, self._thread = deque(), None
        self._lock = threading.RLock()  # a thread of the parent may hold the other one
