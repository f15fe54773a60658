"""A little of `scripts/torture --damage`, and the mistakes that it has to notice."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.backups.backup_report import BackupReport
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.inspecting.verify import LaneReport
from commitlog.opening.recovery import LaneEnd, _Recovery
from commitlog.reading.lane_cursor import LaneCursor
from commitlog.watching import health
from tests.crash import damage_hunt
from tests.crash.damage_hunt import STATES, Case, hunt
from tests.crash.damage_truth import Failure
from tests.crash.file_damage import Places
from tests.crash.sound_store import SoundStore, make_sound
from tests.nightly import with_nightly


@pytest.fixture
def base(shm_root: Path) -> Iterator[Path]:
    """An empty directory in shared memory: nothing waits for a disk there."""
    path = shm_root / "hunt"
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def sound(base: Path) -> Iterator[SoundStore]:
    made = make_sound(base, random.Random(1))
    yield made
    made.remove()


def run_case(sound: SoundStore, state: str, done: Callable[[Path], None], patch: pytest.MonkeyPatch) -> Case:
    """Runs a case of this state, in which only this is done to the store. Raises Failure."""

    def damage(places: Places, _chance: random.Random) -> tuple[str, str]:
        done(places.store)
        return "planned", done.__name__

    patch.setattr(damage_hunt, "STATES", (state,))
    patch.setattr(damage_hunt, "damage", damage)
    case = Case(sound, sound.base / "stopped", random.Random(1))
    case.run()
    return case


def nothing(_store: Path) -> None:
    """A store that nobody has damaged."""


def first_segment(store: Path) -> None:
    min(store.glob("lanes/*/commitlog/*")).unlink()


def a_record(store: Path) -> None:
    segment = min(store.glob("lanes/*/commitlog/*"))
    data = bytearray(segment.read_bytes())
    data[40] ^= 1
    segment.write_bytes(data)


@pytest.mark.parametrize("state", STATES)
def test_a_sound_store_is_whole(state: str, sound: SoundStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is read, and nothing is said but that the pool is gone."""
    case = run_case(sound, state, nothing, monkeypatch)
    assert all("pool" in line for line in case.log)
    assert not any("hidden" in outcome for outcome in case.outcome)


_recover = _Recovery.run


def begins_where_its_files_do(recovery: _Recovery, known_end: int) -> LaneEnd:
    """A start that takes the first file for all that retention has left, and notes nothing."""
    end = _recover(recovery, known_end)
    for note in recovery.lane_directory.quarantine.glob("corrupt-*"):
        note.unlink()
    return replace(end, first=MappedFileQueue(recovery.lane_directory.commitlog, recovery.size).first)


Mistake = tuple[Any, str, Any]
_MISTAKES: dict[str, tuple[Mistake, Callable[[Path], None]]] = {
    "a start drops the first segment": ((_Recovery, "run", begins_where_its_files_do), first_segment),
    "a reader passes over damage": ((LaneCursor, "_pass", lambda *_: True), a_record),
    "verify is always good": ((LaneReport, "good", True), a_record),
    "a backup is always good": ((BackupReport, "good", True), a_record),
    "health knows no damage": ((health, "_damage", lambda *_: ()), first_segment),
}


@pytest.mark.parametrize("name", with_nightly(list(_MISTAKES)[:2], list(_MISTAKES)[2:]))
def test_a_mistake_is_caught(name: str, sound: SoundStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case with the mistake fails; without it, it passes."""
    (owner, attribute, mistake), done = _MISTAKES[name]
    run_case(sound, "stopped", done, monkeypatch)
    monkeypatch.setattr(owner, attribute, mistake)
    with pytest.raises(Failure, match=r"nothing is said|missing in silence"):
        run_case(sound, "stopped", done, monkeypatch)


@pytest.mark.parametrize(
    ("seed", "cases"),
    with_nightly([(0, 25)], [*((seed, 25) for seed in range(1, 4)), *((seed, 350) for seed in range(4, 18))]),
)
def test_nobody_passes_over_a_loss(seed: int, cases: int, base: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Twenty-five damaged stores a day, always the same ones, and five thousand at night."""
    caplog.set_level(logging.CRITICAL, "commitlog")  # records have errors, whose tracebacks keep what was open
    found = hunt(base, seed, cases)
    assert not found.failures, found.failures
    assert found.cases == cases
