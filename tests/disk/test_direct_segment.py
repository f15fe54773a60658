"""What is behind the end of a lane's log, in the segment file."""

from __future__ import annotations

from pathlib import Path

from commitlog.disk.direct_segment import clear_unpublished
from commitlog.disk.file_channel import FileChannel
from commitlog.shm.layout import Lane
from tests.builders.idle_store import idle_store

SEGMENT = 1 << 24
WROTE = 1_000


class CountingChannel(FileChannel):
    """Counts the bytes that are read."""

    read = 0

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        self.read += count
        return super().pread(fd, count, offset)


def test_holes_behind_the_end_are_not_read(tmp_path: Path, shm_root: Path) -> None:
    """A stop and a new lessee look at what may be there, so a large segment costs them no more."""
    channel = CountingChannel()
    with idle_store(tmp_path / "store", shm_root / "pool", segment_bytes=SEGMENT) as store:
        store.lease(0)
        store.set(0, WROTE=WROTE, ALLOCATED=SEGMENT)
        lane, row = store.directory.lane_directory(0), store.control.row(0)
        path = lane.segment_path(0)
        with path.open("wb") as file:
            file.write(b"x" * WROTE)
            channel.allocate(file.fileno(), SEGMENT)
        assert not clear_unpublished(lane, row, channel)
        assert channel.read < SEGMENT // 8

        with path.open("r+b") as file:
            file.seek(SEGMENT - 3)
            file.write(b"abc")
        assert clear_unpublished(lane, row, channel)
        assert path.read_bytes() == b"x" * WROTE + bytes(SEGMENT - WROTE)
        assert row[Lane.WROTE] == WROTE
