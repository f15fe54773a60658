"""The socket between the job and one of its processes."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from commitlog.ingest.link import Child, Link
from tests.builders.played_java import play_java
from tests.waiting import wait_until


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    """The job's end and the process's."""
    ours, theirs = (Link(end) for end in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_the_last_words_of_a_process_are_heard(ends: tuple[Link, Link]) -> None:
    """Also where the job has spoken to the process after its end."""
    job, process = ends
    process.send({"event": "failed", "name": "IngestError", "text": "no Java"})
    process.close()
    job.send({"do": "read", "place": "/a/store"})
    assert job.receive(0) == [{"event": "failed", "name": "IngestError", "text": "no Java"}]
    assert not job.closed
    assert job.receive(0) == []
    assert job.closed


def test_messages_that_come_together_are_all_heard(ends: tuple[Link, Link]) -> None:
    job, process = ends
    for word in ("warm up", "go", "stop"):
        job.send({"do": word})
    job.close()
    assert process.receive_one() == {"do": "warm up"}
    assert process.receive_one() == {"do": "go"}
    assert process.receive(0) == [{"do": "stop"}]
    with pytest.raises(EOFError):
        process.receive_one()
    assert process.closed


def test_a_spark_that_still_starts_ends_with_its_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not look at its link then, and what it has made for the start is removed."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    play_java(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    settings = {"store": "store", "out": str(tmp_path), "live": True, "real_time": False, "short": True}
    child = Child("Spark", "commitlog.ingest.query", settings, output=subprocess.DEVNULL)
    wait_until((tmp_path / "pid").exists, "Java")
    java = int(wait_until(lambda: (tmp_path / "pid").read_text(), "its pid"))
    child.end(0.0)
    wait_until(lambda: not psutil.pid_exists(java), "its end")
    assert [*(tmp_path / "tmp").iterdir()] == []
