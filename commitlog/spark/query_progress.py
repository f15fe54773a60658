"""Shows how a streaming query goes, in one line that changes, and why it has failed."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from commitlog.spark.query_lag import lag
from commitlog.system.clock import SYSTEM_CLOCK, SignalEvent, limit_ns
from commitlog.text.lines import can_draw, printable, wrapped

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS = 0.5
RATE_SECONDS = 10.0
"""The rate is that of the batches that have ended within this time."""
_PLAIN_SECONDS = 5.0
"""How often a line is printed where none can change."""
_REASON_CHARACTERS_MAX = 500
_PLAN = "=== Streaming Query ==="
"""What Spark writes between the reason of a failure and the plan of the query."""
_STACK = "JVM stacktrace:"
"""The same, for a client of Spark Connect."""
_OURS = re.compile(r"commitlog\.errors\.(\w+: .*)")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\s*$")


def show_progress(query: StreamingQuery, seconds: float | None = None) -> None:
    """Shows a query's rate, its lag and its failure in one line, until it ends.

    - the rate is in rows/s, of the batches of the last ten seconds
    - the lag is in messages that were flushed and not read when the last batch was planned
      (`lag`). It is left out for a query that reads no store.
    - of a query that has failed, the line has the error

    On a terminal and in a notebook the line changes in its place. Elsewhere a new one is printed
    every five seconds. Ctrl-C, or the interruption of the cell, ends the showing and leaves the
    query alone. So do `seconds`, if they are given. Nothing is raised for a query that has failed.

    Raises IllegalArgument if `seconds` is not a time.
    """
    deadline = SYSTEM_CLOCK.monotonic_ns() + limit_ns(seconds)
    with _place_of_line() as line, _interrupts() as interrupted:
        while query.isActive and not interrupted.is_set() and SYSTEM_CLOCK.monotonic_ns() < deadline:
            line.show(progress_line(query))
            left = (deadline - SYSTEM_CLOCK.monotonic_ns()) / 1e9
            interrupted.wait(max(min(LOOK_SECONDS, left), 0))
        line.show(progress_line(query), last=True)


def progress_line(query: StreamingQuery) -> str:
    """How a query goes now, or how it has ended, in one line."""
    name = printable(query.name or "query")
    facts = [_facts(progress) for progress in query.recentProgress]
    reached = f"batch {facts[-1]['batchId']}" if facts else "no batch"
    if not query.isActive:
        reason = failure(query)
        if not reason:
            return f"{name} has ended: {reached}"
        return f"{name} has failed: {reason} ({reached}; print(query.exception()) has all of it)"
    if not facts:
        return f"{name}: no batch yet: {printable(query.status['message'])}"
    behind = [count for lanes in lag(facts[-1]).values() for count in lanes.values()]
    told = f", {sum(behind):,} messages behind" if behind else ""
    return f"{name}: {_rate(facts, SYSTEM_CLOCK.wall_ms() / 1000):,.0f} rows/s{told}, {reached}"


def failure(query: StreamingQuery) -> str:
    """Why a query has failed, in one line; empty if it has not.

    Spark's text begins with the reason, which may be a traceback of Python's, and ends with the
    plan. An error of this package is found by its name, and else the traceback is left out.
    """
    error = query.exception()
    if error is None:
        return ""
    text = str(error).partition(_PLAN)[0].partition(_STACK)[0]
    text = _SQLSTATE.sub("", text)
    ours = _OURS.findall(text)
    lines = text.splitlines()
    if ours:
        lines = ours[-1:]
    elif "Traceback (most recent call last)" in text:
        frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
        lines = lines[max(frames, default=-1) + 1 :] or lines
    reason = printable(" ".join(" ".join(lines).split()))
    return reason if len(reason) <= _REASON_CHARACTERS_MAX else f"{reason[:_REASON_CHARACTERS_MAX]}…"


def _facts(progress: Any) -> Mapping[str, Any]:
    """A query's progress as Spark's JSON has it."""
    return progress if isinstance(progress, Mapping) else json.loads(progress.json)


def _rate(facts: list[Mapping[str, Any]], now: float) -> float:
    """Rows per second of the batches that ended within RATE_SECONDS, or else of the last one.

    An idle query reports a batch without rows every ten seconds. A batch of Real-Time Mode lasts
    for minutes.
    """
    spans = [(_begin(one), _begin(one) + one.get("batchDuration", 0) / 1000, _rows(one)) for one in facts]
    recent = [span for span in spans if span[1] > now - RATE_SECONDS]
    begin, end = (recent[0][0], now) if recent else spans[-1][:2]
    rows: float = sum(count for _, _, count in recent or spans[-1:])
    return rows / max(end - begin, 0.001)


def _rows(facts: Mapping[str, Any]) -> int:
    """The rows of a batch. A client of Spark Connect is told them for each source only."""
    rows: int | None = facts["numInputRows"]
    return sum(source["numInputRows"] for source in facts["sources"]) if rows is None else rows


def _begin(facts: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(facts["timestamp"]).timestamp()


# ---- where the line stands ---------------------------------------------------------------------


class _Line(Protocol):
    def show(self, text: str, *, last: bool = False) -> None: ...


class _TerminalLine:
    """A line that is written over: it has to fit, so it is cut. The last one goes on below."""

    def show(self, text: str, *, last: bool = False) -> None:
        width = shutil.get_terminal_size().columns - 1
        if last:
            text = "\n".join(wrapped(text, width))
        elif len(text) > width:
            text = f"{text[: width - 1]}…"
        print(f"\r\x1b[K{text}", end="\n" if last else "", flush=True)


class _PlainLine:
    """Lines one below the other."""

    def __init__(self) -> None:
        self._next_ns: float = -math.inf

    def show(self, text: str, *, last: bool = False) -> None:
        now = SYSTEM_CLOCK.monotonic_ns()
        if last or now >= self._next_ns:
            self._next_ns = now + _PLAIN_SECONDS * 1e9
            print(text, flush=True)


class _NotebookLine:
    """An output of a cell that is replaced."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, text: str, *, last: bool = False) -> None:
        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


@contextlib.contextmanager
def _place_of_line() -> Iterator[_Line]:
    """The output of a cell in a notebook, a terminal's line, or plain lines."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if hasattr(shell, "kernel"):
        yield _NotebookLine(importlib.import_module("IPython.display").display)
    elif can_draw(sys.stdout):
        try:
            yield _TerminalLine()
        except BaseException:
            print(flush=True)
            raise
    else:
        yield _PlainLine()


@contextlib.contextmanager
def _interrupts() -> Iterator[SignalEvent]:
    """An event that Ctrl-C sets; a second one raises KeyboardInterrupt.

    PySpark's own handler cancels all jobs, and the query would fail. And an exception in the middle
    of a call of Java's is logged with a traceback.
    """
    interrupted = SignalEvent()

    def handle(*_: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
