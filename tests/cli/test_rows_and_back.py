"""What `cat --rows` writes, `produce --rows` reads: the same rows, of every type."""

from __future__ import annotations

import datetime
import itertools
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings

import commitlog
from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_data import schemas_with_rows
from tests.builders.typed_topic import append_rows, declare
from tests.command_line import run

_NUMBERS = itertools.count()
_ALL = pa.schema(
    {
        "x": pa.float32(),
        "n": pa.decimal128(38, 18),
        "raw": pa.binary(),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "day": pa.date32(),
        "by": pa.map_(pa.date32(), pa.list_(pa.struct({"raw": pa.binary(), "x": pa.float64()}))),
    }
)
_ROW = {
    "x": float("nan"),
    "n": Decimal("-0.000000000000000001"),
    "raw": b"\xff\0",
    "at": datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
    "local": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
    "day": datetime.date(1, 1, 1),
    "by": [(datetime.date(2024, 2, 29), [{"raw": b"", "x": float("-inf")}, {"raw": None, "x": float("nan")}, None])],
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    """A running store; each example has a topic of its own."""
    with commitlog.Store.open(tmp_path_factory.mktemp("back") / "store") as opened:
        yield opened


@given(schemas_with_rows())
@example((_ALL, [_ROW, dict.fromkeys(_ROW)]))
@settings(max_examples=25, deadline=None)
def test_rows_come_back(running: commitlog.Store, made: tuple[pa.Schema, list[dict[str, Any]]]) -> None:
    schema, rows = made
    topic = f"t{next(_NUMBERS)}"
    with tempfile.TemporaryDirectory() as directory:
        store = HandMadeStore(Path(directory) / "store")
        append_rows(store.lane(0), declare(store, topic, schema), rows)
        store.publish()
        printed = run("cat", store.path, "--rows", "--topic", topic)
        assert printed.returncode == 0, printed.stderr
        (Path(directory) / "lines").write_bytes(printed.stdout)
        running.create_topic(topic, schema)
        done = run("produce", running.path, topic, Path(directory) / "lines", "--rows")
        assert done.returncode == 0, done.stderr
        original = commitlog.read_arrow(store.path, topic).read_all()
    assert repr(commitlog.read_arrow(running.path, topic).read_all().to_pylist()) == repr(original.to_pylist())


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("at TIMESTAMP", "2024-01-05T10:00:00"),
        ("at TIMESTAMP", "2024-01-05T10:00:00.1234567Z"),
        ("at TIMESTAMP_NTZ", "10000-01-01 00:00:00"),
        ("day DATE", "2024-1-5"),
        ("n DECIMAL(9,2)", "NaN"),
        ("n DECIMAL(9,2)", "0.125"),
        ("raw BINARY", "no base64!"),
        ("x FLOAT", "nan"),
    ],
)
def test_a_text_that_is_none_is_refused(running: commitlog.Store, tmp_path: Path, column: str, text: str) -> None:
    """With its row, its column and what it takes: nothing is rounded or guessed."""
    topic, name = f"t{next(_NUMBERS)}", column.split(maxsplit=1)[0]
    running.create_topic(topic, column)
    (tmp_path / "lines").write_text(f'{{"{name}": "{text}"}}\n')
    done = run("produce", running.path, topic, tmp_path / "lines", "--rows")
    assert done.returncode == 1
    assert f"line 1: column {name}: " in done.stderr.decode()
    assert commitlog.read_arrow(running.path, topic).read_all().num_rows == 0
