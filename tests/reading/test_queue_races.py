"""Retention removes consume queue files while somebody reads.

A reader that only lost this race looks again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commitlog.disk.consume_queue import ENTRY_BYTES, ConsumeQueue, unlink_below
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import segment_name
from commitlog.errors import DamagedFile

PER_FILE = 10
FILE = PER_FILE * ENTRY_BYTES


class Racing(FileChannel):
    """Does something once, just after a directory was listed.

    Or it does it just before the `n`th open after that.
    """

    def __init__(self, race: Callable[[], None], opens: int = 0) -> None:
        self.race: Callable[[], None] | None = race
        self.opens_left = opens
        self.listed = False

    def _strike(self) -> None:
        if self.race is not None:
            race, self.race = self.race, None
            race()

    def list(self, path: str | Path) -> list[str]:
        names = super().list(path)
        if names and not self.opens_left:
            self._strike()
        self.listed = self.listed or bool(names)
        return names

    def open(self, path: str | Path, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        if self.listed and self.race is not None:
            self.opens_left -= 1
            if self.opens_left <= 0:
                self._strike()
        return super().open(path, write=write, create=create, exclusive=exclusive)


def fill(queue: ConsumeQueue, start: int, stop: int) -> None:
    numbers = np.arange(start, stop)
    queue.place(numbers, numbers * 100, np.full(len(numbers), 100), -numbers)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A queue of four files, the last one half full."""
    path = tmp_path / "lane" / "consumequeue" / "orders" / "0"
    path.parents[2].mkdir()
    queue = ConsumeQueue(path, FILE)
    fill(queue, 0, 35)
    queue.close()
    return path


def deletes(directory: Path, below: int) -> Callable[[], None]:
    """What retention does: the files of entries below a log offset go."""
    return lambda: unlink_below(directory, below, FileChannel())


@pytest.mark.parametrize("opens", [0, 1, 2])
@pytest.mark.parametrize(
    ("ask", "before", "after"),
    [
        (lambda queue: queue.file_bytes, FILE, FILE),
        (lambda queue: queue.end(), 35, 35),
        (lambda queue: queue.first(), 0, 20),
        (lambda queue: len(queue.entries(5, 1)), 1, 0),
        (lambda queue: queue.entries(33, 5)["physical_offset"].tolist()[:2], [3300, 3400], [3300, 3400]),
    ],
    ids=["file_bytes", "end", "first", "an old entry", "late entries"],
)
def test_files_that_go_between_the_list_and_the_open(
    directory: Path, ask: Callable[[ConsumeQueue], object], before: object, after: object, opens: int
) -> None:
    """The same object answers as before or after the deletion at once, and as after it later."""
    race = deletes(directory, 2000)
    queue = ConsumeQueue(directory, channel=Racing(race, opens))
    assert ask(queue) in (before, after)
    race()
    queue.close()
    assert ask(queue) == after
    queue.close()


def test_a_writer_goes_on_behind_files_that_went(directory: Path) -> None:
    """The dispatcher's object, whose first entry comes while retention deletes."""
    queue = ConsumeQueue(directory, channel=Racing(deletes(directory, 2000)))
    fill(queue, 35, 45)
    queue.sync()
    queue.close()
    assert sorted(file.name for file in directory.iterdir()) == [segment_name(n * FILE) for n in (2, 3, 4)]
    again = ConsumeQueue(directory)
    assert (again.first(), again.end()) == (20, 45)
    again.close()


def test_the_end_is_never_that_of_a_file_that_went(directory: Path) -> None:
    """The next offset comes from it: one that is too low would be used twice."""

    def moves_on() -> None:
        queue = ConsumeQueue(directory)
        fill(queue, 35, 65)
        queue.close()
        unlink_below(directory, 6000, FileChannel())

    for opens in range(4):
        queue = ConsumeQueue(directory, FILE, Racing(moves_on, opens))
        assert queue.end() in (35, 65)
        queue.close()


def test_emptying_passes_over_what_went(directory: Path) -> None:
    queue = ConsumeQueue(directory, FILE, Racing(deletes(directory, 2000)))
    queue.zero_from(5)
    queue.close()
    assert sorted(file.name for file in directory.iterdir()) == [segment_name(n * FILE) for n in (2, 3)]
    assert not any(file.read_bytes().strip(b"\0") for file in directory.iterdir())


def test_two_that_delete(directory: Path) -> None:
    """A file that somebody else has removed is as good as removed."""
    unlink_below(directory, 2000, Racing(deletes(directory, 2000)))
    assert sorted(file.name for file in directory.iterdir()) == [segment_name(n * FILE) for n in (2, 3)]


def test_a_name_that_nobody_can_open_is_named(directory: Path) -> None:
    """Listed for ever and not there: an error of ours, not a loop."""

    class Ghostly(FileChannel):
        def list(self, path: str | Path) -> list[str]:
            return [segment_name(0)]

    ghostly = ConsumeQueue(directory.parent / "1", channel=Ghostly())
    for ask in (lambda: ghostly.file_bytes, ghostly.end, ghostly.first):
        with pytest.raises(DamagedFile, match="listed and can't be opened"):
            ask()
