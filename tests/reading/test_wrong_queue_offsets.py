"""Records without an index entry whose queue offset was damaged: no end is beyond the log."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import CorruptRecord
from commitlog.planning.options import parse_options
from commitlog.planning.resolving import Resolver
from commitlog.planning.store_index import LocalIndex
from commitlog.record.record_layout import QUEUE_OFFSET_AT
from tests.builders.hand_made import HandMadeStore

ROWS, INDEXED = 30, 20


def store_with(path: Path, row: int, queue_offset: int) -> HandMadeStore:
    """A lane whose last records have no entries. One of them has another queue offset."""
    store = HandMadeStore(path, 1 << 13)
    for number in range(ROWS):
        store.lane(0).append("orders", b"body %d" % number)
    store.lane(0).dispatch(INDEXED)
    store.lane(0).publish()
    with store.directory.lane_directory(0).segment_path(0).open("r+b") as file:
        file.seek(store.lane(0).records[row].physical_offset + QUEUE_OFFSET_AT)
        file.write(queue_offset.to_bytes(8))
    return store


@pytest.mark.filterwarnings("ignore:lane 0. topic orders. the consume queue ends before")
@pytest.mark.parametrize("row", [INDEXED, INDEXED + 3, ROWS - 1])
@pytest.mark.parametrize("queue_offset", [1 << 62, 1 << 40, 0, 3])
def test_one_wrong_queue_offset(tmp_path: Path, row: int, queue_offset: int) -> None:
    """It plans no millions of tasks, and hides no message."""
    store = store_with(tmp_path / "store", row, queue_offset)
    with closing(LocalIndex(store.path)) as index:
        index.refresh()
        tasks = Resolver(index, parse_options({"path": str(store.path), "subscribe": "orders"})).batch_plans()
    ends = [piece.end for plan in tasks for piece in plan.slices]
    assert ROWS <= max(ends) < 2 * ROWS
    assert len(tasks) == 1
    with (
        commitlog.Reader(store.path, topic="orders", start="earliest") as reader,
        pytest.raises(CorruptRecord, match="which is not next there"),
    ):
        list(reader)
