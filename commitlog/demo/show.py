"""The course of the demo on a terminal: what runs, two tables of sums, keys, and a verdict."""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from commitlog.demo.scene import STAGES, Scene, Sent, by_producer, lines_of_totals, sales, totals
from commitlog.demo.spark_table import LOG
from commitlog.errors import StoreRefused
from commitlog.ingest.link import Child
from commitlog.system.clock import SYSTEM_CLOCK, SignalEvent
from commitlog.system.keyboard import keyboard
from commitlog.text.lines import aligned, can_draw, fitted, for_shell, middle_cut
from commitlog.text.quantities import counted

FRAME_SECONDS = 0.5
_PLAIN_SECONDS = 5.0
_SPARK_SECONDS = 60.0
"""How long Spark may take to read what is left at the end."""
_LOG_LINES = 60
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KEYS = {"1": 0, "2": 1, "3": 2} | {name[0]: name for name in STAGES}
"""Key → the place of a producer, or a stage."""
QUIT = "q"


def show(seconds: float, store: Path | None) -> bool:
    """Runs the demo. Returns whether each row that was accepted is in the log, and in Spark, once.

    Without a path the store is in a folder that is removed. Raises what Store.open raises, and
    StoreRefused where the path has something in it.
    """
    if store is not None and store.exists():
        raise StoreRefused(f"{store}: there is something already; the demo makes a store of its own, at a new path")
    with tempfile.TemporaryDirectory(prefix="commitlog-demo-") as folder, _ended() as ended, keyboard() as keys:
        path = Path(folder) / "store" if store is None else store.absolute()
        with Demo(path, Path(folder), ended, keys) as demo:
            demo.run(seconds)
            is_good = demo.judge()
    if store is not None:
        print(f"the store stays: commitlog cat {for_shell(store)} --rows")
    return is_good


@contextlib.contextmanager
def _ended() -> Iterator[SignalEvent]:
    """An event that Ctrl-C and the other signals of an end set. A second Ctrl-C interrupts."""
    ended = SignalEvent()

    def handle(*_: object) -> None:
        if ended.is_set():
            raise KeyboardInterrupt
        ended.set()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Events(logging.Handler):
    """Has warnings of the store among the events. On a terminal they would spoil the screen."""

    def __init__(self, events: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        self._events.append(record.getMessage())


class Demo:
    """The scene with Spark beside it, and what is shown of both."""

    def __init__(self, path: Path, folder: Path, ended: SignalEvent, keys: Callable[[float], str]) -> None:
        self._ended, self._keys = ended, keys
        self._is_terminal = can_draw(sys.stdout)
        self._spark_line, self._spark_rows = "Spark starts, which takes some seconds", dict[str, Any]()
        self._spark_log, self._spark_failed = folder / LOG, False
        self._counted = dict[str, tuple[int, float]]()
        self._said = 0
        self._next_plain_ns = 0
        with contextlib.ExitStack() as stack:
            with self._spark_log.open("wb") as log:
                settings = {"store": str(path), "folder": str(folder)}
                self._spark = Child("Spark", "commitlog.demo.spark_table", settings, output=log)
            stack.callback(self._end_spark)
            self.scene = stack.enter_context(Scene(path, folder))
            handler, log_of_package = _Events(self.scene.events), logging.getLogger("commitlog")
            log_of_package.addHandler(handler)
            stack.callback(log_of_package.removeHandler, handler)
            self._stack = stack.pop_all()

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end_spark(self) -> None:
        """Ends Spark. One that still starts does not look at the link."""
        self._spark.end(10.0 if self._spark_rows else 1.0)

    def run(self, seconds: float) -> None:
        """Shows the scene until the time is over, or somebody ends it."""
        began = SYSTEM_CLOCK.monotonic_ns()
        if self._is_terminal:
            print("\x1b[2J", end="")
        while not self._ended.is_set() and (lasted := (SYSTEM_CLOCK.monotonic_ns() - began) / 1e9) < seconds:
            try:
                rows = sales(self.scene.path)
                self._counted, found = totals(rows), by_producer(rows)
            except KeyboardInterrupt:  # while Polars computes, Ctrl-C does not come to our handler
                self._ended.set()
                break
            self.scene.look(found)
            self._hear_spark()
            self._draw(f"{lasted:,.0f} s of {seconds:,.0f}")
            self._take_keys()

    def _take_keys(self) -> None:
        """Waits for keys. While a killed stage has not come back, it looks again soon."""
        until = SYSTEM_CLOCK.monotonic_ns() + int(FRAME_SECONDS * 1e9)
        while (left := (until - SYSTEM_CLOCK.monotonic_ns()) / 1e9) > 0 and not self._ended.is_set():
            for key in self._keys(min(left, 0.005) if self.scene.waits else left):
                target = KEYS.get(key)
                if key == QUIT:
                    self._ended.set()
                elif isinstance(target, str):
                    self.scene.kill_stage(target)
                elif target is not None:
                    self.scene.kill_producer(target)
                    return
            if self.scene.waits:
                self.scene.look({})

    def _hear_spark(self) -> None:
        for message in self._spark.link.receive(0):
            if message["event"] == "table":
                self._spark_line, self._spark_rows = f"Spark: {message['line']}", message["rows"]
            else:
                self._spark_line, self._spark_failed = f"Spark has failed: {message['text']}", True

    def judge(self) -> bool:
        """Ends the producers, waits for Spark, and says whether all have counted the same."""
        scene = self.scene
        found: dict[int, Sent] = scene.finish()
        rows, accepted = sum(sent.rows for sent in found.values()), scene.accepted
        self._counted = totals(sales(scene.path))
        deadline = SYSTEM_CLOCK.monotonic_ns() + int(_SPARK_SECONDS * 1e9)
        while self._rows_of_spark() != rows and not self._spark.link.closed:
            if SYSTEM_CLOCK.monotonic_ns() > deadline or (self._ended.is_set() and not self._spark_rows):
                break
            self._draw("Spark reads what is left")
            self._keys(FRAME_SECONDS)
            self._hear_spark()
        self._draw("ended", last=True)
        by_spark = self._rows_of_spark()
        has_read = by_spark == rows and not self._spark_failed
        is_early = not by_spark and self._ended.is_set() and not self._spark_failed
        print(
            f"{counted(scene.kills, 'kill')}; {accepted:,} rows were accepted, the log has {rows:,}, Spark has read "
            f"{by_spark:,}{': it had not started yet' if is_early else ''}"
        )
        print("each row is there exactly once" if scene.is_good else "ROWS ARE LOST OR DOUBLE")
        if not has_read and not is_early:
            print("\n".join(["Spark has not read all of them; the end of its log:", *self._end_of_spark_log()]))
        return scene.is_good and (has_read or is_early)

    def _end_of_spark_log(self) -> list[str]:
        return self._spark_log.read_text(errors="replace").splitlines()[-_LOG_LINES:]

    def _rows_of_spark(self) -> int:
        return sum(rows for rows, _ in self._spark_rows.values())

    # ---- what is shown -------------------------------------------------------------------------

    def _draw(self, state: str, *, last: bool = False) -> None:
        """The screen; or, where there is none, a line now and then, and each event once."""
        if not self._is_terminal:
            now = SYSTEM_CLOCK.monotonic_ns()
            for event in self.scene.events[self._said :]:
                print(event, flush=True)
            self._said = len(self.scene.events)
            if last or now >= self._next_plain_ns:
                self._next_plain_ns = now + int(_PLAIN_SECONDS * 1e9)
                print(f"{state}: {self.scene.accepted:,} rows accepted; {self._spark_line}", flush=True)
            return
        lines = self.screen(state, *shutil.get_terminal_size())
        print("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J", end="", flush=True)

    def screen(self, state: str, width: int, height: int) -> list[str]:
        """The lines of a screen of this size, with the last events that there is room for."""
        lines = [line[: width - 1] for line in self._lines(state, width)]
        room, shown = height - 2 - len(lines), list[str]()  # the last line is the cursor's
        for event in reversed(self.scene.events):
            parts = fitted(f"• {event}", width - 1, "  ")
            if len(parts) + len(shown) > room:
                break
            shown = [*parts, *shown]
        return [*lines, *shown]

    def _lines(self, state: str, width: int) -> Iterator[str]:
        yield f"commitlog demo: {state}  {middle_cut(str(self.scene.path), max(width - 50, 10))}"
        yield "a key kills its process with kill -9; q or Ctrl-C ends the demo"
        yield ""
        processes = [
            (str(place + 1), f"producer {one.number}", str(one.process.pid), f"{one.accepted:,} rows accepted")
            for place, one in enumerate(self.scene.producers)
        ]
        restarts = {one.stage: one for one in self.scene.store.statistics().stages}
        processes += [
            (name[0], name, str(restarts[name].pid or "dead"), f"{restarts[name].restarts} restarts") for name in STAGES
        ]
        yield from aligned(("key", "process", "pid", ""), processes)
        yield ""
        heads = ("fruit", "rows, by Polars", "revenue", "rows, by Spark", "revenue")
        yield from aligned(heads, [*lines_of_totals(self._counted, self._spark_rows)])
        yield self._spark_line
