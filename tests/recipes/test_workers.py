"""docs/workers.md: its pools and scripts, when workers and owners end at a bad moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import commitlog
from tests.programs import DOCS, PATIENT_SECONDS, files, patient, write_files

pytestmark = patient

PAGE = DOCS / "workers.md"
FEW_LANES = {"store": {"segment_bytes": 1 << 16, "max_lanes": 3}, "producer": {"lane_wait_ms": 0}}

KILLED_WORKERS = """
import os, signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
import multiprocessing
from pools import producer, work

def die(number):
    work(number)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    producer().send("squares", b"0")
    for number in range(6):  # more than there are lanes
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as workers:
            assert workers.submit(work, number).result() == number
            try:
                workers.submit(die, number).result()
            except BrokenProcessPool:
                print("broken")
    producer().send("squares", b"0")
"""


def run(program: Path) -> str:
    done = subprocess.run(
        [sys.executable, program], cwd=program.parent, capture_output=True, text=True, timeout=PATIENT_SECONDS
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def count(store: Path, topic: str) -> int:
    with commitlog.Reader(store, topic=topic) as reader:
        return sum(1 for _ in reader)


def test_killed_workers_of_a_pool(tmp_path: Path) -> None:
    """What they sent is there, their lanes are free for the next ones, and the parent goes on."""
    write_files(PAGE, tmp_path)
    (tmp_path / "killed.py").write_text(KILLED_WORKERS)
    with commitlog.Store.open(tmp_path / "data/events", FEW_LANES) as store:
        assert run(tmp_path / "killed.py") == "broken\n" * 6
        assert not store.close().kept
    assert count(tmp_path / "data/events", "squares") == 2 + 6 * 2


def test_a_script_uses_the_stages_that_run(tmp_path: Path) -> None:
    """It neither stops them nor keeps its lane."""
    write_files(PAGE, tmp_path)
    with commitlog.Store.open(tmp_path / "data/events", FEW_LANES) as store:
        assert run(tmp_path / "report.py") == "4 messages\n"
        assert store.running
        assert not store.close().kept


@pytest.mark.nightly
def test_the_owner_of_the_stages_ends_before_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end writes what the script has sent, and the next script starts the stages again."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    send_all = files(PAGE)["report.py"].partition("\n\n\nfor ")[0]
    exec(send_all.replace("producer.flush()", "close_owner(); producer.flush()"), names)
    owner = commitlog.Store.open("data/events", FEW_LANES)
    names["close_owner"] = owner.close
    names["send_all"]("reports", [b"one apple"])
    names["close_owner"] = lambda: None
    names["send_all"]("reports", [b"two pears"])
    assert count(Path("data/events"), "reports") == 2
