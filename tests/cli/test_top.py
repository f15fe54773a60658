"""`commitlog top`: rates of the last interval, and a pipeline that hangs."""

from __future__ import annotations

import errno
import io
import os
import signal
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.cli.top import lines
from commitlog.cli.top_screen import Choice, duration, render, share, sparkline
from commitlog.watching.health import health
from commitlog.watching.rates import rates
from commitlog.watching.snapshot import StoreWatch
from tests.builders.idle_store import idle_store
from tests.fake_clock import SetClock
from tests.keys_and_screen import Terminal, terminal
from tests.nightly import with_nightly

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
        producer.flush(timeout=60)
        clock.pass_seconds(2)
        now = watch.snapshot()
        text = list(lines(now, rates(now, earlier)))
        watch.close()
    assert text[0].endswith("- in 60 s, - in 600 s")  # a store so young has not filled them
    (lane,) = cells(text, "lane")
    assert lane["msg/s"] == "50"
    assert lane["pid"] == str(os.getpid())
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
            now = watch.snapshot()
            text = list(lines(now, rates(now, now)))
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


def top_of(path: Path, *options: str) -> AbstractContextManager[Terminal]:
    return terminal("top", path, "--interval", "0.05", *options)


def test_on_a_terminal_it_draws_until_q_is_pressed(tmp_path: Path) -> None:
    """And leaves the terminal as it was."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, top_of(store.path) as screen:
        screen.see("messages/s")
        screen.press("s")
        screen.see("sort: rate")
        screen.press("\x1b[A")  # an arrow means nothing here
        screen.press("/nothing")
        screen.see("filter: nothing")
        screen.press("\x1b")
        screen.press("q")
        assert screen.end() == 0


@pytest.mark.nightly
def test_ctrl_c_ends_it_too(tmp_path: Path) -> None:
    commitlog.Store.open(tmp_path / "store", SMALL).close()
    with top_of(tmp_path / "store") as screen:
        screen.see("stopped")
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 0
        assert b"Traceback" not in screen.shown


@pytest.mark.nightly
def test_plain_lines_on_a_terminal(tmp_path: Path) -> None:
    commitlog.Store.open(tmp_path / "store", SMALL).close()
    with top_of(tmp_path / "store", "--plain", "--count", "2") as screen:
        assert screen.end() == 0
        assert screen.shown.count(b"generation") == 2
        assert b"\x1b" not in screen.shown


@pytest.mark.nightly
def test_plain_lines_on_a_terminal_that_can_not_be_drawn_on(tmp_path: Path) -> None:
    """Such as that of an editor. rich would show nothing there."""
    commitlog.Store.open(tmp_path / "store", SMALL).close()
    with terminal("top", tmp_path / "store", "--interval", "0.05", "--count", "2", TERM="dumb") as screen:
        assert screen.end() == 0
        assert screen.shown.count(b"generation") == 2
        assert b"\x1b" not in screen.shown


def drawn(watch: StoreWatch, choice: Choice, width: int, height: int) -> list[str]:
    """The lines of one screen."""
    now = watch.snapshot()
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(render(now, rates(now, now), health(now), [1.0, 4.0], choice, width, height))
    return console.export_text().splitlines()


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "height"), with_nightly([(80, 24)], [(60, 15), (200, 60)]))
def test_it_fits_the_terminal(tmp_path: Path, width: int, height: int) -> None:
    """With more lanes, topics and readers than there is room for: it says how many are left out."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        with ExitStack() as stack:
            for _ in range(8):
                producer = stack.enter_context(store.producer())
                for topic in range(8):
                    producer.send(f"a-topic-with-a-name-that-is-too-long-for-a-small-terminal-{topic}", b"x")
            producer.flush(timeout=60)
        for name in ("audit", "billing"):
            with commitlog.Reader(store.path, name=name) as reader:
                reader.commit(next(iter(reader)))
        with StoreWatch(store.path) as watch:
            text = drawn(watch, Choice(), width, height)
            filtered = drawn(watch, Choice(filter="audit"), width, height)
    assert len(text) <= height
    assert max(map(len, text)) <= width
    assert ("(+" in "\n".join(text)) == (height < 60)
    topics = [line.split()[0] for line in text if line.startswith("a-topic")]
    assert len(set(topics)) == len(topics), "names that differ at their ends are told apart"
    assert [line for line in filtered if line.startswith("audit")]
    assert not [line for line in filtered if line.startswith(("billing", "a-topic"))]


def test_what_is_wrong_comes_first(tmp_path: Path) -> None:
    """A fault of a stage is above all tables, also where the terminal is narrow."""
    with idle_store(tmp_path / "store", tmp_path / "pool") as store:
        store.set(0, WROTE=500, COMMITTER_FAULT=errno.ENOSPC)
        with StoreWatch(store.directory.path) as watch:
            text = drawn(watch, Choice(), 80, 24)
            now = watch.snapshot()
            plain = list(lines(now, rates(now, now)))
            reason, *_ = health(now).reasons
    assert plain[1:3] == [f"{reason.severity.upper()}: {reason.text}; {reason.way_out}:", f"    {reason.command}"]
    first_table = next(number for number, line in enumerate(text) if line.startswith("lane "))
    assert "down" in text[0]
    assert [line for line in text[:first_table] if line.startswith("! ")]


def test_room_is_shared() -> None:
    assert share(10, [2, 20, 20]) == [2, 4, 4]
    assert share(0, [1, 1]) == [0, 0]
    assert share(-3, [1]) == [0]
    assert share(100, [1, 2]) == [1, 2]


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0 µs"),
        (999, "999 µs"),
        (1_500, "1.5 ms"),
        (20_000, "20 ms"),
        (5e6, "5.0 s"),
        (99e6, "99 s"),
        (6e9, "1.7 h"),
    ],
)
def test_durations(microseconds: float, text: str) -> None:
    assert duration(microseconds) == text


def test_sparkline() -> None:
    assert sparkline([0, 4, 8], 10) == "▁▅█"
    assert sparkline([1, 2, 3], 2) == "▆█"
    assert sparkline([], 5) == ""
    assert sparkline([0, 0], 5) == "▁▁"
