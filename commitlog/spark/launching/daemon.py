"""PySpark's worker daemon, without the tracebacks of workers that Spark has let go, and without a
pause before each task.

A session that idles closes its spare workers' connections. Each of them then fails to flush an
answer that nobody waits for; over a Unix-domain socket it notices at once and prints a BrokenPipe
traceback. Nothing is lost by it, so such a worker just ends here.

Over TCP, Spark sends a task in two parts: its algorithm (Nagle's) keeps the second back until the
first is acknowledged, and a worker that has just answered puts that off for 40 ms (delayed ACK). So
each task is received with TCP_QUICKACK.

This module is `spark.python.daemon.module` of our own sessions, for the workers that run tasks. All
others are forked from `pyspark.daemon` whatever that says, and so are all workers of anybody's own
session: the modules that Spark imports into them first, which are those of the format, its source
and its sink, call `improve_this_worker`.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from typing import Any

_DAEMON = "pyspark.daemon"


class _QuietTraceback:
    """Stands for the module `traceback` in the daemon's."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """What a worker does with an exception that it can't tell Spark of."""
        if isinstance(sys.exception(), (BrokenPipeError, ConnectionResetError)):
            os._exit(0)  # at once: from Python 3.13 on the unflushed file would complain when it is collected
        traceback.print_exc()


def improve_workers(daemon: Any) -> None:
    """Makes the workers of this process end without a word when Spark is gone, in the middle of a
    query or waiting for the next, and acknowledge at once what Spark sends them. `daemon`: the
    module that runs them.
    """
    if daemon.traceback is _QuietTraceback:
        return
    daemon.traceback = _QuietTraceback
    os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "true"  # raised then, and not printed
    serve = daemon.worker

    def worker(connection: socket.socket, authenticated: bool) -> int:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # the next answer ends it
        code: int = serve(connection, authenticated)
        return code

    daemon.worker = worker


def improve_this_worker() -> None:
    """The same in a worker forked from PySpark's own daemon, from its next task on; nothing
    anywhere else.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == _DAEMON:
        improve_workers(main)


if __name__ == "__main__":
    from pyspark import daemon

    improve_workers(daemon)
    daemon.manager()
