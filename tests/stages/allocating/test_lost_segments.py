"""A segment file that is lost is not taken for one that is old: its loss would be silent then."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog.errors import DamagedFile
from commitlog.shm.layout import Lane
from tests.command_line import run
from tests.faults.bench import Bench, bench


def turn_retention(made: Bench) -> None:
    for _ in range(3):
        made.clock.step(100)
        for stage in ("dispatcher", "flusher", "allocator"):
            made.stages[stage].on_wait_end()


def test_retention_waits_for_the_age_of_what_is_behind_it(tmp_path: Path) -> None:
    """What a start has noted stays noted, and readers still name the file."""
    path = tmp_path / "store"
    with bench(path) as made:
        producer = made.producer()
        for number in range(60):
            producer.send("orders", b"%d" % number * 3000)
            made.settle()
        made.stop()
    (path / f"lanes/0/commitlog/{0:020d}").unlink()
    with bench(path) as made:
        turn_retention(made)
        assert made.lane(Lane.FIRST) == 0
        assert b"damage-noted" in run("health", path).stdout
        with pytest.raises(DamagedFile), commitlog.Reader(path) as reader:
            list(reader)
        made.stop()
