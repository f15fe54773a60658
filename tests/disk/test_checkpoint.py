"""`positions` in two slots, of which one is always whole; and RocketMQ's checkpoint."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from commitlog.disk.checkpoint import SLOT_BYTES, Positions, PositionsFile, StoreCheckpoint
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import DamagedFile

STORE = "0123456789abcdef" * 2


def lane_of(path: Path, number: int = 5) -> LaneDirectory:
    return LaneDirectory(path.parent, number)


def positions(number: int, drained: bool = False) -> Positions:
    return Positions(7, number * 100, number * 90, number * 10, 1_700_000_000_000 + number, drained)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "positions"


def store(path: Path, *numbers: int) -> None:
    file = PositionsFile(lane_of(path), STORE, DISK)
    for number in numbers:
        file.store(positions(number))


def load(path: Path) -> Positions | None:
    return PositionsFile(lane_of(path), STORE, DISK).load()


def test_nothing(path: Path) -> None:
    assert load(path) is None


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_the_newest_counts(path: Path, count: int) -> None:
    store(path, *range(1, count + 1))
    assert load(path) == positions(count)
    assert path.stat().st_size <= 2 * SLOT_BYTES


def test_goes_on_in_another_process(path: Path) -> None:
    """The sequence is read from the file, so that it never writes over the newest slot."""
    store(path, 1, 2, 3)
    store(path, 4)
    store(path, 2)
    assert load(path) == positions(2)


def test_drained(path: Path) -> None:
    PositionsFile(lane_of(path), STORE, DISK).store(positions(1, drained=True))
    assert load(path) == positions(1, drained=True)


def newest_slot(path: Path) -> int:
    """Where the slot begins that the last store wrote."""
    data = path.read_bytes()
    sequences = [int.from_bytes(data[start + 8 : start + 16], "little") for start in (0, SLOT_BYTES)]
    return sequences.index(max(sequences)) * SLOT_BYTES


@pytest.mark.parametrize("numbers", [(1, 2), (1, 2, 3)])
def test_torn_at_every_byte(path: Path, numbers: tuple[int, ...]) -> None:
    """If a part of the newest slot is written, the older one counts, or the new one as a whole."""
    store(path, *numbers)
    before = path.read_bytes()
    store(path, 9)
    after, start = path.read_bytes(), newest_slot(path)
    for at in range(104):
        torn = before[:start] + after[start : start + at] + before[start + at :]
        path.write_bytes(torn)
        assert load(path) in (positions(numbers[-1]), positions(9))
        path.write_bytes(after[: start + at] + bytes(SLOT_BYTES - at) + after[start + SLOT_BYTES :])
        assert load(path) in (positions(numbers[-1]), positions(9))


@pytest.mark.parametrize("mask", [1, 0x80, 0xFF])
def test_every_byte_flipped(path: Path, mask: int) -> None:
    store(path, 1, 2)
    good, start = path.read_bytes(), newest_slot(path)
    for at in range(start, start + 100):
        data = bytearray(good)
        data[at] ^= mask
        path.write_bytes(data)
        assert load(path) == positions(1)


@pytest.mark.parametrize("data", [b"", b"x", bytes(100), bytes(2 * SLOT_BYTES), b"\xff" * 3 * SLOT_BYTES])
def test_rubbish(path: Path, data: bytes) -> None:
    """No positions, and room for new ones."""
    path.write_bytes(data)
    assert load(path) is None
    store(path, 5)
    assert load(path) == positions(5)


@pytest.mark.parametrize("bad", [Positions(1, 10, 20, 0, 0, False), Positions(1, 10, 10, 11, 0, False)])
def test_impossible_positions(path: Path, bad: Positions) -> None:
    """A CRC proves that positions were written, not that they are possible.

    Here dispatched is beyond flushed, or first beyond dispatched.
    """
    store(path, 1)
    PositionsFile(lane_of(path), STORE, DISK).store(bad)
    assert load(path) == positions(1)


def test_a_failed_write_costs_nothing(path: Path) -> None:
    """The next one goes into the same slot again, and the older slot stays."""

    class Failing(FileChannel):
        fails = False

        def fdatasync(self, fd: int) -> None:
            if self.fails:
                raise OSError(5, "planted")
            super().fdatasync(fd)

    channel = Failing()
    file = PositionsFile(lane_of(path), STORE, channel)
    file.store(positions(1))
    file.store(positions(2))
    channel.fails = True
    for number in (3, 4, 5):
        with pytest.raises(OSError, match="planted"):
            file.store(positions(number))
    data = path.read_bytes()
    assert newest_slot(path) == (3 % 2) * SLOT_BYTES
    path.write_bytes(data[: newest_slot(path)] + bytes(SLOT_BYTES) + data[newest_slot(path) + SLOT_BYTES :])
    assert load(path) == positions(2)


def slot_of_the_version_before(sequence: int, number: int) -> bytes:
    """As yesterday's package wrote it: 72 bytes and their CRC, and nobody's name."""
    fields = (sequence, 7, number * 100, number * 90, number * 10, 1_700_000_000_000 + number, 0)
    body = b"CLPOS\0\0\x02" + struct.pack("<7Qq", *fields, -1)
    return (body + struct.pack("<I", zlib.crc32(body))).ljust(SLOT_BYTES, b"\0")


def test_yesterdays_slots_are_read_and_replaced(path: Path) -> None:
    path.write_bytes(slot_of_the_version_before(4, 40) + slot_of_the_version_before(3, 30))
    assert load(path) == positions(40)
    store(path, 50)
    assert load(path) == positions(50)
    assert path.read_bytes()[:SLOT_BYTES] == slot_of_the_version_before(4, 40)


def test_those_of_another_lane_are_passed_over(path: Path) -> None:
    """With a line that says so; what is written next counts, whatever numbers the others have."""
    foreign = PositionsFile(lane_of(path, 6), STORE, DISK)
    for number in (1, 2, 3):
        foreign.store(positions(number))
    file = PositionsFile(lane_of(path), STORE, DISK)
    assert file.load() is None
    assert len(file.findings) == 2
    assert file.findings[0] == f"{path}: belongs to lane 6 of store {STORE}, not here; passed over"
    file.store(positions(9))
    assert load(path) == positions(9)
    file.store(positions(10))
    assert (file.load(), file.findings) == (positions(10), [])


def test_those_of_another_store_are_refused(path: Path) -> None:
    """The log beside them may be that store's, too. With one slot of this lane the file counts."""
    foreign = PositionsFile(lane_of(path), "f" * 32, DISK)
    foreign.store(positions(1))
    with pytest.raises(DamagedFile, match=r"belongs to lane 5 of store f{32}, not here\. Put back"):
        load(path)
    store(path, 9)
    assert load(path) == positions(9)


def test_who_does_not_know_the_store_goes_by_the_lane(path: Path) -> None:
    store(path, 1)
    assert PositionsFile(lane_of(path), "", DISK).load() == positions(1)
    assert PositionsFile(lane_of(path, 6), "", DISK).load() is None


def test_rocketmqs_checkpoint(tmp_path: Path) -> None:
    """4096 bytes: five big-endian numbers, then zeros."""
    path = tmp_path / "checkpoint"
    StoreCheckpoint(1, 2, 3, 4, 5).save(path, DISK)
    data = path.read_bytes()
    assert len(data) == 4096
    assert data.rstrip(b"\0") == b"".join(number.to_bytes(8, "big") for number in range(1, 6))
