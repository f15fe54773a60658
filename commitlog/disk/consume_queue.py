"""RocketMQ's ConsumeQueue: for one topic in one lane, where each message is in the log.

Entry number q (the queue offset) is 20 bytes at q × 20. The files have a fixed size, and each is
named by its first byte's offset:

    physical offset i64 │ size i32 │ tags code i64    big-endian; size 0: nothing placed here yet

Entries are *placed*, not appended: placing an entry again writes the same bytes. A file has its
full size from the start, and is sparse. So the end of a queue is its last entry with a size. Where
a queue begins later than 0, RocketMQ fills the places before with (0, 0x7FFFFFFF, 0).

Retention unlinks the oldest files while others read. So a listing is good until one of its files
turns out to be gone. Then the files are listed again, and the question is asked again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import is_segment_name, segment_name
from commitlog.errors import DamagedFile

ENTRY = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
ENTRY_BYTES = 20
assert ENTRY.itemsize == ENTRY_BYTES
FILE_BYTES = 300_000 * ENTRY_BYTES
PRE_FILL_SIZE = 0x7FFFFFFF
_FILL_BLOCK = 1 << 16
_LIGHT = "%LMQ%"
_LISTINGS_MOST = 100
"""How often the files are listed again, at most, because one has gone since."""

Entries = npt.NDArray[Any]
_Answer = TypeVar("_Answer")


def is_light(topic: str) -> bool:
    """Whether RocketMQ treats a queue as a light one.

    The entries of a light queue name records of other topics and queues.
    """
    return topic.startswith(_LIGHT)


def first_where(condition: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number in [low, high) that meets a condition; `high` where none does.

    All numbers after it must meet the condition too.
    """
    return bisect_left(range(high), True, low, high, key=condition)


class _FileGone(Exception):
    """A file that was listed has no name any more."""


class ConsumeQueue:
    """One queue; a with-block closes it.

    Reading needs no write access, and sees what other processes place.

    `directory` is `consumequeue/<topic>/<queue id>` of a lane. Writing makes these three
    directories where they are missing, but none above them: the lane's own directory has to be
    there. `file_bytes` counts for a queue that has no file yet; otherwise the size of its first
    file counts. `named` has the directories whose names are known to be durable; the queues of a
    lane may share it.

    All methods raise OSError, and DamagedFile for a file whose size is wrong for a queue.
    """

    def __init__(
        self,
        directory: Path,
        file_bytes: int = FILE_BYTES,
        channel: FileChannel = DISK,
        named: set[Path] | None = None,
    ) -> None:
        self.directory, self.channel = directory, channel
        self._default_bytes = file_bytes
        self._known_bytes = 0
        self._starts: list[int] = []
        self._files: dict[int, int] = {}
        self._writable: set[int] = set()
        self._dirty: set[int] = set()
        self._named = set() if named is None else named

    # ---- files ----------------------------------------------------------------------------------

    def _list_files(self) -> None:
        """Lists the files again: the writer may have made one since."""
        try:
            names = self.channel.list(self.directory)
        except NotADirectoryError as error:
            raise DamagedFile(f"{self.directory}: no directory; a start of the store builds the queue anew") from error
        self._starts = sorted(int(name) for name in names if is_segment_name(name))

    def starts(self) -> list[int]:
        """The byte offset that each file begins at, ascending, listed now."""
        self._list_files()
        return self._starts

    def _ask(self, ask: Callable[[], _Answer]) -> _Answer:
        """The answer of `ask` about the files that are listed.

        Where one of the files is gone, they are listed again, and `ask` is called again. Raises
        DamagedFile.
        """
        for _ in range(_LISTINGS_MOST):
            try:
                return ask()
            except _FileGone:
                self._list_files()
        raise DamagedFile(f"{self.directory}: a file is listed and can't be opened; check the file system")

    @property
    def file_bytes(self) -> int:
        """The size of each file in bytes."""
        if not self._known_bytes:
            if not self._starts:
                self._list_files()
            self._known_bytes = self._ask(self._bytes_of_first)
        return self._known_bytes or self._default_bytes

    def _bytes_of_first(self) -> int:
        """The size of the first file that is not empty; 0 where there is none."""
        for start in self._starts:
            path = self.directory / segment_name(start)
            try:
                with self.channel.opened(path) as fd:
                    size = self.channel.size(fd)
            except FileNotFoundError as error:
                raise _FileGone from error
            if size % ENTRY_BYTES or start % (size or 1):
                raise DamagedFile(f"{path}: {size:,} bytes is not the size of a consume queue file")
            if size:
                return size
        return 0

    def _open(self, start: int) -> int | None:
        """A descriptor for reading; None where the file is missing or still empty.

        A file is empty between its creation and the moment it gets its size. Raises _FileGone where
        the file is listed.
        """
        if start not in self._files:
            path, wanted = self.directory / segment_name(start), self.file_bytes
            try:
                size = self._take(start, path)
            except FileNotFoundError as error:
                if start in self._starts:
                    raise _FileGone from error
                return None
            if size != wanted:
                self._forget(start)
                if size == 0:
                    return None
                raise DamagedFile(f"{path}: {size:,} bytes, this queue's files have {wanted:,}")
        return self._files[start]

    def _open_to_write(self, start: int, *, create: bool = True) -> int:
        """A descriptor for writing.

        Without `create` it raises FileNotFoundError where the file is missing.
        """
        if start in self._writable:
            return self._files[start]
        path, wanted = self.directory / segment_name(start), self.file_bytes
        if create:
            made = self.channel.make_directory(self.directory, below=self.directory.parents[2])
            self._named.difference_update(made, (directory.parent for directory in made))
        if start in self._files:
            self._forget(start)
        size = self._take(start, path, write=True, create=create)
        if size not in (0, wanted):
            self._forget(start)
            raise DamagedFile(f"{path}: {size:,} bytes, this queue's files have {wanted:,}")
        if size == 0:
            try:
                self.channel.truncate(self._files[start], wanted)
            except OSError:
                self._forget(start)
                raise
            self._named.discard(self.directory)
        self._writable.add(start)
        return self._files[start]

    def _take(self, start: int, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Opens a file, and returns its size.

        The descriptor is stored at once: an interrupt may come in any call after that.
        """
        self._files[start] = fd = self.channel.open(path, write=write, create=create)
        try:
            return self.channel.size(fd)
        except BaseException:
            self._forget(start)
            raise

    def _forget(self, start: int) -> None:
        any(map(self.channel.close, map(self._files.pop, (start,))))  # one call, as in `close`

    # ---- writing --------------------------------------------------------------------------------

    def place(
        self,
        queue_offsets: npt.ArrayLike,
        physical_offsets: npt.ArrayLike,
        sizes: npt.ArrayLike,
        tags_codes: npt.ArrayLike,
    ) -> None:
        """Writes entries at their queue offsets.

        The columns have equal length, and the sizes are in bytes. The entries are durable after
        `sync`.
        """
        offsets = np.asarray(queue_offsets, dtype=np.int64)
        if not len(offsets):
            return
        entries = np.empty(len(offsets), dtype=ENTRY)
        entries["physical_offset"], entries["size"], entries["tags_code"] = physical_offsets, sizes, tags_codes
        cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
        for begin, end in itertools.pairwise([0, *cuts.tolist(), len(offsets)]):
            self._write(entries[begin:end].view(np.uint8).data, int(offsets[begin]) * ENTRY_BYTES)

    def begin_of_file(self, queue_offset: int) -> int:
        """The first queue offset in the file of this one."""
        return queue_offset - queue_offset % (self.file_bytes // ENTRY_BYTES)

    def fill(self, begin: int, end: int, where: int = 0, size: int = PRE_FILL_SIZE) -> None:
        """Places the same entry at all queue offsets [begin, end).

        By default it is the entry that RocketMQ places for records that were deleted long ago.
        """
        for start in range(begin, end, _FILL_BLOCK):
            count = min(_FILL_BLOCK, end - start)
            self.place(np.arange(start, start + count), np.full(count, where), np.full(count, size), np.zeros(count))

    def _write(self, data: memoryview, where: int) -> None:
        """Writes bytes at the queue's byte `where`, into as many files as they reach."""
        while data:
            start = where - where % self.file_bytes
            fd = self._open_to_write(start)
            part = data[: start + self.file_bytes - where]
            self.channel.pwrite(fd, part, where - start)
            self._dirty.add(start)
            data, where = data[len(part) :], where + len(part)

    def sync(self) -> None:
        """Makes everything durable that was placed.

        After an OSError the entries have to be placed again, because the kernel may have dropped
        them.

        It syncs the names of new files too. The first time it also syncs the names of the queue and
        its topic, because the process that made them may have been killed before it synced them.
        """
        for start in sorted(self._dirty):
            self.channel.fdatasync(self._files[start])
        if self._dirty:
            self._sync_names()
        self._dirty.clear()
        for start in sorted(self._writable)[:-1]:  # full: a deleted file's space is free only once it is closed
            self._forget(start)
            self._writable.discard(start)

    def _sync_names(self) -> None:
        for directory in (self.directory, *self.directory.parents[:3]):
            if directory not in self._named:
                self.channel.sync_directory(directory)
                self._named.add(directory)

    def is_removed(self) -> bool:
        """Whether a file that is written to has no name any more."""
        return any(self.channel.is_unlinked(self._files[start]) for start in self._writable)

    def zero_from(self, queue_offset: int) -> None:
        """Empties every place from a queue offset on, durably.

        The last file stays, so that offsets never begin at 0 again.
        """
        self._list_files()
        where = queue_offset * ENTRY_BYTES
        for start in self._starts:
            if start + self.file_bytes <= where:
                continue
            try:
                fd = self._open_to_write(start, create=False)
            except FileNotFoundError:
                continue  # a file that has gone is empty
            begin = max(where - start, 0)
            data = self.channel.pread(fd, self.file_bytes - begin, begin)
            used = len(data.rstrip(b"\0"))
            if used:  # not by truncation: a crash in between would leave a file of another size
                self.channel.pwrite(fd, bytes(used), begin)
                self.channel.fdatasync(fd)

    # ---- reading --------------------------------------------------------------------------------

    def entries(self, start: int, count: int) -> Entries:
        """Up to `count` entries from queue offset `start`, dtype ENTRY; fewer where the files end.

        A place that is still empty has size 0.
        """
        return self._ask(lambda: self._read(start, count))

    def _read(self, start: int, count: int) -> Entries:
        """`entries` from the files that are listed. Raises _FileGone."""
        parts = []
        where, end = start * ENTRY_BYTES, (start + count) * ENTRY_BYTES
        while where < end:
            file_start = where - where % self.file_bytes
            fd = self._open(file_start)
            if fd is None:
                break
            data = self.channel.pread(fd, min(end, file_start + self.file_bytes) - where, where - file_start)
            if len(data) % ENTRY_BYTES or not data:
                raise DamagedFile(f"{self.directory / segment_name(file_start)}: shorter than it was")
            parts.append(np.frombuffer(data, dtype=ENTRY))
            where += len(data)
        if not parts:
            return np.empty(0, dtype=ENTRY)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _size_at(self, queue_offset: int) -> int:
        entry = self._read(queue_offset, 1)
        return int(entry["size"][0]) if len(entry) else 0

    def end(self) -> int:
        """One past the last entry; 0 for a queue that has none."""
        self._list_files()
        return self._ask(self._end)

    def _end(self) -> int:
        per_file = self.file_bytes // ENTRY_BYTES
        for start in reversed(self._starts):
            first = start // ENTRY_BYTES
            if self._size_at(first):
                return first_where(lambda offset: self._size_at(offset) == 0, first, first + per_file)
        return self._starts[0] // ENTRY_BYTES if self._starts else 0

    def first(self) -> int:
        """The first queue offset with a message.

        Everything before it was deleted, or filled in by RocketMQ.
        """
        self._list_files()
        return self._ask(self._first)

    def _first(self) -> int:
        if not self._starts:
            return 0
        begin = self._starts[0] // ENTRY_BYTES
        return first_where(lambda offset: self._size_at(offset) != PRE_FILL_SIZE, begin, max(self._end(), begin))

    def find_by_timestamp(self, timestamp: int, first: int, end: int, read_timestamp: Callable[[int], int]) -> int:
        """The queue offset of the first message in [first, end) stored at or after a time (ms).

        It is `end` where there is none. `read_timestamp(queue offset)` reads a record's store
        timestamp. This is a binary search, because store timestamps only grow.
        """
        return first_where(lambda offset: read_timestamp(offset) >= timestamp, first, end)

    def close(self) -> None:
        """Closes the files. Entries that were not synced may still be lost in a power cut."""
        # one call: no interrupt comes while a descriptor is in neither of the two
        any(map(self.channel.close, map(self._files.pop, tuple(self._files))))
        self._writable.clear()

    def __enter__(self) -> ConsumeQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def queue_directories(top: Path, channel: FileChannel) -> Iterator[Path]:
    """`<topic>/<queue id>` of all topics below a directory `consumequeue/`.

    Links and other things are left out.
    """
    for topic in channel.list(top):
        if _is_directory(top / topic):
            for number in channel.list(top / topic):
                if number.isascii() and number.isdecimal() and _is_directory(top / topic / number):
                    yield top / topic / number


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False  # it has gone since it was listed


def unlink_below(directory: Path, first_where: int, channel: FileChannel) -> None:
    """Deletes the files of a queue whose entries all name places below a log offset.

    This is RocketMQ's deleteExpiredFile. The last file stays, so that offsets never begin at 0
    again.
    """
    old = []
    with ConsumeQueue(directory, channel=channel) as queue:
        for start in queue.starts()[:-1]:
            last = queue.entries((start + queue.file_bytes) // ENTRY_BYTES - 1, 1)
            if not len(last) or not last["size"][0] or int(last["physical_offset"][0]) >= first_where:
                break
            old.append(start)
    for start in old:
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            channel.unlink(directory / segment_name(start))
    if old:
        channel.sync_directory(directory)
