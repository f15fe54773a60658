"""A store is deleted, and another one is made at its path, while somebody looks at it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from commitlog.errors import DataLoss, ReaderError
from commitlog.reader import Reader
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from tests.builders.hand_made import HandMadeStore, small_store

pytestmark = pytest.mark.usefixtures("look_each_time")


@pytest.mark.parametrize("rows", [50, 200])
def test_a_reader_that_follows_is_told(store: HandMadeStore, rows: int) -> None:
    """Its offsets mean nothing in the new store, whether that one is smaller or larger."""
    with Reader(store.path, "orders", follow=True) as reader:
        assert len(list(iter(reader.poll, None))) == 200
        shutil.rmtree(store.path)
        small_store(store.path, rows)
        with pytest.raises(DataLoss, match=f"another store .* than the one that was read \\({store.id}\\).*new reader"):
            reader.poll()
        with pytest.raises(ReaderError, match="make another"):
            reader.poll()


def test_an_index_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "store"
    small_store(path)
    with closing(StoreView(path)) as view:
        index = TopicIndex(view)
        index.refresh()
        shutil.rmtree(path)
        small_store(path, rows=3, lanes=1, topics=("invoices",))
        assert index.refresh()
        assert index.topics() == ["invoices"]
        assert list(index.ranges("invoices")) == [0]
        assert index.ranges("invoices")[0].end == 3
