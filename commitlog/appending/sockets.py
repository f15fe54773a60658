"""The ZeroMQ sockets of a user's process: made when they are first needed.

They carry hints only, so no error of a socket reaches a caller. The stages look for work without a
wakeup too, and a thread that waits for a notice looks every millisecond. libzmq ends the process if
it can't get the descriptors or the threads for a context, so a context is made only if enough of
both are free.

A thread of its own makes each socket, and nobody waits for it. Python raises an exception from a
signal handler in the main thread only. An exception of this kind may come while a socket is made.
Its traceback would keep a socket that nobody can close, and the end of a context waits for all of
its sockets. Garbage may be collected in any thread that uses a socket, and a finalizer that sends
waits for the producer's token. So a thread that may have the token never waits for another thread
in this module.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import zmq

from commitlog.appending.wakeups import NoticeSubscriber, WakeupSender, new_context
from commitlog.disk.descriptors import are_free
from commitlog.errors import NotEnoughThreads
from commitlog.shm.control_region import ControlRegion
from commitlog.system.threads import Background, if_free

_FIRST_DESCRIPTORS, _MORE_DESCRIPTORS = 10, 3
"""The descriptors that ZeroMQ takes for the first socket of a context, and for one more."""

log = logging.getLogger(__name__)


class Sockets:
    """The sockets of one attachment.

    Any thread may use them, and a signal handler may interrupt that use.
    """

    def __init__(self, pool: Path, control: ControlRegion, notices: tuple[str, ...]) -> None:
        self._pool, self._control, self._publishers = pool, control, notices
        self._lock = threading.RLock()  # a socket is for one thread at a time
        self._making = threading.RLock()  # the making threads'
        self._being_made: set[str] = set()  # stages, and "" for notices
        self._calls: deque[tuple[str, Callable[[WakeupSender], None]]] = deque()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._bells: dict[str, WakeupSender] = {}
        self._notices: NoticeSubscriber | None = None
        self._closed = False
        self._process = os.getpid()  # in a forked child they are the parent's, and the child does not touch them

    def call(self, stage: str, how: Callable[[WakeupSender], None]) -> None:
        """Wakes a stage, by `how`, if it can have the stage's socket.

        It waits for no socket, and for no other thread that uses the sockets: that thread finds
        this call when it is done, and answers it.
        """
        if self._closed or self._process != os.getpid():
            return
        if stage in self._bells:
            self._answer(stage, how)
        else:
            self._make(stage, lambda context: self._make_bell(context, stage))

    def _answer(self, stage: str, how: Callable[[WakeupSender], None]) -> None:
        """Makes this call, and calls that come meanwhile; or leaves it to another thread."""
        calls = self._calls
        calls.append((stage, how))
        while calls and not self._closed:
            for _ in if_free(self._lock):
                try:
                    with contextlib.suppress(IndexError):  # a handler or a finalizer in between takes calls, too
                        while not self._closed:
                            of, call = calls.popleft()
                            call(self._bells[of])
                finally:
                    self._lock.release()
                break
            else:
                return

    def notices(self, lane: int) -> NoticeSubscriber | None:
        """Returns the notices about a lane; None if their socket can't be made, or is being made.

        Only one thread may use them at a time, until `close`.
        """
        if self._notices is None:
            self._make("", lambda context: self._make_notices(context, lane))
        return self._notices

    def _make(self, what: str, make: Callable[[zmq.Context[zmq.Socket[bytes]]], None]) -> None:
        """Starts a thread that makes a socket, unless one does already or that is impossible."""
        if what in self._being_made or self._closed:
            return
        if not are_free(_MORE_DESCRIPTORS if self._context else _FIRST_DESCRIPTORS):
            return
        try:
            self._being_made.add(what)
            Background(lambda: self._work(what, make), "commitlog-socket")
        except BaseException as error:
            self._being_made.discard(what)
            if not isinstance(error, NotEnoughThreads):
                raise
            log.info("%s: a socket can't be had: %s", self._pool, error)

    def _work(self, what: str, make: Callable[[zmq.Context[zmq.Socket[bytes]]], None]) -> None:
        try:
            with self._making:
                if self._closed:
                    return
                if self._context is None:
                    self._context = new_context()
                make(self._context)
        except (NotEnoughThreads, zmq.ZMQError) as error:
            log.info("%s: a socket can't be had: %s", self._pool, error)
        finally:
            self._being_made.discard(what)
        if what in self._bells:
            self._answer(what, WakeupSender.hurry)  # for all who have called meanwhile

    def _make_bell(self, context: zmq.Context[zmq.Socket[bytes]], stage: str) -> None:
        if stage not in self._bells:
            self._bells[stage] = WakeupSender(context, self._pool, stage, self._control.stage_row(stage))

    def _make_notices(self, context: zmq.Context[zmq.Socket[bytes]], lane: int) -> None:
        if self._notices is None:
            self._notices = NoticeSubscriber(context, self._pool, lane, self._publishers)

    def close(self) -> None:
        """Ends all sockets. It may be called again after an interrupt.

        No thread may be waiting for a notice meanwhile.
        """
        if self._process != os.getpid():
            return
        self._closed = True
        with self._making:
            pass  # a thread that makes a socket finishes first, and no other makes one
        with self._lock:
            for bell in self._bells.values():
                bell.close()
            if self._notices:
                self._notices.close()
            if self._context:
                self._context.destroy(linger=0)
                self._context = None
