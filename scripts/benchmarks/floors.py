"""What the machine can do: the same bytes, written with nothing around them.

All contestants are compared with these floors.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from commitlog.record.host import Host
from commitlog.record.record import RecordEncoder
from scripts.benchmarks.harness import Sample, Stopwatch

TOPIC = "bench"
SLICE_BYTES = 1 << 22
"""Bytes of one pwrite of the floors, the same as the committer's."""


def body_of(size: int) -> bytes:
    """A body that no compression makes smaller."""
    return os.urandom(size)


def record_of(size: int, record_crc: bool = True) -> bytes:
    """The record that `send` makes of a body of this size, with the same length."""
    encoder = RecordEncoder(0, Host.of("127.0.0.1", 0), Host.of("127.0.0.1", 10911), record_crc)
    now = time.time_ns() // 1_000_000
    return encoder.encode(TOPIC.encode(), body_of(size), b"", 1, 1, now, now)


def os_write(path: Path, data: bytes, count: int) -> Sample:
    """One write for each message, into the page cache; synced and removed outside the clock."""
    with new_file(path) as fd:
        write = os.write
        with Stopwatch() as watch:
            for _ in range(count):
                write(fd, data)
    return watch.each(count)


def file_write(path: Path, bodies: Sequence[bytes], count: int) -> Sample:
    """Python's own buffered file, with a buffer of 1 MiB; nothing is synced.

    The last buffer is written within the clock.
    """
    rounds, size = count // len(bodies), 1 << 20
    file = open(path, "wb", buffering=size)  # noqa: SIM115  # closed outside the clock
    try:
        with Stopwatch() as watch:
            write = file.write
            for _ in range(rounds):
                for body in bodies:
                    write(body)
            file.flush()
        os.fdatasync(file.fileno())
    finally:
        file.close()
        path.unlink()
    return watch.each(rounds * len(bodies))


@contextlib.contextmanager
def new_file(path: Path, allocate: int = 0) -> Iterator[int]:
    """A new file, synced and removed afterwards, so that the next turn begins on a quiet disk."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        if allocate:
            os.posix_fallocate(fd, 0, allocate)
            os.fsync(fd)
        yield fd
        os.fdatasync(fd)
    finally:
        os.close(fd)
        os.unlink(path)


def make_segment(directory: Path, start: int, size: int) -> Path:
    """Makes a segment file as the allocator does.

    It is allocated in full and synced under another name, then renamed, and its directory synced.
    """
    temporary, path = directory / f"{start}.tmp", directory / f"{start:020d}"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, size)
    os.fdatasync(fd)
    os.close(fd)
    os.rename(temporary, path)
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return path


class Overlapped:
    """The pipeline's floor: one thread does pwrite from shared memory, another one fdatasync.

    The second thread syncs again and again without a pause. With `made_before` the segment files
    exist when the clock starts; otherwise the writing thread makes them on its way.
    """

    def __init__(self, directory: Path, total_bytes: int, segment_bytes: int, made_before: bool = False) -> None:
        self.directory, self.total, self.size = directory, total_bytes, segment_bytes
        self.memory = mmap.mmap(-1, segment_bytes)
        self.memory[:] = os.urandom(1 << 20) * (segment_bytes >> 20) + os.urandom(segment_bytes & (1 << 20) - 1)
        self.made = {start: make_segment(directory, start, segment_bytes) for start in self.starts() if made_before}
        self.dirty: list[int] = []
        self.changed = threading.Condition()
        self.written = False

    def starts(self) -> range:
        return range(0, self.total, self.size)

    def run(self) -> None:
        """Returns when everything is on the disk."""
        syncing = threading.Thread(target=self._sync)
        syncing.start()
        view = memoryview(self.memory)
        for start in self.starts():
            path = self.made.get(start) or make_segment(self.directory, start, self.size)
            fd = os.open(path, os.O_RDWR)
            end = min(self.total - start, self.size)
            for at in range(0, end, SLICE_BYTES):
                os.pwrite(fd, view[at : min(at + SLICE_BYTES, end)], at)
                self._hand_over(fd)
            self._hand_over(-fd)  # the file is complete: it is synced once more, then closed
        with self.changed:
            self.written = True
            self.changed.notify()
        syncing.join()
        view.release()

    def _hand_over(self, fd: int) -> None:
        with self.changed:
            self.dirty.append(fd)
            self.changed.notify()

    def _sync(self) -> None:
        while True:
            with self.changed:
                while not self.dirty and not self.written:
                    self.changed.wait()
                due, self.dirty = self.dirty, []
            if not due:
                return
            for fd in dict.fromkeys(map(abs, due)):
                os.fdatasync(fd)
            for fd in due:
                if fd < 0:
                    os.close(-fd)

    def close(self) -> None:
        self.memory.close()
        for path in self.directory.iterdir():
            path.unlink()


def overlapped(directory: Path, total_bytes: int, segment_bytes: int, made_before: bool = False) -> Stopwatch:
    """One run of the floor, timed."""
    floor = Overlapped(directory, total_bytes, segment_bytes, made_before)
    try:
        with Stopwatch() as watch:
            floor.run()
    finally:
        floor.close()
    return watch


def durable_writes(path: Path, data: bytes, count: int, at_once: int = 1) -> list[int]:
    """Nanoseconds of each step: `at_once` pwrites into an allocated file, then one fdatasync."""
    took = []
    with new_file(path, len(data) * count * at_once) as fd:
        clock, where = time.perf_counter_ns, 0
        for _ in range(count):
            began = clock()
            for _ in range(at_once):
                os.pwrite(fd, data, where)
                where += len(data)
            os.fdatasync(fd)
            took.append(clock() - began)
    return took


@contextlib.contextmanager
def shared_word(path: Path) -> Iterator[memoryview]:
    """The first words of a file, shared between processes. Only one process stores to each word."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as page:
        words = memoryview(page).cast("Q")
        try:
            yield words
        finally:
            words.release()
