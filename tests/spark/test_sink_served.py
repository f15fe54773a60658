"""What only a sink by URL can meet: a server that is killed, and tokens."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import commitlog
from commitlog.errors import AccessDenied, ServerUnavailable
from commitlog.planning.address import Credentials, parse_address
from commitlog.serving.access import Access, add_token
from commitlog.spark.source import CommitLogDataSource
from tests.served import forget_connection
from tests.serving.asking import kill_process, server_of, url_of_store

ROWS = [pa.record_batch({"value": [f"{part}-{number}" for number in range(1_000)]}) for part in range(4)]


@contextmanager
def planned(url: str, **options: str) -> Iterator[Any]:
    """A sink's writer, as a task gets it."""
    given = {"path": url, "topic": "t"} | options
    try:
        source = CommitLogDataSource({name.lower(): value for name, value in given.items()})
        yield pickle.loads(pickle.dumps(source.writer(from_arrow_schema(ROWS[0].schema), False)))
    finally:
        forget_connection(parse_address(url).with_credentials(Credentials(options.get("token"))))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    """Running, with one lane. Each test has a topic of its own."""
    config: dict[str, Any] = {"store": {"segment_bytes": 1 << 20, "max_lanes": 1}, "producer": {"lane_wait_ms": 20}}
    with commitlog.Store.open(tmp_path_factory.mktemp("served") / "store", config) as opened:
        yield opened


def test_a_server_killed_in_mid_write(store: commitlog.Store) -> None:
    """The task fails, and its retry appends all rows: each is there once at least."""
    with server_of([store.path], writable=True) as server:

        def killing() -> Iterator[pa.RecordBatch]:
            yield from ROWS[:3]
            kill_process(server)
            yield from ROWS[3:]

        with planned(url_of_store(server)) as writer:
            with pytest.raises(ServerUnavailable):
                writer.write(killing())
            writer.write(iter(ROWS))
    with commitlog.Reader(store.path, topic="t") as reader:
        counts = Counter(message.value.decode() for message in reader)
    assert set(counts) == {value for batch in ROWS for value in batch.column("value").to_pylist()}
    assert set(counts.values()) <= {1, 2}


def test_a_token_that_may_not_write(store: commitlog.Store, tmp_path: Path) -> None:
    """It is refused before a task runs, where the topic is an option; the error has no token."""
    tokens = tmp_path / "tokens"
    reading = add_token(tokens, Access("reader"))
    other = add_token(tokens, Access("other", topics=("o*",), write=True))
    with server_of([store.path], writable=True, tokens=tokens) as server:
        url = url_of_store(server)
        for token, message in ((reading, "not one to write with"), (other, "is not for topic t; it is for o")):
            with pytest.raises(AccessDenied, match=message) as it, planned(url, token=token):
                pass
            assert token not in str(it.value)
        with planned(url, token=other, topic="orders") as writer:
            writer.write(iter(ROWS[:1]))
    with commitlog.Reader(store.path, topic="orders") as reader:
        assert len(list(reader)) == 1_000
