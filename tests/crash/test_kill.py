"""kill -9 at random times: nothing that was accepted is ever lost, doubled, changed or out of order."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog
from shm.layout import STAGES
from tests.conftest import wait_until
from tests.crash.accounts import check, read_notes, read_store

SMALL = {"store": {"segment_bytes": 1 << 18, "max_lanes": 4}, "supervisor": {"restarts_max": 1000}}


@contextlib.contextmanager
def writers(
    path: Path, notes: Path, count: int, messages: int = 0, first: int = 0
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that send until they are killed, or that many messages each; numbered, and seeded, from `first`."""
    processes = [_writer(path, notes / f"{i}.txt", i, messages) for i in range(first, first + count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _writer(path: Path, notes: Path, seed: int, messages: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.crash.writer", str(path), str(notes), str(seed), str(messages)]
    return subprocess.Popen(command)


def pid_of(path: Path, name: str) -> int:
    """Who holds a lock of the store: "" is the supervisor."""
    file = path / "locks" / name if name else path / "lock"
    return int(file.read_text() or 0)


def kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def grown(notes: Path, by: int) -> None:
    """Waits until the writers have had `by` bytes of notes more."""

    def size() -> int:
        return sum(file.stat().st_size for file in notes.iterdir())

    before = size()
    wait_until(lambda: size() >= before + by, 30, "writers to go on")


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_stage_is_started_again_and_nothing_is_lost(stage: str, tmp_path: Path) -> None:
    """Each stage alone, ten times, under two writers."""
    notes = tmp_path / "notes"
    notes.mkdir()
    path = tmp_path / "store"
    with commitlog.Store.open(path, SMALL), writers(path, notes, 2):
        for _ in range(10):
            grown(notes, 2000)
            kill(victim := pid_of(path, stage))
            wait_until(lambda: pid_of(path, stage) not in (victim, 0), 20, f"a new {stage}")
        grown(notes, 2000)
    check(read_notes(list(notes.iterdir())), read_store(path), deaths=2)


def test_killed_producers_leave_their_lanes_to_the_next(tmp_path: Path) -> None:
    """Twenty writers die one after the other; each takes over a lane of one before it, without a gap in its offsets."""
    notes = tmp_path / "notes"
    notes.mkdir()
    path = tmp_path / "store"
    with commitlog.Store.open(path, SMALL):
        for number in range(20):
            process = _writer(path, notes / f"{number}.txt", number, 0)
            grown(notes, 3000)
            process.kill()
            process.wait()
    account = read_store(path)
    check(read_notes(list(notes.iterdir())), account, deaths=20)
    assert {place[0] for place in account.places} == {0}


@pytest.mark.leaves_pools
@pytest.mark.parametrize("seed", range(4))
def test_everything_killed_at_once_comes_back_whole(seed: int, tmp_path: Path) -> None:
    """Supervisor, stages and writers together, five times over; the next start adopts the pool."""
    chance = random.Random(seed)
    notes = tmp_path / "notes"
    notes.mkdir()
    path = tmp_path / "store"
    deaths = 0
    for turn in range(5):
        store = commitlog.Store.open(path, SMALL)
        with writers(path, notes, 2, first=2 * turn) as processes:
            grown(notes, 6000)
            everybody = [*(process.pid for process in processes), pid_of(path, ""), *(pid_of(path, s) for s in STAGES)]
            chance.shuffle(everybody)
            for pid in everybody:
                kill(pid)
            deaths += 2
        with pytest.raises(commitlog.errors.StageFailed):
            store.close()
    commitlog.Store.open(path, SMALL).close()
    check(read_notes(list(notes.iterdir())), read_store(path), deaths)


def test_stages_whose_supervisor_is_killed_drain_and_leave(tmp_path: Path) -> None:
    """No orphan stays; a start beside orphans that still drain waits for them."""
    notes = tmp_path / "notes"
    notes.mkdir()
    path = tmp_path / "store"
    store = commitlog.Store.open(path, SMALL)
    with writers(path, notes, 1, messages=500) as processes:
        grown(notes, 1000)
        kill(pid_of(path, ""))
        with pytest.raises(commitlog.errors.StageFailed):
            store.close()
        with commitlog.Store.open(path, SMALL):
            assert processes[0].wait(30) == 0
    check(read_notes(list(notes.iterdir())), read_store(path), deaths=0)
