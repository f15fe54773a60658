"""Wakes the threads of a server that wait for new rows, when the flusher has flushed some.

A notice is a hint, and may be lost; and a start of the store and a trim give none. So the thread
that hears of notices also looks at the store now and then, for all who wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from commitlog.appending.wakeups import NoticeSubscriber, new_context
from commitlog.errors import CommitLogError
from commitlog.system.clock import SYSTEM_CLOCK

CONNECT_MS = 50
"""How long it may take until notices come."""
LISTEN_MS = 500
"""How long the thread listens at most, before it sees that nobody waits, or at another pool."""
REST_SECONDS = 0.005
"""The least time between two notices that wake: a busy flusher has several a millisecond."""
LOOK_SECONDS = 1.0
"""The time between two looks at the store."""
IDLE_SECONDS = 1.0
"""How long the thread stays when nobody waits."""

log = logging.getLogger(__name__)


class FlushNotices:
    """The notices of one store. Threads may share it; one more listens while somebody waits.

    `look` returns a value that differs once something has changed in the store.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._look, self._looked_ns = look, 0
        self._seen: object = None
        self._changed = threading.Condition()
        self._count = self._waiting = 0
        self._names: dict[str, bool] = {}
        """Those who wait under a name → whether the wait is to end."""
        self._pool: Path | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def count(self) -> int:
        """How many have come. Take it before you look at the store, and then `wait` for more."""
        return self._count

    @property
    def waiting(self) -> int:
        """How many threads wait or rest."""
        return self._waiting

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """While one waits under a name, `end` can end that."""
        with self._changed:
            self._names[name] = False
        try:
            yield
        finally:
            with self._changed:
                self._names.pop(name, None)

    def end(self, name: str) -> None:
        """Ends the wait under a name."""
        with self._changed:
            if name in self._names:
                self._names[name] = True
                self._changed.notify_all()

    def is_ended(self, name: str) -> bool:
        """Whether `end` was called for the wait under this name."""
        return self._names.get(name, False)

    def wait(self, pool: Path | None, count: int, seconds: float, rest: float = 0.0, name: str = "") -> None:
        """Returns when more than `count` have come, or after so many seconds, or at `end(name)`.

        After a notice it rests for `rest` seconds. `pool` is the directory of the store's pool;
        there are no notices where it has none.
        """
        with self._changed:
            self._pool = pool
            self._waiting += 1
            if self._thread is None and pool is not None and not self._closed:
                self._thread = threading.Thread(target=self._listen, name="hears of flushes", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            until = SYSTEM_CLOCK.monotonic_ns() + int(seconds * 1e9)
            while not (self._count > count or self._closed or self.is_ended(name)):
                left = (until - SYSTEM_CLOCK.monotonic_ns()) / 1e9
                if left <= 0:
                    break
                self._changed.wait(left if self._thread is not None else min(left, LOOK_SECONDS))
                if self._thread is None:
                    break  # nobody looks for those who wait
            has_come = self._count > count and not self._closed
        if has_come and rest:
            SYSTEM_CLOCK.sleep(min(rest, seconds))
        with self._changed:
            self._waiting -= 1

    def _listen(self) -> None:
        try:
            with new_context() as context:
                pool = self._next_pool()
                while pool is not None:
                    self._listen_at(context, pool)
                    pool = self._next_pool()
        except (CommitLogError, OSError, zmq.ZMQError) as error:
            log.warning("no notices of flushes for now, new rows are seen later: %s", error)
            with self._changed:
                self._thread = None  # the next one who waits starts another
                self._changed.notify_all()

    def _next_pool(self) -> Path | None:
        """The pool to listen at, or None if the thread has to end, as nobody waits any more."""
        with self._changed:
            is_wanted = self._changed.wait_for(lambda: self._waiting or self._closed, IDLE_SECONDS)
            pool = self._pool if is_wanted and not self._closed else None
            if pool is None:
                self._thread = None
            return pool

    def _has_changed(self) -> bool:
        """Looks whether the store has changed, if it is time. Who waits finds out what is wrong."""
        now = SYSTEM_CLOCK.monotonic_ns()
        if now - self._looked_ns < LOOK_SECONDS * 1e9:
            return False
        self._looked_ns, before = now, self._seen
        try:
            self._seen = self._look()
        except (CommitLogError, OSError) as error:
            self._seen = str(error)
        return self._seen != before

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
                has_come = subscriber.wait(LISTEN_MS) or self._has_changed()
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
