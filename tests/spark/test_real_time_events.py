"""What happens to a store under a query in Real-Time Mode: all rows come, or DataLoss by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from tests.crash.scene import halted_process
from tests.nightly import with_nightly
from tests.spark.jvm_frames import error_line
from tests.spark.test_foreach import end_processes
from tests.spark.test_jvm_stream import frame
from tests.spark.test_real_time import SMALL, Noting, await_values, start
from tests.spark_session import jvm_pid
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE = bytes(8_000)
"""Eight of these fill a segment."""


@pytest.fixture(autouse=True)
def _no_processes_left(spark: SparkSession) -> Iterator[None]:
    yield
    end_processes(spark)


@contextmanager
def followed(spark: SparkSession, path: Path, level: str) -> Iterator[tuple[Any, Noting, Callable[[range], None]]]:
    """A store, and a query that has its first message; also a function that sends more."""
    noting = Noting(path.parent / "noted")
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:

        def send(numbers: range) -> None:
            for number in numbers:
                producer.send("orders", b"%05d" % number + LARGE)
            producer.flush(timeout=30)

        send(range(1))
        rows = frame(spark, path, isolation=level).selectExpr("substring(value, 1, 5) AS value")
        query = start(rows, noting, path.parent / "checkpoint")
        try:
            await_values(query, noting, texts(1))
            yield query, noting, send
        finally:
            query.stop()


def texts(count: int) -> list[str]:
    return [f"{number:05}" for number in range(count)]


def run(*command: str | Path) -> None:
    done = CliRunner().invoke(app, [str(word) for word in command])
    assert done.exit_code == 0, done.output


def trim(path: Path) -> None:
    """Deletes all segments but the last, as retention does."""
    run("trim", path, "--keep-bytes", "1", "--force", "--yes")


def hide(path: Path) -> None:
    run("topics", path, "--trim", "orders", "--before", "latest", "--force", "--yes")


def delete(path: Path) -> None:
    run("topics", path, "--delete", "orders", "--force", "--yes")


@pytest.mark.nightly
@pytest.mark.parametrize("level", with_nightly(["flushed"], ["committed", "accepted"]))
def test_what_was_read_may_go(spark: SparkSession, tmp_path: Path, level: str) -> None:
    """The query goes on, with the next messages, after each of them."""
    with followed(spark, tmp_path / "store", level) as (query, noting, send):
        sent = 1
        for act in (trim, hide, delete):
            send(range(sent, sent + 20))
            sent += 20
            await_values(query, noting, texts(sent))
            act(tmp_path / "store")
        send(range(sent, sent + 3))
        await_values(query, noting, texts(sent + 3))


ACTS = [(act, level) for act in (trim, hide, delete) for level in ("flushed", "committed", "accepted")]
DAILY = [(trim, "flushed")]


@pytest.mark.parametrize(("act", "level"), with_nightly(DAILY, [case for case in ACTS if case not in DAILY]))
def test_what_goes_unread_is_named(
    spark: SparkSession, tmp_path: Path, level: str, act: Callable[[Path], None]
) -> None:
    """Rows that are there all the same may come: a hidden message is still in the log."""
    with followed(spark, tmp_path / "store", level) as (query, noting, send):
        with halted_process(jvm_pid(spark)):
            send(range(1, 41))
            act(tmp_path / "store")
        wait_until(lambda: not query.isActive or len(noting.values) >= 41, "all rows, or the end of the query")
        if query.isActive:
            assert act is not trim
            send(range(41, 43))
            await_values(query, noting, texts(43))
        else:
            assert error_line(query.exception()).startswith("DataLoss: ")
            assert noting.values == texts(len(noting.values))
