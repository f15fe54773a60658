"""Damage that nothing follows: a reader that goes on from a position hears of it, too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.errors import DamagedFile, DataLoss
from commitlog.reading.named_reader import PYTHON, NamedReader
from commitlog.reading.named_readers import NamedReaders
from tests.builders.hand_made import HandMadeStore

pytestmark = pytest.mark.filterwarnings("ignore::commitlog.errors.ReadingWarning")  # of the queue


@pytest.fixture
def lost(tmp_path: Path) -> HandMadeStore:
    """Reader `audit` has read one of two messages. Then the log was lost, and the topic's queue."""
    store = HandMadeStore(tmp_path / "store")
    for value in (b"one", b"two"):
        store.lane(0).append("orders", value)
    store.lane(1).append("orders", b"of another lane")
    store.publish()
    store_id = store.directory.load().id
    NamedReaders(store.directory).save(NamedReader("audit", store_id, {"orders": {0: 1, 1: 1}}, 1, kind=PYTHON))
    segment = store.directory.lane_directory(0).segment_path(0)
    segment.unlink()
    segment.mkdir()
    shutil.rmtree(store.directory.lane_directory(0).queue_path("orders").parent)
    return store


@pytest.mark.parametrize("options", [{"name": "audit"}, {"start": {"orders": {0: 0, 1: -1}}}, {}], ids=str)
def test_a_reader_hears_of_it(lost: HandMadeStore, options: dict[str, Any]) -> None:
    """The named one gave nothing and said nothing, though its next message is lost."""
    with (
        pytest.raises((DamagedFile, DataLoss), match=r"put the segment in its place|the whole of topic orders"),
        commitlog.Reader(lost.path, topic="orders", **options) as reader,
    ):
        list(reader)


def test_who_wants_what_is_newest_hears_of_nothing_old(lost: HandMadeStore) -> None:
    with commitlog.Reader(lost.path, topic="orders", start="latest") as reader:
        assert list(reader) == []
