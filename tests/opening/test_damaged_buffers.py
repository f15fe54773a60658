"""Write buffers that were damaged, or another's: what was flushed is never written over by them."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import commitlog
from commitlog import errors
from commitlog.disk.store_directory import StoreDirectory
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane
from tests.builders.killed import kill_store
from tests.crash.scene import kill, pid_of
from tests.faults.bench import bench
from tests.faults.channel import Rule
from tests.waiting import wait_until

CONFIG = {"store": {"segment_bytes": 1 << 16, "max_lanes": 2}}
BODY = bytes(range(256)) * 3
FLUSHED, SENT = 45, 55
"""How many messages of each lane were flushed, and how many were sent."""


def value(number: int) -> bytes:
    return b"%d:" % number + BODY


def pool_of(path: Path) -> Path:
    place = StoreDirectory(path).load().pool
    assert place is not None
    return Path(place.directory)


@pytest.fixture
def begins(tmp_path: Path) -> list[int]:
    """A killed store with two lanes, whose last messages are in the pool only.

    The fixture is where each message of lane 0 begins.
    """
    path = tmp_path / "store"
    store = commitlog.Store.open(path, CONFIG)
    with commitlog.Producer(path) as one, commitlog.Producer(path) as other:
        found = [one.send("t", value(number)).physical_offset for number in range(FLUSHED)]
        for number in range(FLUSHED):
            other.send("t", value(number))
        one.flush()
        other.flush()
        for stage in ("committer", "flusher"):
            os.kill(pid_of(path, stage), signal.SIGSTOP)
        found += [one.send("t", value(number)).physical_offset for number in range(FLUSHED, SENT)]
        kill_store(store)
    return found


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


@contextmanager
def bytes_of(file: Path, data: bytes) -> Iterator[None]:
    """Other bytes in a file for a while. It stays the same file."""
    good = file.read_bytes()
    file.write_bytes(data)
    yield
    file.write_bytes(good)


def numbers(path: Path, *, ignore_corrupt: bool = False) -> list[int]:
    with commitlog.Reader(path, "t", ignore_corrupt=ignore_corrupt) as reader:
        return [int(message.value.partition(b":")[0]) for message in reader if message.partition == 0]


@pytest.mark.nightly
def test_buffers_of_nobody_and_of_another_lane(tmp_path: Path, begins: list[int]) -> None:
    """They are refused by name, and the store is whole where they are put back."""
    path = tmp_path / "store"
    buffers = pool_of(path) / "lane-0"
    for other in (bytes(buffers.stat().st_size), (pool_of(path) / "lane-1").read_bytes()):
        with (
            bytes_of(buffers, other),
            pytest.raises(
                errors.PoolNotAdopted, match=r"lane 0: .*damaged, or another's.*remove .*/lane-0 .* given up"
            ),
        ):
            commitlog.Store.open(path, CONFIG)
    assert commitlog.Store.open(path, CONFIG).close().drained
    assert numbers(path) == list(range(SENT))


def test_damage_of_what_was_flushed(tmp_path: Path, begins: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """A bit, and zeros in place of the last two flushed messages: the file has them."""
    path = tmp_path / "store"
    buffers, segment = pool_of(path) / "lane-0", path / "lanes/0/commitlog" / f"{0:020d}"
    flushed = segment.read_bytes()[: begins[FLUSHED]]
    flip(buffers, begins[20] + 200)
    with buffers.open("r+b") as file:
        file.seek(begins[FLUSHED - 2])
        file.write(bytes(begins[FLUSHED] - begins[FLUSHED - 2]))
    with caplog.at_level(logging.WARNING):
        assert commitlog.Store.open(path, CONFIG).close().drained
    assert "write buffer" in caplog.text
    assert segment.read_bytes().startswith(flushed)
    assert numbers(path) == list(range(SENT))


def test_damage_of_what_was_not_flushed(tmp_path: Path, begins: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """That message is lost, and everybody says so. All others are kept."""
    path = tmp_path / "store"
    flip(pool_of(path) / "lane-0", begins[FLUSHED + 3] + 200)
    with caplog.at_level(logging.WARNING):
        assert commitlog.Store.open(path, CONFIG).close().drained
    assert "messages that were accepted are lost" in caplog.text
    with pytest.raises(errors.CorruptRecord):
        numbers(path)
    kept = [number for number in range(SENT) if number != FLUSHED + 3]
    with pytest.warns(errors.ReadingWarning, match="1 message is known to be missing"):
        assert numbers(path, ignore_corrupt=True) == kept


def test_a_flusher_that_starts_again(tmp_path: Path) -> None:
    """It has all written again that it did not flush. The file has what the buffer has lost."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, CONFIG) as store, store.producer() as producer:
        for number in range(FLUSHED):
            producer.send("t", value(number))
        producer.flush()
        control = ControlRegion.attach(pool_of(path), writable=False)
        row, flusher = control.row(producer.lane), pid_of(path, "flusher")
        os.kill(flusher, signal.SIGSTOP)
        for number in range(FLUSHED, SENT):
            receipt = producer.send("t", value(number))
        wait_until(lambda: row[Lane.COMMITTED] == row[Lane.WROTE] > row[Lane.FLUSHED])
        with (pool_of(path) / "lane-0").open("r+b") as file:
            file.write(bytes(row[Lane.WROTE]))
        kill(flusher)
        receipt.wait()
        control.close()
    assert numbers(path) == list(range(SENT))


@pytest.mark.parametrize("how", ["is refused", "is too short"])
def test_a_file_that_can_not_be_compared(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync fails, and then the read before the rewrite: the file gets what the buffer has."""
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        producer.send("t", value(0))
        made.settle()
        producer.send("t", value(1))
        made.turn("committer")
        segment = tmp_path / "store/lanes/0/commitlog" / f"{0:020d}"
        before, size = segment.read_bytes()[: made.lane(Lane.WROTE)], segment.stat().st_size
        made.faults.set(Rule("fdatasync", error=errno.EIO, times=1))
        made.turn("flusher")
        made.faults.clear()
        assert made.lane(Lane.DISPATCHED) == made.lane(Lane.FLUSHED) < made.lane(Lane.COMMITTED) == len(before)
        channel = made.stages["committer"].channel

        def refuse(*_: object) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        if how == "is refused":
            monkeypatch.setattr(channel, "pread", refuse)
        else:
            os.truncate(segment, 10)
            os.truncate(segment, size)
            monkeypatch.setattr(channel, "pread", lambda fd, count, at: os.pread(fd, min(count, max(10 - at, 0)), at))
        made.settle()
        assert segment.read_bytes()[: len(before)] == before
