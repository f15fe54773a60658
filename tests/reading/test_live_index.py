"""The index of a running store after a sync of the consume queues has failed.

The dispatcher had to go back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from commitlog.client.reader import Reader
from commitlog.disk.consume_queue import ENTRY_BYTES
from commitlog.disk.store_directory import PoolPlace, boot_id
from commitlog.inspecting.verify import verify_store
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Header, Lane
from tests.builders.hand_made import HandMadeLane, HandMadeStore


class LiveLane:
    """A lane with 100 records of one topic, all dispatched, and the words of its pool."""

    def __init__(self, path: Path, pool: Path) -> None:
        self.store = HandMadeStore(path, 1 << 12)
        self.made: HandMadeLane = self.store.lane(0)
        for row in range(100):
            self.made.append("orders", b"%d" % row)
        self.store.publish()
        pool.mkdir(mode=0o700)
        self.control = ControlRegion.create(pool, self.store.id, path)
        self.control.words[Header.GENERATION] = 1
        place = PoolPlace(str(pool), os.stat(pool).st_dev, boot_id(), os.geteuid())
        directory = self.store.directory
        directory.save(replace(directory.load(), generation=1, pool=place))
        for word in (Lane.WROTE, Lane.COMMITTED, Lane.FLUSHED, Lane.DISPATCHED, Lane.DISPATCH_SYNCED):
            self.set(word, self.made.end)
        self.set(Lane.ALLOCATED, (self.made.end // self.store.segment_bytes + 1) * self.store.segment_bytes)

    def set(self, word: int, value: int) -> None:
        self.control.row(0)[word] = value

    def lose_entries(self, start: int, end: int) -> None:
        """Does what a failed sync does: pages of the queue are as they were before.

        The dispatcher goes back at once.
        """
        file = self.store.directory.lane_directory(0).queue_path("orders") / f"{0:020d}"
        data = bytearray(file.read_bytes())
        data[start * ENTRY_BYTES : end * ENTRY_BYTES] = bytes((end - start) * ENTRY_BYTES)
        file.write_bytes(data)
        self.set(Lane.DISPATCHED, self.made.records[start].physical_offset)


@pytest.fixture
def lane(tmp_path: Path, shm_root: Path) -> Iterator[LiveLane]:
    pool = shm_root / "pool"
    made = LiveLane(tmp_path / "store", pool)
    yield made
    made.control.close()
    for name in os.listdir(pool):
        os.unlink(pool / name)
    pool.rmdir()


@pytest.mark.parametrize("lost", [(30, 100), (30, 60), (99, 100), (0, 100), (0, 1)])
def test_entries_that_a_failed_sync_lost(lane: LiveLane, lost: tuple[int, int]) -> None:
    """Readers that have looked before, and readers that look now, see every record.

    A record without an entry is found by a walk, without a warning.
    """
    with closing(StoreView(lane.store.path)) as view:
        before = TopicIndex(view)
        before.refresh()
        lane.lose_entries(*lost)
        assert before.refresh()
        fresh = TopicIndex(view)
        fresh.refresh()
        for index in (before, fresh):
            known = index.ranges("orders")[0]
            assert (known.first, known.end) == (0, 100)
            assert known.indexed <= lost[0]
            assert 0 <= known.walk_from(lost[0]) <= lane.made.records[lost[0]].physical_offset
            for offset in (0, 29, 30, 59, 99):
                time = lane.made.records[offset].store_timestamp
                assert index.find_by_time("orders", 0, time) == offset
    for start in ("earliest", 0, 30, 60, "last 3"):
        with Reader(lane.store.path, "orders", start=start) as reader:
            first = {"earliest": 0, "last 3": 97}.get(str(start), start)
            assert [message.offset for message in reader] == list(range(int(first), 100))


@pytest.mark.filterwarnings("ignore:.* does not run")
@pytest.mark.parametrize("inside", [1, 4, 40])
@pytest.mark.parametrize(
    ("start", "number"), [("latest", 60), (60, 60), ("2100-01-01T00:00Z", 60), ("latest", 0), ("earliest", 0)]
)
def test_a_reader_begins_while_a_record_is_flushed_in_part(
    lane: LiveLane, start: str | int, number: int, inside: int
) -> None:
    """It begins with this record: the committer writes in slices, which end anywhere."""
    where = lane.made.records[number].physical_offset
    lane.set(Lane.FLUSHED, where + inside)
    lane.set(Lane.DISPATCHED, where)
    with Reader(lane.store.path, "orders", start=start, follow=True) as reader:
        assert reader.poll() is None
        lane.set(Lane.FLUSHED, lane.made.end)
        assert [next(reader).offset for _ in range(number, 100)] == list(range(number, 100))


@pytest.mark.parametrize("inside", [1, 4, 40, 100])
def test_verify_takes_no_unfinished_record_for_damage(lane: LiveLane, inside: int) -> None:
    where = lane.made.records[-1].physical_offset
    segment = lane.store.directory.lane_directory(0).segment_path(
        where // lane.store.segment_bytes * lane.store.segment_bytes
    )
    data = bytearray(segment.read_bytes())
    cut = where % lane.store.segment_bytes + inside
    segment.write_bytes(bytes(data[:cut]).ljust(len(data), b"\0"))
    for word in (Lane.COMMITTED, Lane.FLUSHED):
        lane.set(word, where + inside)
    for word in (Lane.DISPATCH_SYNCED, Lane.DISPATCHED):
        lane.set(word, where)
    lane.set(Lane.SEGMENT_SIZE, lane.store.segment_bytes)
    report = verify_store(lane.store.path)
    assert report.good, report
    data[cut - 20 : cut] = bytes(20)  # a record that is flushed as a whole
    segment.write_bytes(data)
    for word in (Lane.COMMITTED, Lane.FLUSHED):
        lane.set(word, lane.made.end)
    assert not verify_store(lane.store.path).good


def test_verify_finds_a_last_record_whose_size_is_damaged(lane: LiveLane) -> None:
    """It seems to go on behind what is flushed. But all is flushed, so it can't."""
    where = lane.made.records[-1].physical_offset
    start = where - where % lane.store.segment_bytes
    segment = lane.store.directory.lane_directory(0).segment_path(start)
    data = bytearray(segment.read_bytes())
    data[where - start : where - start + 4] = (1000).to_bytes(4)
    segment.write_bytes(data)
    assert not verify_store(lane.store.path).good
