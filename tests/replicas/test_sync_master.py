"""Streams of rows into a store with SYNC_MASTER: a row is done when a replica has it.

Otherwise a promotion would lose rows that a query's checkpoint, or a producer far away, knows as
written.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import commitlog
from commitlog.client import stream_producer
from commitlog.errors import ReplicaNotAvailable
from commitlog.planning.address import parse_address
from commitlog.replicas.promotion import promote
from commitlog.spark.source import CommitLogDataSource
from tests.replicas.scene import Scene, flushed_of
from tests.served import forget_connection
from tests.serving.asking import server_of, url_of_store
from tests.waiting import wait_until

BATCH = pa.record_batch({"value": ["one", "two", "three"]})


@pytest.fixture
def store(scene: Scene) -> Iterator[commitlog.Store]:
    with scene.open(role="SYNC_MASTER", slave_timeout_ms=60_000) as opened:
        yield opened


@contextmanager
def served(store: commitlog.Store) -> Iterator[str]:
    """Gives the store's URL."""
    with server_of([store.path], writable=True) as server:
        url = url_of_store(server, "primary")
        try:
            yield url
        finally:
            forget_connection(parse_address(url))


def write(place: str) -> None:
    """Writes the batch as a task of Spark's sink does."""
    source = CommitLogDataSource({"path": place, "topic": "orders"})
    source.writer(from_arrow_schema(BATCH.schema), False).write(iter([BATCH]))


def values(path: Path) -> list[bytes]:
    with commitlog.Reader(path, topic="orders") as reader:
        return [message.value for message in reader]


def await_flushed(path: Path) -> None:
    wait_until(lambda: any(flushed_of(path).values()), "a row that is flushed")


def check_waits(scene: Scene, place: str) -> None:
    """The sink waits for a replica that is away, and a promoted copy has the rows."""
    writing = threading.Thread(target=write, args=(place,))
    writing.start()
    await_flushed(scene.primary)
    assert writing.is_alive()
    with scene.follower():
        writing.join()
    promote(scene.copy)
    assert values(scene.copy) == [b"one", b"two", b"three"]


def test_the_sink_waits_for_the_replica(store: commitlog.Store, scene: Scene) -> None:
    check_waits(scene, str(store.path))


def test_the_sink_fails_where_no_replica_comes(store: commitlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_producer, "PATIENCE_SECONDS", 0)
    with pytest.raises(ReplicaNotAvailable, match="0 of 1 replicas are in sync"):
        write(str(store.path))
    assert values(store.path) == [b"one", b"two", b"three"]


def test_the_sink_by_url_waits_too(store: commitlog.Store, scene: Scene) -> None:
    with served(store) as url:
        check_waits(scene, url)


@pytest.mark.nightly
def test_a_remote_producer_hears_that_no_replica_is_there(store: commitlog.Store, scene: Scene) -> None:
    """Its message stays in the log, is not sent again, and is done when a replica has come."""
    with served(store) as url, commitlog.RemoteProducer(url) as producer:
        receipt = producer.send("orders", b"one")
        with pytest.raises(ReplicaNotAvailable, match="0 of 1 replicas are in sync"):
            receipt.wait()
        assert receipt.done("accepted")
        assert not receipt.done()
        with scene.follower():
            wait_until(receipt.done, "the message is replicated")
            receipt.wait()
            producer.close()
    promote(scene.copy)
    assert values(scene.copy) == [b"one"]
