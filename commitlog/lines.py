"""Bytes into lines, as they come; and whether a file of lines can be read at all."""

from __future__ import annotations

import errno
import os
import stat

from commitlog.errors import MessageTooLarge


class LineSplitter:
    """A line is the bytes before a newline. `name` is what errors call the input, `longest` the most bytes of a line."""

    def __init__(self, name: str, longest: int) -> None:
        self._name, self._longest = name, longest
        self._partial = b""
        self._lines = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes. Raises MessageTooLarge, so that endless input does not fill the memory."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._lines += len(lines)
        if len(self._partial) > self._longest:
            raise MessageTooLarge(
                f"MESSAGE_SIZE_EXCEEDED: {self._name}: line {self._lines + 1} is longer than {self._longest:,} bytes, the "
                f"largest message; is this a text file?"
            )
        return lines

    def end(self) -> list[bytes]:
        """The input has ended: what follows the last newline is a line too. Begins anew."""
        rest = [self._partial] if self._partial else []
        self.restart()
        return rest

    def restart(self) -> None:
        """Forgets a line that is not complete."""
        self._partial = b""
        self._lines = 0


def why_unreadable(name: str) -> str | None:
    """What keeps a file from being read, in the system's words; None when nothing does. Opens nothing: that would be the end
    of a named pipe for whoever writes to it."""
    try:
        is_directory = stat.S_ISDIR(os.stat(name).st_mode)
    except OSError as error:
        return f"{error.strerror}; check the name and its permissions"
    if is_directory:
        return f"is a directory; name the files in it ({name.rstrip('/')}/*)"
    return None if os.access(name, os.R_OK) else f"{os.strerror(errno.EACCES)}; check its permissions"
