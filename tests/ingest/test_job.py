"""The main job from its command line to its exit code, with a real store and a real Spark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psutil
import pyarrow.parquet as pq
import pytest

from commitlog.client.store import Store
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import StoreRefused
from commitlog.ingest.dashboard import make_display
from commitlog.ingest.job import Job
from commitlog.ingest.run_settings import choose
from commitlog.ingest.verdict import parquet_files
from tests.builders.played_java import play_java
from tests.command_line import run
from tests.namespaces import with_tmpfs
from tests.nightly import with_nightly
from tests.waiting import wait_until

START_SECONDS = 180.0
MIB = 1 << 20
PNG = b"\x89PNG\r\n\x1a\n"

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("quick_java")]


@contextmanager
def running(directory: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, its output in `directory/said`."""
    command = [sys.executable, "-P", "-m", "commitlog.cli", "ingest", "--store", "run/store", "--out", "run/out"]
    with (directory / "said").open("wb") as said:
        process = subprocess.Popen([*command, *options], cwd=directory, stdout=said, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)
            process.wait(60)


def said(directory: Path) -> str:
    return (directory / "said").read_text()


def wait_for_phase(directory: Path, process: subprocess.Popen[bytes], phase: str) -> None:
    wait_until(
        lambda: phase in said(directory).splitlines() or process.poll() is not None, phase, patience=START_SECONDS
    )
    assert process.poll() is None, said(directory)


def rows(directory: Path, *columns: str) -> list[dict[str, Any]]:
    """The table, read without this project's help."""
    files = parquet_files(directory / "run/out")
    return [row for path in files for row in pq.read_table(path, columns=list(columns), partitioning=None).to_pylist()]


def check_report(report: dict[str, Any]) -> None:
    """The keys that are promised, and that they agree with each other."""
    assert report["verdict"] == "exactly once"
    assert report["sent"] == report["committed"] == report["flushed"] == report["read"] == report["rows"] > 0
    assert report["lag"].items() >= {"sent": 0, "committed": 0, "flushed": 0, "spark": 0}.items()
    length = len(report["rates"]["seconds"])
    assert length > 0
    for name in ("sent", "committed", "flushed", "spark"):
        assert len(report["rates"][name]) == length
    for name in ("flushed", "spark"):
        assert 0 < report["latency_ms"][name]["p50"] <= report["latency_ms"][name]["p99"]
    assert Path(report["picture"]).read_bytes().startswith(PNG)
    assert "exactly once" in Path(report["page"]).read_text(encoding="utf-8")


def test_a_short_run_through_the_death_of_the_committer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live input for some seconds, with kill -9 in the middle.

    The result is exactly once, exit code 0 and plain lines, and nothing is left. A store that was
    there keeps its configuration.
    """
    Store.open(tmp_path / "run/store", {"retention": {"reserved_hours": 0}}).close()
    options = ["--seconds", "3", "--rate", "500", "--report", "report.json"]
    with running(tmp_path, *options) as process:
        wait_for_phase(tmp_path, process, "running")
        os.kill(int((tmp_path / "run/store/locks/committer").read_text()), signal.SIGKILL)
        assert process.wait(150) == 0, said(tmp_path)
    assert StoreDirectory(tmp_path / "run/store").load().config["retention"]["reserved_hours"] == 0
    report = orjson.loads((tmp_path / "report.json").read_bytes())
    check_report(report)
    assert report["restarts"]["committer"] == 1
    assert report["seconds"] > 2
    assert all(character.isprintable() for line in said(tmp_path).splitlines() for character in line)
    assert "the committer had died" in said(tmp_path)
    table = rows(tmp_path, "run", "producer", "sequence", "kind", "cpu_percent")
    assert {(row["producer"], row["sequence"]) for row in table} == {
        (producer["producer"], sequence) for producer in report["producers"] for sequence in range(producer["sent"])
    }
    assert {"process", "cpu", "memory"} <= {row["kind"] for row in table}
    assert {row["run"] for row in table} == {report["settings"]["run"]}
    assert not list((tmp_path / "run/out").glob("*warm-up*"))
    monkeypatch.chdir(tmp_path)
    again = run("ingest", "--store", "run/store", "--out", "run/out")
    assert again.returncode == 1
    assert b"holds another run" in again.stderr


@pytest.mark.nightly
def test_a_short_run_in_real_time_mode(tmp_path: Path) -> None:
    """The same verdict. What came is in files while the only batch still lasts."""
    with running(tmp_path, "--seconds", "3", "--rate", "500", "--real-time") as process:
        assert process.wait(300) == 0, said(tmp_path)
    check_report(orjson.loads((tmp_path / "run/out/report.json").read_bytes()))
    assert not list((tmp_path / "run/out").glob("*warm-up*"))


@pytest.mark.nightly
def test_a_short_run_through_a_server(tmp_path: Path) -> None:
    """Spark reads by URL: the same verdict, and what the server takes is in the report."""
    with running(tmp_path, "--seconds", "3", "--rate", "500", "--serve") as process:
        assert process.wait(300) == 0, said(tmp_path)
    report = orjson.loads((tmp_path / "run/out/report.json").read_bytes())
    check_report(report)
    assert max(report["resources"]["memory_bytes"]["server"]) > 0


@pytest.mark.nightly
def test_tailed_files_until_ctrl_c(tmp_path: Path) -> None:
    """Lines are written before, during and after a rotation and a truncation.

    Each comes once and in order, and Ctrl-C drains.
    """
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    first.write_bytes(b"".join(b"a%d\n" % n for n in range(1000)))
    second.write_bytes(b"b0\nodd \xff byte\n")
    with running(tmp_path, "--input", "a.log", "b.log", "--follow") as process:
        wait_for_phase(tmp_path, process, "reading the input")
        wait_until(lambda: len(rows(tmp_path, "line")) == 1002)
        first.rename(tmp_path / "a.log.1")
        first.write_bytes(b"after rotation\n")
        with second.open("r+b") as file:
            file.truncate(0)
            file.write(b"anew\n")
        wait_until(lambda: len(rows(tmp_path, "line")) == 1004)
        process.send_signal(signal.SIGINT)
        assert process.wait(150) == 0, said(tmp_path)
    check_report(orjson.loads((tmp_path / "run/out/report.json").read_bytes()))
    table = sorted(rows(tmp_path, "source", "line", "sequence"), key=lambda row: row["sequence"])
    by_source = {path: [row["line"] for row in table if row["source"] == str(path)] for path in (first, second)}
    assert by_source[first] == [f"a{n}" for n in range(1000)] + ["after rotation"]
    assert by_source[second] == ["b0", "odd � byte", "anew"]


def producers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Process ids of the producers, ascending."""
    children = psutil.Process(process.pid).children()
    return sorted(child.pid for child in children if child.name().startswith("producer "))


@pytest.mark.nightly
def test_a_killed_producer_is_judged_by_what_it_had_noted(tmp_path: Path) -> None:
    """The others go on; the report says so; what is there is there once."""
    with running(tmp_path, "--seconds", "10m", "--producers", "3") as process:
        wait_for_phase(tmp_path, process, "running")
        wait_until(lambda: parquet_files(tmp_path / "run/out"), "Spark has written", patience=150)
        os.kill(producers_of(process)[-1], signal.SIGKILL)
        wait_until(lambda: len(producers_of(process)) == 2, "the job knows that it is dead")
        process.send_signal(signal.SIGINT)
        assert process.wait(150) == 0, said(tmp_path)
    report = orjson.loads((tmp_path / "run/out/report.json").read_bytes())
    assert report["verdict"] == "exactly once"
    assert sum(not producer["finished"] for producer in report["producers"]) == 1
    assert any("died" in event for event in report["events"])


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_a_job_that_is_killed_before_the_query_is_ready(tmp_path: Path) -> None:
    """All its processes end: Spark waits for messages that nobody sends any more."""
    with running(tmp_path) as process:
        wait_for_phase(tmp_path, process, "warming up Spark")
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait(60)
    wait_until(lambda: not any(child.is_running() for child in children), patience=120)


@pytest.mark.nightly
def test_a_run_that_gets_no_lane(tmp_path: Path) -> None:
    """There are more producers than lanes, and one line names the error.

    Nothing is left, not even the new store.
    """
    (tmp_path / "one.toml").write_text("[store]\nmax_lanes = 1\n[producer]\nlane_wait_ms = 10\n")
    with running(tmp_path, "--config", "one.toml") as process:
        assert process.wait(120) == 1
    assert "NoFreeLane" in said(tmp_path).splitlines()[-1]
    assert sorted(os.listdir(tmp_path)) == ["one.toml", "said"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("rate", "compilers"),
    with_nightly([("100", "-XX:TieredStopAtLevel=1 -Dmine")], [("0", "-Dmine"), ("1e5", "-Dmine")]),
)
def test_a_java_that_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: str, compilers: str) -> None:
    """The error names the log, which stays; the store that was made for the run does not.

    The log shows with which of its compilers Java was to start.
    """
    play_java(tmp_path, monkeypatch, "echo no memory: $SPARK_SUBMIT_OPTS >&2; exit 1")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine")
    with running(tmp_path, "--rate", rate) as process:
        assert process.wait(120) == 1
    last = said(tmp_path).splitlines()[-1]
    assert "JAVA_GATEWAY_EXITED" in last
    assert f"see {tmp_path}/run/out/spark.log" in last
    log = (tmp_path / "run/out/spark.log").read_text()
    assert "no memory" in log
    assert f"{compilers}\n" in log
    assert ("TieredStopAtLevel" in log) is ("TieredStopAtLevel" in compilers)
    assert os.listdir(tmp_path / "run") == ["out"]


@pytest.mark.nightly
def test_a_store_that_can_not_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Spark process, whose Java still starts, is not left behind; nor is the store's pool."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexec cat\n")  # it ends as Java does, when its standard input ends
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    job = Job(choose(inputs=[], out=tmp_path / "out"), make_display())
    with monkeypatch.context() as patch:
        patch.setattr("commitlog.ingest.job.StoreView", refuse)
        with pytest.raises(StoreRefused, match="no look"):
            job.run()
    assert os.listdir(tmp_path) == ["java"]


@pytest.mark.nightly
def test_a_producer_that_dies_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log that the error names stays; the store that was made for the run does not."""
    play_java(tmp_path, monkeypatch, "exec cat")  # it ends as Java does, when its standard input ends
    with running(tmp_path) as process:
        wait_for_phase(tmp_path, process, "starting Java and Spark")
        os.kill(producers_of(process)[0], signal.SIGKILL)
        assert process.wait(120) == 1
    log = tmp_path / "run/out/producers.log"
    assert f"died (exit code -9) after 0 messages that it had noted; see {log}" in said(tmp_path)
    assert log.exists()
    assert os.listdir(tmp_path / "run") == ["out"]


@pytest.mark.nightly
def test_a_store_that_takes_no_messages_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its health names the cause: nobody waits five minutes for a disk that is full."""
    play_java(tmp_path, monkeypatch, "exec cat")  # it ends as Java does, when its standard input ends
    (tmp_path / "run").mkdir()
    refuses = "[retention]\ndisk_max_used_percent = 1\ndisk_clean_forcibly_percent = 1\ndisk_refuse_percent = 1\n"
    (tmp_path / "full.toml").write_text(f"{refuses}disk_enough_bytes = 0\n[producer]\nsegment_wait_ms = 200\n")

    def start() -> None:
        (tmp_path / "run/ballast").write_bytes(bytes(MIB))
        with running(tmp_path, "--config", "full.toml") as process:
            assert process.wait(120) == 1
        last = said(tmp_path).splitlines()[-1]
        assert "run/store takes no messages: " in last
        assert "the disk is over disk_refuse_percent" in last

    with_tmpfs(tmp_path / "run", 16 * MIB, start)


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_a_disk_that_fills_up_under_a_run(tmp_path: Path) -> None:
    """Nobody waits minutes for what can't be written: the health's reason ends the run."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "small.toml").write_text('[store]\nsegment_bytes = "64 KiB"\n')

    def start() -> None:
        with running(tmp_path, "--store", "disk/store", "--config", "small.toml", "--seconds", "5") as process:
            wait_for_phase(tmp_path, process, "running")
            with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(4096))
            assert process.wait(150) == 1, said(tmp_path)
        error = next(line for line in said(tmp_path).splitlines() if line.startswith("error"))
        assert "disk/store does not write what it has accepted: " in error
        assert "can't go on: ENOSPC, No space left on device" in error
        assert "given up with the rest unread" not in said(tmp_path)

    with_tmpfs(disk, 16 * MIB, start)


def refuse(path: Path) -> None:
    raise StoreRefused(f"{path}: no look")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--input", "missing"], "missing: No such file"),
        (["--store", "file"], "is a file"),
        (["--store", "anybodys"], "may be written to by others"),
        (["--out", "file/out"], "Not a directory"),
        (["--config", "missing.toml"], "missing.toml: can't be read"),
    ],
)
def test_refusals_leave_nothing_behind(
    tmp_path: Path, options: list[str], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 1, no directory and no pool."""
    (tmp_path / "file").write_text("")
    (tmp_path / "anybodys").mkdir()
    (tmp_path / "anybodys").chmod(0o777)
    monkeypatch.chdir(tmp_path)
    done = run("ingest", "--store", "run/store", "--out", "run/out", *options)
    assert done.returncode == 1
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("commitlog: ")]
    assert len(lines) == 1
    assert error in lines[0]
    assert sorted(os.listdir(tmp_path)) == ["anybodys", "file"]
