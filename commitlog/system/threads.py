"""The only door through which threads are started. The caller does not wait for what a thread runs.

`threading.Thread.start` returns when the thread runs. Before that, garbage may be collected in the
new thread, and a user's finalizer may send. The finalizer would need the token or the lock of the
thread that waits for the start, and both would wait for ever. So a first thread, which holds
nothing, starts the thread and waits for it.

A thread that finds no memory for its first call ends at once, and only Python's own line on
standard error says so. So whoever starts a thread looks whether it has begun. The caller waits for
the first line of the first thread, and gets an error where that thread has ended before it. The
first thread does the work itself where the other one does not come to it.
"""

from __future__ import annotations

import _thread
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Protocol

from commitlog.errors import NotEnoughThreads

_LOOK_SECONDS, _LOOKS = 0.01, 50
"""How long and how often a caller looks whether its thread has ended; then it is a slow one."""
_BEGIN_SECONDS = 1.0
"""How long the first thread waits for the other one."""

_BEGINNING: set[Background] = set()
"""The objects whose work has not begun yet."""


class Lockable(Protocol):
    """A lock of `threading`."""

    def acquire(self, blocking: bool = ...) -> bool: ...


class Background:
    """A thread that runs `work`, and starts soon. It is a daemon: no program waits for its end.

    Raises NotEnoughThreads if the system has no more of them, if there is no memory for one, or if
    the interpreter ends.
    """

    __slots__ = ("_begun", "_ended", "_ident", "_name", "_pid", "_work")

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self._work, self._name = work, name
        self._ident: int | None = None
        self._pid = os.getpid()
        try:
            self._ended = _locked()  # not an Event: an interrupt in its `wait` is lost
            self._begun = _locked()
            _BEGINNING.add(self)
            self._start_first()
        except RuntimeError as error:
            _BEGINNING.discard(self)
            raise NotEnoughThreads(
                f"thread {name} was not started ({error}): {NotEnoughThreads.hint}; where the program ends, do it before"
            ) from None
        except BaseException:
            _BEGINNING.discard(self)
            raise

    def _start_first(self) -> None:
        """Starts the first thread, and raises RuntimeError if it has ended before it began.

        The wait is short, because a finalizer in that thread may wait for the caller: then the
        thread has begun, too.
        """
        has_begun, mark = _locked(), _thread.allocate_lock()
        find_mark = weakref.ref(mark)
        _thread.start_new_thread(self._begin, (has_begun, mark))
        del mark  # now only the new thread has it
        for _ in range(_LOOKS):
            if has_begun.acquire(timeout=_LOOK_SECONDS):
                return
            if find_mark() is None:
                break
        else:
            return
        if not has_begun.acquire(blocking=False):
            raise RuntimeError("no memory for its first call")

    def _begin(self, has_begun: _thread.LockType, mark: _thread.LockType) -> None:
        has_begun.release()
        try:
            _Unawaited(target=self._run, name=self._name, daemon=True).start()
            if self._begun.acquire(timeout=_BEGIN_SECONDS):
                return
        except (RuntimeError, MemoryError):
            pass
        self._run()  # there is no other thread to be had than this one

    def _run(self) -> None:
        try:
            _BEGINNING.remove(self)
        except KeyError:
            return  # the other thread runs, too: it was only its start that could not be awaited
        self._begun.release()
        try:  # noqa: SIM105  # `suppress` takes memory itself
            self._ident = threading.get_ident()
        except MemoryError:
            pass  # its work can do without
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
        seconds = -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        for _ in _if_taken(partial(self._ended.acquire, True, seconds)):
            self._ended.release()
            return True
        return False


class _Unawaited(threading.Thread):
    """A thread whose `start` does not wait: it would do so for ever for one that has ended."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._started = _NoWait()  # Python has no public way


class _NoWait(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def if_free(lock: Lockable) -> Iterator[bool]:
    """`for _ in if_free(lock): try: … finally: lock.release()` does something if the lock is free.

    An interrupt may come as `acquire` returns, before the `try`, and then nobody would release the
    lock. None can come where a loop takes the next item of an iterator in C.
    """
    return _if_taken(partial(lock.acquire, False))


def _if_taken(acquire: Callable[[], bool]) -> Iterator[bool]:
    return islice(iter(acquire, False), 1)


def are_startable(count: int) -> bool:
    """Whether the system gives this process `count` threads more, at the same time.

    They have ended when this returns, or will soon.
    """
    gate, ended = _locked(), [_locked() for _ in range(count)]

    def pass_through(own: _thread.LockType) -> None:
        gate.acquire()
        gate.release()
        own.release()

    started = 0
    try:
        for own in ended:
            _thread.start_new_thread(pass_through, (own,))
            started += 1
    except RuntimeError:
        return False
    finally:
        gate.release()
        for own in ended[:started]:
            own.acquire(timeout=_LOOK_SECONDS)
    return True


def check_startable(count: int, doing: str) -> None:
    """Raises NotEnoughThreads where `count` threads can't be had. `doing` says what takes them."""
    if not are_startable(count):
        raise NotEnoughThreads(
            f"{doing} takes up to {count} threads, and the system gives fewer: {NotEnoughThreads.hint}"
        )


def _locked() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock
