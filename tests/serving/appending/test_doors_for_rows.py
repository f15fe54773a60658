"""Rows come by many doors. Each keeps the same values, and refuses the same ones."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import commitlog
from commitlog.errors import IllegalRow

NAIVE = datetime.datetime(2024, 7, 1, 12)
AWARE = NAIVE.replace(tzinfo=datetime.UTC)


class Color(Enum):
    RED = "red"


class Sample(NamedTuple):
    size: float
    color: Any = None


@dataclass
class Measured:
    size: float


AnyProducer = commitlog.Producer | commitlog.RemoteProducer


@contextmanager
def producers(store: commitlog.Store, url: str) -> Iterator[tuple[AnyProducer, AnyProducer]]:
    """One of this machine, and one of another, for a topic of rows."""
    store.create_topic("samples", schema="size FLOAT, color STRING, at TIMESTAMP")
    with commitlog.Producer(store.path) as by_path, commitlog.RemoteProducer(url) as by_url:
        yield by_path, by_url


def test_a_number_too_large_and_a_time_without_a_zone(store: commitlog.Store, url: str) -> None:
    """Nothing is sent of rows with one of these, whatever they are."""
    with producers(store, url) as both:
        for producer in both:
            _is_refused_by(producer)
    assert commitlog.read_arrow(store.path, "samples").read_all().num_rows == 0


def _is_refused_by(producer: AnyProducer) -> None:
    sizes = [{"size": 1.5}, {"size": 1e39}]
    for rows in (
        sizes,
        [Sample(1.5), Sample(1e39)],
        [Measured(1.5), Measured(1e39)],
        pa.Table.from_pylist(sizes),
        pd.DataFrame(sizes),
        pd.DataFrame(sizes, dtype=object),
        pl.DataFrame(sizes),
    ):
        with pytest.raises(IllegalRow, match=r"row 1, column size: 1e\+39 is no FLOAT: "):
            producer.send_rows("samples", rows)
    times = [{"at": AWARE}, {"at": NAIVE}]
    for mixed in (times, pd.DataFrame(times, dtype=object)):
        with pytest.raises(IllegalRow, match=r"row 1, column at: .* it takes a datetime with a time zone"):
            producer.send_rows("samples", mixed)
    with producer.rows("samples") as one_by_one:
        for row in (*sizes[1:], Sample(1e39), *times[1:]):
            with pytest.raises(IllegalRow, match=r"column (size|at): .* is no (FLOAT|TIMESTAMP): it takes"):
                one_by_one.append(row)


def test_rows_of_other_makers_one_by_one_and_together(store: commitlog.Store, url: str) -> None:
    """NamedTuples, rows of sqlite3, and members of an Enum."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.row_factory = sqlite3.Row
        selected = database.execute("SELECT 'blue' AS color, 2.5 AS size").fetchall()
    rows = [Sample(1.5, Color.RED), *selected, {"color": Color.RED}]
    with producers(store, url) as both:
        for producer in both:
            producer.send_rows("samples", rows)
            with producer.rows("samples") as one_by_one:
                for row in rows:
                    one_by_one.append(row)
            producer.flush()
    read = commitlog.read_arrow(store.path, "samples", columns=["size", "color"]).read_all().to_pylist()
    assert [(row["size"], row["color"]) for row in read] == [(1.5, "red"), (2.5, "blue"), (None, "red")] * 4
