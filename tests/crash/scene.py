"""A store, writers that note elsewhere what was accepted, and who kills them: for the tests here and `scripts/torture`."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

import commitlog
from commitlog.errors import StageFailed
from shm.layout import STAGES
from tests.crash.accounts import check, read_notes, read_store
from tests.waiting import wait_until

SETTINGS: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": 1 << 18, "max_lanes": 4},
    "supervisor": {"restarts_max": 1_000_000, "restarts_window_ms": 1000, "start_wait_ms": 60_000},
}
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "pool": {},
    "direct": {"store": {"write_path": "direct"}},
    "write_direct": {"store": {"segment_bytes": 1 << 16}, "producer": {"when_no_buffer": "write_direct"}},
}
"""How messages get to the files; in `write_direct` by the pool as long as a buffer is free, so segments are small there."""


def pid_of(path: Path, name: str) -> int:
    """Who holds a lock of the store: "" is the supervisor. 0 for nobody."""
    file = path / "locks" / name if name else path / "lock"
    return int(file.read_text() or 0)


def kill(pid: int) -> bool:
    """kill -9; False where there is nobody any more, or not yet: 0 would be all processes of the test's group."""
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def is_running(pid: int) -> bool:
    """False of a zombie too: in a container there may be nobody who waits for it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


class Scene:
    """`kills` counts by role what was killed here. Leave it with `finish`, or as a context manager without the account."""

    def __init__(self, directory: Path, chance: random.Random, way: str = "pool", writers: int = 2) -> None:
        self.path, self._notes, self._chance = directory / "store", directory / "notes", chance
        self._notes.mkdir(parents=True)
        self._settings = {
            name: {**SETTINGS.get(name, {}), **WAYS[way].get(name, {})} for name in {*SETTINGS, *WAYS[way]}
        }
        self.kills: Counter[str] = Counter()
        self._started = 0
        self.store = commitlog.Store.open(self.path, self._settings)
        self._writers = [self._start_writer() for _ in range(writers)]

    def _start_writer(self) -> subprocess.Popen[bytes]:
        number = self._started
        self._started += 1
        command = [sys.executable, "-m", "tests.crash.writer", str(self.path), str(self._notes / f"{number}.txt")]
        return subprocess.Popen([*command, str(self._chance.randrange(1 << 30)), "0"])

    def goes_on(self, lines: int = 15) -> None:
        """Waits until the writers have had about so many more messages accepted."""

        def size() -> int:
            return sum(file.stat().st_size for file in self._notes.iterdir())

        before = size()
        wait_until(lambda: size() > before + 25 * lines, f"writers to go on after {self.kills}")

    def kill_stages(self, names: Iterable[str]) -> None:
        """All of them at about the same time; waits until each has a successor."""
        victims = {name: pid_of(self.path, name) for name in names}
        for name, pid in victims.items():
            self.kills[name] += kill(pid)
        for name, pid in victims.items():
            wait_until(lambda n=name, p=pid: pid_of(self.path, n) not in (0, p), f"a new {name}")  # type: ignore[misc]

    def kill_writer(self) -> None:
        """One of them; another comes in its place and leases the lane that it left."""
        victim = self._writers.pop(self._chance.randrange(len(self._writers)))
        self._bury(victim)
        self._writers.append(self._start_writer())

    def _bury(self, writer: subprocess.Popen[bytes]) -> None:
        writer.kill()
        writer.wait()
        self.kills["producer"] += 1

    def kill_everything(self) -> None:
        """Supervisor, stages and writers in any order, then a new start and new writers."""
        everybody = [("supervisor", pid_of(self.path, ""))] + [(name, pid_of(self.path, name)) for name in STAGES]
        everybody += [("producer", writer.pid) for writer in self._writers]
        self._chance.shuffle(everybody)
        for name, pid in everybody:
            self.kills[name] += kill(pid)
        for writer in self._writers:
            writer.wait()
        with contextlib.suppress(StageFailed):
            self.store.close()
        self.store = commitlog.Store.open(self.path, self._settings)
        self._writers = [self._start_writer() for _ in self._writers]

    def kill_supervisor(self, also: Iterable[str] = ()) -> None:
        """And those stages, or a "producer", at about the same time; the other stages drain and leave; then a new start."""
        self.kills["supervisor"] += kill(pid_of(self.path, ""))
        for name in also:
            if name == "producer":
                self.kill_writer()
            else:
                self.kills[name] += kill(pid_of(self.path, name))
        with contextlib.suppress(StageFailed):
            self.store.close()
        self.store = commitlog.Store.open(self.path, self._settings)

    def direct_segments(self) -> int:
        """How many segments were written directly because no buffer was free."""
        return sum(lane.direct_segments for lane in self.store.statistics().lanes)

    def finish(self) -> int:
        """Ends the writers, stops the store and compares. Returns how many messages there are."""
        for writer in self._writers:
            self._bury(writer)
        self._writers.clear()
        report = self.store.close()
        assert report.drained, report.kept
        account = read_store(self.path)
        check(read_notes(list(self._notes.iterdir())), account, deaths=self.kills["producer"])
        return account.messages

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_error: object) -> None:
        for writer in self._writers:
            writer.kill()
            writer.wait()
        with contextlib.suppress(commitlog.errors.CommitLogError):
            self.store.close()
