"""Retention deletes while Spark plans and while its tasks read.

The result is the rows that are kept, or DataLoss, and never a bare OSError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from commitlog.errors import DataLoss
from commitlog.planning.address import parse_address
from commitlog.serving.flight_server import FlightServer
from commitlog.serving.served_store import ServedStore
from commitlog.spark.source import CommitLogDataSource
from tests.faults.test_retention_races import Log, at_every_call, log
from tests.nightly import with_nightly
from tests.served import forget_connection

__all__ = ["log"]


@pytest.fixture(scope="module", params=with_nightly(["path"], ["url"]))
def way(request: pytest.FixtureRequest) -> str:
    """How the log is reached. What gRPC makes once in a process is made here."""
    if request.param == "url":
        with FlightServer("grpc://127.0.0.1:0", {}):
            request.getfixturevalue("served_base")
    return str(request.param)


@pytest.fixture
def place(way: str, log: Log) -> Iterator[str]:
    """The log's path, or its URL: a server in this process, so that deletions race its reads."""
    if way == "path":
        yield str(log.path)
        return
    with closing(ServedStore("log", log.path)) as store, FlightServer("grpc://127.0.0.1:0", {"log": store}) as server:
        url = f"commitlog://127.0.0.1:{server.port}/log"
        yield url
        forget_connection(parse_address(url))


def rows(place: str, **options: str) -> list[tuple[int, bytes]]:
    """What a batch of the topic's earliest to latest offsets gives."""
    given = {"path": place, "subscribe": "orders", "columns": "offset,value"} | options
    reader = (source := CommitLogDataSource(given)).reader(source.schema())
    tables = (batch for task in reader.partitions() for batch in reader.read(task))
    return [(row["offset"], row["value"]) for batch in tables for row in batch.to_pylist()]


@pytest.mark.parametrize("lags", with_nightly([True], [False]))
def test_a_batch_is_what_is_kept_or_dataloss(log: Log, place: str, lags: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a row twice, in another order, or with a gap in what is kept."""
    log.lags = lags

    def look() -> None:
        try:
            found = rows(place)
        except DataLoss:
            return
        assert [value for _, value in found] == [log.sent[offset] for offset, _ in found]
        assert [offset for offset, _ in found] == list(range(found[0][0], len(log.sent)))
        assert found[0][0] <= log.kept()

    assert at_every_call(log, look, monkeypatch) > 5


@pytest.mark.nightly
@pytest.mark.parametrize("lags", with_nightly([True], [False]))
def test_a_batch_that_goes_on_without_what_is_lost(
    log: Log, place: str, lags: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """failOnDataLoss=false: all that is kept is among the rows."""
    log.lags = lags

    def look() -> None:
        found = rows(place, failondataloss="false")
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets))
        assert [value for _, value in found] == [log.sent[offset] for offset in offsets]
        assert set(range(log.kept(), len(log.sent))) <= set(offsets)

    assert at_every_call(log, look, monkeypatch) > 5
