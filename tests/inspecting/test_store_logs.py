"""The logs of a store's processes, merged by time, in both formats and through rotation."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.disk.file_channel import DISK
from commitlog.errors import BadStart
from commitlog.inspecting.store_logs import LOGGERS, StageLog, StoreLogs
from commitlog.stages.supervising.log_files import LOGS_KEPT, RotatingHandler, open_log
from commitlog.text.lines import JsonFormatter, LineFormatter

TEXT = "%(asctime)s %(levelname)s %(message)s"


def logs_of(directory: Path, **files: str) -> Path:
    """A store's directory with these logs."""
    (directory / "logs").mkdir(parents=True)
    for name, text in files.items():
        (directory / "logs" / f"{name}.log").write_text(text)
    return directory


def shown(store: Path, *words: str) -> list[str]:
    done = CliRunner().invoke(app, ["logs", str(store), *words])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    record = logging.LogRecord("x", logging.WARNING, "", 0, "the clock\njumped", None, None)
    record.created = 1_700_000_001.5
    local = LineFormatter(TEXT).formatTime(record)[:-4]
    return logs_of(
        tmp_path / "store",
        supervisor=f"{local},100 INFO begin\n{local},900 INFO end\n",
        committer=JsonFormatter("committer").format(record) + "\n",
        flusher=f"{local},200 INFO started\nTraceback (most recent call last):\n  File x\nZeroDivisionError: y\n",
    )


def test_merged_by_time_whatever_the_format(store: Path) -> None:
    lines = [line[30:] for line in shown(store)]  # behind a time with its zone
    assert lines == [
        "INFO    supervisor begin",
        "INFO    flusher    started",
        "ERROR   flusher    Traceback (most recent call last):",
        "",
        "",
        "WARNING committer  the clock",
        "",
        "INFO    supervisor end",
    ]


def test_stages_and_levels_are_chosen(store: Path) -> None:
    assert len(shown(store, "--stage", "supervisor", "--stage", "committer")) == 4
    (first, *more) = shown(store, "--level", "error")
    assert first.endswith("flusher    Traceback (most recent call last):")
    assert more == ["      File x", "    ZeroDivisionError: y"]
    done = CliRunner().invoke(app, ["logs", str(store), "--stage", "nobody"])
    assert done.exit_code == 2


@pytest.mark.parametrize("name", LOGGERS)
def test_each_log_of_a_store_can_be_chosen(tmp_path: Path, name: str) -> None:
    others = dict.fromkeys(LOGGERS, "2027-01-01 00:00:00,100 INFO another\n")
    store = logs_of(tmp_path / "store", **others | {name: "2027-01-01 00:00:00,100 INFO wanted\n"})
    (line,) = shown(store, "--stage", name)
    assert line.endswith("wanted")


def test_json_has_an_object_an_entry(store: Path) -> None:
    entries = [orjson.loads(line) for line in shown(store, "--json", "--level", "warning")]
    assert [(entry["stage"], entry["level"]) for entry in entries] == [("flusher", "ERROR"), ("committer", "WARNING")]
    assert entries[1] == {
        "time": "2023-11-14T22:13:21.500Z",
        "level": "WARNING",
        "stage": "committer",
        "message": "the clock\njumped",
    }


def test_the_newest_entries(store: Path) -> None:
    """A traceback counts as one, and what is left out by --level does not count."""
    (first, _, last) = shown(store, "-n", "2")
    assert first.endswith("WARNING committer  the clock")
    assert last.endswith("INFO    supervisor end")
    assert len(shown(store, "-n", "2", "--level", "warning")) == 5
    assert shown(store, "-n", "0") == []


def test_entries_since_a_time(store: Path) -> None:
    assert [line[-3:] for line in shown(store, "--since", "2023-11-14T22:13:21.6+00:00")] == ["end"]
    assert len(shown(store, "--since", "20000d")) == 8
    assert shown(store, "--since", "10 minutes ago") == []
    for wrong in ("soon", "9999-01-01", "latest", "10"):
        done = CliRunner().invoke(app, ["logs", str(store), "--since", wrong])
        assert isinstance(done.exception, BadStart)


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_line_is_lost_or_doubled_while_the_log_is_rotated(tmp_path: Path, form: str) -> None:
    """Read in the middle of everything, also when several files were filled since the last look."""
    path = tmp_path / "flusher.log"
    stream = os.fdopen(open_log(path), "a", encoding="utf-8")
    handler = RotatingHandler(stream, path, [stream.fileno()], DISK, 1000)
    handler.setFormatter(JsonFormatter("flusher") if form == "json" else LineFormatter(TEXT))
    logger = logging.Logger("a log of its own")
    logger.addHandler(handler)
    log, found = StageLog(path), []
    for number in range(600):
        logger.info("line %d", number)
        if number % 17 < 4:
            found += [entry.message for entry in log.read()]
    found += [entry.message for entry in log.read()]
    handler.stream.close()
    assert found == [f"line {number}" for number in range(600)]
    assert len(list(tmp_path.iterdir())) == LOGS_KEPT + 1


def test_a_log_that_was_rotated_out_goes_on_with_the_oldest_file(tmp_path: Path) -> None:
    path = tmp_path / "flusher.log"
    path.write_text("2023-11-14 22:13:21,500 INFO one\n")
    log = StageLog(path)
    assert [entry.message for entry in log.read()] == ["one"]
    keep = path.open()  # so that its inode is not given to another file
    path.unlink()
    path.with_name("flusher.log.1").write_text("2023-11-14 22:13:22,500 INFO two\n")
    path.write_text("2023-11-14 22:13:23,500 INFO three\n2023-11-14 22:13:23,600 INFO fo")
    assert [entry.message for entry in log.read()] == ["two", "three"]
    with path.open("a") as file:
        file.write("ur\n")
    assert [entry.message for entry in log.read()] == ["four"]
    keep.close()


def test_a_store_logs_in_the_format_and_from_the_level_of_its_configuration(tmp_path: Path) -> None:
    config = {"store": {"segment_bytes": 1 << 16}, "logs": {"format": "json"}}
    with commitlog.Store.open(tmp_path / "store", config) as store:
        store.producer().send("t", b"x").wait("flushed", 60)
    for name in ("supervisor", "committer"):
        lines = (store.path / "logs" / f"{name}.log").read_text().splitlines()
        assert {orjson.loads(line)["stage"] for line in lines} == {name}
    stages = [entry.stage for entry in StoreLogs(store.path).read()]
    assert set(stages) == {"supervisor", "committer", "flusher", "allocator", "dispatcher"}
    before = (store.path / "logs" / "committer.log").stat().st_size
    commitlog.Store.open(store.path, {"logs": {"level": "error"}}).close()
    assert (store.path / "logs" / "committer.log").stat().st_size == before


def test_follow_until_interrupted(store: Path) -> None:
    command = [sys.executable, "-m", "commitlog", "logs", str(store), "-f", "--stage", "committer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline().endswith(b"the clock\n")
        assert process.stdout.readline() == b"    jumped\n"
        with (store / "logs" / "committer.log").open("a") as file:
            file.write("2023-11-14 22:13:23,500 INFO more\n")
        assert process.stdout.readline().endswith(b"committer  more\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"", b"")
