"""PySpark's worker daemon with two improvements: no needless tracebacks, no pause before a task.

An idle session closes the connections of its spare workers. Each of these workers then fails to
flush an answer that nobody waits for. Over a Unix-domain socket it notices that at once, and prints
a BrokenPipe traceback. Nothing is lost by this, so here the worker just ends.

Over TCP, Spark sends a task in two parts. Nagle's algorithm keeps the second part back until the
first is acknowledged, and a worker that has just answered delays its acknowledgement by 40 ms
(delayed ACK). So each task is received with TCP_QUICKACK.

In our own sessions, `spark.python.daemon.module` names this module, and the workers that run tasks
are forked from it. All other workers are forked from `pyspark.daemon`, whatever that option says,
and so are all workers of sessions that users make themselves. In these, the modules that Spark
imports first (those of the format, its source and its sink) call `improve_this_worker`.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from typing import Any

_DAEMON = "pyspark.daemon"


class _QuietTraceback:
    """Replaces the module `traceback` in the daemon's module."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Prints an exception that a worker can't tell Spark of, unless Spark has just left it."""
        if isinstance(sys.exception(), (BrokenPipeError, ConnectionResetError)):
            os._exit(0)  # at once: from Python 3.13 on the unflushed file would complain when it is collected
        traceback.print_exc()


def improve_workers(daemon: Any) -> None:
    """Improves the workers of this process. `daemon` is the module that runs them.

    When Spark is gone, they end without a message, in the middle of a query or between two. And
    they acknowledge at once what Spark sends them.
    """
    if daemon.traceback is _QuietTraceback:
        return
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
    """Does the same in a worker that was forked from PySpark's own daemon, from its next task on.

    In any other process it does nothing.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == _DAEMON:
        improve_workers(main)


if __name__ == "__main__":
    from pyspark import daemon

    improve_workers(daemon)
    daemon.manager()
