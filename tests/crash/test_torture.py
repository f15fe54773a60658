"""A little of what `scripts/torture` does without end."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from tests.crash import damage
from tests.crash.scene import Scene
from tests.crash.torture import chaos_of, on_a_small_disk, one_store, power_cuts
from tests.crash.writer import KINDS
from tests.nightly import with_nightly
from tests.waiting import wait_until

pytestmark = pytest.mark.leaves_pools


@pytest.mark.parametrize("least", with_nightly([7], [12]))
def test_writers_of_every_kind_lose_nothing(least: int, tmp_path: Path) -> None:
    """Kills and halts, while old segments are deleted."""
    kills, events, messages = one_store(tmp_path, random.Random(3), least, "pool", KINDS, deletes=True)
    assert kills.total() >= least
    assert messages > 100
    assert all(events[f"writer: {kind}"] for kind in KINDS)


@pytest.mark.nightly
def test_a_disk_that_is_full_now_and_then(tmp_path: Path) -> None:
    """With kills; the account is the same."""
    _, events, messages = on_a_small_disk(tmp_path, random.Random(1), 6, "pool")
    assert events["full disk"] > 0
    assert messages > 50


@pytest.mark.nightly
def test_files_damaged_before_a_start_that_has_the_memory(tmp_path: Path) -> None:
    """Each kind of damage once: all messages are there, once, and queue offsets go on."""
    chance = random.Random(5)
    with Scene(tmp_path, chance, kinds=("plain", "plain", "asyncio")) as scene:
        for what in damage.KINDS:
            scene.goes_on(30)
            wait_until(lambda what=what: len(damage.places(scene.path, what)) > 1, f"files for {what}")  # type: ignore[misc]
            scene.kill_everything(partial(_befalls, what, scene.path, chance))
        scene.goes_on()
        assert scene.finish() > 50


def _befalls(what: str, store: Path, chance: random.Random) -> None:
    assert damage.damage(store, chance, what) == what


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_chaos_for_half_an_hour(tmp_path: Path) -> None:
    """All that `scripts/torture` does, always with the same seed."""
    totals = chaos_of(tmp_path, seed=7, kills=400, seconds=1800)
    assert totals.events["full disk"] > 0
    assert totals.events["segments deleted"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_power_cuts_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As with `scripts/torture --power-cuts`: in several recorded runs."""
    assert power_cuts(tmp_path, seed=5, count=210).states == 210
    assert "210 power cuts" in capsys.readouterr().out
