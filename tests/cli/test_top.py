"""`commitlog top`: rates of the last interval, and a pipeline that hangs."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.cli.top import lines
from commitlog.watching.snapshot import StoreWatch
from tests.fake_clock import SetClock
from tests.waiting import wait_until

SMALL = {"store": {"segment_bytes": 1 << 16}, "supervisor": {"hung_after_ms": 600_000}}


def cells(text: list[str], head: str) -> list[dict[str, str]]:
    """The table whose first column is called `head`."""
    split = [line.split() for line in text]
    at = next(number for number, words in enumerate(split) if words[:1] == [head])
    names = [name.strip() for name in text[at].replace(" µs", "µs").split()]
    rows = []
    for line in text[at + 1 :]:
        if not line:
            break
        words = line.replace(" ms", "ms").replace(" s ", "s ").replace(" SILENT", "SILENT").split()
        rows.append(dict(zip(names, words, strict=True)))
    return rows


def test_it_shows_what_happened_since_the_last_look(tmp_path: Path) -> None:
    """100 messages in 2 seconds of its clock: 50 a second; heartbeats and times of the stages."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        clock = SetClock()
        watch = StoreWatch(store.path, clock)
        producer.send("t", bytes(100)).wait("flushed", 60)
        earlier = watch.snapshot()
        for _ in range(100):
            producer.send("t", bytes(100))
        producer.flush(60)
        clock.pass_seconds(2)
        text = list(lines(watch.snapshot(), earlier))
        watch.close()
    assert text[0].endswith("- in 60 s, - in 600 s")  # a store so young has not filled them
    (lane,) = cells(text, "lane")
    assert lane["msg/s"] == "50"
    assert lane["producer"] == str(os.getpid())
    assert lane["uncommitted"] == lane["unflushed"] == "0"
    stages = {row["stage"]: row for row in cells(text, "stage")}
    assert float(stages["committer"]["actions/s"]) > 0
    assert stages["committer"]["p99µs"] != "-"


def test_it_shows_a_pipeline_that_hangs(tmp_path: Path) -> None:
    """All stages and the supervisor are stopped: depths, and who is silent since when."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        pids = [int(path.read_text()) for path in [store.path / "lock", *(store.path / "locks").iterdir()]]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            producer.send("t", bytes(1000))
            clock = SetClock()
            watch = StoreWatch(store.path, clock)
            clock.boot = 1 << 62  # long after
            text = list(lines(watch.snapshot(), watch.snapshot()))
            watch.close()
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    (lane,) = cells(text, "lane")
    assert int(lane["uncommitted"].replace(",", "")) > 1000
    assert all(row["heartbeat"].endswith("SILENT") for row in cells(text, "stage"))


def test_without_a_terminal_it_is_plain_and_ends(tmp_path: Path) -> None:
    """One look, or as many as were asked for; of a stopped store too."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        producer.send("t", b"x")
        running = CliRunner().invoke(app, ["top", str(store.path), "--interval", "0.01", "--count", "3"])
    assert running.exit_code == 0
    shown = running.output.replace(str(tmp_path), "")
    assert shown.count("running") == shown.count("uncommitted") == 3
    assert "\x1b" not in running.output
    stopped = CliRunner().invoke(app, ["top", str(tmp_path / "store"), "--interval", "0.01"])
    assert stopped.exit_code == 0
    assert stopped.output.replace(str(tmp_path), "").count("stopped") == 1


def test_on_a_terminal_it_draws_until_it_is_interrupted(tmp_path: Path) -> None:
    """And leaves the terminal as it was."""
    commitlog.Store.open(tmp_path / "store", SMALL).close()
    reading, writing = pty.openpty()
    command = [sys.executable, "-m", "commitlog.cli", "top", str(tmp_path / "store"), "--interval", "0.01"]
    process = subprocess.Popen(command, stdout=writing, stderr=writing)
    os.close(writing)
    shown = bytearray()

    def drawn_often() -> bool:
        shown.extend(os.read(reading, 65536))
        return shown.count(b"\x1b[H\x1b[J") >= 3

    try:
        wait_until(drawn_often, "it to draw")
        process.send_signal(signal.SIGINT)
        while True:
            try:
                shown.extend(os.read(reading, 65536))
            except OSError:  # the other end is closed
                break
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)
    assert shown.startswith(b"\x1b[?1049h")
    assert b"stopped" in shown
    assert shown.rstrip().endswith(b"\x1b[?1049l")
