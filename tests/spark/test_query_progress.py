"""One line says how a query goes, and of one that has failed the reason, wherever it is shown."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import commitlog.spark
from commitlog.spark import query_progress
from commitlog.spark.query_progress import failure, progress_line
from tests.builders.hand_made import HandMadeStore, small_store
from tests.fake_clock import SetClock
from tests.nightly import with_nightly
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

README = (Path(__file__).parents[2] / "README.md").read_text()


def rows_of(spark: SparkSession, store: HandMadeStore) -> DataFrame:
    source = spark.readStream.format("commitlog").option("subscribe", "orders")
    return source.option("startingOffsets", "earliest").load(str(store.path))


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Iterator[Any]:
    """A live query of two lanes with ten messages each."""
    live = rows_of(spark, small_store(tmp_path / "store", rows=10)).writeStream.format("noop")
    running = live.option("checkpointLocation", str(tmp_path / "checkpoint")).queryName("copier").start()
    yield running
    running.stop()


def test_a_live_query_and_its_end(query: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain lines, where none can change: the first at once, and the last."""
    wait_until(lambda: "rows/s, 0 messages behind, batch 0" in progress_line(query), "its first batch")
    commitlog.spark.show_progress(query, seconds=0)
    assert capsys.readouterr().out.startswith("copier: ")
    query.stop()
    commitlog.spark.show_progress(query)
    assert capsys.readouterr().out == "copier has ended: batch 0\n"
    with pytest.raises(commitlog.errors.IllegalArgument, match="a timeout is seconds"):
        commitlog.spark.show_progress(query, seconds=-1)


def bad_function(frame: DataFrame) -> Any:
    from pyspark.sql import functions as f

    def parsed(value: bytes) -> int:
        raise ValueError(f"no number:\n{value!r:.3}")

    return frame.select(f.udf(parsed, "int", useArrow=False)("value")).writeStream.format("noop")


def bad_batch(frame: DataFrame) -> Any:
    def write(rows: DataFrame, batch: int) -> None:
        raise KeyError("fruit")

    return frame.writeStream.foreachBatch(write)


def bad_handler(frame: DataFrame) -> Any:
    def take(batch: Any) -> None:
        raise OSError("the table is gone")

    return commitlog.spark.foreach(frame, take)


def bad_sql(frame: DataFrame) -> Any:
    return frame.selectExpr("raise_error('stop')").writeStream.format("noop")


REASONS = [
    (bad_function, "ValueError: no number: b'o"),
    (bad_batch, "KeyError: 'fruit'"),
    (bad_handler, "FunctionFailed: the Python function that rows are handed to: OSError: the table is gone"),
    (bad_sql, "[USER_RAISED_EXCEPTION] stop"),
]


@pytest.mark.parametrize(("sink", "reason"), with_nightly(REASONS[1:3], [REASONS[0], REASONS[3]]))
def test_a_query_that_has_failed(
    sink: Callable[[DataFrame], Any], reason: str, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The reason is one line without a traceback. What README tells to print has it, too."""
    writer = sink(rows_of(spark, small_store(tmp_path / "store", rows=10, lanes=1)))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    wait_until(lambda: not query.isActive, "its end")
    assert failure(query) == reason
    commitlog.spark.show_progress(query)
    assert capsys.readouterr().out == (
        f"query has failed: {reason} (no batch; print(query.exception()) has all of it)\n"
    )
    (advice,) = (line for line in README.splitlines() if "the last lines of its error are Spark's plan" in line)
    said = eval(advice.split("`")[3])
    assert "Logical Plan" in str(query.exception())
    assert "Logical Plan" not in said
    assert reason.rsplit(": ", maxsplit=1)[-1].rsplit(maxsplit=1)[-1] in said


def test_an_interrupt_leaves_the_query_alone(query: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """PySpark's own handler would cancel the job of the query, which then fails."""
    wait_until(lambda: "batch 0" in progress_line(query), "its first batch")
    called = []
    before = signal.signal(signal.SIGINT, lambda *_: called.append(1))
    shown = threading.Event()
    look = query_progress.progress_line

    def noted(query: Any) -> str:
        shown.set()
        return look(query)

    def press() -> None:
        if shown.wait(60):
            os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(query_progress, "progress_line", noted)
            commitlog.spark.show_progress(query)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        presser.join()
        signal.signal(signal.SIGINT, before)
    assert called == [1]
    assert query.isActive
    assert capsys.readouterr().out.startswith("copier: ")


# ---- without Spark -----------------------------------------------------------------------------


def batch(number: int, at: float, rows: int, lasted_ms: int = 100) -> dict[str, Any]:
    began = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    return {"batchId": number, "timestamp": began, "batchDuration": lasted_ms, "numInputRows": rows, "sources": []}


def made_query(*progress: Any, active: bool = True, message: str = "") -> Any:
    return SimpleNamespace(
        name=None, isActive=active, recentProgress=progress, status={"message": message}, exception=lambda: None
    )


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        ((), "query: no batch yet: Initializing sources"),
        ((batch(0, NOW - 5, 100),), "query: 20 rows/s, batch 0"),
        ((batch(0, NOW - 90, 7), batch(1, NOW - 8, 100), batch(2, NOW - 4, 60)), "query: 20 rows/s, batch 2"),
        ((batch(3, NOW - 360, 3_000, lasted_ms=300_000),), "query: 10 rows/s, batch 3"),  # of Real-Time Mode
        ((batch(3, NOW - 20, 3_000), batch(4, NOW - 10.2, 0, 0)), "query: 0 rows/s, batch 4"),  # idle
    ],
)
def test_the_rate(progress: tuple[Any, ...], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last ten seconds; or of the last batch, if none has ended in them."""
    clock = SetClock()
    clock.wall = int(NOW * 1000)
    monkeypatch.setattr(query_progress, "SYSTEM_CLOCK", clock)
    assert progress_line(made_query(*progress, message="Initializing sources")) == line


def test_the_rate_for_a_client_of_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told the rows of each source, and none of the batch."""
    clock = SetClock()
    clock.wall = int(NOW * 1000)
    monkeypatch.setattr(query_progress, "SYSTEM_CLOCK", clock)
    sources = [{"numInputRows": 70}, {"numInputRows": 30}]
    told = batch(0, NOW - 5, 0) | {"numInputRows": None, "sources": sources}
    assert progress_line(made_query(told)) == "query: 20 rows/s, batch 0"


def test_a_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is written over and cut to the width; the last one is whole and breaks between words."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    looks = iter([True, True, False, False])
    query = made_query(message="Initializing sources")
    monkeypatch.setattr(query_progress, "LOOK_SECONDS", 0.0)
    type_of_query = type("Query", (SimpleNamespace,), {"isActive": property(lambda _: next(looks))})
    query = type_of_query(**{name: value for name, value in vars(query).items() if name != "isActive"})
    commitlog.spark.show_progress(query)
    assert capsys.readouterr().out == "\r\x1b[Kquery: no batch ye…\r\x1b[Kquery has ended: no\n    batch\n"


def test_an_output_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is replaced, not added to."""
    shown: list[Any] = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data))
    module: Any = ModuleType("IPython")
    module.get_ipython = lambda: SimpleNamespace(kernel=None)
    part: Any = ModuleType("IPython.display")

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Any:
        shown.append((data, display_id))
        return handle

    part.display = display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    commitlog.spark.show_progress(made_query(batch(0, NOW, 0)), seconds=0)
    commitlog.spark.show_progress(made_query(active=False))
    assert [one[1] for one in shown if isinstance(one, tuple)] == [True, True]
    assert shown[-1][0] == {"text/plain": "query has ended: no batch"}
