"""The dashboard and the plain lines show a snapshot, whatever is in it."""

from __future__ import annotations

import io

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


def drawn(snapshot: Snapshot, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render(snapshot, width, 1.0))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_dashboard_shows_every_stage(width: int) -> None:
    """Each with its messages, and the live table; no line is wider than the terminal."""
    text = drawn(FULL, width)
    for word in ("wrote", "committed", "flushed", "dispatched", "read by Spark", "1,234,567", "Busiest processes"):
        assert word in text
    assert "4 of 6 write buffers free" in text
    assert "the committer had died" in text
    assert max(map(len, text.splitlines())) <= width


def test_names_from_outside_can_not_draw() -> None:
    """A process may be called anything; control characters are shown as question marks."""
    assert "\x1b" not in drawn(FULL, 140)
    assert "evil?[31m?name" in drawn(FULL, 140)


def test_a_run_that_has_just_begun() -> None:
    """Nothing is known yet, and nothing breaks."""
    assert "opening the store" in drawn(Snapshot("cafe", "opening the store", 0.1), 80)


def test_plain_lines_without_a_terminal() -> None:
    """A pipe gets lines of text without control codes.

    There is a line at each change of phase, and one from time to time.
    """
    stream = io.StringIO()
    display = make_display(stream)
    assert isinstance(display, PlainLines)
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
    assert lines[:2] == ["starting Spark", "running"]
    assert len(lines) == 4
    assert "wrote 1,234,567" in lines[2]
    assert "Spark is 4,400 behind" in lines[2]
    assert all(character.isprintable() for line in lines for character in line)


def test_plain_lines_while_spark_starts() -> None:
    """There is nothing to count yet, but something goes on."""
    stream = io.StringIO()
    clock = SetClock()
    display = PlainLines(stream, clock)
    for _ in range(3):
        display.show(Snapshot("cafe", "starting Java and Spark", 0.1))
        clock.sleep(3)
    assert stream.getvalue().splitlines() == [f"starting Java and Spark{tail}" for tail in ("", ": 3 s", ": 6 s")]


def test_durations_in_words() -> None:
    """Three digits or so, and a dash for none."""
    assert [milliseconds(value) for value in (None, 0.345, 17.2, 1806.0, 39_600.0)] == [
        "–",
        "0.34 ms" if f"{0.345:.2f}" == "0.34" else "0.35 ms",
        "17 ms",
        "1,806 ms",
        "39.6 s",
    ]
