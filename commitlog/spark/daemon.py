"""PySpark's worker daemon, without the tracebacks of workers that Spark has let go.

A session that idles with Unix-domain sockets closes its spare workers' connections; each of them then fails to flush a
last answer that nobody waits for and prints a BrokenPipe traceback. Nothing is lost by it, so it is not shown; whatever
else a worker writes goes through. Set as `spark.python.daemon.module`.
"""

from __future__ import annotations

import sys
from typing import Any, TextIO

from pyspark import daemon

_HARMLESS = ("failed to flush the output to the worker process", "BrokenPipeError")


class QuietStream:
    """A text stream that drops that one traceback, and the line's end that `print` writes after it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._dropped = False

    def write(self, text: str) -> int:
        harmless = all(part in text for part in _HARMLESS) or (self._dropped and text == "\n")
        self._dropped = harmless and text != "\n"
        return len(text) if harmless else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


if __name__ == "__main__":
    sys.stderr = QuietStream(sys.stderr)
    daemon.manager()
