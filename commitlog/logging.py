"""A handler for the standard library's `logging` that sends a program's log records to a store.

    import logging, commitlog.logging

    logging.getLogger().addHandler(commitlog.logging.Handler("data/events", topic="logs"))

or, in a configuration of `logging.config.dictConfig`: `{"class": "commitlog.logging.Handler",
"path": "data/events"}`.
"""

from __future__ import annotations

import logging
import os
import threading

from commitlog.client.producer import Producer
from commitlog.disk.store_directory import checked_path
from commitlog.disk.writable_topic import check_writable_name
from commitlog.errors import (
    CommitLogError,
    ConcurrentUse,
    ForkedProducer,
    ProducerClosed,
    RecordError,
    StoreNotRunning,
    StoreStopped,
)
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK
from commitlog.text.lines import printable

FLUSH_SECONDS = 5.0
"""How long `flush` waits at most. `logging.shutdown` calls it when the program ends."""
_RETRY_NS = 5_000_000_000


class Handler(logging.Handler):
    """Appends one message for each record that a program logs.

    The formatter's text is its value, the logger's name its key, the level its tags, and the time
    of the record its born timestamp.

    The handler makes its producer at the first record, once in each process: a forked child leases
    a lane of its own when it logs, and its parent keeps its lane. An error never gets into the
    program; it goes to `handleError`, as with every handler. While the store does not run, or does
    not accept messages, records are dropped, and the handler tries again every five seconds.
    Records that commitlog itself logs inside the handler are left out.

    - `path`, `topic`: where the records go
    - `dropped`: how many records are not in the log

    Raises TopicNotWritable, IllegalArgument, StoreRefused.
    """

    def __init__(self, path: str | os.PathLike[str], topic: str = "logs", level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        check_writable_name(topic)
        self.path, self.topic = checked_path(path), topic
        self.dropped = 0
        self._producer: Producer | None = None
        self._retry_at = LONG_AGO_NS
        self._inside: int | None = None  # the thread that sends
        self._closed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a record. One thread at a time does this, because it holds the handler's lock."""
        thread = threading.get_ident()
        if self._inside == thread and record.name.partition(".")[0] == "commitlog":
            return
        if self._closed or SYSTEM_CLOCK.monotonic_ns() < self._retry_at:
            self.dropped += 1
            return
        outer = self._inside
        try:
            if outer == thread:
                raise ConcurrentUse("a signal handler or a finalizer logs while this thread sends a record: not sent")
            self._inside = thread
            self._send(record)
        except Exception as error:
            if not isinstance(error, CommitLogError) or error.receipt is None:
                self.dropped += 1
            if isinstance(error, CommitLogError) and not isinstance(error, RecordError | ConcurrentUse):
                self._retry_at = SYSTEM_CLOCK.monotonic_ns() + _RETRY_NS
            self.handleError(record)
        finally:
            self._inside = thread if outer == thread else None

    def _send(self, record: logging.LogRecord) -> None:
        value = self.format(record).encode(errors="backslashreplace")
        key, tags = printable(record.name) or None, printable(record.levelname) or None
        born = int(record.created * 1000)
        if self._producer is not None:
            try:
                self._producer.send(self.topic, value, key=key, tags=tags, born_timestamp=born)
                return
            except (ForkedProducer, ProducerClosed, StoreNotRunning, StoreStopped) as error:
                if error.receipt is not None:
                    raise
                self._let_go()  # the store may run again by now, and a child leases a lane of its own
        self._producer = Producer(self.path)
        self._producer.send(self.topic, value, key=key, tags=tags, born_timestamp=born)

    def _let_go(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def flush(self) -> None:
        """Waits until everything sent is flushed, at most `FLUSH_SECONDS`.

        An error goes to `handleError`.
        """
        producer = self._producer
        try:
            if producer is not None:
                producer.flush(timeout=FLUSH_SECONDS)
        except ForkedProducer:
            pass  # the producer is the parent's, and this process has sent nothing
        except Exception:
            self.handleError(self._about(f"records for {self.path} are not flushed"))

    def close(self) -> None:
        """Gives the lane back. What is logged later is dropped."""
        self._closed = True
        try:
            self._let_go()
        except Exception:
            self.handleError(self._about(f"the producer of {self.path} is not closed"))
        super().close()

    def _about(self, text: str) -> logging.LogRecord:
        return logging.LogRecord(__name__, logging.ERROR, __file__, 0, text, None, None)

    def __repr__(self) -> str:
        return f"<Handler {str(self.path)!r} {self.topic} ({logging.getLevelName(self.level)})>"
