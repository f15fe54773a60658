"""The power is cut anywhere: what was flushed is there, and nothing that was not sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory
from tests.crash.power_cut import Promised, record, replay
from tests.crash.recording import Entry
from tests.crash.scene import WAYS


def test_what_was_flushed_survives_a_power_cut(tmp_path: Path) -> None:
    """25 power cuts, in a run with kills, retention, a proper stop and two recoveries."""
    counts = replay(record(tmp_path, seed=1, messages=60), tmp_path / "states", states=25, seed=1)
    assert counts.states == 25
    assert counts.cut_again > 0
    assert counts.starts == 1
    assert counts.checks > 4_000


def test_what_retention_gave_up_need_not_be_there(tmp_path: Path) -> None:
    """Only `first` counts.

    The unlinks after it may be half done, and unlinks of segments made ahead prove nothing.
    """
    lane_directory = StoreDirectory(tmp_path).lane_directory(3)
    lane_directory.path.mkdir(parents=True)
    PositionsFile(lane_directory, "", DISK).store(Positions(1, 9 << 16, 9 << 16, 5 << 16, 0, drained=False))
    data = lane_directory.positions_file.read_bytes()
    promised = Promised()
    promised.take(Entry("create", {"path": "lanes/3/positions", "file": 7}))
    promised.take(Entry("write", {"file": 7, "offset": 0}, data[:4096] if any(data[:4096]) else data[4096:]))
    promised.take(Entry("unlink", {"path": f"lanes/3/commitlog/{4 << 16:020}"}))
    promised.take(Entry("unlink", {"path": f"lanes/3/commitlog/{9 << 16:020}"}))
    assert promised.deleted == {3: 5 << 16}


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("way", WAYS)
def test_what_was_flushed_survives_hundreds_of_power_cuts(way: str, tmp_path: Path) -> None:
    """2,000 power cuts."""
    counts = replay(record(tmp_path, seed=2, way=way), tmp_path / "states", states=667, seed=2)
    assert counts.states == 667
