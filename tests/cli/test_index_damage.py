"""`stat` and `topics` where what tells of topics is damaged: all else is shown, then the error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.builders.hand_made import HandMadeStore, small_store
from tests.command_line import run


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    return small_store(tmp_path / "store", rows=10)


def nonsense(file: Path) -> None:
    file.write_text("{")


@pytest.mark.parametrize("damage", [nonsense, Path.mkdir])
def test_what_is_known_is_shown(store: HandMadeStore, damage: Callable[[Path], None]) -> None:
    """Positions and the size of the log do not come from the index. The exit code says damage."""
    file = store.directory.lane_directory(0).trimmed_file
    damage(file)
    total = sum(lane.end for lane in store.lanes.values())
    shown = {"stat": f"lane 0: wrote {store.lane(0).end:,}", "topics": f"the log has {total:,} bytes, in lanes 0, 1;"}
    for command, line in shown.items():
        done = run(command, store.path)
        assert done.returncode == 1
        assert line in done.stdout.decode()
        assert done.stderr.count(b"\n") == 1
        assert str(file) in done.stderr.decode()
        done = run(command, store.path, "--json")
        assert done.returncode == 1
        assert str(file) in orjson.loads(done.stdout)["index_damage"]
    file.rmdir() if file.is_dir() else file.unlink()
    for command in shown:
        done = run(command, store.path, "--json")
        assert (done.returncode, orjson.loads(done.stdout)["index_damage"]) == (0, "")
