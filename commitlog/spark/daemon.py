"""PySpark's worker daemon, without the tracebacks of workers that Spark has let go.

A session that idles closes its spare workers' connections. Each of them then fails to flush an answer that nobody waits
for; over a Unix-domain socket it notices at once and prints a BrokenPipe traceback. Nothing is lost by it, so such a
worker just ends here. This module is `spark.python.daemon.module` for the workers that run tasks. Those that plan (look a
data source up, plan a read, commit a write) are forked from `pyspark.daemon` whatever that says: the modules that Spark
imports into them first, which are those of the format, its source and its sink, call `end_quietly_if_planning`.
"""

from __future__ import annotations

import os
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


def end_quietly(daemon: Any) -> None:
    """Makes the workers of this process end without a word when Spark is gone, in the middle of a query or waiting for the
    next. `daemon`: the module that runs them."""
    daemon.traceback = _QuietTraceback
    os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "true"  # raised then, and not printed


def end_quietly_if_planning() -> None:
    """The same in a worker forked from PySpark's own daemon; nothing anywhere else."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == _DAEMON:
        end_quietly(main)


if __name__ == "__main__":
    from pyspark import daemon

    end_quietly(daemon)
    daemon.manager()
