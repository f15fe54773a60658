"""Several lanes are recovered side by side, as they would be one after the other.

Every error reaches the caller.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.errors import CommitLogError, DiskFull, RecoveryError
from commitlog.opening import parallel_recovery
from commitlog.opening.parallel_recovery import recover_lanes
from commitlog.opening.recovery import LaneEnd
from tests.builders.made_lane import QUEUE_FILE, SEGMENT, MadeLane, image, make_lane


@pytest.fixture(autouse=True)
def _always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_recovery, "WORTH_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


def killed_lanes(path: Path) -> list[MadeLane]:
    """Five lanes that have more than was recorded.

    One has a torn tail, and one has damage below what was flushed.
    """
    made = [make_lane(path / str(number), 40 + number, number=number) for number in range(5)]
    for lane in made:
        lane.set_positions(lane.places[30][0], lane.places[20][0])
    made[1].write(made[1].places[-1][0] + 60, bytes(40))
    made[2].write(made[2].places[22][0] + 60, b"\xff" * 10)
    return made


def recover(
    lanes: list[MadeLane], channel: FileChannel = DISK, report: Callable[[str], None] = lambda line: None
) -> dict[int, LaneEnd]:
    directories = [lane.directory for lane in lanes]
    return recover_lanes(directories, SEGMENT, channel, report, queue_file_bytes=QUEUE_FILE)


def findings(lines: list[str]) -> list[str]:
    """Without the progress that a slow machine hears of."""
    return [line for line in lines if "recovery is at" not in line]


def test_the_same_as_one_after_the_other(tmp_path: Path) -> None:
    """Results, files and what is said; and a second time, on sound lanes, nothing changes."""
    lanes, alone = killed_lanes(tmp_path / "store"), killed_lanes(tmp_path / "alone")
    said: list[str] = []
    ends = recover(lanes, report=said.append)
    lines: list[str] = []
    expected = {lane.directory.number: lane.recover(report=lines.append) for lane in alone}
    here, there = str(tmp_path / "store"), str(tmp_path / "alone")
    assert {number: replace(end, findings=()) for number, end in ends.items()} == {
        number: replace(end, findings=()) for number, end in expected.items()
    }
    assert sorted(line.replace(here, there) for line in findings(said)) == sorted(findings(lines))
    assert [bool(ends[number].findings) for number in range(5)] == [False, True, True, False, False]
    assert image(tmp_path / "store").keys() == image(tmp_path / "alone").keys()
    assert all(
        data == image(tmp_path / "alone")[name]
        for name, data in image(tmp_path / "store").items()
        if "json" not in name
    )
    before = image(tmp_path / "store")
    assert recover(lanes).keys() == ends.keys()
    assert image(tmp_path / "store") == before


def test_it_is_done_in_other_processes(tmp_path: Path) -> None:
    """As many at the same time as there are processors."""
    written = tmp_path / "pids"

    class Noting(FileChannel):
        def sync_directory(self, path: str | Path) -> None:
            with written.open("a") as file:
                file.write(f"{os.getpid()}\n")
            super().sync_directory(path)

    recover(killed_lanes(tmp_path / "store"), Noting())
    pids = set(written.read_text().split())
    assert len(pids) == 5
    assert str(os.getpid()) not in pids


class Refusing(FileChannel):
    """A disk that is full in lane 1."""

    def fdatasync(self, fd: int) -> None:
        if "/store/1/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().fdatasync(fd)


class Deadly(FileChannel):
    """Kills the process that recovers lane 1."""

    def fdatasync(self, fd: int) -> None:
        if "/store/1/" in os.readlink(f"/proc/self/fd/{fd}"):
            os.kill(os.getpid(), signal.SIGKILL)
        super().fdatasync(fd)


@pytest.mark.parametrize(
    ("channel", "error", "says"), [(Refusing(), DiskFull, "recovery of"), (Deadly(), RecoveryError, "ended with -9")]
)
def test_an_error_is_raised_here(tmp_path: Path, channel: FileChannel, error: type[CommitLogError], says: str) -> None:
    """By its name. Nothing is begun after it; and the next recovery goes on where this one was."""
    lanes = killed_lanes(tmp_path / "store")
    with pytest.raises(error, match=says):
        recover(lanes, channel)
    ends, alone = recover(lanes), killed_lanes(tmp_path / "alone")
    assert {number: end.end for number, end in ends.items()} == {
        lane.directory.number: lane.recover().end for lane in alone
    }


def test_a_lane_that_can_not_be_looked_into_is_named(tmp_path: Path) -> None:
    """Its size is asked for before anything else."""
    lanes = killed_lanes(tmp_path / "store")
    shutil.rmtree(lanes[3].directory.commitlog)
    lanes[3].directory.commitlog.write_bytes(b"x")
    with pytest.raises(RecoveryError, match="is not a directory"):
        recover(lanes)


class Unheard(Exception):
    """Nobody listens to a report."""


@pytest.mark.parametrize("worth", [0, 1 << 30])
def test_a_report_that_fails_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worth: int) -> None:
    """Also in the other processes, which are not left behind. Small logs need none."""
    monkeypatch.setattr(parallel_recovery, "WORTH_BYTES", worth)

    def report(line: str) -> None:
        raise Unheard(line)

    lanes = killed_lanes(tmp_path / "store")
    with pytest.raises(Unheard):
        recover(lanes, report=report)
    assert len(recover(lanes)) == 5
