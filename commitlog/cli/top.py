"""`commitlog top STORE`: what lanes, stages, topics and readers do now.

It reads shared memory and files, and asks no process. So it shows a pipeline that hangs as well as
one that runs. On a terminal it is drawn again and again (`top_screen`); elsewhere it prints plain
lines.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Annotated

import typer

from commitlog.cli.arguments import ForShell, StoreArgument, duration, print_lines
from commitlog.cli.forwarders import HEADS as FORWARDER_HEADS
from commitlog.cli.forwarders import rows as forwarder_rows
from commitlog.cli.output import discard_output
from commitlog.cli.replicas import REPLICA_HEADS, replica_rows
from commitlog.cli.servers import CLIENT_HEADS, client_rows
from commitlog.client.statistics import StoreStatistics
from commitlog.errors import MissingPackage
from commitlog.shm.counters import WINDOWS_SECONDS
from commitlog.text.lines import aligned, can_draw
from commitlog.watching.health import health
from commitlog.watching.rates import Rates, rates
from commitlog.watching.snapshot import StoreSnapshot, StoreWatch

_INTERVAL_SECONDS_MIN, _INTERVAL_SECONDS_MAX = 0.01, 86_400.0
HISTORY = 60
"""How many looks the line of the throughput has at most."""
_FIRST_SECONDS = 0.25
"""The first look comes sooner than the others: nobody wants to wait for an empty screen."""
_LANE_HEADS = (
    "lane",
    "pid",
    "msg/s",
    "MB/s",
    "uncommitted",
    "unflushed",
    "undispatched",
    "free",
    "blocked",
)
_STAGE_HEADS = ("stage", "pid", "heartbeat", "rounds/s", "actions/s", "p50 µs", "p99 µs", "restarts")


def top(
    store: StoreArgument,
    interval: Annotated[
        float,
        typer.Option(
            parser=duration,
            metavar="TIME",
            show_default=False,
            help="Time between two looks, as in 2 or 500ms.  [default: 1s]",
        ),
    ] = 1.0,
    count: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many looks; 0: until q, or one without a terminal.")
    ] = 0,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines, on a terminal too.")] = False,
) -> None:
    """Watch lanes, stages, topics and readers, also while they hang.

        commitlog top data/events
        commitlog top data/events --plain --interval 500ms --count 10

    On a terminal: q quits, s sorts, / filters.
    """
    if not _INTERVAL_SECONDS_MIN <= interval <= _INTERVAL_SECONDS_MAX:
        raise typer.BadParameter(f"--interval {interval:g}: allowed are times from 10ms to 1d")
    with StoreWatch(store) as watch:
        try:
            if can_draw(sys.stdout) and not plain:
                _draw(watch, interval, count)
            else:
                _print(watch, interval, count or (0 if sys.stdout.isatty() else 1))
        except KeyboardInterrupt:  # Ctrl-C is a way to end it: no message, exit code 0
            return
        except BrokenPipeError:  # the reader of the pipe is gone: print nothing more, not even at the exit
            discard_output()


def _draw(watch: StoreWatch, interval: float, count: int) -> None:
    """Draws until q is pressed. Raises MissingPackage."""
    try:
        from commitlog.cli.top_screen import Screen
    except ModuleNotFoundError as error:
        raise MissingPackage(f"top draws with {error.name}: install the extra `tools`, or use --plain") from error
    earlier = watch.snapshot()
    history: deque[float] = deque(maxlen=HISTORY)
    looks, pause = 0, min(interval, _FIRST_SECONDS)
    with Screen() as screen:
        while screen.wait(pause) and (not count or looks < count):
            now = watch.snapshot()
            changes = rates(now, earlier)
            history.append(changes.messages_per_second)
            screen.show(now, changes, health(now), history)
            earlier, looks, pause = now, looks + 1, interval


def _print(watch: StoreWatch, interval: float, count: int) -> None:
    earlier = watch.snapshot()
    looks = 0
    while not count or looks < count:
        watch.clock.sleep(interval)
        now = watch.snapshot()
        print_lines(_head(now))
        typer.echo("\n".join(_tables(now, rates(now, earlier))))
        if looks + 1 != count:
            typer.echo()
        earlier, looks = now, looks + 1


def lines(now: StoreSnapshot, changes: Rates) -> Iterator[str]:
    """One look as plain lines: the store, what is wrong, lanes, stages, and who else uses it."""
    yield from _head(now)
    yield from _tables(now, changes)


def _head(now: StoreSnapshot) -> Iterator[str]:
    facts = now.statistics
    throughput = f"; {_throughput(facts)}" if now.durations else ""
    yield f"{facts.path}  {facts.state}, generation {facts.generation}{throughput}"
    for reason in health(now).reasons:
        yield f"{reason.severity.upper()}: {reason.words}:"
        yield ForShell(f"    {reason.command}")


def _tables(now: StoreSnapshot, changes: Rates) -> Iterator[str]:
    yield ""
    yield from aligned(_LANE_HEADS, list(_lane_rows(changes)))
    if changes.stages:
        yield ""
        yield from aligned(_STAGE_HEADS, list(_stage_rows(changes)))
    clients = list(client_rows(now.servers))
    if clients:
        yield ""
        yield from aligned(CLIENT_HEADS, clients)
    if now.replicas:
        yield ""
        yield from aligned(REPLICA_HEADS, list(replica_rows(now.replicas)))
    if now.forwarders:
        yield ""
        yield from aligned(FORWARDER_HEADS, list(forwarder_rows(now.forwarders)))


def _throughput(facts: StoreStatistics) -> str:
    """The throughput over RocketMQ's windows; a dash for a window that is not full yet."""
    found = {rate.window_seconds: rate for rate in facts.throughput}
    parts = [
        f"{found[window].messages_per_second:,.0f} in {found[window].over_seconds:,.0f} s"
        if window in found
        else f"- in {window} s"
        for window in WINDOWS_SECONDS
    ]
    return f"messages/s: {', '.join(parts)}"


def _lane_rows(changes: Rates) -> Iterator[tuple[str, ...]]:
    for lane in changes.lanes:
        yield (
            str(lane.lane),
            str(lane.producer or "-"),
            f"{lane.messages_per_second:,.0f}",
            f"{lane.bytes_per_second / 1e6:,.3f}",
            f"{lane.uncommitted:,}",
            f"{lane.unflushed:,}",
            f"{lane.undispatched:,}",
            "-" if lane.available_buffers is None else str(lane.available_buffers),
            "-" if lane.blocked_ms is None else f"{lane.blocked_ms:,.0f} ms",
        )


def _stage_rows(changes: Rates) -> Iterator[tuple[str, ...]]:
    for stage in changes.stages:
        yield (
            stage.stage,
            str(stage.pid or "-"),
            f"{stage.silent_ms / 1000:,.1f} s" + (" SILENT" if stage.is_silent else ""),
            f"{stage.rounds_per_second:,.1f}",
            f"{stage.actions_per_second:,.1f}",
            *("-" if value is None else f"{value:,.0f}" for value in (stage.p50_us, stage.p99_us)),
            str(stage.restarts),
        )
