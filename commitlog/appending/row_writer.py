"""Collects single rows into messages of many, as Kafka's producer collects records into batches."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from commitlog.errors import ForkedProducer, IllegalArgument, IllegalRow, ProducerClosed

SendRows = Callable[[list[Any]], Iterator[int]]
"""Appends rows to the log, and yields how many more of them are in it after each message."""


class RowWriter:
    """Collects the rows of one typed topic. `Producer.rows` makes it.

    **A row that is collected is not accepted yet**: it is in this process's memory, and a kill of
    the process loses it. All collected rows are accepted when there are `max_rows`, when the oldest
    one has waited for `linger_ms`, and by `flush` and `close`. Leaving a with-block closes it.

    A row that does not fit the schema is refused alone, by IllegalRow: the rows around it are sent.
    A thread sends what has waited for `linger_ms`; what it meets, the next call raises.
    """

    def __init__(self, send: SendRows, flush: Callable[[float | None], None], linger_ms: float, max_rows: int) -> None:
        if not (linger_ms >= 0 and max_rows >= 1):
            raise IllegalArgument(f"linger_ms={linger_ms}, max_rows={max_rows}: milliseconds from 0 on, rows from 1 on")
        self._send, self._flush, self._max_rows = send, flush, max_rows
        self._linger_seconds = linger_ms / 1000
        self._rows: list[Any] = []
        self._error: Exception | None = None
        self._closed = self._forked = self._is_sending = self._is_idle = False
        self._lock = threading.RLock()  # lets in a signal handler of the thread that holds it
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        _WRITERS.add(self)

    def append(self, row: Any = None, /, **columns: Any) -> None:
        """Collects one row: its columns by name, or a dictionary, a dataclass or a model.

        The row is not accepted yet. Raises what sending the rows before it raises, and then this
        row is not collected. Raises ProducerClosed after `close`.
        """
        with self._lock:
            if self._error is not None or self._closed:
                self._raise()
            if len(self._rows) >= self._max_rows:
                self._send_all()
            self._rows.append(columns if row is None else row)
            if self._is_idle:
                self._changed.notify()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._send_late, name="commitlog-rows", daemon=True)
                self._thread.start()

    def flush(self, timeout: float | None = None) -> None:
        """Sends what is collected, and returns when all of it is flushed.

        Raises what `Producer.send_rows` and `Producer.flush` raise.
        """
        with self._lock:
            if self._error is not None or self._closed:
                self._raise()
            self._send_all()
        self._flush(timeout)

    def close(self) -> None:
        """Sends what is collected: it is accepted when this returns.

        Raises what `Producer.send_rows` raises. Rows that could not be sent are lost then, and a
        note of the error says how many.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._changed.notify()
            try:
                self._send_all()
            except Exception as error:
                if self._rows:
                    error.add_note(f"{len(self._rows)} collected rows were not sent, and are lost")
                raise
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            self._raise()

    def _raise(self) -> None:
        if self._forked:
            raise ForkedProducer("this writer of rows belongs to the parent process; make a producer in the child")
        error, self._error = self._error, None
        raise error or ProducerClosed("this writer of rows was closed")

    def _send_all(self) -> None:
        """Sends all rows. After an error those that are not in the log stay collected."""
        if self._is_sending:
            return  # a signal handler is inside a call of its own thread, which will send them
        self._is_sending = True
        try:
            while self._rows:
                for sent in self._send(self._rows.copy()):
                    del self._rows[:sent]
        except IllegalRow as error:
            del self._rows[error.row]
            self._is_sending = False
            self._send_all()
            raise
        finally:
            self._is_sending = False

    def _send_late(self) -> None:
        """Sends rows that have waited for long enough, until the writer is closed."""
        with self._lock:
            while not self._closed:
                self._is_idle = not self._rows
                self._changed.wait(None if self._is_idle else self._linger_seconds)
                if self._is_idle or self._closed:
                    continue
                try:
                    self._send_all()
                except Exception as error:
                    self._error = error

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


_WRITERS: weakref.WeakSet[RowWriter] = weakref.WeakSet()


def _close_all() -> None:
    for writer in list(_WRITERS):
        writer.close()


def _forget_in_child() -> None:
    for writer in list(_WRITERS):
        writer._closed = writer._forked = True
        writer._rows, writer._thread = [], None
        writer._lock = threading.RLock()  # a thread of the parent may hold the other one
    _WRITERS.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_in_child)
