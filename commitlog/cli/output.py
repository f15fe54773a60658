"""The only door for a command's output: standard output and standard error.

Python's own streams may lose a part. With PYTHONUNBUFFERED nobody checks how much of a text a pipe
took, and a non-blocking pipe refuses the part that does not fit at once.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any

STANDARD_OUTPUT = "standard output"
_ALL = sys.maxsize


class WholeWriter(io.BufferedWriter):
    """Writes everything that it gets to a descriptor, or raises OSError with the output's `name`.

    If the descriptor is non-blocking, it waits. If the output is not vital, refused text is
    dropped: nobody should lose a running store because nobody reads the lines about it.
    """

    def __init__(self, number: int, output: str, *, is_vital: bool) -> None:
        super().__init__(io.FileIO(number, "wb", closefd=False))
        self._number, self._output = number, output
        self.is_vital = is_vital

    def write(self, data: Any) -> int:
        """Takes all of `data`."""
        try:
            return super().write(data)
        except OSError as error:
            done = self._taken(error)
        with memoryview(data) as whole, whole.cast("B") as left:
            while done < len(left):
                try:
                    done += super().write(left[done:])
                except OSError as error:
                    done += self._taken(error)
            return len(left)

    def flush(self) -> None:
        while True:
            try:
                super().flush()
                return
            except OSError as error:
                if self._taken(error) == _ALL:
                    return

    def _taken(self, error: OSError) -> int:
        """Waits until the next call may be made. Returns how many bytes the refused call took."""
        if isinstance(error, BlockingIOError):
            ready = select.poll()
            ready.register(self._number, select.POLLOUT)
            ready.poll()
            return error.characters_written
        if not self.is_vital:
            return _ALL
        error.filename = self._output
        raise error


def open_the_door() -> None:
    """Puts whole writers in the place of the process's own streams.

    If the caller has put other streams there, as tests do, they stay. A closed standard input
    becomes an empty one. A closed standard output refuses each write, as that of coreutils does.
    """
    if sys.stdout is sys.__stdout__:
        number = 1 if sys.stdout is not None else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        sys.stdout = _text(sys.stdout, WholeWriter(number, STANDARD_OUTPUT, is_vital=True))
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(sys.stderr, WholeWriter(2, "standard error", is_vital=False))

    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))


def _text(old: Any, writer: WholeWriter) -> io.TextIOWrapper:
    """Makes a stream like the old one, which is None if the caller has closed it."""
    if old is None:
        return io.TextIOWrapper(writer, "utf-8", "backslashreplace")
    errors = "backslashreplace" if old.errors == "strict" else old.errors  # a character never ends a command
    return io.TextIOWrapper(
        writer, old.encoding, errors, line_buffering=old.line_buffering, write_through=old.write_through
    )


def only_says() -> None:
    """Notes that this command's output is not vital: the command goes on if nobody reads it."""
    if isinstance(writer := getattr(sys.stdout, "buffer", None), WholeWriter):
        writer.is_vital = False


def discard_output() -> None:
    """Sends standard output to /dev/null from now on, with the text that is still in a buffer."""
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
