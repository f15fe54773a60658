"""A stage is a forked child of its supervisor, and has nothing of it but what is loaded."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import commitlog
from commitlog.shm.layout import STAGES
from tests.crash.scene import pid_of
from tests.shown import shown


def test_a_stage_has_a_name_and_descriptors_of_its_own(tmp_path: Path) -> None:
    """None of the store's lock, of the supervisor's log, or of another stage's lock and log.

    `ps` shows the stage and the store, and `ps -o comm` the stage.
    """
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}}) as store:
        for name in STAGES:
            pid = pid_of(store.path, name)
            process = Path("/proc", str(pid))
            assert shown(pid) == [name, f"commitlog: {name} {store.path}"]
            opened = set()
            for entry in (process / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    opened.add(os.readlink(entry))
            parts = {Path(file).relative_to(store.path) for file in opened if file.startswith(f"{store.path}/")}
            assert {part for part in parts if part.parts[0] in ("lock", "locks", "logs")} == {
                Path("locks", name),
                Path("logs", f"{name}.log"),
            }


def test_a_supervisor_names_its_store(tmp_path: Path) -> None:
    """Also a path that is longer than the command line that the process was started with."""
    path = tmp_path.joinpath(*["a long name of a directory"] * 8, "store")
    with commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 16}}):
        assert shown(pid_of(path, "")) == ["supervisor", f"commitlog: supervisor {path}"]


PROGRAM = """
import os, sys
from pathlib import Path
from commitlog.stages.supervising.forked_stage import ForkedStage
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    log = os.open(f"{sys.argv[1]}/{name}.log", os.O_WRONLY | os.O_CREAT, 0o600)
    stage = ForkedStage(name, Path("here"), log)
    stage.stdin.close()  # the end that a stage reads as stop
    assert stage.wait() == stage.poll()
    print(stage.returncode)
"""
STAGES_OF_A_TEST = {
    "says": ("print(sys.argv[1])", 0, "here\n"),
    "exits": ("sys.exit(3)", 3, ""),
    "fails": ("raise ValueError('doomed')", 1, "ValueError: doomed\n"),
    "is_killed": ("os.kill(os.getpid(), 9)", -9, ""),
    "hears_the_end": ("os.read(0, 1)", 0, ""),
}
"""A module's line, its exit code, and the end of its log."""


def test_how_it_ends(tmp_path: Path) -> None:
    """Its parent hears of it as of any process, and what it said is in its log."""
    for name, (line, _, _) in STAGES_OF_A_TEST.items():
        (tmp_path / f"{name}.py").write_text(f"import os, sys\n{line}\n")
    command = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path), *STAGES_OF_A_TEST]
    codes = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert [int(code) for code in codes] == [code for _, code, _ in STAGES_OF_A_TEST.values()]
    for name, (_, _, said) in STAGES_OF_A_TEST.items():
        assert (tmp_path / f"{name}.log").read_text().endswith(said)
