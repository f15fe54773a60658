"""What the user sees during a run: a live picture of the pipeline (rich), or plain lines.

Plain lines are for an output that is not a terminal. Both are made from a `Snapshot` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from commitlog.ingest.grid import Grid
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.text.lines import can_draw, fitted, wrapped

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

PLAIN_SECONDS = 5.0
QUIET_SECONDS = 30.0
"""How often a plain line says that a phase without numbers goes on."""
_EVENTS_SHOWN = 4
_WIDE, _NARROW = 120, 80
_STEPS_LINES = 4
"""Lines of the table of stages beside its rows: two empty ones, the titles, and a rule."""
_GRID_LINES = 4
"""Lines of a live table beside its rows: an empty one, its name, the titles, and a rule."""
_LABEL, _SAID_LABEL = 8, 13
"""Columns of the labels: of the facts, and of the lines of a report."""
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(frozen=True)
class StepLine:
    """One stage: its messages so far, its speed, and how far it is behind the stage before it.

    The speed is that of the last second or two. Spark's is that of its last batches.
    """

    name: str
    messages: int
    per_second: float
    megabytes_per_second: float
    behind: int | None = None
    behind_bytes: int | None = None


@dataclass(frozen=True)
class BatchLine:
    """Spark's last batch."""

    id: int
    rows: int
    seconds: float
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one moment."""

    run: str
    phase: str
    elapsed: float
    seconds: float | None = None
    steps: tuple[StepLine, ...] = ()
    buffers_free: int = 0
    buffers: int = 0
    syncs_per_second: float = 0.0
    sync_p50_ms: float | None = None
    sync_p99_ms: float | None = None
    flushed_p50_ms: float | None = None
    flushed_p99_ms: float | None = None
    batch: BatchLine | None = None
    cpu_cores: dict[str, float] = field(default_factory=dict)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    grids: tuple[Grid, ...] = ()
    events: tuple[str, ...] = ()


class Display(Protocol):
    """Shows snapshots; `say` is for text that has to stay readable afterwards."""

    def show(self, snapshot: Snapshot) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class UntilGone:
    """A display that becomes silent when its terminal or its file refuses more output.

    So a run goes on to its end, even if its terminal was closed. `error` says why nothing is shown.
    """

    def __init__(self, display: Display) -> None:
        self.display = display
        self.error: OSError | None = None

    def show(self, snapshot: Snapshot) -> None:
        self._attempt(lambda: self.display.show(snapshot))

    def say(self, text: str) -> None:
        self._attempt(lambda: self.display.say(text))

    def close(self) -> None:
        self._attempt(self.display.close)

    def _attempt(self, call: Callable[[], None]) -> None:
        if self.error is not None:
            return
        try:
            call()
        except OSError as error:
            self.error = error


def make_display(stream: TextIO | None = None) -> UntilGone:
    """The dashboard on a terminal that can show it, plain lines everywhere else."""
    stream = stream or sys.stdout
    if can_draw(stream):
        return UntilGone(Dashboard(stream))
    return UntilGone(PlainLines(stream))


class PlainLines:
    """A line for each change of phase, each event, and the numbers of every five seconds.

    It has no control codes. While there are no numbers yet, a line says every half minute how long
    the phase has taken.
    """

    def __init__(self, stream: TextIO, clock: Clock = SYSTEM_CLOCK) -> None:
        self.stream = stream
        self.clock = clock
        self._phase = ""
        self._since = self._next = 0.0
        self._events: set[str] = set()

    def show(self, snapshot: Snapshot) -> None:
        now = self.clock.monotonic_ns() / 1e9
        lines: list[str] = []
        if snapshot.phase != self._phase:
            self._phase, self._since = snapshot.phase, now
            lines.append(snapshot.phase)
        elif now >= self._next:
            lines.append(plain_line(snapshot) if snapshot.steps else f"{snapshot.phase}: {now - self._since:.0f} s")
        if lines:
            self._next = now + (PLAIN_SECONDS if snapshot.steps else QUIET_SECONDS)
        news = [event for event in snapshot.events if event not in self._events]
        self._events.update(news)
        for line in lines + news:
            self.say(line)

    def say(self, text: str) -> None:
        self.stream.write(printable(text) + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Does nothing: there is nothing to restore."""


class Dashboard:
    """The picture on a terminal: rich's Live, redrawn four times a second."""

    INTERVAL = 0.25

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(file=stream, highlight=False)
        self._live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()
        self._next = 0.0
        self._phase = ""

    def show(self, snapshot: Snapshot) -> None:
        now = SYSTEM_CLOCK.monotonic_ns() / 1e9
        if now < self._next and snapshot.phase == self._phase:
            return
        self._next, self._phase = now + self.INTERVAL, snapshot.phase
        self._live.update(render(snapshot, *self.console.size, now), refresh=True)

    def say(self, text: str) -> None:
        for part in wrapped(printable(text), self.console.width, " " * _SAID_LABEL):
            self.console.print(part, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


def printable(text: str) -> str:
    """The text without control characters: names of processes and files may hold any."""
    return "".join(character if character.isprintable() else "?" for character in text)


def milliseconds(value: float | None) -> str:
    """A duration as text, with about three digits."""
    if value is None:
        return "–"
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{value:,.2f} ms" if value < 10 else f"{value:,.0f} ms"


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.1f} MB"


def short(count: float) -> str:
    """A count in at most seven characters up to ten thousand million."""
    return f"{count:,.0f}" if count < 999_999.5 else f"{count / 1e6:,.1f} M"


def plain_line(snapshot: Snapshot) -> str:
    """The pipeline in one line of at most 120 columns."""
    first, last = snapshot.steps[0], snapshot.steps[-1]
    spark = f"Spark {short(last.messages)} ({short(last.per_second)}/s), {short(last.behind or 0)} behind"
    if snapshot.batch:
        spark += f", p99 {milliseconds(snapshot.batch.p99_ms)}"
    parts = [
        f"{snapshot.elapsed:6,.0f} s",
        f"{first.name} {short(first.messages)} ({short(first.per_second)}/s)",
        f"flushed p99 {milliseconds(snapshot.flushed_p99_ms)}",
        spark,
    ]
    return "  ".join(parts)


# ---- the dashboard -----------------------------------------------------------------------------


def render(snapshot: Snapshot, width: int, height: int, now: float) -> RenderableType:
    """The whole dashboard. The live tables get the lines that the rest leaves."""
    from rich.console import Group

    parts: list[Any] = _head(snapshot, now, width)
    events = [part for event in snapshot.events[-_EVENTS_SHOWN:] for part in _event(event, width)]
    room = height - 1 - len(parts) - len(events)  # without the line of the cursor
    if snapshot.steps:
        facts = _facts(snapshot, width)
        parts += [_steps(snapshot, width), *facts]
        room -= len(snapshot.steps) + _STEPS_LINES + len(facts)
    parts += _grids(snapshot.grids, width, room)
    return Group(*parts, *events)


def _event(event: str, width: int) -> list[Any]:
    from rich.text import Text

    return [Text(part, style="yellow", no_wrap=True) for part in fitted(printable(f"• {event}"), width, "  ")]


def _head(snapshot: Snapshot, now: float, width: int) -> list[Any]:
    """What goes on, for how long, and how to end it: on two lines where one has no room."""
    from rich.text import Text

    clock = f"{snapshot.elapsed:,.0f} s"
    if snapshot.seconds is not None:
        clock += f" of {snapshot.seconds:,.0f}"
    head, more = Text(no_wrap=True, overflow="ellipsis"), f"Ctrl-C drains and stops  run {snapshot.run}"
    head.append(f"{_SPINNER[int(now * 8) % len(_SPINNER)]} ", style="cyan")
    head.append("commitlog ingest", style="bold")
    head.append(f"  {snapshot.phase}", style="cyan")
    head.append(f"  {clock}", style="dim")
    if len(head) + 2 + len(more) > width:
        return [head, Text(f"  {more}", style="dim", no_wrap=True, overflow="ellipsis")]
    head.append(f"  {more}", style="dim")
    return [head]


def _steps(snapshot: Snapshot, width: int) -> RenderableType:
    from rich import box
    from rich.table import Table

    narrow = width < _NARROW
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1 if narrow else 2))
    table.add_column("stage", style="bold", no_wrap=True)
    for title in ("messages", "messages/s", "MB/s", "behind" if narrow else "behind the one before"):
        table.add_column(title, justify="right", no_wrap=True)
    for step in snapshot.steps:
        behind = "" if step.behind is None else f"{step.behind:,}"
        if step.behind_bytes and not narrow:
            behind += f"  ({megabytes(step.behind_bytes)})"
        table.add_row(
            step.name, f"{step.messages:,}", f"{step.per_second:,.0f}", f"{step.megabytes_per_second:,.2f}", behind
        )
    return table


def _facts(snapshot: Snapshot, width: int) -> list[Any]:
    """Lines of facts, each behind its label. They wrap between words."""
    batch = snapshot.batch
    latency = f"flushed p50 {milliseconds(snapshot.flushed_p50_ms)}, p99 {milliseconds(snapshot.flushed_p99_ms)}"
    if batch:
        latency += f"; Spark p50 {milliseconds(batch.p50_ms)}, p99 {milliseconds(batch.p99_ms)}"
    pool = (
        f"{snapshot.buffers_free} of {snapshot.buffers} write buffers free; {snapshot.syncs_per_second:,.0f} fsyncs/s, "
        f"p50 {milliseconds(snapshot.sync_p50_ms)}, p99 {milliseconds(snapshot.sync_p99_ms)}"
    )
    is_full = snapshot.buffers > 0 and not snapshot.buffers_free
    lines = [*_fact("pool", pool, width, "red" if is_full else ""), *_fact("send →", latency, width)]
    if batch:
        speed = batch.rows / batch.seconds if batch.seconds else 0.0
        done = f"batch {batch.id}: {batch.rows:,} rows in {batch.seconds:.2f} s, {speed:,.0f} rows/s"
        lines += _fact("Spark", done, width)
    if snapshot.memory_bytes:
        cores = ", ".join(f"{name} {used:.2f}" for name, used in snapshot.cpu_cores.items())
        lines += _fact("cores", f"{cores}; memory {sum(snapshot.memory_bytes.values()) / 1e6:,.0f} MB", width)
    return lines


def _fact(label: str, text: str, width: int, style: str = "") -> list[Any]:
    from rich.text import Text

    indent = " " * _LABEL
    first, *rest = fitted(f"{label:{_LABEL}}{text}", width, indent)
    head = Text(first[:_LABEL], style=f"bold {style}", no_wrap=True)
    head.append(first[_LABEL:], style=f"not bold {style}")
    return [head, *(Text(part, style=style, no_wrap=True) for part in rest)]


def _grids(grids: tuple[Grid, ...], width: int, room: int) -> list[Any]:
    """The live tables with as many rows as `room` lines have.

    They stand side by side on a wide terminal, one below the other on another.
    """
    from rich.table import Table

    if width >= _WIDE and room > _GRID_LINES:
        side_by_side = Table.grid(padding=(0, 4))
        side_by_side.add_row(*(_grid(grid, room - _GRID_LINES) for grid in grids))
        return ["", side_by_side] if grids else []
    shown: list[Any] = []
    for grid in grids:
        rows = min(len(grid.rows), room - _GRID_LINES)
        if rows > 0:
            shown += ["", _grid(grid, rows)]
            room -= rows + _GRID_LINES
    return shown


def _grid(grid: Grid, rows: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=grid.title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for index, column in enumerate(grid.columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True, max_width=27)
    for row in grid.rows[:rows]:
        table.add_row(*(Text(printable(cell)) for cell in row))  # Text: a name may look like rich's markup
    return table
