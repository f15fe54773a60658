"""The segment files of a log: RocketMQ's MappedFileQueue. It writes nothing."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import stat
from bisect import bisect_right
from collections import Counter
from pathlib import Path

import numpy as np

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.mapped_file import map_segment, read_ahead
from commitlog.disk.store_directory import LaneDirectory, is_segment_name
from commitlog.shm.layout import segment_start

_BLOCK_BYTES = 1 << 20


class MappedFileQueue:
    """The segment files of one log: the usable ones, and findings about all others.

    It maps one file at a time. All segments have one size, and their names are their first offsets.
    So a division finds the segment that holds an offset.
    """

    def __init__(self, directory: Path, segment_bytes: int, channel: FileChannel = DISK) -> None:
        self.directory, self.size, self.channel = directory, segment_bytes, channel
        self.findings: list[tuple[Path, str]] = []
        """What is wrong with a file, by its path."""
        self.wrong_sizes: dict[int, int] = {}
        """Start of a file → its length in bytes, where that is not the size of a segment.

        Such a file is read as if it were filled up with zeros. A file that is too long is cut off.
        """
        self.starts: list[int] = []
        self.misplaced: list[int] = []
        """Starts of segments in whose place something is that is no plain file."""
        self._known: frozenset[int] = frozenset()
        self._mapped_start, self._mapped = -1, mmap.mmap(-1, 1)
        self.refresh()

    def refresh(self) -> None:
        """Lists the directory again: retention removes files, and the allocator makes new ones."""
        for known in (self.findings, self.wrong_sizes, self.starts, self.misplaced):
            known.clear()
        try:
            names = self.channel.list(self.directory)
        except NotADirectoryError:
            names = []
            self.findings.append((self.directory, "no directory: all segments are missing"))
        for name in names:
            self._add(name)
        self._known = frozenset(self.starts)

    def _add(self, name: str) -> None:
        path = self.directory / name
        if not is_segment_name(name):
            self.findings.append((path, "not a segment's name; passed over"))
            return
        try:
            facts, start = os.lstat(path), int(name)
        except FileNotFoundError:
            return  # its store runs, and retention has just removed it
        if start % self.size or start >= 1 << 62:
            self.findings.append((path, f"no segment of {self.size:,} bytes begins there; passed over"))
        elif not stat.S_ISREG(facts.st_mode):
            kind = "a symbolic link" if stat.S_ISLNK(facts.st_mode) else "no regular file"
            self.findings.append((path, f"{kind}; passed over"))
            self.misplaced.append(start)
        elif facts.st_size:
            self.starts.append(start)
            if facts.st_size != self.size:
                self.wrong_sizes[start] = facts.st_size
                self.findings.append((path, f"{facts.st_size:,} bytes, a segment of this log has {self.size:,}"))

    @property
    def first(self) -> int:
        """The first offset that a file has; 0 where there is no file."""
        return self.starts[0] if self.starts else 0

    @property
    def end(self) -> int:
        """The end of the last file."""
        return self.starts[-1] + self.size if self.starts else 0

    def __contains__(self, start: object) -> bool:
        return start in self._known

    def find(self, where: int) -> int | None:
        """The start of the file that holds a log offset; None where it is missing.

        It takes constant time.
        """
        start = segment_start(where, self.size)
        return start if start in self._known else None

    def after(self, start: int) -> list[int]:
        """Starts of the files behind the one that begins at `start`."""
        return self.starts[bisect_right(self.starts, start) :]

    def segment_path(self, start: int) -> Path:
        return self.directory / f"{start:020d}"

    def map(self, start: int) -> mmap.mmap:
        """The segment's bytes. Raises OSError."""
        if start != self._mapped_start:
            with self.channel.opened(self.segment_path(start)) as fd:
                length = self.channel.size(fd)
                self._mapped = map_segment(fd, length, self.size, self.channel)
            self._mapped_start = start
        return self._mapped

    def let_go(self) -> None:
        """Unmaps the file that was mapped last as soon as nobody uses its bytes."""
        self._mapped_start, self._mapped = -1, mmap.mmap(-1, 1)

    def done_with(self, start: int, position: int) -> None:
        """Takes the first `position` bytes of the mapped file out of this process's memory.

        They would count as memory of this process otherwise.
        """
        whole = position - position % mmap.PAGESIZE
        if start == self._mapped_start and whole and start not in self.wrong_sizes:
            self._mapped.madvise(mmap.MADV_DONTNEED, 0, whole)

    def last_nonzero(self, start: int, position: int = 0) -> int:
        """The end of the last byte of a file that is not zero, from `position` on.

        It is `position` where all bytes are zero.
        """
        view = np.frombuffer(self.map(start), np.uint8)
        at, last = position, None
        with self.channel.opened(self.segment_path(start)) as fd:
            while at < self.size and (data := self.channel.next_data(fd, at)) is not None:  # passes holes quickly
                read_ahead(self.map(start), data, data + _BLOCK_BYTES)
                if view[data : data + _BLOCK_BYTES].any():
                    last = data
                at = data + _BLOCK_BYTES
                self.done_with(start, min(at, self.size))
        if last is None:
            return position
        block = view[last : last + _BLOCK_BYTES]
        return last + len(block) - int(np.argmax(block[::-1] != 0))


def unlink_segments_below(lane: LaneDirectory, first: int, size: int, channel: FileChannel) -> int:
    """Removes the files of a lane that end at or below log offset `first`. Returns their number."""
    segments = MappedFileQueue(lane.commitlog, size, channel)
    old = [start for start in segments.starts if start + size <= first]
    for start in old:
        channel.unlink(segments.segment_path(start))
    if old:
        channel.sync_directory(lane.commitlog)
    return len(old)


def guess_segment_bytes(directory: Path, channel: FileChannel = DISK) -> int:
    """The segment size of a log that has no store.json; 0 without files.

    It is the step between the names of the files, where one of the files has that size. Otherwise
    it is the size that most files have.
    """
    sizes: dict[int, int] = {}
    for name in channel.list(directory):
        if is_segment_name(name):
            with contextlib.suppress(FileNotFoundError):
                facts = os.lstat(directory / name)
                if stat.S_ISREG(facts.st_mode) and facts.st_size:
                    sizes[int(name)] = facts.st_size
    steps = Counter(after - before for before, after in itertools.pairwise(sizes))
    counts = Counter(sizes.values())
    return max(counts, key=lambda size: (steps[size], counts[size], size), default=0)
