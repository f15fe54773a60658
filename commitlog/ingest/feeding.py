"""A producer process that sends the lines of files or of stdin, and tails them where asked to.

Tailing follows a *name*, as `tail -F` does:

- A file that was renamed away (rotation) is read to its end; then the new one is opened.
- A file that was cut short (truncation), or written anew in place, is read from its start.
- A file that is missing for a while is waited for. Without tailing it is an error.

A line is the bytes before a newline. The last line of a file needs no newline, unless the file is
tailed: then it may be half written.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterator
from itertools import islice

from commitlog.errors import IngestError
from commitlog.ingest.link import Link
from commitlog.ingest.sending import Item, Sender, run_producer
from commitlog.ingest.settings import STDIN
from commitlog.lines import LineSplitter

CHUNK_BYTES = 1 << 18
LINE_BYTES_MAX = 4 << 20
"""The largest message that is possible."""
_MEMORY_BYTES = 64


class Tail:
    """One input. `read` gives the lines that are there now; `done` says that no more will come."""

    def __init__(self, path: str, *, follow: bool) -> None:
        self.path = path
        self.follow = follow and path != STDIN
        self.done = False
        self.rotations = self.truncations = 0
        self._descriptor = 0 if path == STDIN else -1
        self._identity = (0, 0)
        self._splitter = LineSplitter(f"--input {path}", LINE_BYTES_MAX)
        self._position = 0
        self._memory = b""  # the last bytes read; they differ in a file that was written anew in place

    def read(self) -> list[bytes]:
        """The lines that are there now, at most some hundred kilobytes.

        Raises IngestError, MessageTooLarge.
        """
        if self.path == STDIN:
            return self._read_stdin()
        if self._descriptor < 0 and not self._open():
            return []
        if self.follow:
            self._rewind_if_cut()
        data = self._read_chunk()
        if data:
            return self._splitter.feed(data)
        if not self.follow:
            return self._finish()
        return self._reopen_if_rotated()

    def close(self) -> None:
        if self._descriptor > 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _open(self) -> bool:
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if self.follow and isinstance(error, FileNotFoundError):
                return False
            raise IngestError(f"--input {self.path}: {error.strerror}; what was read before it is kept") from error
        facts = os.fstat(self._descriptor)
        self._identity = (facts.st_dev, facts.st_ino)
        self._position, self._memory = 0, b""
        return True

    def _read_chunk(self) -> bytes:
        try:
            data = os.read(self._descriptor, CHUNK_BYTES)
        except OSError as error:
            raise IngestError(f"--input {self.path}: {error.strerror} after {self._position} bytes") from error
        self._position += len(data)
        if self.follow:
            self._memory = (self._memory + data)[-_MEMORY_BYTES:]
        return data

    def _read_stdin(self) -> list[bytes]:
        if not select.select([0], [], [], 0)[0]:
            return []
        data = self._read_chunk()
        return self._splitter.feed(data) if data else self._finish()

    def _finish(self) -> list[bytes]:
        """Closes an input that is read to its end; gives its last line."""
        self.done = True
        self.close()
        return self._splitter.end()

    def _rewind_if_cut(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size == self._position:
            return
        cut = size < self._position
        if not cut and self._memory:
            before = self._position - len(self._memory)
            cut = os.pread(self._descriptor, len(self._memory), before) != self._memory
        if cut:
            self.truncations += 1
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self._position, self._memory = 0, b""
            self._splitter.restart()

    def _reopen_if_rotated(self) -> list[bytes]:
        """At the end of the open file: opens the new file of this name, if there is one.

        The last line of the old file counts, also without a newline.
        """
        try:
            facts = os.stat(self.path)
        except FileNotFoundError:
            return []  # the file was renamed and there is no new one yet: the old one may still grow
        except OSError as error:
            raise IngestError(f"--input {self.path}: {error.strerror}") from error
        if (facts.st_dev, facts.st_ino) == self._identity:
            return []
        data = self._read_chunk()  # written between the last read and the rename
        if data:
            return self._splitter.feed(data)
        self.rotations += 1
        self.close()
        return self._splitter.end()


class FileSource:
    """The lines of several inputs: one input after the other, or in turns where they are tailed."""

    def __init__(self, paths: list[str], *, follow: bool) -> None:
        self.tails = [Tail(path, follow=follow) for path in paths]
        self.done = False
        self._items: deque[Item] = deque()
        self._turns = self._next_tail()

    def tick(self) -> None:
        """Nothing to do between messages."""

    def take(self, limit: int) -> list[Item]:
        """The next lines. They stay until `sent` removes them."""
        if len(self._items) < limit:
            self._read_more()
        self.done = not self._items and all(tail.done for tail in self.tails)
        return list(islice(self._items, limit))

    def sent(self, count: int) -> None:
        """Removes lines that were sent."""
        for _ in range(count):
            self._items.popleft()

    def close(self) -> None:
        for tail in self.tails:
            tail.close()

    def _read_more(self) -> None:
        tail = next(self._turns, None)
        if tail is not None:
            headers = {"source": tail.path}
            self._items.extend(Item(None, line, headers) for line in tail.read())

    def _next_tail(self) -> Iterator[Tail]:
        while True:
            open_tails = [tail for tail in self.tails if not tail.done]
            if not open_tails:
                return
            if open_tails[0].follow or (len(open_tails) > 1 and any(tail.path == STDIN for tail in open_tails)):
                yield from open_tails
            else:
                yield open_tails[0]


def main() -> None:
    """The producer process: `python -m commitlog.ingest.feeding FD`."""
    link = Link.inherited()
    settings = link.receive_one()
    run_producer(
        link, lambda: Sender(link, settings), lambda: FileSource(settings["inputs"], follow=settings["follow"])
    )


if __name__ == "__main__":
    main()
