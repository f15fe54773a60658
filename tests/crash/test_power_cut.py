"""The power goes, anywhere: what was flushed is there, and nothing else than what was sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.power_cut import record, replay
from tests.crash.scene import WAYS


def test_what_was_flushed_survives_a_power_cut(tmp_path: Path) -> None:
    """50 of them, in a run with kills, retention, a proper stop and two recoveries."""
    counts = replay(record(tmp_path, seed=1, messages=60), tmp_path / "states", states=50, seed=1)
    assert counts.states == 50
    assert counts.cut_again > 0
    assert counts.starts == 2
    assert counts.checks > 10_000


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("way", WAYS)
def test_what_was_flushed_survives_hundreds_of_power_cuts(way: str, tmp_path: Path) -> None:
    """2,000 in all."""
    counts = replay(record(tmp_path, seed=2, way=way), tmp_path / "states", states=667, seed=2)
    assert counts.states == 667
