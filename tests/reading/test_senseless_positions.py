"""Positions in shared memory that no lane can have: readers and commands say so."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog.errors import DamagedFile
from tests import command_line
from tests.builders.idle_store import idle_store


@pytest.mark.parametrize(
    "words",
    [{"FLUSHED": 1 << 60}, {"DISPATCHED": 1 << 60}, {"FIRST": 1 << 60}, {"FIRST": 1 << 60, "DISPATCHED": 1 << 61}],
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
