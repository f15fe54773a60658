"""A little of what `scripts/torture --switch-overs` does without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replicas.switch_overs import switch_overs

pytestmark = pytest.mark.leaves_pools


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:lane .* left out:commitlog.errors.ReadingWarning")  # damage is read past
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_in_silence_by_switch_overs(tmp_path: Path, seed: int) -> None:
    """Nor doubled, with kills, cuts and damage on the way."""
    assert switch_overs(tmp_path, seed, 10).switch_overs == 10
