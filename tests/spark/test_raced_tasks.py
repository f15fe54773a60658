"""Retention deletes while Spark plans and while its tasks read.

The result is the rows that are kept, or DataLoss, and never a bare OSError.
"""

from __future__ import annotations

import pytest

from commitlog.errors import DataLoss
from commitlog.spark.source import CommitLogDataSource
from tests.faults.test_retention_races import Log, at_every_call, log
from tests.nightly import with_nightly

__all__ = ["log"]


def rows(log: Log, **options: str) -> list[tuple[int, bytes]]:
    """What a batch of the topic's earliest to latest offsets gives."""
    given = {"path": str(log.path), "subscribe": "orders", "columns": "offset,value"} | options
    reader = (source := CommitLogDataSource(given)).reader(source.schema())
    tables = (batch for task in reader.partitions() for batch in reader.read(task))
    return [(row["offset"], row["value"]) for batch in tables for row in batch.to_pylist()]


@pytest.mark.parametrize("lags", with_nightly([True], [False]))
def test_a_batch_is_what_is_kept_or_dataloss(log: Log, lags: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a row twice, in another order, or with a gap in what is kept."""
    log.lags = lags

    def look() -> None:
        try:
            found = rows(log)
        except DataLoss:
            return
        assert [value for _, value in found] == [log.sent[offset] for offset, _ in found]
        assert [offset for offset, _ in found] == list(range(found[0][0], len(log.sent)))
        assert found[0][0] <= log.kept()

    assert at_every_call(log, look, monkeypatch) > 5


@pytest.mark.parametrize("lags", with_nightly([True], [False]))
def test_a_batch_that_goes_on_without_what_is_lost(log: Log, lags: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """failOnDataLoss=false: all that is kept is among the rows."""
    log.lags = lags

    def look() -> None:
        found = rows(log, failondataloss="false")
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets))
        assert [value for _, value in found] == [log.sent[offset] for offset in offsets]
        assert set(range(log.kept(), len(log.sent))) <= set(offsets)

    assert at_every_call(log, look, monkeypatch) > 5
