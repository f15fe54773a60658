"""`commitlog top STORE`: what lanes and stages do now, read from the control region alone.

It asks no process, so it shows a pipeline that hangs as well as one that runs. On a terminal it is
drawn again and again; elsewhere it prints plain lines.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from commitlog.cli.arguments import StoreArgument
from commitlog.shm.statistics import WINDOWS_SECONDS
from commitlog.statistics import StoreStatistics
from commitlog.watching.snapshot import StoreSnapshot, StoreWatch

_SILENT_MS = 5_000
_SCREEN_ON, _SCREEN_OFF, _REDRAW = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H\x1b[J"
_LANE_HEADS = (
    "lane",
    "producer",
    "msg/s",
    "MB/s",
    "uncommitted",
    "unflushed",
    "undispatched",
    "buffers",
    "blocked",
    "fault",
)
_STAGE_HEADS = ("stage", "pid", "heartbeat", "rounds/s", "actions/s", "p50 µs", "p99 µs", "restarts")


def top(
    store: StoreArgument,
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds between two looks.")] = 1.0,
    count: Annotated[int, typer.Option(min=0, help="How many looks; 0: until Ctrl-C, or one without a terminal.")] = 0,
) -> None:
    """Watch lanes and stages; works while they hang."""
    on_terminal = sys.stdout.isatty()
    watch = StoreWatch(store)
    try:
        if on_terminal:
            typer.echo(_SCREEN_ON, nl=False)
        _watch(watch, interval, count or (0 if on_terminal else 1), on_terminal)
    except KeyboardInterrupt:  # Ctrl-C is the way to end it: no message, exit code 0
        return
    except BrokenPipeError:  # the reader of the pipe is gone: print nothing more, not even at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if on_terminal:
            typer.echo(_SCREEN_OFF, nl=False)
        watch.close()


def _watch(watch: StoreWatch, interval: float, count: int, on_terminal: bool) -> None:
    earlier = watch.snapshot()
    looks = 0
    while not count or looks < count:
        watch.clock.sleep(interval)
        now = watch.snapshot()
        text = list(lines(now, earlier))
        if on_terminal:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())  # zeros if the terminal does not know its size
            typer.echo(_REDRAW + "\n".join(line[: columns or None] for line in text[: (rows or 25) - 1]))
        else:
            typer.echo("\n".join([*text, ""]) if looks + 1 != count else "\n".join(text))
        earlier = now
        looks += 1


def lines(now: StoreSnapshot, earlier: StoreSnapshot) -> Iterator[str]:
    """The lines of one look: the store, its lanes, its stages."""
    facts = now.statistics
    seconds = now.seconds_since(earlier)
    rates = f"; {_rates(facts)}" if now.durations else ""
    yield f"{facts.path}  {facts.state}, generation {facts.generation}{rates}"
    if facts.retention:
        yield from (f"WARNING: {text}" for text in facts.retention.warnings)
    yield ""
    yield from _table(_LANE_HEADS, list(_lane_rows(now, earlier, seconds)))
    if now.durations:
        yield ""
        yield from _table(_STAGE_HEADS, list(_stage_rows(now, earlier, seconds)))


def _rates(facts: StoreStatistics) -> str:
    """The throughput over RocketMQ's windows; a dash for a window that is not full yet."""
    rates = {rate.window_seconds: rate for rate in facts.throughput}
    parts = [
        f"{rates[window].messages_per_second:,.0f} in {rates[window].over_seconds:,.0f} s"
        if window in rates
        else f"- in {window} s"
        for window in WINDOWS_SECONDS
    ]
    return f"messages/s: {', '.join(parts)}"


def _lane_rows(now: StoreSnapshot, earlier: StoreSnapshot, seconds: float) -> Iterator[tuple[str, ...]]:
    before = {lane.lane: lane for lane in earlier.statistics.lanes}
    for lane in now.statistics.lanes:
        old = before.get(lane.lane, lane)
        blocked = now.blocked_ms.get(lane.lane)
        yield (
            str(lane.lane),
            str(lane.producer or "-"),
            f"{max(lane.messages - old.messages, 0) / seconds:,.0f}",
            f"{max(lane.wrote - old.wrote, 0) / seconds / 1e6:,.3f}",
            f"{lane.wrote - lane.committed:,}",
            f"{lane.committed - lane.flushed:,}",
            f"{lane.flushed - lane.dispatched:,}",
            "-" if lane.available_buffers is None else str(lane.available_buffers),
            "-" if blocked is None else f"{blocked:,.0f} ms",
            " ".join(f"{stage}:{errno.errorcode.get(code, code)}" for stage, code in (lane.faults or {}).items())
            or "-",
        )


def _stage_rows(now: StoreSnapshot, earlier: StoreSnapshot, seconds: float) -> Iterator[tuple[str, ...]]:
    before = {stage.stage: stage for stage in earlier.statistics.stages}
    for stage in now.statistics.stages:
        old = before.get(stage.stage, stage)
        took = now.durations[stage.stage]
        if stage.stage in earlier.durations:
            took -= earlier.durations[stage.stage]
        yield (
            stage.stage,
            str(stage.pid or "-"),
            f"{stage.silent_ms / 1000:,.1f} s" + (" SILENT" if stage.silent_ms > _SILENT_MS else ""),
            f"{max(stage.rounds - old.rounds, 0) / seconds:,.1f}",
            f"{max(stage.actions - old.actions, 0) / seconds:,.1f}",
            *("-" if (value := took.percentile(part)) is None else f"{value:,.0f}" for part in (0.5, 0.99)),
            str(stage.restarts),
        )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns, as wide as needed, aligned to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
