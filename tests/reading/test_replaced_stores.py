"""A store is deleted, and another one is made at its path, while somebody looks at it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from commitlog.client.reader import Reader
from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.errors import DataLoss, ForwardError, ReaderError
from commitlog.forwarding.store_source import Source
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from commitlog.serving.served_store import ServedStore
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


@pytest.fixture
def restore(store: HandMadeStore, tmp_path: Path) -> Callable[[], None]:
    """Puts an older copy of the store in its place, as docs/backup.md does: with the same id."""
    older = tmp_path / "older"
    shutil.copytree(store.path, older)
    for row in range(5):
        store.lane(0).append("orders", b"lost %d" % row)
    store.publish()

    def restore() -> None:
        store.path.rename(tmp_path / "broken")
        older.rename(store.path)

    return restore


def test_a_reader_of_a_store_that_is_restored_is_told(store: HandMadeStore, restore: Callable[[], None]) -> None:
    with Reader(store.path, "orders", follow=True) as reader:
        assert len(list(iter(reader.poll, None))) == 205
        restore()
        with pytest.raises(DataLoss, match="or a restored copy of it"):
            reader.poll()


def test_an_index_sees_that_a_store_is_restored(store: HandMadeStore, restore: Callable[[], None]) -> None:
    with closing(StoreView(store.path)) as view:
        index = TopicIndex(view)
        index.refresh()
        assert index.ranges("orders")[0].end == 105
        restore()
        assert index.refresh()
        assert index.ranges("orders")[0].end == 100


def test_a_server_sees_that_a_store_is_restored(store: HandMadeStore, restore: Callable[[], None]) -> None:
    served = ServedStore("store", store.path)
    with served.index() as (index, before):
        assert index.ranges("orders")[0].end == 105
    restore()
    with served.index() as (index, after):
        assert index.ranges("orders")[0].end == 100
    assert after != before
    served.close()


def test_a_forwarder_of_a_store_that_is_restored_is_told(store: HandMadeStore, restore: Callable[[], None]) -> None:
    source = Source(str(store.path), accept_loss=False)
    source.refresh()
    restore()
    with pytest.raises(ForwardError, match="a restored copy of it"):
        source.refresh()
    source.close()


def test_a_copy_that_was_cut(store: HandMadeStore) -> None:
    """`commitlog rejoin` cuts what was never replicated; then the copy grows again."""
    with closing(StoreView(store.path)) as view:
        index = TopicIndex(view)
        index.refresh()
        store.directory.replica_file.write_bytes(b"{}")
        cut = store.lane(0).records[150]
        dispatched = Positions(1, cut.physical_offset, cut.physical_offset, 0, 0, True, -1)
        PositionsFile(store.directory.lane_directory(0), store.id, DISK).store(dispatched)
        assert index.refresh()
        assert index.ranges("orders")[0].end == 75
