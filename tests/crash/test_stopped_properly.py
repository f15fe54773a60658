"""A lane without `abort` was stopped properly: all was flushed, so no part of it is a torn tail."""

from __future__ import annotations

import errno
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import commitlog
from commitlog.appending.lease import try_lease
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import StoreDirectory
from commitlog.inspecting.log_root import find_roots
from commitlog.inspecting.verify import verify_store
from commitlog.reading.log_scan import Gap
from commitlog.reading.view import StoreView, attach_control
from commitlog.shm.layout import segment_start
from tests.nightly import with_nightly
from tests.waiting import wait_until

CONFIG = {"store": {"segment_bytes": 1 << 16, "max_lanes": 2}}
SENT = 1000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A store with SENT records, stopped properly, and where each begins; `filled` copies it."""
    path = tmp_path_factory.mktemp("made") / "store"
    with commitlog.Store.open(path, CONFIG) as store, store.producer() as producer:
        return path, [producer.send("orders", b"%06d" % number * 10).physical_offset for number in range(SENT)]


@pytest.fixture
def filled(made: tuple[Path, list[int]], tmp_path: Path) -> tuple[Path, list[int]]:
    """The test's own copy."""
    return shutil.copytree(made[0], tmp_path / "store"), made[1]


def _lose_positions(path: Path) -> None:
    for name in ("positions", "checkpoint"):
        (path / "lanes/0" / name).unlink()


def _flip(path: Path, where: int) -> None:
    size: int = CONFIG["store"]["segment_bytes"]
    with (path / f"lanes/0/commitlog/{segment_start(where, size):020d}").open("r+b") as file:
        file.seek(where % size)
        (byte,) = file.read(1)
        file.seek(where % size)
        file.write(bytes([byte ^ 16]))


def _good(path: Path) -> list[int]:
    """Queue offsets of all good records of lane 0, in log order."""
    (root,), _ = find_roots(path)
    tables = [piece for piece in root.scan().pieces(0) if not isinstance(piece, Gap)]
    return [int(offset) for table in tables for offset in table.queue_offsets]


_FLIPS = [(victim, in_record) for victim in (0, 500, SENT - 1) for in_record in (0, 7, 30, 60)]
_DAILY = [(0, 0), (SENT - 1, 30)]
"""The first record and the last one; a bit of the size, and one of what only the CRC covers."""


@pytest.mark.parametrize(("victim", "in_record"), with_nightly(_DAILY, [flip for flip in _FLIPS if flip not in _DAILY]))
def test_one_flipped_bit_costs_one_record(
    victim: int, in_record: int, filled: tuple[Path, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    """Also with `positions` and `checkpoint` lost.

    The record is reported, noted, and left in place. All others are kept, and no offset is used
    twice.
    """
    path, places = filled
    _lose_positions(path)
    _flip(path, places[victim] + in_record)
    left = [number for number in range(SENT) if number != victim]
    assert _good(path) == left
    with commitlog.Store.open(path, CONFIG) as store:
        assert f"corruption: {path}" in caplog.text
        assert f"at offset {places[victim]}: " in caplog.text
        with store.producer() as producer:
            receipt = producer.send("orders", b"one more")
            assert (receipt.offset, receipt.physical_offset > places[-1]) == (SENT, True)
    assert _good(path) == [*left, SENT]
    quarantine = path / "lanes/0/quarantine"
    assert [file.name for file in quarantine.iterdir()] == [f"corrupt-{places[victim]:020d}.json"]


def test_a_missing_segment_costs_its_records_only(filled: tuple[Path, list[int]]) -> None:
    """The records behind it are kept."""
    path, places = filled
    _lose_positions(path)
    (path / f"lanes/0/commitlog/{1 << 16:020d}").unlink()
    left = [number for number, place in enumerate(places) if place >> 16 != 1]
    commitlog.Store.open(path, CONFIG).close()
    assert _good(path) == left


@pytest.mark.nightly
def test_a_lane_that_never_had_a_message(tmp_path: Path) -> None:
    """Such a lane begins at 0, also one that has only its directories."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, CONFIG) as store:
        store.producer().close()
    assert not (path / "lanes/0/abort").exists()
    _lose_positions(path)
    with commitlog.Store.open(path, CONFIG) as store:
        assert store.producer().send("orders", b"x").physical_offset == 0


def test_with_abort_a_torn_tail_is_one(filled: tuple[Path, list[int]]) -> None:
    """As for any kill: what is behind the first damage may never have been flushed.

    Where `store.json` or the consume queues know that it was, it is damage instead.
    """
    path, places = filled
    _lose_positions(path)
    directory = StoreDirectory(path)
    directory.save(replace(directory.load(), lanes={}))
    shutil.rmtree(path / "lanes/0/consumequeue")
    (path / "lanes/0/abort").write_text("1")
    _flip(path, places[500])
    commitlog.Store.open(path, CONFIG).close()
    assert _good(path) == list(range(500))


class _NoAbort(FileChannel):
    """A disk on which nobody can write an `abort` file."""

    def replace_file(self, path: str | Path, data: bytes) -> None:
        if Path(path).name == "abort":
            raise OSError(errno.ENOSPC, "planted")
        super().replace_file(path, data)


@pytest.mark.parametrize("lost", [False, True])
def test_a_lane_is_marked_durably_before_anything_is_appended(lost: bool, tmp_path: Path) -> None:
    """A lane whose `abort` can't be written is not leased.

    It is not leased the next time either, when the lock's file is there.
    """
    path = tmp_path / "store"
    with commitlog.Store.open(path, CONFIG) as store:
        if lost:
            store.producer().close()
            (path / "lanes/0/abort").unlink()
        with closing(StoreView(path)) as view:
            control = attach_control(view.directory, view.facts)
            assert control is not None
            for _ in range(2):
                with pytest.raises(OSError, match="planted"):
                    try_lease(view.directory, control, _NoAbort(), 1, 0)
            control.close()
        wait_until(lambda: not DISK.is_locked(path / "lanes/0/lock"), "the lock to be free")
        with store.producer() as producer:
            assert (path / "lanes/0/abort").exists()
            producer.send("orders", b"x")


def test_positions_of_another_lane_are_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The files of two lanes of different length are swapped.

    `verify` and the start report it, and no lane loses anything: `store.json` tells readers where
    the lanes end.
    """
    path = tmp_path / "store"
    with commitlog.Store.open(path, CONFIG) as store, store.producer() as long, store.producer() as short:
        for number in range(SENT):
            long.send("orders", b"%d" % number)
        short.send("orders", b"x")
    one, other = (path / "lanes" / name / "positions" for name in "01")
    mine, its = one.read_bytes(), other.read_bytes()
    one.write_bytes(its)
    other.write_bytes(mine)
    assert "belongs to lane 1" in verify_store(path).findings[0]
    assert count(path) == SENT + 1
    with commitlog.Store.open(path, CONFIG):
        assert "belongs to lane 1" in caplog.text
        assert "belongs to lane 0" in caplog.text
    assert count(path) == SENT + 1
    assert verify_store(path).good


def count(path: Path) -> int:
    with commitlog.Reader(path) as reader:
        return len(list(reader))
