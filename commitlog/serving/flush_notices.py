"""Wakes the threads of a server that wait for new rows, when the flusher has flushed some.

A notice is a hint, and may be lost. So who waits looks again after a while, whatever has come.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import zmq

from commitlog.appending.wakeups import NoticeSubscriber
from commitlog.clock import SYSTEM_CLOCK
from commitlog.errors import CommitLogError

CONNECT_MS = 50
"""How long it may take until notices come."""
LISTEN_MS = 500
"""How long the thread listens at most, before it sees that nobody waits, or at another pool."""
REST_SECONDS = 0.005
"""The least time between two notices that wake: a busy flusher has several a millisecond."""
IDLE_SECONDS = 1.0
"""How long the thread stays when nobody waits."""

log = logging.getLogger(__name__)


class FlushNotices:
    """The notices of one store. Threads may share it; one more listens while somebody waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = self._waiting = 0
        self._pool: Path | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def count(self) -> int:
        """How many have come. Take it before you look at the store, and then `wait` for more."""
        return self._count

    def wait(self, pool: Path | None, count: int, seconds: float) -> None:
        """Returns when more than `count` have come, or after so many seconds.

        `pool` is the directory of the store's pool; there are no notices where it has none.
        """
        with self._changed:
            self._pool = pool
            self._waiting += 1
            if self._thread is None and pool is not None and not self._closed:
                self._thread = threading.Thread(target=self._listen, name="hears of flushes", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._count > count or self._closed, seconds)
            self._waiting -= 1

    def _listen(self) -> None:
        try:
            with zmq.Context() as context:
                pool = self._next_pool()
                while pool is not None:
                    self._listen_at(context, pool)
                    pool = self._next_pool()
        except (CommitLogError, OSError, zmq.ZMQError) as error:
            log.warning("no notices of flushes for now, new rows are seen later: %s", error)
            with self._changed:
                self._thread = None  # the next one who waits starts another

    def _next_pool(self) -> Path | None:
        """The pool to listen at, or None if the thread has to end, as nobody waits any more."""
        with self._changed:
            is_wanted = self._changed.wait_for(lambda: self._waiting or self._closed, IDLE_SECONDS)
            pool = self._pool if is_wanted and not self._closed else None
            if pool is None:
                self._thread = None
            return pool

    def _listen_at(self, context: zmq.Context[zmq.Socket[bytes]], pool: Path) -> None:
        subscriber = NoticeSubscriber(context, pool, lane=None)
        try:
            subscriber.wait(CONNECT_MS)
            has_come = True  # perhaps, before it was connected
            while self._next_pool() == pool:
                if has_come:
                    with self._changed:
                        self._count += 1
                        self._changed.notify_all()
                    SYSTEM_CLOCK.sleep(REST_SECONDS)
                has_come = subscriber.wait(LISTEN_MS)
        finally:
            subscriber.close()

    def close(self) -> None:
        """Ends the thread, and all waiting."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()
