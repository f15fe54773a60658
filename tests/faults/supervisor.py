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
from commitlog.stages.supervisor import Supervisor, main
from tests.crash.recording import record_this_process
from tests.faults.channel import FaultyChannel

STAGE, PATCH = "COMMITLOG_TEST_STAGE", "COMMITLOG_TEST_PATCH"
OWN_DISK = "its own disk"


def patched(path: Path, config: Config) -> Supervisor:
    """Runs `tests.faults.stage` for every stage."""
    return Supervisor(path, config, module_of=_patched_stage)


def _patched_stage(name: str) -> str:
    """Tells the stage, which is started next, by the environment which one it is."""
    os.environ[STAGE] = name
    return "tests.faults.stage"


def on_faulty_disk(path: Path, config: Config) -> Supervisor:
    """Its own files are on a disk with faults; its stages' are not."""
    return Supervisor(path, config, FaultyChannel(path, "supervisor"))


@contextlib.contextmanager
def patched_stages(patch: str = "tests.faults.stage:with_faults") -> Iterator[None]:
    """Makes `Store.open` start patched stages.

    `patch` names the module and the function that change a stage's class, or is OWN_DISK.
    """

    def start(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        assert command[1:] == ["-P", "-m", "commitlog.stages.supervisor"]
        return subprocess.Popen([sys.executable, "-P", "-m", __name__], **{**how, "env": {**how["env"], PATCH: patch}})

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("commitlog.client.store.subprocess", SimpleNamespace(Popen=start, PIPE=subprocess.PIPE))
        yield


if __name__ == "__main__":
    record_this_process()
    main(on_faulty_disk if os.environ[PATCH] == OWN_DISK else patched)
