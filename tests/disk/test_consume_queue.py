"""Consume queues: entries are placed by queue offset, in sparse files.

Other processes read them meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitlog.disk.consume_queue import ENTRY, ENTRY_BYTES, FILE_BYTES, PRE_FILL_SIZE, ConsumeQueue
from commitlog.disk.file_channel import FileChannel
from commitlog.errors import DamagedFile
from commitlog.record.record_layout import Buffer

PER_FILE = 10
FILE = PER_FILE * ENTRY_BYTES


class Recording(FileChannel):
    """Notes writes and syncs."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        self.calls.append(("pwrite", len(data)))
        super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self.calls.append(("fdatasync", 0))
        super().fdatasync(fd)

    def sync_directory(self, path: str | Path) -> None:
        self.calls.append(("sync_directory", 0))
        super().sync_directory(path)

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "orders" / "3"


@pytest.fixture
def queue(directory: Path) -> Iterator[ConsumeQueue]:
    made = ConsumeQueue(directory, FILE)
    yield made
    made.close()


def fill(queue: ConsumeQueue, start: int, stop: int) -> None:
    numbers = np.arange(start, stop)
    queue.place(numbers, numbers * 100, np.full(len(numbers), 100), -numbers)


def entries(queue: ConsumeQueue, start: int = 0, count: int = 1000) -> list[tuple[int, int, int]]:
    return [tuple(entry) for entry in queue.entries(start, count).tolist()]


def test_the_entry_is_rocketmqs() -> None:
    """20 bytes, big-endian; 300,000 of them a file."""
    entry = np.array([(1, 2, -3)], dtype=ENTRY)
    assert entry.tobytes().hex() == "000000000000000100000002fffffffffffffffd"
    assert FILE_BYTES == 6_000_000


def test_nothing(queue: ConsumeQueue, directory: Path) -> None:
    """A queue that is not there is empty, and looking makes nothing."""
    assert (queue.first(), queue.end(), len(queue.entries(0, 10))) == (0, 0, 0)
    fill(queue, 0, 0)
    assert not directory.exists()


@pytest.mark.parametrize("count", [1, 9, 10, 11, 25])
def test_placed(queue: ConsumeQueue, directory: Path, count: int) -> None:
    """At queue offset x 20, in files of full size, all of them sparse."""
    fill(queue, 0, count)
    files = sorted(directory.iterdir())
    assert [file.name for file in files] == [f"{start * FILE:020d}" for start in range((count + 9) // 10)]
    assert {file.stat().st_size for file in files} == {FILE}
    assert (queue.first(), queue.end()) == (0, count)
    assert entries(queue, 0, count) == [(number * 100, 100, -number) for number in range(count)]
    assert entries(queue, count - 1, 1) == [((count - 1) * 100, 100, 1 - count)]


def test_a_repeat_changes_nothing(queue: ConsumeQueue, directory: Path) -> None:
    fill(queue, 0, 25)
    before = [file.read_bytes() for file in sorted(directory.iterdir())]
    fill(queue, 5, 25)
    fill(queue, 0, 3)
    assert [file.read_bytes() for file in sorted(directory.iterdir())] == before


def test_any_order(queue: ConsumeQueue) -> None:
    """Places need not be in a row."""
    offsets = np.array([3, 0, 12, 1, 2, 11])
    queue.place(offsets, offsets, np.ones(6), offsets)
    assert [place for place, size, _ in entries(queue) if size] == [0, 1, 2, 3, 11, 12]


def test_one_write_for_a_row_within_a_file(directory: Path) -> None:
    """And one sync for each file; of the directories, up to the lane's, with the first."""
    channel = Recording()
    queue = ConsumeQueue(directory, FILE, channel)
    fill(queue, 0, 25)
    assert [call for call in channel.calls if call[0] == "pwrite"] == [
        ("pwrite", 200),
        ("pwrite", 200),
        ("pwrite", 100),
    ]
    channel.calls.clear()
    queue.sync()
    assert channel.names() == ["fdatasync"] * 3 + ["sync_directory"] * 4
    channel.calls.clear()
    queue.sync()
    fill(queue, 25, 26)
    queue.sync()
    assert channel.names() == ["pwrite", "fdatasync"]
    queue.close()


def test_another_reader_sees_what_is_placed(queue: ConsumeQueue, directory: Path) -> None:
    """Another reader also sees entries in files that were made after its first look.

    It needs no write access, and finds the size of the files.
    """
    fill(queue, 0, 5)
    reader = ConsumeQueue(directory)
    assert (reader.end(), reader.file_bytes) == (5, FILE)
    fill(queue, 5, 35)
    assert reader.end() == 35
    assert len(reader.entries(0, 35)) == 35
    reader.close()


def test_a_reader_that_may_not_write(queue: ConsumeQueue, directory: Path) -> None:
    class ReadOnly(FileChannel):
        def open(self, path: str | Path, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
            assert not write
            assert not create
            return super().open(path)

    fill(queue, 0, 15)
    reader = ConsumeQueue(directory, FILE, ReadOnly())
    assert (reader.first(), reader.end(), len(reader.entries(3, 100))) == (0, 15, 17)
    reader.close()


def test_pre_filled(queue: ConsumeQueue) -> None:
    """Where the first entry is not at 0, RocketMQ fills the places before it."""
    queue.place(range(13), np.zeros(13), np.full(13, PRE_FILL_SIZE), np.zeros(13))
    fill(queue, 13, 27)
    assert (queue.first(), queue.end()) == (13, 27)


def test_older_files_deleted(queue: ConsumeQueue, directory: Path) -> None:
    fill(queue, 0, 35)
    (directory / f"{0:020d}").unlink()
    again = ConsumeQueue(directory, FILE)
    assert (again.first(), again.end()) == (10, 35)
    assert len(again.entries(0, 5)) == 0
    again.close()


def test_an_empty_last_file_keeps_the_offsets(queue: ConsumeQueue, directory: Path) -> None:
    """Retention may leave nothing but the last file: the next offset is still known."""
    fill(queue, 0, 20)
    fill(queue, 20, 21)
    queue.zero_from(20)
    for name in (0, FILE):
        (directory / f"{name:020d}").unlink()
    again = ConsumeQueue(directory, FILE)
    assert (again.first(), again.end()) == (20, 20)
    again.close()


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 11, 24, 25, 40])
def test_zeroed_from(queue: ConsumeQueue, directory: Path, keep: int) -> None:
    """Durably, also in later files; the entries before stay, the files keep their size."""
    fill(queue, 0, 25)
    queue.zero_from(keep)
    kept = min(keep, 25)
    assert queue.end() == kept
    assert entries(queue, 0, kept) == [(number * 100, 100, -number) for number in range(kept)]
    assert [file.stat().st_size for file in directory.iterdir()] == [FILE] * 3
    data = b"".join(file.read_bytes() for file in sorted(directory.iterdir()))
    assert not data[kept * ENTRY_BYTES :].strip(b"\0")


@pytest.mark.parametrize("size", [1, 19, 21, FILE - 20, FILE + 20])
def test_a_file_of_another_size(queue: ConsumeQueue, directory: Path, size: int) -> None:
    """Named in the error; the files before it stay readable."""
    fill(queue, 0, 25)
    path = directory / f"{2 * FILE:020d}"
    os.truncate(path, size)
    reader = ConsumeQueue(directory, FILE)
    with pytest.raises(DamagedFile, match=path.name):
        reader.entries(15, 10)
    with pytest.raises(DamagedFile, match=path.name):
        reader.end()
    assert len(reader.entries(0, 20)) == 20
    reader.close()


def test_a_first_file_that_is_no_queues(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / f"{0:020d}").write_bytes(bytes(30))
    with pytest.raises(DamagedFile, match="not the size of a consume queue"):
        ConsumeQueue(directory).end()


def test_foreign_files(queue: ConsumeQueue, directory: Path) -> None:
    """Are passed over."""
    fill(queue, 0, 3)
    (directory / "notes.txt").write_text("hello")
    (directory / f"{0:019d}").write_text("hello")
    assert queue.end() == 3


def test_a_file_made_and_not_yet_sized(queue: ConsumeQueue, directory: Path) -> None:
    """A writer may have died there: it is empty, and gets its size with the next entry."""
    fill(queue, 0, 10)
    (directory / f"{FILE:020d}").write_bytes(b"")
    reader = ConsumeQueue(directory, FILE)
    assert reader.end() == 10
    fill(queue, 10, 11)
    assert reader.end() == 11
    reader.close()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 5), min_size=1, max_size=35), st.integers(-1, 25), st.integers(0, 3))
def test_found_by_time(tmp_path_factory: pytest.TempPathFactory, steps: list[int], time: int, first: int) -> None:
    """The first message at or after a time is found.

    The time is before all messages, between them, the same as several, or after all; or the range
    is empty.
    """
    times = np.cumsum(steps).tolist()
    queue = ConsumeQueue(tmp_path_factory.mktemp("queue"), FILE)
    fill(queue, 0, len(times))
    first = min(first, len(times))
    found = queue.find_by_timestamp(time, first, len(times), times.__getitem__)
    queue.close()
    assert found == next((number for number in range(first, len(times)) if times[number] >= time), len(times))
