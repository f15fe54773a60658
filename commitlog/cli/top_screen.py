"""The screen of `commitlog top`: what is wrong first, then lanes, stages, topics and readers.

It fits a terminal of 80 × 24. Where there are more rows than room, each table gets its share, and
says how many are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from commitlog.cli.forwarders import HEADS as FORWARDER_HEADS
from commitlog.cli.forwarders import rows as forwarder_rows
from commitlog.cli.replicas import REPLICA_HEADS, replica_rows
from commitlog.cli.servers import CLIENT_HEADS, client_rows
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.system.keyboard import keyboard
from commitlog.text.lines import fitted, middle_cut, printable
from commitlog.watching.health import Health
from commitlog.watching.rates import LaneRates, Rates, ReaderRates, StageRates, TopicRates
from commitlog.watching.snapshot import Space, StoreSnapshot

SPARKS = "▁▂▃▄▅▆▇█"
ORDERS = ("name", "rate", "behind")
_PROBLEMS_SHOWN = 4
_NAME_CHARACTERS_MAX = 28
_STATUS_STYLES = {"good": "green", "degraded": "yellow", "down": "red"}
_KEYS = "q quit   s sort: {order}   / filter{filter}"
Row = TypeVar("Row", LaneRates, TopicRates, ReaderRates)
_BACKSPACE, _ESCAPE, _ENTER = ("\x7f", "\b"), "\x1b", ("\r", "\n")


@dataclass
class Choice:
    """What the user has asked for: the order of the rows, and a text that names must contain."""

    order: str = ORDERS[0]
    filter: str = ""
    typing: bool = False
    """Whether keys go into the filter now."""

    def press(self, key: str) -> bool:
        """Takes a key. Returns False for the one that quits."""
        if self.typing:
            if key == _ESCAPE:
                self.typing, self.filter = False, ""
            elif key in _ENTER:
                self.typing = False
            elif key in _BACKSPACE:
                self.filter = self.filter[:-1]
            elif key.isprintable():
                self.filter += key
        elif key == "q":
            return False
        elif key == "s":
            self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        elif key == "/":
            self.typing = True
        elif key == _ESCAPE:
            self.filter = ""
        return True


class Screen:
    """The terminal while `top` runs: the alternate screen, and keys without Enter.

    The terminal is as before when the with-block ends, however it ends.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._console, self._clock, self._choice = Console(highlight=False), clock, Choice()
        self._draw: Callable[[], RenderableType] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._keyboard = stack.enter_context(keyboard())
            self._live = stack.enter_context(Live(console=self._console, screen=True, auto_refresh=False))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def show(self, now: StoreSnapshot, changes: Rates, health: Health, history: Sequence[float]) -> None:
        """Draws a look. It is drawn again when a key changes how it is shown."""

        def draw() -> RenderableType:
            return render(now, changes, health, history, self._choice, *self._console.size)

        self._draw = draw
        self._refresh()

    def _refresh(self) -> None:
        if self._draw is not None:
            self._live.update(self._draw(), refresh=True)

    def wait(self, seconds: float) -> bool:
        """Waits, and takes keys meanwhile. Returns False when the user quits."""
        until = self._clock.monotonic_ns() + int(seconds * 1e9)
        while (left := until - self._clock.monotonic_ns()) > 0:
            for key in self._keyboard(left / 1e9):
                if not self._choice.press(key):
                    return False
                self._refresh()
        return True


# ---- drawing -----------------------------------------------------------------------------------


def render(
    now: StoreSnapshot,
    changes: Rates,
    health: Health,
    history: Sequence[float],
    choice: Choice,
    width: int,
    height: int,
) -> RenderableType:
    """One screen of `width` columns and `height` rows."""
    head = [*_head(now, changes, health, history, width), *_problems(health, width)]
    lanes = _ordered([lane for lane in changes.lanes if _wanted(f"lane {lane.lane}", choice)], choice)
    topics = _ordered([topic for topic in changes.topics if _wanted(topic.topic, choice)], choice)
    readers = _ordered([reader for reader in changes.readers if _wanted(reader.reader, choice)], choice)
    clients = [row for row in client_rows(now.servers) if _wanted(row[0], choice)]
    replicas = [row for row in replica_rows(now.replicas) if _wanted(row[0], choice)]
    forwarders = [row for row in forwarder_rows(now.forwarders) if _wanted(row[0], choice)]
    all_tables = (
        (_lane_table, lanes),
        (_stage_table, changes.stages),
        (_topic_table, topics),
        (_reader_table, readers),
        (partial(_text_table, CLIENT_HEADS), clients),
        (partial(_text_table, REPLICA_HEADS), replicas),
        (partial(_text_table, FORWARDER_HEADS), forwarders),
    )
    tables: list[tuple[Any, Sequence[Any]]] = [(table, rows) for table, rows in all_tables if rows]
    shares = share(height - len(head) - 2 * len(tables) - 1, [len(rows) for _, rows in tables])
    parts: list[RenderableType] = [*head]
    for (table, rows), shown in zip(tables, shares, strict=True):
        parts += [Text(), table(rows[:shown], len(rows) - shown)]
    return Group(*parts, _foot(choice))


def share(room: int, wanted: Sequence[int]) -> list[int]:
    """How many rows each table may show: none gets more than it wants, and the rest is even."""
    shares = [0] * len(wanted)
    while room > 0 and any(have < want for have, want in zip(shares, wanted, strict=True)):
        for number, want in enumerate(wanted):
            if room > 0 and shares[number] < want:
                shares[number] += 1
                room -= 1
    return shares


def _wanted(name: str, choice: Choice) -> bool:
    return choice.filter.casefold() in name.casefold()


def _ordered(rows: list[Row], choice: Choice) -> list[Row]:
    if choice.order == "rate":
        return sorted(rows, key=lambda row: row.messages_per_second or 0.0, reverse=True)
    if choice.order == "behind":
        return sorted(rows, key=_behind, reverse=True)
    return rows


def _behind(row: LaneRates | TopicRates | ReaderRates) -> int:
    if isinstance(row, LaneRates):
        return row.uncommitted + row.unflushed + row.undispatched
    return row.behind if isinstance(row, ReaderRates) else row.messages


def _line(*parts: str | tuple[str, str]) -> Text:
    """One line, cut off at the right where the terminal is narrow."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for part in parts:
        words, style = (part, "") if isinstance(part, str) else part
        text.append(printable(words), style=style)
    return text


def _head(
    now: StoreSnapshot, changes: Rates, health: Health, history: Sequence[float], width: int
) -> Iterator[RenderableType]:
    facts = now.statistics
    status = (health.status, f"bold {_STATUS_STYLES[health.status]}")
    room = width - len(health.status) - len(facts.state) - 4
    yield _line(status, f"  {facts.state}  ", (middle_cut(printable(facts.path), room), "bold"))
    yield _line(
        (f"{changes.messages_per_second:,.0f} messages/s  {size(changes.bytes_per_second)}/s  ", "bold"),
        (sparkline(history, max(width - 50, 10)), "cyan"),
    )
    yield _line((_space(now.space), "dim"))


def _space(space: Space) -> str:
    used = 100 * space.disk_used / max(space.disk_used + space.disk_free, 1)
    text = f"disk {used:.0f} % full, {size(space.disk_free)} free"
    if space.shared_memory_free is not None and space.pool is not None:
        text += f"; shared memory {size(space.shared_memory_free)} free, this store {size(space.pool)}"
    return text


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as bars; the highest of them has the highest bar."""
    shown = list(values)[-width:]
    highest = max(shown, default=0.0) or 1.0
    return "".join(SPARKS[min(int(value / highest * len(SPARKS)), len(SPARKS) - 1)] for value in shown)


def _problems(health: Health, width: int) -> Iterator[RenderableType]:
    """What is wrong, the worst first: it must be seen before anything else."""
    for reason in health.reasons[:_PROBLEMS_SHOWN]:
        said = f"! {reason.words}:", f"  {reason.command}"
        for part in (part for line in said for part in fitted(printable(line), width, "  ")):
            yield _line((part, f"bold {_STATUS_STYLES[reason.severity]}"))
    more = len(health.reasons) - _PROBLEMS_SHOWN
    if more > 0:
        yield _line((f"  {more} more: commitlog health", "dim"))


def _table(*columns: str, gap: int = 2) -> Table:
    """The first column is a name, the others are numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold dim", expand=False)
    for number, column in enumerate(columns):
        table.add_column(
            column,
            justify="right" if number else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    return table


def _name(text: str) -> Text:
    """A name in the first column. Names often differ at their ends."""
    return Text(middle_cut(printable(text), _NAME_CHARACTERS_MAX))


def _finished(table: Table, left_out: int) -> RenderableType:
    """The table. Its head says how many rows had no room."""
    if left_out:
        table.columns[0].header = f"{table.columns[0].header} (+{left_out})"
    return table


def _lane_table(lanes: Sequence[LaneRates], left_out: int) -> RenderableType:
    heads = ("lane", "pid", "msg/s", "B/s", "uncommitted", "unflushed", "undispatched", "free", "blocked")
    table = _table(*heads, gap=1)
    for lane in lanes:
        table.add_row(
            str(lane.lane),
            str(lane.producer or "-"),
            f"{lane.messages_per_second:,.0f}",
            size(lane.bytes_per_second),
            *(size(count) if count else "-" for count in (lane.uncommitted, lane.unflushed, lane.undispatched)),
            "-" if lane.available_buffers is None else str(lane.available_buffers),
            "-" if lane.blocked_ms is None else duration(lane.blocked_ms * 1000),
            style="red" if lane.faults or lane.blocked_ms is not None else "",
        )
    return _finished(table, left_out)


def _stage_table(stages: Sequence[StageRates], left_out: int) -> RenderableType:
    table = _table("stage", "pid", "CPU", "memory", "heartbeat", "actions/s", "p50", "p99", "restarts")
    for stage in stages:
        table.add_row(
            stage.stage,
            str(stage.pid or "-"),
            "-" if stage.cpu is None else f"{stage.cpu:.1%}",
            "-" if stage.resident_bytes is None else size(stage.resident_bytes),
            duration(stage.silent_ms * 1000),
            f"{stage.actions_per_second:,.1f}",
            *("-" if value is None else duration(value) for value in (stage.p50_us, stage.p99_us)),
            str(stage.restarts),
            style="red" if stage.is_silent or not stage.pid else "",
        )
    return _finished(table, left_out)


def _topic_table(topics: Sequence[TopicRates], left_out: int) -> RenderableType:
    table = _table("topic", "messages", "flushed/s", "lanes")
    for topic in topics:
        table.add_row(
            _name(topic.topic),
            f"{topic.messages:,}",
            f"{topic.messages_per_second:,.0f}",
            str(len(topic.lanes)),
        )
    return _finished(table, left_out)


def _reader_table(readers: Sequence[ReaderRates], left_out: int) -> RenderableType:
    table = _table("reader", "behind", "read/s", "in use", "moved")
    for reader in readers:
        rate = reader.messages_per_second
        table.add_row(
            _name(reader.reader),
            "?" if rate is None else f"{reader.behind:,}",
            "-" if rate is None else f"{rate:,.0f}",
            "yes" if reader.running else "no",
            "-" if rate is None else f"{duration(reader.still_ms * 1000)} ago",
            style="yellow" if reader.warning else "",
        )
    return _finished(table, left_out)


def _text_table(heads: Sequence[str], rows: Sequence[tuple[str, ...]], left_out: int) -> RenderableType:
    """A table of rows that are text already."""
    table = _table(*heads)
    for name, *cells in rows:
        table.add_row(_name(name), *cells)
    return _finished(table, left_out)


def size(count: float) -> str:
    """Bytes as text: 540 B, 12.3 kB, 4.5 GB."""
    return decimal(int(count)).replace("bytes", "B")


def duration(microseconds: float) -> str:
    """A time as text of two or three digits: 12 µs, 3.4 ms, 56 s, 2.5 h."""
    for least, unit, name in ((3.6e9, 3.6e9, "h"), (1e8, 6e7, "min"), (1e6, 1e6, "s"), (1e3, 1e3, "ms")):
        if microseconds >= least:
            value = microseconds / unit
            return f"{value:.1f} {name}" if value < 10 else f"{value:,.0f} {name}"
    return f"{microseconds:.0f} µs"


def _foot(choice: Choice) -> RenderableType:
    typed = f": {choice.filter}" if choice.filter or choice.typing else ""
    cursor = "▏ Enter keeps it, Esc clears it" if choice.typing else ""
    return _line((_KEYS.format(order=choice.order, filter=typed + cursor), "dim"))
