"""The segment files of a log: their names, the one of an offset, the first and the last.

Also files that are missing or odd.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.disk.mapped_file_queue import MappedFileQueue, guess_segment_bytes
from commitlog.reading.log_scan import Gap, LogScan
from tests.builders.made_lane import SEGMENT, MadeLane, make_lane


def make_files(directory: Path, starts: list[int], size: int = SEGMENT) -> MappedFileQueue:
    directory.mkdir()
    for start in starts:
        with (directory / f"{start:020d}").open("wb") as file:
            file.truncate(size)
    return MappedFileQueue(directory, SEGMENT)


@pytest.fixture
def lane(tmp_path: Path) -> MadeLane:
    return make_lane(tmp_path / "3", 160)


def test_names_are_first_offsets(tmp_path: Path) -> None:
    """20 digits; first and end of the log; who comes behind whom."""
    starts = [SEGMENT * number for number in (3, 4, 5, 1 << 40)]
    files = make_files(tmp_path / "log", starts)
    assert files.starts == starts
    assert (files.first, files.end) == (3 * SEGMENT, SEGMENT * ((1 << 40) + 1))
    assert files.segment_path(starts[0]).name == "00000000000000012288"
    assert files.after(starts[1]) == starts[2:]
    assert files.after(0) == starts
    assert files.findings == []


def test_a_log_without_files(tmp_path: Path) -> None:
    files = make_files(tmp_path / "log", [])
    assert (files.first, files.end, files.find(0), files.after(0)) == (0, 0, None, [])
    assert MappedFileQueue(tmp_path / "absent", SEGMENT).starts == []


def test_the_file_of_an_offset(tmp_path: Path) -> None:
    """The file is found for each of its offsets, without a walk over the files.

    Offsets of missing files and offsets outside are tested too.
    """
    files = make_files(tmp_path / "log", [SEGMENT * number for number in (2, 3, 5)])
    del files.starts
    for number in range(8):
        for where in (number * SEGMENT, number * SEGMENT + 1, number * SEGMENT + SEGMENT - 1):
            assert files.find(where) == (number * SEGMENT if number in (2, 3, 5) else None)


def test_odd_things_are_named_and_passed_over(tmp_path: Path) -> None:
    """An empty last file is none, as in RocketMQ: it was just being made."""
    directory = tmp_path / "log"
    make_files(directory, [0, SEGMENT])
    (directory / f"{2 * SEGMENT:020d}").write_bytes(b"")
    (directory / f"{SEGMENT // 2:020d}").write_bytes(bytes(SEGMENT))
    (directory / "readme").write_bytes(b"x")
    (directory / f"{3 * SEGMENT:020d}").symlink_to(directory / f"{0:020d}")
    (directory / f"{4 * SEGMENT:020d}").write_bytes(bytes(100))
    files = MappedFileQueue(directory, SEGMENT)
    assert files.starts == [0, SEGMENT, 4 * SEGMENT]
    assert files.wrong_sizes == {4 * SEGMENT: 100}
    assert [(path.name.lstrip("0"), reason.partition(";")[0]) for path, reason in files.findings] == [
        ("2048", "no segment of 4,096 bytes begins there"),
        ("12288", "a symbolic link"),
        ("16384", "100 bytes, a segment of this log has 4,096"),
        ("readme", "not a segment's name"),
    ]
    assert len(files.map(4 * SEGMENT)) == SEGMENT  # never beyond the file's end: that would be a SIGBUS


@pytest.mark.parametrize("gone", [[1], [1, 2], [1, 3]])
def test_files_missing_in_the_middle_are_found_and_named(lane: MadeLane, gone: list[int]) -> None:
    """Each hole, with the file that should be there; what is behind it is read."""
    last = lane.end // SEGMENT
    assert last > 4
    for number in gone:
        lane.directory.segment_path(number * SEGMENT).unlink()
    files = MappedFileQueue(lane.directory.commitlog, SEGMENT)
    pieces = list(LogScan(files, 3).pieces(0))
    holes = [piece for piece in pieces if isinstance(piece, Gap) and not piece.last]
    expected = [(1, 3)] if gone == [1, 2] else [(number, number + 1) for number in gone]
    assert [(hole.start, hole.end) for hole in holes] == [(a * SEGMENT, b * SEGMENT) for a, b in expected]
    assert [Path(hole.file).name for hole in holes] == [f"{a * SEGMENT:020d}" for a, _ in expected]
    assert {hole.reason for hole in holes} == {"the segment file is missing"}
    found = sum(len(piece) for piece in pieces if not isinstance(piece, Gap))
    assert found == sum(start // SEGMENT not in gone for start, _ in lane.places)


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_files_that_retention_removes_before_the_walk_begins_are_passed_over(lane: MadeLane, gone: int) -> None:
    """They were there when the directory was listed: what is left is read, and no damage."""
    segments = MappedFileQueue(lane.directory.commitlog, SEGMENT)
    for number in range(gone):
        lane.directory.segment_path(number * SEGMENT).unlink()
    log = LogScan(segments, lane.directory.number)
    pieces = list(log.pieces(0))
    assert [piece.start for piece in pieces if isinstance(piece, Gap)] == [lane.end]
    tables = [piece for piece in pieces if not isinstance(piece, Gap)]
    expected = [start for start, _ in lane.places if start >= gone * SEGMENT]
    assert [start for table in tables for start in table.physical_offsets.tolist()] == expected


@pytest.mark.parametrize("size", [4096, 5000, 1 << 16])
def test_the_size_shows_in_names_and_files(tmp_path: Path, size: int) -> None:
    """Also where a file or two have another one."""
    directory = tmp_path / "log"
    make_files(directory, [size * number for number in range(3, 8)], size)
    assert guess_segment_bytes(directory) == size
    (directory / f"{3 * size:020d}").write_bytes(bytes(100))
    assert guess_segment_bytes(directory) == size
