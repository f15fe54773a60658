"""A producer that knows an older schema sends rows of a newer one: none are lost or rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import commitlog
from tests.nightly import with_nightly

ROWS = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


@pytest.mark.parametrize(
    "rows",
    with_nightly(
        [lambda: iter(ROWS)],
        [
            lambda: pa.Table.from_pylist(ROWS).to_reader(),
            lambda: (row for row in ROWS),
            lambda: pa.Table.from_pylist(ROWS),
        ],
    ),
    ids=["iterator", "Arrow's reader", "generator", "table"],
)
def test_rows_that_can_be_read_once(tmp_path: Path, rows: Callable[[], Iterator[Any]]) -> None:
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as producer:
        store.create_topic("t", "a BIGINT")
        producer.send_rows("t", [{"a": 0}])
        store.create_topic("t", "a BIGINT, b BIGINT", evolve=True)
        producer.send_rows("t", rows())
        producer.flush()
    assert commitlog.read_arrow(store.path, "t").read_all().to_pylist() == [{"a": 0, "b": None}, *ROWS]


def test_a_float_that_became_a_double_is_not_rounded(tmp_path: Path) -> None:
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as producer:
        store.create_topic("t", "x FLOAT")
        producer.send_rows("t", [{"x": 0.5}])
        store.create_topic("t", "x DOUBLE", evolve=True)
        producer.send_rows("t", [{"x": 0.1}])
        producer.flush()
    assert commitlog.read_arrow(store.path, "t").read_all().column("x").to_pylist() == [0.5, 0.1]
