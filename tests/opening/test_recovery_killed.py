"""A recovery that is killed at any of its writes and repeated ends as one that was not."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.disk.file_channel import FileChannel
from commitlog.record.record_layout import Buffer
from tests.builders.made_lane import SEGMENT, MadeLane, image, make_lane
from tests.nightly import with_nightly


class Killed(BaseException):
    """Stands for the process's end."""


class DyingChannel(FileChannel):
    """Dies at the k-th change of the disk, before or in the middle of it."""

    def __init__(self, steps: int, half: bool) -> None:
        self.steps, self.half = steps, half
        self.died_in_write = False

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Killed

    def write_once(self, fd: int, data: Buffer, offset: int) -> int:
        if self.steps == 0 and self.half:
            super().write_once(fd, memoryview(data)[: len(data) // 2], offset)
        self.died_in_write = self.steps == 0
        self._step()
        return super().write_once(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._step()
        super().fdatasync(fd)

    def truncate(self, fd: int, length: int) -> None:
        self._step()
        super().truncate(fd, length)

    def allocate(self, fd: int, length: int) -> None:
        self._step()
        super().allocate(fd, length)

    def sync_directory(self, path: str | Path) -> None:
        self._step()
        super().sync_directory(path)

    def rename(self, source: str | Path, target: str | Path) -> None:
        self._step()
        super().rename(source, target)

    def unlink(self, path: str | Path) -> None:
        self._step()
        super().unlink(path)


def _torn(lane: MadeLane) -> None:
    start = lane.places[30][0]
    lane.write(start + 40, bytes(60))
    lane.set_positions(lane.places[28][0], lane.places[25][0])


def _corrupt(lane: MadeLane) -> None:
    lane.write(lane.places[30][0] + 20, b"\xff" * 60)
    lane.set_positions(lane.end, lane.places[20][0])


def _no_positions(lane: MadeLane) -> None:
    lane.directory.positions_file.unlink()
    os.truncate(lane.directory.queue_path("orders") / f"{0:020d}", 130)
    lane.write(lane.places[55][0] + 2, bytes(200))


def _sizes(lane: MadeLane) -> None:
    os.truncate(lane.directory.segment_path(SEGMENT), 3000)
    os.truncate(lane.directory.segment_path(0), SEGMENT + 77)
    lane.directory.positions_file.unlink()


@pytest.mark.parametrize(
    "harm", with_nightly([_torn], [_corrupt, _no_positions, _sizes]), ids=lambda harm: harm.__name__
)
def test_killed_anywhere_and_repeated_it_ends_the_same(harm: Callable[[MadeLane], None], tmp_path: Path) -> None:
    """At each write, sync, rename of it, and in the middle of each write."""
    calm = make_lane(tmp_path / "calm" / "3")
    harm(calm)
    found = calm.recover()
    expected = image(calm.directory.path)
    lane = make_lane(tmp_path / "killed" / "3")
    harm(lane)
    shutil.copytree(lane.directory.path, tmp_path / "harmed")
    for step in range(500):
        finished = False
        for half in (False, True):
            shutil.rmtree(lane.directory.path)
            shutil.copytree(tmp_path / "harmed", lane.directory.path)
            channel = DyingChannel(step, half)
            with contextlib.suppress(Killed):
                lane.recover(channel)
                finished = True
            again = lane.recover()
            assert (again.first, again.end, again.allocated) == (found.first, found.end, found.allocated)
            assert _comparable(image(lane.directory.path), calm, lane) == _comparable(expected, calm, calm), step
            if not channel.died_in_write:
                break  # only a write has a middle
        if finished:
            assert step > 5
            return
    pytest.fail("it never came to its end")


class UnsyncedLog(DyingChannel):
    """A disk whose power is cut at the k-th change: of the log it keeps only what was synced.

    Everything else that was written is there. At first, nothing behind log offset `durable` is.
    """

    def __init__(self, steps: int, lane: MadeLane, durable: int) -> None:
        super().__init__(steps, half=False)
        self.kept = {}
        for file in lane.directory.commitlog.iterdir():
            known = max(durable - int(file.name), 0)
            self.kept[file] = file.read_bytes()[:known].ljust(SEGMENT, b"\0")

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        file = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if file in self.kept:
            self.kept[file] = file.read_bytes()

    def cut_power(self) -> None:
        for file, data in self.kept.items():
            file.write_bytes(data)


@pytest.mark.parametrize("harm", with_nightly(["no positions"], ["no queue"]))
def test_a_power_cut_in_it_is_never_called_damage(harm: str, tmp_path: Path) -> None:
    """The entries that it places are no proof that records were flushed which it has not synced."""
    lane = make_lane(tmp_path / "3")
    flushed = lane.places[20][0]
    lane.set_positions(flushed, flushed)
    shutil.rmtree(lane.directory.queue_path("orders"))
    if harm == "no positions":
        lane.directory.positions_file.unlink()
    shutil.copytree(lane.directory.path, tmp_path / "harmed")
    for step in range(500):
        shutil.rmtree(lane.directory.path)
        shutil.copytree(tmp_path / "harmed", lane.directory.path)
        channel = UnsyncedLog(step, lane, flushed)
        try:
            lane.recover(channel)
        except Killed:
            channel.cut_power()
        else:
            assert step > 5
            assert lane.kept() == list(range(60))
            return
        found = lane.recover()
        assert found.end >= flushed
        assert not [line for line in found.findings if "corruption" in line], step
        assert not list(lane.directory.path.glob("quarantine/corrupt-*")), step
    pytest.fail("it never came to its end")


def _comparable(files: dict[str, bytes], calm: MadeLane, lane: MadeLane) -> dict[str, bytes]:
    """Paths in notes made alike, and without the notes' checksums, which cover these paths."""
    here, there = str(lane.directory.path).encode(), str(calm.directory.path).encode()
    return {name: re.sub(rb'"crc32": "\w+"', b"", data.replace(here, there)) for name, data in files.items()}
