"""A reader that follows a topic that is not there waits, and warns where it may be misspelt."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import ReadingWarning
from tests.builders.hand_made import HandMadeStore, small_store
from tests.builders.spark_source import spark_source
from tests.builders.typed_topic import declare
from tests.served import by_url, place_of


def test_it_warns_once_and_names_those_that_are_there(tmp_path: Path) -> None:
    """As `cat -f` does, which reads by it."""
    store = HandMadeStore(tmp_path / "store")
    store.lane(0).append("orders", b"1")
    store.lane(0).append("clicks", b"1")
    store.publish()
    with pytest.warns(
        ReadingWarning, match="no topic oders yet, and .* waits for it; there are: clicks, orders"
    ) as seen:
        reader = commitlog.Reader(store.path, ["oders", "orders"], follow=True)
    with reader:
        assert next(reader).value == b"1"
    assert [warning.filename for warning in seen] == [__file__]


def test_a_stream_of_spark_says_so_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once at each start, although Spark asks twice where it begins, and also from a checkpoint."""
    store = small_store(tmp_path / "store")
    options = {"path": str(store.path), "subscribe": "oders,orders", "startingoffsets": "earliest"}
    source = spark_source(options)
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    assert reader.initialOffset() == start
    reader.latestOffset(start, ReadAllAvailable())
    reader.stop()
    (line,) = caplog.messages
    assert re.search("no topic oders yet, and the query waits for it; there are: orders, other", line)
    again = source.streamReader(source.schema())
    again.latestOffset(start, ReadAllAvailable())
    again.stop()
    assert caplog.messages == [line, line]


def test_a_follower_by_url_is_warned(tmp_path: Path, served_base: str) -> None:
    """As `cat -f URL` is, which reads by it."""
    store = small_store(tmp_path / "store")
    with by_url(served_base):
        url = place_of(store.path)
    with pytest.warns(
        ReadingWarning, match="no topic oders yet, and the reader waits for it; there are: orders, other"
    ) as warned:
        commitlog.Reader(url, ["oders"], follow=True).close()
    assert warned[0].filename == __file__


def test_a_topic_that_is_to_come_is_no_mistake(tmp_path: Path) -> None:
    """One that is declared, and any topic of a store without messages."""
    store = HandMadeStore(tmp_path / "store")
    store.publish()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        commitlog.Reader(store.path, "orders", follow=True).close()
        store.lane(0).append("clicks", b"1")
        store.publish()
        declare(store, "orders", "id BIGINT")
        commitlog.Reader(store.path, "orders", follow=True).close()
