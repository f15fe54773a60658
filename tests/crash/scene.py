"""A store, writers that note what was accepted, and the means to kill them all.

For the tests here and `scripts/torture`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import commitlog
from commitlog.disk.file_channel import DISK
from commitlog.errors import StageFailed
from commitlog.inspecting.verify import verify_store
from commitlog.shm.layout import STAGES
from tests.crash.accounts import check, read_notes, read_store, retired_below
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
"""How messages get to the files. With `write_direct` the pool is used while a buffer is free, so
segments are small there.
"""


def pid_of(path: Path, name: str) -> int:
    """The process that holds a lock of the store ("" is the supervisor); 0 for none."""
    file = path / "locks" / name if name else path / "lock"
    return int(file.read_text() or 0)


def is_any_stage_locked(path: Path) -> bool:
    """Whether any stage holds its lock. A killed one does until the disk has answered it."""
    return any(DISK.is_locked(path / "locks" / name) for name in STAGES)


def await_stages_gone(path: Path) -> None:
    wait_until(lambda: not is_any_stage_locked(path), "the stages to be gone")


def kill(pid: int) -> bool:
    """kill -9; False where there is no process any more, or not yet.

    Pid 0 would mean all processes of the test's group.
    """
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


@contextlib.contextmanager
def halted_process(pid: int) -> Iterator[None]:
    """SIGSTOP for a process, and SIGCONT at the end, where it is still there.

    The process stands still when the with-block begins: the signal takes effect a moment later.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the process to stand still")
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_running(pid: int) -> bool:
    """Whether the process runs. A zombie does not: in a container nobody may wait for it.

    While other threads of a zombie are still ending, they hold its files and locks.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False


def family(writer: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The children of a writer, and their children."""
    try:
        return psutil.Process(writer.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def end(processes: Iterable[psutil.Process]) -> None:
    """Kills the children of a dead process, and waits until they are gone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()  # psutil first checks that the pid is still that process's
        wait_until(lambda pid=process.pid: not is_running(pid), "a writer's child to be gone")  # type: ignore[misc]


def kill_family(writer: subprocess.Popen[bytes]) -> None:
    """Kills the writer, then its children, and waits for them.

    The writer is halted before: a child that it made meanwhile would hold its lane.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        writer.send_signal(signal.SIGSTOP)
        process = psutil.Process(writer.pid)
        wait_until(lambda: process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE), "a writer that is halted")
    children = family(writer)
    writer.kill()
    writer.wait()
    end(children)


PRODUCERS_A_WRITER = 3
"""The most producers that a writer of any kind has at the same time (writer.py)."""


class Scene:
    """A store and its writers.

    `kills` counts by role what was killed here.

    Leave it with `finish`, or as a context manager without the account. `kinds`: a kind for each
    writer (writer.py). `place`: where the store is made, if not in `directory`. `more`: further
    settings.
    """

    def __init__(
        self,
        directory: Path,
        chance: random.Random,
        way: str = "pool",
        kinds: Sequence[str] = ("plain", "plain"),
        place: Path | None = None,
        more: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.path, self._notes, self._chance = (place or directory) / "store", directory / "notes", chance
        self._notes.mkdir(parents=True)
        layers = (SETTINGS, WAYS[way], more or {})
        names = {name for layer in layers for name in layer}
        self.settings = {name: {k: v for layer in layers for k, v in layer.get(name, {}).items()} for name in names}
        self.kills: Counter[str] = Counter()
        self._started = 0
        self.store = commitlog.Store.open(self.path, self.settings)
        self._writers = [(kind, self._start_writer(kind)) for kind in kinds]

    def _start_writer(self, kind: str) -> subprocess.Popen[bytes]:
        number = self._started
        self._started += 1
        command = [sys.executable, "-m", "tests.crash.writer", str(self.path), str(self._notes / f"{number}.txt")]
        return subprocess.Popen([*command, str(self._chance.randrange(1 << 30)), "0", kind])

    def goes_on(self, lines: int = 15) -> None:
        """Waits until the writers have had about this many more messages accepted."""

        def size() -> int:
            return sum(file.stat().st_size for file in self._notes.iterdir())

        before = size()
        wait_until(lambda: self._all_write() and size() > before + 25 * lines, f"writers to go on after {self.kills}")

    def _all_write(self) -> bool:
        ended = [(kind, writer.returncode) for kind, writer in self._writers if writer.poll() is not None]
        assert not ended, f"writers ended by themselves: {ended}"
        return True

    def kill_stages(self, names: Iterable[str]) -> None:
        """Kills them at about the same time; waits until each has a successor."""
        victims = {name: pid_of(self.path, name) for name in names}
        for name, pid in victims.items():
            self.kills[name] += kill(pid)
        for name, pid in victims.items():
            wait_until(lambda n=name, p=pid: pid_of(self.path, n) not in (0, p), f"a new {name}")  # type: ignore[misc]

    def kill_writer(self) -> None:
        """Kills one writer; another comes in its place and leases the lane that is free now."""
        kind, victim = self._writers.pop(self._chance.randrange(len(self._writers)))
        self._bury(victim)
        self._writers.append((kind, self._start_writer(kind)))

    def _bury(self, writer: subprocess.Popen[bytes]) -> None:
        kill_family(writer)
        self.kills["producer"] += 1

    @contextlib.contextmanager
    def writers_halted(self) -> Iterator[None]:
        """Halts the writers for the length of a with-block (SIGSTOP)."""
        for _, writer in self._writers:
            writer.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for _, writer in self._writers:
                writer.send_signal(signal.SIGCONT)

    def some_writer(self) -> int:
        """The pid of one of the writers."""
        return self._chance.choice(self._writers)[1].pid

    def kill_everything(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Kills supervisor, stages and writers in any order, then starts all anew.

        `meanwhile` is called before the start.
        """
        everybody = [("supervisor", pid_of(self.path, ""))] + [(name, pid_of(self.path, name)) for name in STAGES]
        everybody += [("producer", writer.pid) for _, writer in self._writers]
        children = [child for _, writer in self._writers for child in family(writer)]
        self._chance.shuffle(everybody)
        for name, pid in everybody:
            self.kills[name] += kill(pid)
        for _, writer in self._writers:
            writer.wait()
        end(children)
        with contextlib.suppress(StageFailed):
            self.store.close()
        await_stages_gone(self.path)
        meanwhile()
        self.store = commitlog.Store.open(self.path, self.settings)
        self._writers = [(kind, self._start_writer(kind)) for kind, _ in self._writers]

    def kill_supervisor(self, also: Iterable[str] = ()) -> None:
        """Kills the supervisor and, at about the same time, those stages, or a "producer".

        The other stages drain and leave; then there is a new start.
        """
        self.kills["supervisor"] += kill(pid_of(self.path, ""))
        for name in also:
            if name == "producer":
                self.kill_writer()
            else:
                self.kills[name] += kill(pid_of(self.path, name))
        with contextlib.suppress(StageFailed):
            self.store.close()
        self.store = commitlog.Store.open(self.path, self.settings)

    def direct_segments(self) -> int:
        """How many segments were written directly because no buffer was free."""
        return sum(lane.direct_segments for lane in self.store.statistics().lanes)

    def finish(self) -> int:
        """Ends the writers, stops the store and compares. Returns the number of messages."""
        self._all_write()
        for _, writer in self._writers:
            self._bury(writer)
        self._writers.clear()
        report = self.store.close()
        assert report.drained, report.kept
        verified = verify_store(self.path)
        assert verified.good, verified
        account, retired = read_store(self.path), retired_below(self.path)
        deaths = self.kills["producer"] * PRODUCERS_A_WRITER
        check(read_notes(list(self._notes.iterdir())), account, deaths, retired)
        return account.messages

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_error: object) -> None:
        for _, writer in self._writers:
            kill_family(writer)
        with contextlib.suppress(commitlog.errors.CommitLogError):
            self.store.close()
