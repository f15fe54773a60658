"""`commitlog run` under a service manager: a socket that listens as systemd's does."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.scene import pid_of
from tests.waiting import wait_until

CONFIG = "[store]\nsegment_bytes = 65536\n"
UNIT = Path(__file__).parents[2] / "configs" / "commitlog@.service"


class Manager:
    """Takes what a service tells; `lines` has all of it so far."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(address)
        self.lines: list[str] = []

    def has(self, wanted: str, start: int = 0) -> bool:
        """Whether a line from number `start` on is this one."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.lines += self.socket.recv(4096).decode().split("\n")
        return any(re.fullmatch(wanted, line) for line in self.lines[start:])

    def expect(self, wanted: str, start: int = 0) -> None:
        wait_until(lambda: self.has(wanted, start), f"{wanted} in {self.lines[start:]}")


@contextlib.contextmanager
def running(path: Path, address: str, **variables: str) -> Iterator[tuple[Manager, subprocess.Popen[bytes]]]:
    """`commitlog run` on the store at a path, and its service manager."""
    config = path.with_name("small.toml")
    config.write_text(CONFIG)
    manager = Manager(address.replace("@", "\0"))
    process = subprocess.Popen(
        [sys.executable, "-m", "commitlog.cli", "run", str(path), "--config", str(config)],
        env={**os.environ, "NOTIFY_SOCKET": address, **variables},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield manager, process
    finally:
        process.terminate()
        process.wait(60)
        manager.socket.close()


def test_it_tells_of_its_start_and_its_stop(tmp_path: Path) -> None:
    """The socket may have an abstract name. Without a watchdog there is nothing for one."""
    with running(tmp_path / "store", f"@commitlog-{os.getpid()}-{tmp_path.name}") as (manager, process):
        manager.expect("READY=1")
        manager.expect("STATUS=running")
        process.terminate()
        assert process.wait(60) == 0
        manager.expect("STATUS=draining")
    first, *others = manager.lines
    while others[:2] == [first, "STATUS=opening the store"]:  # a start that lasts long says so again
        del others[:2]
    assert re.fullmatch(r"EXTEND_TIMEOUT_USEC=\d+", first)
    assert others == ["STATUS=opening the store", "READY=1", "STATUS=running", "STOPPING=1", "STATUS=draining"]


@pytest.mark.nightly
def test_the_watchdog_hears_nothing_while_the_supervisor_stands_still(tmp_path: Path) -> None:
    with running(tmp_path / "store", str(tmp_path / "notify"), WATCHDOG_USEC="200000") as (manager, _):
        for _ in range(2):
            manager.expect("WATCHDOG=1", len(manager.lines))
        supervisor = pid_of(tmp_path / "store", "")
        os.kill(supervisor, signal.SIGSTOP)
        try:
            manager.expect("STATUS=the supervisor gives no heartbeat")
            silent_from = len(manager.lines)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        manager.expect("WATCHDOG=1", silent_from)
    silent = manager.lines[manager.lines.index("STATUS=the supervisor gives no heartbeat") + 1 :]
    assert silent[:2] == ["STATUS=running", "WATCHDOG=1"]


@pytest.mark.nightly
def test_a_watchdog_of_another_process_is_not_ours(tmp_path: Path) -> None:
    variables = {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}
    with running(tmp_path / "store", str(tmp_path / "notify"), **variables) as (manager, process):
        manager.expect("READY=1")
        process.terminate()
        process.wait(60)
        manager.expect("STOPPING=1")
    assert "WATCHDOG=1" not in manager.lines


@pytest.mark.nightly
def test_a_service_manager_that_does_not_listen(tmp_path: Path) -> None:
    """A warning says so, and the store runs."""
    config = tmp_path / "small.toml"
    config.write_text(CONFIG)
    process = subprocess.Popen(
        [sys.executable, "-m", "commitlog.cli", "run", str(tmp_path / "store"), "--config", str(config)],
        env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "nobody")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline().startswith(b"running ")
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"stopped, all is on disk" in out
    assert b"the service manager at NOTIFY_SOCKET was not told READY=1: " in err


def test_the_unit_waits_for_what_is_told() -> None:
    text = UNIT.read_text()
    assert "\nType=notify\n" in text
    assert re.search(r"\nWatchdogSec=\d+\n", text)
