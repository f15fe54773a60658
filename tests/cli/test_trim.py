"""`commitlog trim`: deletes old segments of running, stopped and killed stores."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.inspecting.verify import verify_store
from commitlog.reader import Reader
from tests.builders.hand_made import small_store
from tests.cli.test_cli import config, run, running
from tests.crash.scene import pid_of

__all__ = ["config"]

SEGMENT = 65536
SETTINGS = {"store": {"segment_bytes": SEGMENT}, "retention": {"reserved_hours": 0}}


def segments(path: Path) -> list[int]:
    return sorted(int(file.name) for file in path.glob("lanes/0/commitlog/*"))


def send(path: Path, count: int = 3000) -> None:
    with commitlog.Producer(path) as producer:
        for first in range(0, count, 100):
            producer.send_batch("orders", [b"%d" % number for number in range(first, first + 100)])
        producer.flush()


def test_a_running_store(tmp_path: Path, config: Path) -> None:
    """It asks first. The last segment stays, and so does what a named reader needs."""
    path = tmp_path / "store"
    with running(path, config):
        send(path)
        with Reader(path, "orders", name="billing") as reader:
            for _ in range(1000):
                next(reader)
            reader.commit()
        before = segments(path)
        trim = ("trim", path, "--before", "1 ms ago")
        assert run(*trim, given=b"n\n").returncode == 1
        assert segments(path) == before
        done = run(*trim, given=b"y\n")
        assert re.search(
            rb"deleted [12] segments, .* bytes\nothers could go, and are kept for named readers", done.stdout
        )
        assert next(iter(Reader(path, "orders"))).offset <= 1000
        done = run(*trim, "--yes", "--force")
        assert (done.returncode, b"others" in done.stdout) == (0, False)
        assert segments(path)[0] > 1000 * 110 // SEGMENT * SEGMENT
        assert [message.value for message in Reader(path, "orders")][-1] == b"2999"
    assert verify_store(path).good


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_store_that_does_not_run(tmp_path: Path, config: Path, is_killed: bool) -> None:
    """The command runs the stages itself, with the configuration of their last start."""
    path = tmp_path / "store"
    config.write_text(config.read_text() + "[retention]\nreserved_hours = 0\n")
    with running(path, config) as process:
        send(path)
        if is_killed:
            os.kill(pid_of(path, ""), signal.SIGKILL)
            process.wait(60)
    settings = StoreDirectory(path).load().config
    done = run("trim", path, "--keep-bytes", "200kB", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"deleted ")
    assert len(segments(path)) * SEGMENT <= 200_000
    assert StoreDirectory(path).load().config == settings
    assert not StoreDirectory(path).trim_file.exists()
    assert verify_store(path).good


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), b"give --before TIME or --keep-bytes SIZE"),
        (("--before", "1 day ago", "--keep-bytes", "1"), b"give --before TIME or --keep-bytes SIZE"),
        (("--before", "latest"), b"'latest' is not a time; give '3 days ago'"),
        (("--before", "9999-01-01"), b"'9999-01-01' is in the future"),
        (("--keep-bytes", "10 apples"), b"'--keep-bytes': '10 apples' is no size"),
        (("--keep-bytes", "10i"), b"'--keep-bytes': '10i' is no size"),
    ],
    ids=str,
)
def test_what_can_not_be_meant(tmp_path: Path, options: tuple[str, ...], reason: bytes) -> None:
    store = small_store(tmp_path / "store")
    done = run("trim", store.path, *options)
    assert done.returncode > 0
    assert reason in done.stderr
    assert b"no store here" in run("trim", tmp_path / "nowhere", "--keep-bytes", "1").stderr
