"""PySpark's worker daemon with improvements: no needless tracebacks, no pause before a task.

An idle session closes the connections of its spare workers. Each of these workers then fails to
flush an answer that nobody waits for. Over a Unix-domain socket it notices that at once, and prints
a BrokenPipe traceback. Nothing is lost by this, so here the worker just ends.

One of our own errors says in its last line what is wrong, and the way out. So such an error leaves
a worker without its traceback. All other errors keep theirs.

Over TCP, Spark sends a task in two parts. Nagle's algorithm keeps the second part back until the
first is acknowledged, and a worker that has just answered delays its acknowledgement by 40 ms
(delayed ACK). So each task is received with TCP_QUICKACK.

In our own sessions, `spark.python.daemon.module` names this module, and the workers that run tasks
are forked from it. All other workers are forked from `pyspark.daemon`, whatever that option says,
and so are all workers of sessions that users make themselves. The process of a stream's reader is
not forked at all. In these, the modules that Spark imports first (those of the format, its source
and its sink) call `improve_this_worker`.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import traceback
from collections.abc import Generator
from typing import Any

from commitlog.errors import CommitLogError

_DAEMON = "pyspark.daemon"
_PYSPARK = "pyspark."


class _QuietTraceback:
    """Replaces the module `traceback` in the daemon's module."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Prints an exception that a worker can't report to Spark, unless Spark has just gone."""
        if isinstance(sys.exception(), (BrokenPipeError, ConnectionResetError)):
            os._exit(0)  # at once: from Python 3.13 on the unflushed file would complain when it is collected
        traceback.print_exc()


class _ShortTraceback:
    """Replaces the module `traceback` in PySpark's module that reports a worker's errors."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    @staticmethod
    def format_exception(kind: type[BaseException], error: BaseException, frames: Any) -> list[str]:
        """The lines of an exception; one of ours has no traceback."""
        ours = _our_error(error)
        return traceback.format_exception_only(ours) if ours else traceback.format_exception(kind, error, frames)

    @staticmethod
    def format_exc() -> str:
        """Does the same for the exception that is being handled."""
        error = sys.exception()
        ours = _our_error(error) if error else None
        return "".join(traceback.format_exception_only(ours)) if ours else traceback.format_exc()

    @staticmethod
    def TracebackException(  # noqa: N802  # the name of the class that PySpark asks for from 4.3 on
        kind: type[BaseException], error: BaseException, frames: Any, **how: Any
    ) -> traceback.TracebackException:
        """Does the same by an object that formats the exception."""
        ours = _our_error(error)
        return _LastLines(type(ours), ours, None) if ours else traceback.TracebackException(kind, error, frames, **how)


class _LastLines(traceback.TracebackException):
    """An exception without its traceback, and without the exceptions that led to it."""

    def format(self, *_: Any, **__: Any) -> Generator[str, None, None]:
        """The lines that name it."""
        yield from self.format_exception_only()


def _our_error(error: BaseException) -> CommitLogError | None:
    """Returns the exception, or the one behind it, if that is one of ours.

    If a stream's reader could not be made, PySpark stops it nevertheless, and that fails with
    another error in front of ours.
    """
    if isinstance(error, UnboundLocalError) and error.__context__ is not None:
        error = error.__context__
    return error if isinstance(error, CommitLogError) else None


def shorten_errors() -> None:
    """Lets our errors leave this process without a traceback."""
    told_by: Any = importlib.import_module("pyspark.util")
    if not isinstance(told_by.traceback, _ShortTraceback):
        told_by.traceback = _ShortTraceback()


def improve_workers(daemon: Any) -> None:
    """Improves the workers of this process. `daemon` is the module that runs them.

    When Spark is gone, the workers end without a message, inside a query or between two. They
    acknowledge at once the data that Spark sends them. Our errors leave them without a traceback.
    """
    if daemon.traceback is _QuietTraceback:
        return
    shorten_errors()
    daemon.traceback = _QuietTraceback
    os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "true"  # the failure is raised, not printed
    serve = daemon.worker

    def worker(connection: socket.socket, authenticated: bool) -> int:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # lasts until the next answer
        code: int = serve(connection, authenticated)
        return code

    daemon.worker = worker


def improve_this_worker() -> None:
    """Improves a worker that was forked from PySpark's own daemon, from its next task on.

    In other processes of PySpark, only errors get shorter. In users' processes nothing is done.
    """
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", "")
    if name == _DAEMON:
        improve_workers(main)
    elif name.startswith(_PYSPARK):
        shorten_errors()


if __name__ == "__main__":
    from pyspark import daemon

    improve_workers(daemon)
    daemon.manager()
