"""Positions in shared memory that no lane can have: readers and commands say so."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DamagedFile
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane
from tests import command_line
from tests.builders.idle_store import idle_store
from tests.waiting import wait_until


@pytest.mark.parametrize(
    "words",
    [
        {"FLUSHED": 1 << 60},
        {"DISPATCHED": 1 << 60},
        {"FIRST": 1 << 60, "RETIRED": 1 << 60},
        {"FIRST": 1 << 60, "DISPATCHED": 1 << 61},
    ],
    ids=" ".join,
)
def test_positions_that_no_lane_can_have(tmp_path: Path, words: dict[str, int]) -> None:
    """A reader walked a log of that length, which takes for ever."""
    with idle_store(tmp_path / "store", tmp_path / "pool") as store:
        path = store.directory.path
        store.set(0, WROTE=500, COMMITTED=500)
        store.set(0, **words)
        with pytest.raises(DamagedFile, match=r"lane 0: its positions in .* are damaged"):
            commitlog.Reader(path)
        for command in ("cat", "topics", "readers", "verify", "stat"):
            done = command_line.run(command, path)
            assert b"damaged" in done.stdout + done.stderr, (command, done)
            assert done.returncode, command


def test_senseless_positions_of_a_lane_that_is_not_read(tmp_path: Path) -> None:
    """A reader of other lanes goes on, a reader of all lanes names the lane."""
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as one, store.producer() as other:
        one.send("orders", b"0").wait()
        other.send("orders", b"1").wait()
        place = StoreDirectory(store.path).load().pool
        assert place is not None
        with (
            commitlog.Reader(store.path, "orders", lanes={0}, follow=True, start="earliest") as reader,
            closing(ControlRegion.attach(Path(place.directory), writable=True)) as control,
        ):
            assert next(reader).value == b"0"
            wait_until(lambda: control.row(1)[Lane.DISPATCHED] == control.row(1)[Lane.FLUSHED])
            sound = control.row(1)[Lane.DISPATCHED]
            control.row(1)[Lane.DISPATCHED] = 1 << 60
            one.send("orders", b"2").wait()
            assert next(reader).value == b"2"
            with commitlog.Reader(store.path, "orders", lanes={0}) as late:
                assert [message.value for message in late] == [b"0", b"2"]
            with pytest.raises(DamagedFile, match=r"lane 1: its positions in .* are damaged"):
                commitlog.Reader(store.path, "orders")
            control.row(1)[Lane.DISPATCHED] = sound
