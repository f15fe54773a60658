"""The only door through which threads are started. The caller does not wait for the thread.

`threading.Thread.start` returns when the thread runs. Before that, garbage may be collected in the
new thread, and a user's finalizer may send. The finalizer would need the token or the lock of the
thread that waits for the start, and both would wait for ever. So a first thread, which holds
nothing, starts the thread and waits for it.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
from collections.abc import Callable

from commitlog.errors import NotEnoughThreads

_BEGINNING: set[Background] = set()
"""The objects whose thread does not run yet."""


class Background:
    """A thread that runs `work`, and starts soon. It is a daemon: no program waits for its end.

    Raises NotEnoughThreads if the system has no more of them, or the interpreter ends.
    """

    __slots__ = ("_ended", "_ident", "_name", "_pid", "_work")

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self._work, self._name = work, name
        self._ident: int | None = None
        self._pid = os.getpid()
        try:
            self._ended = _thread.allocate_lock()  # not an Event: an interrupt in its `wait` is lost
            self._ended.acquire()
            _BEGINNING.add(self)
            _thread.start_new_thread(self._begin, ())
        except RuntimeError as error:
            _BEGINNING.discard(self)
            raise NotEnoughThreads(
                f"thread {name} was not started ({error}): raise the limit of processes (ulimit -u, TasksMax, pids.max), or "
                f"free memory; where the program ends, do it before"
            ) from None
        except BaseException:
            _BEGINNING.discard(self)
            raise

    def _begin(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except (RuntimeError, MemoryError):  # there is no other thread to be had than this one
            self._run()

    def _run(self) -> None:
        try:
            _BEGINNING.remove(self)
        except KeyError:
            return  # the other thread runs, too: it was only its start that could not be awaited
        with contextlib.suppress(MemoryError):  # its work can do without
            self._ident = threading.get_ident()
        work = self._work
        del self._work  # it may have this object, and nobody should have to collect the two
        try:
            work()
        finally:
            del work  # what it holds goes before anybody hears of the end: Arrow's streams need the interpreter for it
            self._ended.release()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the thread's end, at most `timeout` seconds. Says whether the thread has ended.

        A forked child has no threads of its parent, so all of them count as ended there. Raises
        RuntimeError in the thread itself.
        """
        if self._pid != os.getpid():
            return True
        if self._ident == threading.get_ident() and self._ended.locked():
            raise RuntimeError(f"thread {self._name} can't wait for its own end")
        has_ended = self._ended.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        if has_ended:
            self._ended.release()
        return has_ended
