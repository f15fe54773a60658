"""Supervisors for tests: one with patched stages, one whose own disk fails on command.

`patched_stages` starts the first one, as `python -P -m tests.faults.supervisor`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog.config import Config
from commitlog.stages.supervisor import StageProcess, Supervisor, main
from tests.crash.recording import record_this_process
from tests.faults.channel import FaultyChannel

STAGE, PATCH = "COMMITLOG_TEST_STAGE", "COMMITLOG_TEST_PATCH"
OWN_DISK = "its own disk"


class PatchedSupervisor(Supervisor):
    """Runs `tests.faults.stage` for every stage; its environment says which one it is."""

    def _launch(self, name: str, before: StageProcess | None = None) -> StageProcess:
        os.environ[STAGE] = name
        return super()._launch(name, before)

    def entry_point(self, name: str) -> str:
        return "tests.faults.stage"


class SupervisorOnFaultyDisk(Supervisor):
    """Its own files are on a disk with faults; those of its stages are not."""

    def __init__(self, path: Path, config: Config) -> None:
        super().__init__(path, config, FaultyChannel(path, "supervisor"))


@contextlib.contextmanager
def patched_stages(patch: str = "tests.faults.stage:with_faults") -> Iterator[None]:
    """Makes `Store.open` start patched stages.

    `patch` names the module and the function that change a stage's class, or is OWN_DISK.
    """

    def start(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        assert command[1:] == ["-P", "-m", "commitlog.stages.supervisor"]
        return subprocess.Popen([sys.executable, "-P", "-m", __name__], **{**how, "env": {**how["env"], PATCH: patch}})

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("commitlog.store.subprocess", SimpleNamespace(Popen=start, PIPE=subprocess.PIPE))
        yield


if __name__ == "__main__":
    record_this_process()
    main(SupervisorOnFaultyDisk if os.environ[PATCH] == OWN_DISK else PatchedSupervisor)
