"""What commands print: all of it, or an error; and what is lost when nobody takes it."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from commitlog.disk.locks import is_running
from commitlog.disk.store_directory import StoreDirectory
from tests.builders.hand_made import HandMadeStore
from tests.command_line import run
from tests.nightly import with_nightly
from tests.waiting import wait_until

COMMAND = [sys.executable, "-m", "commitlog.cli"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose messages are more than a pipe holds."""
    made = HandMadeStore(tmp_path_factory.mktemp("output") / "store")
    for number in range(1500):
        made.lane(0).append("t", b"%06d " % number + b"x" * 100)
    made.publish()
    return made.path


def unread(pipe: int) -> int:
    """How many bytes wait in a pipe."""
    count: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"0000"))[0]
    return count


@pytest.mark.parametrize("words", with_nightly(["cat"], ["dump --json", "cat --format json", "dump"]))
def test_a_non_blocking_pipe_gets_every_byte(words: str, store: Path) -> None:
    """So does one that is read slowly, and PYTHONUNBUFFERED, which images set, changes nothing."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(write, False)
    command = [*COMMAND, *words.split(), str(store)]
    with subprocess.Popen(
        command, stdout=write, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        os.close(write)
        wait_until(lambda: unread(read) == 4096, "a pipe that is full")
        with open(read, "rb") as pipe:
            found = pipe.read()
        assert process.stderr
        assert (process.stderr.read(), process.wait()) == (b"", 0)
    assert found == run(*words.split(), store).stdout


def test_what_can_not_be_written_is_an_error_without_a_buffer_too(store: Path) -> None:
    """A command whose output is lost has an exit code that says so."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "dump", str(store)],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"commitlog: standard output: No space left on device; ")


def test_an_error_is_said_though_nobody_takes_the_output(tmp_path: Path) -> None:
    """The reader of a pipe has gone when the command meets damage."""
    made = HandMadeStore(tmp_path / "store")
    for value in (b"good", b"to be damaged"):
        made.lane(0).append("t", value)
    made.publish()
    segment = made.path / "lanes/0/commitlog" / f"{0:020d}"
    segment.write_bytes(segment.read_bytes().replace(b"to be damaged", b"to be Damaged"))
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, "cat", str(made.path)], stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert done.returncode == 1
    assert b"CorruptRecord" in done.stderr


def test_an_error_that_nobody_can_read_keeps_its_exit_code(tmp_path: Path) -> None:
    """A full disk takes no line on standard error; the command ends as it would anyway."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, "cat", str(tmp_path)], stdout=subprocess.PIPE, stderr=full, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.nightly
@pytest.mark.parametrize("closed", with_nightly(["0<&- 1>&- 2>&-"], ["0<&-", "1>&-", "2>&-"]))
def test_stages_run_without_standard_streams(closed: str, tmp_path: Path) -> None:
    """As those of a daemon. No file of the store gets the number of one that was closed."""
    path = tmp_path / "store"
    command = f"exec {sys.executable} -m commitlog.cli run {path} {closed}"
    with subprocess.Popen(command, shell=True, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: process.poll() is not None or is_running(StoreDirectory(path), None), "the stages")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_store_outlives_the_reader_of_its_output(tmp_path: Path) -> None:
    """`commitlog run STORE | head -1` drains at its end, though nobody hears of it."""
    with subprocess.Popen([*COMMAND, "run", str(tmp_path / "store")], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline().startswith(b"running ")
        process.stdout.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
