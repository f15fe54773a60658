"""CPU and memory of everything that belongs to the run, by group, about once a second.

Memory is the anonymous memory of the processes, plus the files of the pool. A page that several
processes share after a fork counts once. A sum of resident sizes would count the pool once for
every process that maps it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from commitlog.watching.snapshot import bytes_in

GROUPS = ("stages", "producers", "spark", "server", "job")


@dataclass
class Usage:
    """CPU seconds of a group so far, and its private memory now."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0


def private_bytes(pid: int) -> int:
    """The process's share of anonymous memory; 0 when it is gone or belongs to another user."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss_Anon:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


@dataclass
class Resources:
    """Remembers processes between measurements, so that the CPU time of ended ones still counts."""

    pool: Path | None = None
    pool_bytes: int = 0
    _processes: dict[int, psutil.Process] = field(default_factory=dict)
    _cpu: dict[int, tuple[str, float, float]] = field(default_factory=dict)

    def measure(self, roots: Mapping[str, Iterable[int]]) -> dict[str, Usage]:
        """The usage of each group.

        `roots` names its processes; their descendants count with them.
        """
        usage = {group: Usage() for group in GROUPS}
        for group, pids in roots.items():
            for process in self._with_descendants(group, pids):
                with contextlib.suppress(psutil.Error), process.oneshot():
                    times = process.cpu_times()
                    spent = times.user + times.system
                    _, first, _ = self._cpu.get(process.pid, (group, spent, spent))
                    self._cpu[process.pid] = (group, first, spent)
                    usage[group].memory_bytes += private_bytes(process.pid)
        for group, first, last in self._cpu.values():
            usage[group].cpu_seconds += last - first
        self.pool_bytes = bytes_in(self.pool) if self.pool else 0
        return usage

    def _with_descendants(self, group: str, pids: Iterable[int]) -> list[psutil.Process]:
        found: dict[int, psutil.Process] = {}
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                root = self._processes.get(pid)
                if root is None:
                    root = self._processes[pid] = psutil.Process(pid)
                found[pid] = root
                if group == "spark":  # the Java process and Python's workers
                    found.update((child.pid, child) for child in root.children(recursive=True))
        return list(found.values())
