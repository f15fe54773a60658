"""A mapped page that can't be read, of a bad sector or a file that is cut, ends in an error.

A look at such a page kills the process (SIGBUS), if nobody has asked the kernel for it before.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.errors import CommitLogError, ReadingWarning
from tests.builders.hand_made import small_store
from tests.children import in_child
from tests.command_line import run


@pytest.fixture(autouse=True)
def _honest_kernel(tmp_path: Path) -> None:
    """QEMU 7.2 says that it reads pages ahead, and does not. So nobody can know of such a page."""
    with (tmp_path / "cut").open("w+b") as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as page:
            file.truncate(0)
            try:
                page.madvise(22)  # MADV_POPULATE_READ
            except OSError:
                return
    pytest.skip("this machine does not read pages ahead when it is asked to")


def cut(fd: int, length: int, keeps: int = mmap.PAGESIZE) -> mmap.mmap:
    """Maps a file; of the segment at 8,192 all pages behind the first one are gone then."""
    mapped = FileChannel.map_read(DISK, fd, length)
    path = os.readlink(f"/proc/self/fd/{fd}")
    if path.endswith("/commitlog/00000000000000008192"):
        os.truncate(path, keeps)
    return mapped


def cut_all(fd: int, length: int) -> mmap.mmap:
    """The same; its first page is gone, too."""
    return cut(fd, length, 0)


def read_messages(path: Path) -> None:
    with commitlog.Reader(path) as reader:
        list(reader)


def find_by_time(path: Path) -> None:
    with commitlog.Reader(path, topic="orders", start="1971-01-01") as reader:
        list(reader)


def read_table(path: Path) -> None:
    commitlog.read_arrow(path, "orders").read_all()


def command(name: str) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        done = run(name, str(path))
        raise CommitLogError(f"{done.returncode} {done.stderr.decode()}")

    return do


@pytest.mark.parametrize(
    "read",
    [read_messages, find_by_time, read_table, command("verify"), command("dump"), command("cat")],
    ids=["messages", "by time", "table", "verify", "dump", "cat"],
)
def test_a_page_that_can_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], None]
) -> None:
    """The error names the file."""
    path = small_store(tmp_path / "store").path

    def look() -> str:
        monkeypatch.setattr(DISK, "map_read", cut)
        try:
            read(path)
        except CommitLogError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    said = in_child(look)
    assert "DiskInputOutput" in said
    assert f"{path}/lanes/" in said
    assert "/commitlog/00000000000000008192: " in said


def test_what_can_not_be_read_behind_the_end_of_a_killed_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps nobody from the messages before: `stat` and readers look whether there is more."""
    store = small_store(tmp_path / "store", lanes=1)
    lane = store.lane(0)
    known = [record for record in lane.records if record.physical_offset < store.segment_bytes]
    lane.publish(flushed=store.segment_bytes, is_drained=False)

    def look() -> str:
        monkeypatch.setattr(DISK, "map_read", cut)
        with pytest.warns(ReadingWarning, match="not stopped properly"), commitlog.Reader(store.path) as reader:
            assert len(list(reader)) == len(known)
        return f"{run('stat', str(store.path)).returncode}"

    assert in_child(look) == "3"


def test_a_segment_whose_age_can_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`trim` looks at the first message of each segment, before it asks."""
    path = small_store(tmp_path / "store").path

    def look() -> str:
        monkeypatch.setattr(DISK, "map_read", cut_all)
        return run("trim", path, "--before", "2024-01-01").stdout.decode()

    assert "Delete them?" in in_child(look)
