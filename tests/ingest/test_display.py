"""The dashboard and the plain lines show a snapshot, whatever is in it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from dataclasses import replace

import pytest
from rich.console import Console

from commitlog.ingest.dashboard import (
    PLAIN_SECONDS,
    BatchLine,
    PlainLines,
    Snapshot,
    StepLine,
    make_display,
    milliseconds,
    plain_line,
    render,
)
from commitlog.ingest.grid import Grid
from tests.fake_clock import SetClock

STEPS = (
    StepLine("wrote", 1_234_567, 4000.4, 1.25),
    StepLine("committed", 1_234_500, 3999.0, 1.25, 67, 21_000),
    StepLine("flushed", 1_234_400, 3999.0, 1.25, 100, 30_000),
    StepLine("dispatched", 1_234_300, 3999.0, 1.25, 100, 30_000),
    StepLine("read by Spark", 1_230_000, 4100.0, 1.25, 4_400, 1_320_000),
)
FULL = Snapshot(
    run="cafe",
    phase="running",
    elapsed=12.3,
    seconds=60,
    steps=STEPS,
    buffers_free=4,
    buffers=6,
    syncs_per_second=280,
    sync_p50_ms=0.4,
    sync_p99_ms=2.5,
    flushed_p50_ms=9,
    flushed_p99_ms=17,
    batch=BatchLine(7, 1200, 0.25, 300, 900),
    cpu_cores={"stages": 0.2},
    memory_bytes={"stages": 90_000_000},
    grids=(
        Grid("Busiest processes", ("process", "pid", "CPU %", "memory MB"), (("evil\x1b[31m\nname", "7", "99", "10"),)),
        Grid("Seconds", ("time", "messages"), (("12:00:00", "4,000"),)),
    ),
    events=("5.4 s: the committer had died and was started again",),
)


def drawn(snapshot: Snapshot, width: int, height: int = 24) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render(snapshot, width, height, 1.0))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [60, 80, 120, 140])
def test_the_dashboard_shows_every_stage(width: int) -> None:
    """Each with its messages, and the live table; no line is wider than the terminal."""
    text = drawn(FULL, width)
    for word in ("wrote", "committed", "flushed", "dispatched", "read by Spark", "1,234,567", "Busiest processes"):
        assert word in text
    assert "4 of 6 write buffers free" in text
    assert "the committer had died" in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 50), (120, 24), (200, 60), (80, 10), (80, 3)])
def test_the_dashboard_fits_into_its_terminal(width: int, height: int) -> None:
    """The tables have the rows that there is room for, and what has happened stays in sight."""
    process = ("commitlog.stages.supervisor", "1234567", "100", "12,345")
    second = ("12:00:00", "123,456", "100", "123,456", "1,234.5", "1,234.5")
    grids = (
        Grid("Busiest processes", ("process", "pid", "CPU %", "memory MB"), (process,) * 8),
        Grid("Seconds", ("time", "messages", "CPU %", "memory MB", "disk MB/s", "network MB/s"), (second,) * 8),
    )
    cores = dict.fromkeys(("stages", "producers", "spark", "job"), 12.34)
    slow = BatchLine(1_000, 200_000, 9.0, 9_999.0, 9_999.0)
    snapshot = replace(
        FULL, grids=grids, cpu_cores=cores, batch=slow, sync_p99_ms=9_999, flushed_p50_ms=9_999, flushed_p99_ms=9_999
    )
    lines = drawn(snapshot, width, height).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert "the committer had died" in lines[-1]
    if height >= 24:
        assert len(lines) < height
        assert sum("supervisor" in line for line in lines) == min(height - 20, 8)
    assert ("Seconds" in "".join(lines)) == (width >= 120 or height >= 50)


@pytest.mark.parametrize("width", [60, 80])
def test_labels_stay_whole_and_words_wrap(width: int) -> None:
    """A long fact took the room of its label before. A path is cut in its middle."""
    place = "/home/somebody/a/very/long/path/to/the/checkout/of/the/project/commitlog-runs/2026-11-27/cafe/store"
    cores = dict.fromkeys(("stages", "producers", "spark", "server", "job"), 12.34)
    snapshot = replace(
        FULL, phase="starting the streaming query", cpu_cores=cores, events=(f"1.2 s: opened {place} now",)
    )
    lines = drawn(snapshot, width).splitlines()
    assert max(map(len, lines)) <= width
    for label in ("pool    4 of 6", "send →  flushed", "Spark   batch", "cores   stages", "  Ctrl-C drains"):
        assert any(line.startswith(label) for line in lines), label
    words = " ".join(lines).split()
    assert {"server", "12.34;", "memory", "MB", "cafe", "now"} <= {*words}
    (cut,) = [word for word in words if "…" in word]
    begin, end = cut.split("…")
    assert place.startswith(begin)
    assert place.endswith(end)
    assert len(begin) > width // 3


def test_names_from_outside_can_not_draw() -> None:
    """A process may be called anything; control characters are shown as question marks."""
    assert "\x1b" not in drawn(FULL, 140)
    assert "evil?[31m?name" in drawn(FULL, 140)


def test_a_run_that_has_just_begun() -> None:
    """Nothing is known yet, and nothing breaks."""
    assert "opening the store" in drawn(Snapshot("cafe", "opening the store", 0.1), 80)


def test_plain_lines_without_a_terminal() -> None:
    """A pipe gets lines of text without control codes.

    There is a line at each change of phase, one for each event, and one from time to time.
    """
    stream = io.StringIO()
    assert isinstance(make_display(stream).display, PlainLines)
    clock = SetClock()
    display = PlainLines(stream, clock)
    display.show(Snapshot("cafe", "starting Spark", 0.1))
    display.show(FULL)
    display.show(FULL)
    clock.sleep(PLAIN_SECONDS)
    display.show(FULL)
    display.say("evil \x1b[31m text")
    display.close()
    lines = stream.getvalue().splitlines()
    assert lines[:3] == ["starting Spark", "running", *FULL.events]
    assert len(lines) == 5
    assert (
        lines[3]
        == "    12 s  wrote 1.2 M (4,000/s)  flushed p99 17 ms  Spark 1.2 M (4,100/s), 4,400 behind, p99 900 ms"
    )
    assert all(character.isprintable() for line in lines for character in line)


def test_a_plain_line_is_narrow() -> None:
    """Whatever the numbers are, it fits into 120 columns."""
    wrote = StepLine("wrote", 12_345_678_901, 999_999.0, 99.9)
    spark = StepLine("read by Spark", 12_345_678_901, 999_999.0, 99.9, 999_999)
    slow = BatchLine(7, 1200, 0.25, 300, 9_999.0)
    snapshot = replace(FULL, elapsed=99_999, steps=(wrote, spark), batch=slow, flushed_p99_ms=9_999.0)
    assert len(plain_line(snapshot)) <= 120


def test_plain_lines_while_spark_starts() -> None:
    """There is nothing to count yet, but something goes on."""
    stream = io.StringIO()
    clock = SetClock()
    display = PlainLines(stream, clock)
    for _ in range(15):
        display.show(Snapshot("cafe", "starting Java and Spark", 0.1))
        clock.sleep(5)
    assert stream.getvalue().splitlines() == [f"starting Java and Spark{tail}" for tail in ("", ": 30 s", ": 60 s")]


def test_durations_in_words() -> None:
    """Three digits or so, and a dash for none."""
    assert [milliseconds(value) for value in (None, 0.345, 17.2, 1806.0, 39_600.0)] == [
        "–",
        "0.34 ms" if f"{0.345:.2f}" == "0.34" else "0.35 ms",
        "17 ms",
        "1,806 ms",
        "39.6 s",
    ]


@pytest.mark.parametrize("path", ["/dev/full", ""])
def test_a_display_that_is_gone_ends_no_run(path: str) -> None:
    """Its file takes nothing more, or its terminal was closed. The end knows what is wrong."""
    if path:
        stream = open(path, "w")  # noqa: SIM115
    else:
        ours, theirs = os.openpty()
        stream = os.fdopen(theirs, "w")
        os.close(ours)
    display = make_display(stream)
    display.show(FULL)
    display.say("the verdict")
    display.close()
    assert display.error is not None
    assert display.error.errno in (errno.ENOSPC, errno.EIO)
    with contextlib.suppress(OSError):
        stream.close()
