"""A producer process that sends the lines of files or of stdin, and tails them where asked to.

Tailing follows a *name*, as `tail -F` does:

- A file that was renamed away (rotation) is read on beside the new one, because its writer may open
  the new one much later. It is left after a minute of silence, once it was removed or another one
  was rotated.
- Files that had the name only between two looks are found by the names that rotation gave them
  (rotated.py), and read in their order. What can't be read of them is said.
- A file that was cut short (truncation), or written anew in place, is read from its start. What its
  copy has more than was read is read before that, and what can't be read is said.
- A file that is missing, or not allowed, for a while is waited for. Without tailing it is an error.

A line is the bytes before a newline. The last line of a file needs no newline, unless the file is
tailed: then it may be half written. It counts once the file is cut, or was rotated and is silent.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from commitlog.errors import IngestError
from commitlog.ingest.link import Link
from commitlog.ingest.producer_loop import Item, Sender, run_producer
from commitlog.ingest.rotated import HEAD_BYTES, RotatedFiles, beginning
from commitlog.ingest.run_settings import STDIN
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock
from commitlog.system.process_title import set_process_title
from commitlog.text.lines import LineSplitter
from commitlog.text.text_files import TextFile

CHUNK_BYTES = 1 << 18
LINE_BYTES_MAX = 4 << 20
"""The largest message that is possible."""
SILENCE_NS = 60_000_000_000
"""If a rotated file gives nothing for this time, its writer counts as gone."""
_NOTICE_NS = 200_000_000
_MEMORY_BYTES = 64
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

Say = Callable[[str], object]


class OpenFile:
    """An open input and its lines. A file that is tailed may be cut while it is read."""

    def __init__(
        self,
        path: str,
        descriptor: int,
        splitter: LineSplitter,
        *,
        follow: bool,
        say: Say,
        on_cut: Callable[[OpenFile], str] = lambda _: "",
    ) -> None:
        self._descriptor, self._on_cut = descriptor, on_cut
        self._path, self._splitter, self._say = path, splitter, say
        self.text = TextFile("standard input" if path == STDIN else path, descriptor, say, grows=follow)
        self.follow, self.is_ended = follow, False
        self.heard_ns = 0
        """When a rotated file gave something last."""
        self._changed_ns = 0
        self._memory = b""  # the bytes before the position; they differ in a file that was written anew in place
        self.head = b""
        """The first bytes, as they were when they were read."""
        self.text.behind_hole = follow and self.text.is_regular

    def read(self) -> list[bytes] | None:
        """The lines that the next bytes complete.

        None where there is nothing now; `is_ended` says that nothing will come.
        """
        if self.follow and self.text.is_regular and (cut := self._rewind_if_cut()) is not None:
            return cut or None
        if not self.text.is_regular and not self._is_ready():
            return None
        begin = self.text.position
        try:
            data = self.text.read(CHUNK_BYTES)
        except OSError as error:
            raise IngestError(f"--input {self._path}: {error.strerror} after {self.text.position} bytes") from error
        self.follow = self.follow and not self.text.is_compressed  # such a file does not grow
        if data:
            self._remember(data, self.text.position - begin)
            if self.follow and len(self.head) < HEAD_BYTES:
                self.head = self.beginning()
            return self._splitter.feed(data)
        self.is_ended = data is not None and not self.follow
        return None

    def end(self) -> list[bytes]:
        """The last line, which has no newline."""
        return self._splitter.end()

    def beginning(self) -> bytes:
        return beginning(self._descriptor)

    def is_removed(self) -> bool:
        return os.fstat(self._descriptor).st_nlink == 0

    def close(self) -> None:
        if self._descriptor > 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def goes_on_in(self, copy: int) -> bool:
        """Whether an open file has the same bytes before this file's position."""
        at = self.text.position - len(self._memory)
        return bool(self._memory) and os.pread(copy, len(self._memory), at) == self._memory

    def give_rest_to(self, path: str, copy: int, splitter: LineSplitter) -> OpenFile:
        """Makes an OpenFile of the copy, which goes on where this file is, in the begun line."""
        made = OpenFile(path, copy, self._splitter, follow=False, say=self._say)
        made.text.position = os.lseek(copy, self.text.position, os.SEEK_SET)
        self._splitter = splitter
        return made

    def _is_ready(self) -> bool:
        """Whether a pipe has something to read, or its end. One that nobody has opened waits."""
        ready = select.poll()
        ready.register(self._descriptor, select.POLLIN)
        return bool(ready.poll(0))

    def _remember(self, data: bytes, moved: int) -> None:
        if self.text.behind_hole:  # the bytes before the position were never written
            self._memory = b""
        else:
            self._memory = ((self._memory if moved == len(data) else b"") + data)[-_MEMORY_BYTES:]

    def _rewind_if_cut(self) -> list[bytes] | None:
        """Goes back to the start of a file that was cut; gives the line that was cut with it.

        None if it was not cut.
        """
        facts, position = os.fstat(self._descriptor), self.text.position
        if facts.st_size == position and facts.st_mtime_ns == self._changed_ns:
            return None
        self._changed_ns = facts.st_mtime_ns
        cut = facts.st_size < position
        if not cut and self._memory:
            cut = os.pread(self._descriptor, len(self._memory), position - len(self._memory)) != self._memory
        if not cut:
            return None
        rest = self._on_cut(self)
        self._say(f"{self._path} was cut or written anew after {position:,} bytes; it is read from its start{rest}")
        self.text.rewind()
        self._memory = self.head = b""
        return self._splitter.end()


class Tail:
    """One input. `read` gives the lines that are there now; `done` says that no more will come."""

    def __init__(
        self, path: str, *, follow: bool, skips: bool = False, say: Say = str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.path = path
        self.follow = follow and path != STDIN
        self.done = False
        self._say, self._clock, self._skips = say, clock, skips
        self._splitters: list[LineSplitter] = []
        self._file: OpenFile | None = None
        self._old: list[OpenFile] = []
        self._complaint = ""
        self._rotated = RotatedFiles(path) if self.follow else None

    @property
    def skipped(self) -> int:
        """How many lines were passed over, because they were too long."""
        return sum(splitter.skipped for splitter in self._splitters)

    def read(self) -> list[bytes]:
        """The lines that are there now, at most some hundred kilobytes.

        Raises IngestError, InputError, MessageTooLarge.
        """
        self.notice()
        if old := self._read_old(1):
            return old
        if self._file is None:
            return []
        lines = self._file.read()
        if lines:
            # Its writer had written all to the old file before it went on here: that comes first.
            return self._read_old(sys.maxsize) + lines
        return self._finish() if self._file.is_ended else []

    def notice(self) -> None:
        """Opens what has this name now.

        It must be called even while nobody reads. Otherwise a file that is replaced twice would be
        lost.
        """
        if self._file is not None and self._file.follow and self._is_rotated(self._file):
            self._file.heard_ns = self._clock.monotonic_ns()
            self._old.append(self._file)
            self._file = None
            self._open_missed()
        if self._file is None and not self.done:
            self._open()
            self._take_back()

    def close(self) -> None:
        for file in (*self._old, *([self._file] if self._file else [])):
            file.close()
        self._file, self._old = None, []

    def _open(self) -> None:
        """Opens the file of this name, unless it has to be waited for."""
        descriptor = 0
        try:
            if self.path != STDIN:  # without waiting for the writer of a named pipe
                descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._complain(error)
            return
        self._file = self._opened(descriptor)
        self._complaint = ""

    def _opened(self, descriptor: int) -> OpenFile:
        try:
            return OpenFile(
                self.path, descriptor, self._splitter(), follow=self.follow, say=self._say, on_cut=self._open_copy
            )
        except BaseException:
            os.close(descriptor)
            raise

    def _splitter(self) -> LineSplitter:
        self._splitters.append(LineSplitter(f"--input {self.path}", LINE_BYTES_MAX, skips=self._skips))
        return self._splitters[-1]

    def _open_copy(self, file: OpenFile) -> str:
        """Opens the copy of a file that was cut. Returns what is to be said of it."""
        assert self._rotated is not None
        paths, said = self._rotated.copies(file.head)
        for path in paths:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as error:
                said.append(f"{path}: {error.strerror}")
                continue
            more = os.fstat(descriptor).st_size - file.text.position
            if more >= 0 and file.goes_on_in(descriptor):
                self._old.append(file.give_rest_to(path, descriptor, self._splitter()))
                rest = f"; before that the {more:,} bytes more that its copy {path} has" if more else ""
                return f"{rest}; lines may have been missed: {'; '.join(said)}" if said else rest
            os.close(descriptor)
        return f"; lines before the cut may have been missed: {'; '.join(said) or 'there is no copy of it'}"

    def _open_missed(self) -> None:
        """Opens the files that had the name since the last look, and says which can't be read."""
        assert self._rotated is not None
        read = [(file.text.identity, file.beginning()) for file in self._old]
        missed, said = self._rotated.missed(read, is_gone=self._old[-1].is_removed())
        for path in missed:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as error:
                said.append(f"{path}: {error.strerror}")
                continue
            file = self._opened(descriptor)
            file.heard_ns = self._clock.monotonic_ns()
            self._old.append(file)
        if said:
            self._say(f"{self.path}: lines may have been missed: {'; '.join(said)}")

    def _take_back(self) -> None:
        """Goes on in a file that was renamed and has its name again."""
        for old in self._old:
            if self._file is not None and old.text.identity == self._file.text.identity:
                self._file.close()
                self._old.remove(old)
                self._file = old
                return

    def _complain(self, error: OSError) -> None:
        """Says once why a file that is tailed has to be waited for; else raises IngestError."""
        if not self.follow or error.errno in _NO_DESCRIPTORS:
            raise IngestError(f"--input {self.path}: {error.strerror}; what was read before it is kept") from error
        if not isinstance(error, FileNotFoundError) and self._complaint != error.strerror:
            self._complaint = str(error.strerror)
            self._say(f"{self.path}: {error.strerror}; it is waited for")

    def _finish(self) -> list[bytes]:
        """Closes an input that is read to its end; gives its last line."""
        assert self._file is not None
        last = self._file.end()
        self.done = True
        self.close()
        return last

    def _is_rotated(self, file: OpenFile) -> bool:
        """Whether the name has another file, which is next."""
        try:
            facts = os.stat(self.path)
        except OSError as error:
            self._complain(error)  # it was renamed and there is no new one yet: the old one may still grow
            return False
        return not stat.S_ISDIR(facts.st_mode) and (facts.st_dev, facts.st_ino) != file.text.identity

    def _read_old(self, limit: int) -> list[bytes]:
        """The lines that came to rotated files meanwhile; reading stops at `limit` lines."""
        found: list[bytes] = []
        for file in list(self._old):
            now = self._clock.monotonic_ns()
            while (lines := file.read()) is not None:
                file.heard_ns = now
                found += lines
                if len(found) >= limit:
                    return found
            if file.is_ended or now - file.heard_ns > SILENCE_NS:
                found += file.end()
                if file.is_ended or file.is_removed() or file is not self._old[-1]:
                    self._old.remove(file)
                    file.close()
        return found


class FileSource:
    """The lines of several inputs: one input after the other, or in turns where they are tailed."""

    def __init__(
        self, paths: list[str], *, follow: bool, skips: bool = False, say: Say = str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.tails = [Tail(path, follow=follow, skips=skips, say=say, clock=clock) for path in paths]
        self._clock, self._noticed_ns = clock, LONG_AGO_NS
        self.done = False
        self._items: deque[Item] = deque()
        self._turns = self._next_tail()

    @property
    def skipped(self) -> int:
        """How many lines were too long."""
        return sum(tail.skipped for tail in self.tails)

    def tick(self) -> None:
        """Looks for rotated files now and then, also while no lines are wanted."""
        now = self._clock.monotonic_ns()
        if now - self._noticed_ns > _NOTICE_NS:
            self._noticed_ns = now
            for tail in self.tails:
                if tail.follow:
                    tail.notice()

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
    set_process_title(f"producer {settings['producer']}", settings["store"])
    run_producer(
        link,
        lambda: Sender(link, settings),
        lambda: FileSource(
            settings["inputs"],
            follow=settings["follow"],
            skips=settings["skip_long"],
            say=lambda text: link.send({"event": "said", "text": text}),
        ),
    )


if __name__ == "__main__":
    main()
