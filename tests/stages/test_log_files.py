"""The logs of a store do not grow for ever.

They still hold the last words of a crash.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.disk.file_channel import DISK
from commitlog.stages.supervising import log_files
from commitlog.stages.supervising.log_files import LOGS_KEPT, RotatingHandler, last_lines, open_log
from tests.faults.supervisor import patched_stages
from tests.waiting import wait_until

SMALL = 2000


def talkative(kind: Any) -> Any:
    """A stage with small log files that writes much.

    The committer then dies with a traceback, whenever it is started.
    """
    log_files.LOG_BYTES = SMALL

    class Talkative(kind):  # type: ignore[misc]
        def on_start(self) -> None:
            super().on_start()
            for number in range(200):
                logging.info("line %d of the %s", number, self.name)
            if self.name == "committer":
                os.write(1, b"a line that no logger knows of\n")
                raise ZeroDivisionError("its last words")

    return Talkative


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_logs_stay_small_and_last_words_are_found(tmp_path: Path) -> None:
    """Also those of a stage that is started again and again, and of its library's prints."""
    config = {"store": {"segment_bytes": 1 << 16}, "supervisor": {"restarts_max": 4, "restarts_window_ms": 3_600_000}}
    with patched_stages("tests.stages.test_log_files:talkative"):
        store = commitlog.Store.open(tmp_path / "store", config)
        wait_until(lambda: not store.running, "the store to give up")
        with pytest.raises(errors.StageFailed, match=r"the committer died 5 times.*ZeroDivisionError: its last words"):
            store.close()
    logs = tmp_path / "store" / "logs"
    for name in ("committer", "flusher"):
        files = sorted(logs.glob(f"{name}.log*"))
        assert [file.name for file in files] == [f"{name}.log", *(f"{name}.log.{n + 1}" for n in range(LOGS_KEPT))]
        assert sum(file.stat().st_size for file in files) < (LOGS_KEPT + 1) * 2 * SMALL
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert "a line that no logger knows of" in (logs / "committer.log").read_text()
    lines = re.findall(r"line (\d+) of the flusher", "".join(file.read_text() for file in reversed(files)))
    assert lines[-1] == "199"
    assert lines == [str(number) for number in range(200 - len(lines), 200)]


def logger_to(path: Path) -> tuple[logging.Logger, RotatingHandler]:
    stream = os.fdopen(open_log(path), "a", encoding="utf-8")
    handler = RotatingHandler(stream, path, [stream.fileno()], DISK, SMALL)
    logger = logging.Logger("a log of its own")
    logger.addHandler(handler)
    return logger, handler


def test_two_writers_of_one_log(tmp_path: Path) -> None:
    """Two writers are a stage and the orphan before it.

    The second one finds that the name is another file's by now. It moves nothing, and writes to the
    new file.
    """
    path = tmp_path / "stage.log"
    (one, first), (other, second) = logger_to(path), logger_to(path)
    for number in range(1000):
        (one if number % 3 else other).info("line %d", number)
    written = [*range(1000)]
    files = [path.with_name(f"stage.log.{n}") for n in range(LOGS_KEPT, 0, -1)] + [path]
    text = "".join(file.read_text() for file in files)
    lines = [int(number) for number in re.findall(r"line (\d+)", text)]
    assert sorted(lines) == written[-len(lines) :]
    assert all(file.stat().st_size <= SMALL + 20 for file in files)
    for handler in (first, second):
        handler.stream.close()


def test_a_log_that_can_not_be_rotated_goes_on(tmp_path: Path) -> None:
    """Something is in the way of its older file; and a link in its own place is not followed."""
    path = tmp_path / "stage.log"
    for number in range(1, LOGS_KEPT):
        path.with_name(f"stage.log.{number}").touch()
    path.with_name(f"stage.log.{LOGS_KEPT}").mkdir()
    logger, handler = logger_to(path)
    for number in range(400):
        logger.info("line %d", number)
    assert path.read_text().splitlines()[-1] == "line 399"
    assert len(path.read_text().splitlines()) == 400
    target = tmp_path / "target"
    target.write_text("")
    path.unlink()
    path.symlink_to(target)
    logger.info("a line for nobody")
    assert target.read_text() == ""
    handler.stream.close()


def test_the_last_lines_of_a_log_that_is_new(tmp_path: Path) -> None:
    path = tmp_path / "stage.log"
    path.touch()
    assert last_lines(path) == []
    path.with_name("stage.log.1").write_text("one\ntwo\n")
    assert last_lines(path) == ["one", "two"]
    path.write_text("three\n")
    assert last_lines(path) == ["three"]
