"""What is deleted when, what never is, and in which order names disappear."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.config import RetentionConfig
from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import LaneDirectory
from commitlog.opening.recovery import recover_lane
from commitlog.reading.named_readers import NamedReader, NamedReaders
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from commitlog.shm.layout import Header, Lane
from commitlog.shm.statistics import RetentionFlag
from commitlog.stages.allocating.retention import Retention
from tests.builders.idle_store import IdleStore, idle_store
from tests.builders.made_lane import QUEUE_FILE, MadeLane
from tests.fake_clock import SetClock
from tests.faults.supervisor import patched_stages
from tests.waiting import wait_until

SEGMENT = 1 << 12
HOUR = 3600
FIRST_MS = 1_000_000
"""Store timestamp of the first record that MadeLane writes; each has the next millisecond."""


class Disk(FileChannel):
    """A disk of 1,000 segments' size that is as full as it is told.

    It keeps a diary of the names that are removed.
    """

    def __init__(self) -> None:
        self.percent = 10.0
        self.diary: list[str] = []

    def space(self, path: str | Path) -> tuple[int, int]:
        total = 1000 * SEGMENT
        used = int(total * self.percent / 100)
        return used, total - used

    def unlink(self, path: str | Path) -> None:
        self.diary.append("/".join(Path(path).parts[-3:]))
        self.percent -= 0.1
        super().unlink(path)


class Case:
    """A store with lanes 0 and 3 of 14 segments each, flushed and indexed.

    They were written from FIRST_MS on.
    """

    def __init__(self, store: IdleStore, disk: Disk) -> None:
        self.store, self.disk, self.clock = store, disk, SetClock()
        self.clock.wall = FIRST_MS
        self.lanes = {}
        for number in (0, 3):
            lane = self.lanes[number] = MadeLane(LaneDirectory(store.directory.lane_directory(number).path, number))
            for count in range(240):
                lane.append("old" if count < 130 else "new", bytes(count % 64) + b"x" * 40)
            end, size = lane.end, lane.segment_bytes
            store.set(number, WROTE=end, COMMITTED=end, FLUSHED=end, DISPATCHED=end, DISPATCH_SYNCED=end)
            store.set(number, ALLOCATED=(end // size + 1) * size)

    def retention(self, **knobs: Any) -> Retention:
        config = RetentionConfig(**knobs)
        return Retention(self.store.directory, self.store.facts, config, self.store.control, self.clock)

    def record_positions(self) -> None:
        """What the flusher does each second."""
        for number in self.lanes:
            lane_directory = self.store.directory.lane_directory(number)
            words = (Lane.FLUSHED, Lane.DISPATCH_SYNCED, Lane.FIRST)
            flushed, dispatched, first = (self.store.get(number, word) for word in words)
            positions = Positions(1, flushed, dispatched, first, FIRST_MS, False)
            PositionsFile(lane_directory, "", DISK).store(positions)
            self.store.set(number, FIRST_RECORDED=first)

    def turn(self, retention: Retention) -> None:
        """All that the allocator and the flusher do until nothing more goes."""
        while retention.retire():
            pass
        self.record_positions()
        retention.unlink_retired()

    def header(self, word: int) -> int:
        return self.store.control.words[word]

    def newest(self, lane: int, segment: int) -> int:
        """Store timestamp of the last record that begins in a segment."""
        starts = [start // SEGMENT for start, _ in self.lanes[lane].places]
        return FIRST_MS + max(number for number, at in enumerate(starts) if at == segment)

    def last(self, lane: int) -> int:
        return (self.lanes[lane].end - 1) // SEGMENT

    def kept(self, lane: int) -> list[int]:
        return [start // SEGMENT for start in self.store.segments(lane)]


@pytest.fixture
def case(tmp_path: Path, shm_root: Path) -> Iterator[Case]:
    disk = Disk()
    with idle_store(tmp_path / "store", shm_root / "pool", (0, 3), segment_bytes=SEGMENT, channel=disk) as store:
        yield Case(store, disk)


def at_age(case: Case, milliseconds_over: int) -> None:
    case.clock.pass_seconds(72 * HOUR)
    case.clock.pass_seconds(milliseconds_over / 1000)


def test_age_is_that_of_the_last_message(case: Case) -> None:
    """A segment goes a millisecond after its last message is 72 hours old, and not before."""
    third = case.newest(0, 2) - FIRST_MS
    retention = case.retention()
    at_age(case, third)
    case.turn(retention)
    assert case.kept(0)[0] == 2
    case.clock.pass_seconds(0.001)
    case.turn(retention)
    assert case.kept(0)[0] == 3
    assert case.store.get(0, Lane.FIRST) == 3 * SEGMENT
    assert case.header(Header.DELETED_SEGMENTS) == 6


def test_the_last_segment_with_data_stays(case: Case) -> None:
    """However old it is."""
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(0) == [case.last(0)]
    assert case.kept(3) == [case.last(3)]


def test_a_last_segment_that_is_full_stays_too(case: Case) -> None:
    """The log ends exactly at its end: there is nothing newer."""
    full = case.last(0) * SEGMENT
    case.store.set(0, WROTE=full, COMMITTED=full, FLUSHED=full, DISPATCHED=full, DISPATCH_SYNCED=full)
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(0)[0] == case.last(0) - 1


@pytest.mark.parametrize("word", ["FLUSHED", "DISPATCH_SYNCED"])
def test_what_is_not_flushed_or_not_indexed_stays(case: Case, word: str) -> None:
    """Also where the disk is full: the store's own processes need it."""
    case.store.set(0, **{word: 5 * SEGMENT + 100})
    case.disk.percent = 99
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.store.get(0, Lane.FIRST) == 5 * SEGMENT


def test_zero_hours_is_no_limit(case: Case) -> None:
    at_age(case, 10**12)
    case.turn(case.retention(reserved_hours=0))
    assert case.kept(0)[0] == case.kept(3)[0] == 0


def test_a_clock_that_jumped_deletes_nothing_and_says_so(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """A jump of a second is tolerated.

    An allocator that starts after the jump goes by the store's start. When the clock is right
    again, it goes on.
    """
    retention = case.retention()
    case.clock.wall += 1000 * HOUR * 1000
    case.turn(retention)
    case.turn(case.retention())
    assert case.kept(0)[0] == 0
    assert case.header(Header.RETENTION_FLAGS) & RetentionFlag.CLOCK_JUMPED
    assert "jumped by 3,600,000.0 s" in caplog.text
    case.clock.wall -= 1000 * HOUR * 1000 - 1000
    at_age(case, 10**9)
    case.turn(retention)
    assert not case.header(Header.RETENTION_FLAGS) & RetentionFlag.CLOCK_JUMPED
    assert case.kept(0) == [case.last(0)]


def test_a_new_start_believes_the_clock(case: Case) -> None:
    """What counts is the time since the store was started."""
    case.retention()
    case.clock.wall += 100 * HOUR * 1000
    case.store.control.words[Header.GENERATION] += 1
    case.turn(case.retention())
    assert case.kept(0) == [case.last(0)]


def test_expired_segments_wait_for_their_hour(case: Case) -> None:
    """delete_when, unless the disk is over disk_max_used_percent."""
    at_age(case, 10**9)
    hours = {hour for hour in range(24) if hour != time.localtime(case.clock.wall / 1000).tm_hour}
    retention = case.retention(delete_when=";".join(map(str, hours)))
    case.turn(retention)
    assert case.kept(0)[0] == 0
    case.disk.percent = 76
    case.turn(retention)
    assert case.kept(0) == [case.last(0)]


def test_the_total_size_takes_the_oldest_of_all_lanes(case: Case) -> None:
    """Lane 3 was written later by an hour: lane 0 gives all it may first."""
    retention = case.retention(max_bytes=20 * SEGMENT)
    retention._ages._known[3] = (0, {"newest": FIRST_MS + HOUR * 1000})
    case.turn(retention)
    total = sum(case.store.get(n, Lane.ALLOCATED) - case.store.get(n, Lane.FIRST) for n in (0, 3))
    assert total == 20 * SEGMENT
    assert case.kept(3)[0] == 0
    assert not case.header(Header.FORCED_SEGMENTS)


def test_a_batch_is_not_exceeded(case: Case) -> None:
    at_age(case, 10**9)
    retention = case.retention(delete_batch_max=4)
    assert retention.retire()
    assert case.header(Header.DELETED_SEGMENTS) == 4


# ---- named readers ------------------------------------------------------------------------


def register(case: Case, offsets: dict[str, dict[int, int]], store_id: str = "") -> None:
    NamedReaders(case.store.directory).save(
        NamedReader("billing", store_id or case.store.facts.id, offsets, case.clock.wall)
    )


def segment_of(case: Case, lane: int, topic: str, offset: int) -> int:
    return case.lanes[lane].entries(topic)[offset][0] // SEGMENT


def test_what_a_named_reader_needs_stays(case: Case) -> None:
    """By its queue offsets, in each lane; what it does not read of, it does not keep."""
    register(case, {"old": {0: 50, 3: 10_000}, "new": {0: 3, 3: 20}})
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(0)[0] == segment_of(case, 0, "old", 50)
    assert case.kept(3)[0] == segment_of(case, 3, "new", 20)
    assert case.header(Header.RETENTION_FLAGS) & RetentionFlag.HELD_BY_READER
    register(case, {"old": {0: 130, 3: 130}, "new": {0: 110, 3: 110}})  # it has read everything
    case.turn(case.retention())
    assert case.kept(0) == [case.last(0)]


def test_a_lane_that_a_reader_has_not_seen_is_kept_for_it(case: Case) -> None:
    register(case, {"old": {0: 130}})
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(0) == [case.last(0)]
    assert case.kept(3)[0] == 0


def test_a_lane_that_a_reader_is_not_assigned_is_not_kept(case: Case) -> None:
    reader = NamedReader("billing", case.store.facts.id, {"old": {0: 130}}, 0, all_lanes=False)
    NamedReaders(case.store.directory).save(reader)
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(3) == [case.last(3)]


def test_a_topic_that_a_reader_has_not_seen_is_kept_for_it(case: Case) -> None:
    at_age(case, 10**9)
    reader = NamedReader("billing", case.store.facts.id, {"old": {0: 130, 3: 130}}, 0, pattern="ne.")
    NamedReaders(case.store.directory).save(reader)
    case.turn(case.retention())
    assert case.kept(0)[0] == segment_of(case, 0, "new", 0)


def test_a_reader_whose_place_can_not_be_read_keeps_everything(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    register(case, {})
    (case.store.directory.readers_directory / "billing.json").write_bytes(b'{"offsets": 5}')
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(0)[0] == case.kept(3)[0] == 0
    assert "reader billing: where it is can't be read" in caplog.text


def test_a_reader_of_another_store_keeps_nothing(case: Case) -> None:
    register(case, {"old": {0: 0}}, store_id="f" * 32)
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(0) == [case.last(0)]


# ---- a full disk -------------------------------------------------------------------------------


def test_a_full_disk_takes_the_oldest_also_from_a_reader_and_says_so(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """As many as are needed to get to 85 %; counted, with the reader's name in the log."""
    register(case, {"old": {0: 0, 3: 0}})
    case.disk.percent = 85.5
    with caplog.at_level(logging.ERROR):
        case.turn(case.retention())
    assert case.header(Header.FORCED_SEGMENTS) == 5
    assert len(case.kept(0)) + len(case.kept(3)) == case.last(0) + case.last(3) + 2 - 5
    assert "reader billing has not read it" in caplog.text
    assert case.disk.percent == pytest.approx(85, abs=0.2)


def test_forcing_can_be_switched_off(case: Case) -> None:
    case.disk.percent = 99.9
    case.turn(case.retention(disk_clean_forcibly_percent=100, disk_refuse_percent=100))
    assert case.kept(0)[0] == 0


@pytest.mark.parametrize(("percent", "refused"), [(89.9, False), (90.1, True)])
def test_a_very_full_disk_gets_no_segment(case: Case, percent: float, refused: bool) -> None:
    case.disk.percent = percent
    assert case.retention().refuses() is refused
    assert bool(case.header(Header.RETENTION_FLAGS) & RetentionFlag.DISK_REFUSES) is refused


@pytest.mark.parametrize(("percent", "full"), [(94.9, False), (95.1, True)])
def test_a_disk_with_enough_free_is_not_full(case: Case, percent: float, full: bool) -> None:
    """Percentages alone would refuse at 90 %.

    Of this disk that leaves the size of a hundred segments, which is twice what is enough.
    """
    case.disk.percent = percent
    retention = case.retention(disk_enough_bytes=50 * SEGMENT)
    assert retention.refuses() is full
    retention.retire()
    flags = RetentionFlag.DISK_HIGH | RetentionFlag.DISK_FORCES | RetentionFlag.DISK_REFUSES
    assert case.header(Header.RETENTION_FLAGS) & flags == (flags if full else 0)


def test_what_is_deleted_for_the_disks_sake_ends_when_enough_is_free(case: Case) -> None:
    """Four segments, though the disk stays far above disk_clean_forcibly_percent."""
    case.disk.percent = 95.4
    case.turn(case.retention(disk_enough_bytes=50 * SEGMENT))
    assert case.header(Header.FORCED_SEGMENTS) == 4
    assert case.disk.percent == pytest.approx(95, abs=0.2)


# ---- names and crashes -------------------------------------------------------------------------


def test_names_go_after_positions_say_so(case: Case) -> None:
    """Positions are written first, so a restart finds every file that it was told of.

    Then the segments go, then the files of the queue.
    """
    at_age(case, 10**9)
    retention = case.retention()
    while retention.retire():
        pass
    retention.unlink_retired()
    assert case.disk.diary == []
    case.record_positions()
    retention.unlink_retired()
    lane_0 = [name for name in case.disk.diary if name.startswith("0/") or "/0/" in name]
    assert lane_0[0] == f"0/commitlog/{0:020d}"
    assert lane_0[-1].startswith("old/0/")


def test_what_counts_is_what_the_flusher_says_is_durable(case: Case) -> None:
    """The bytes of the file may be in the page cache only, or of an earlier start."""
    at_age(case, 10**9)
    retention = case.retention()
    while retention.retire():
        pass
    case.record_positions()
    case.store.set(0, FIRST_RECORDED=0)
    retention.unlink_retired()
    assert case.kept(0)[0] == 0
    assert case.kept(3) == [case.last(3)]
    case.record_positions()
    retention.unlink_retired()
    assert case.kept(0) == [case.last(0)]


def test_a_damaged_queue_keeps_only_its_own_files(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """The segments go, and the other topics' queue files; it is said once, not at every turn."""
    at_age(case, 10**9)
    lane_directory = case.store.directory.lane_directory(0)
    (lane_directory.queue_path("new") / "00000000000000000000").write_bytes(b"no queue")
    retention = case.retention()
    case.turn(retention)
    case.turn(retention)
    assert case.kept(0) == [case.last(0)]
    assert [int(path.name) for path in lane_directory.queue_path("old").iterdir()] == [2 * QUEUE_FILE]
    assert caplog.text.count("lane 0, topic new: old consume queue files can't be deleted") == 1


def test_a_killed_allocators_leftovers_go_at_the_next_start(case: Case) -> None:
    """Retired and not unlinked: the next one does it."""
    at_age(case, 10**9)
    while case.retention().retire():
        pass
    case.record_positions()
    case.retention().unlink_retired()
    assert case.kept(0) == [case.last(0)]


def test_queue_files_below_go_and_the_last_stays(case: Case) -> None:
    """A file has 50 entries. All of "old" is deleted, but its last file stays.

    So its offsets go on where they were.
    """
    at_age(case, 10**9)
    case.turn(case.retention())
    names = [int(path.name) for path in sorted(case.store.directory.lane_directory(0).queue_path("old").iterdir())]
    assert names == [2 * QUEUE_FILE]
    assert case.lanes[0].entries("old")[:1] == []
    (name,) = [path.name for path in case.store.directory.lane_directory(0).queue_path("new").iterdir()]
    assert int(name) == 2 * QUEUE_FILE


def test_recovery_after_retention_finds_nothing_missing(case: Case) -> None:
    """Also when it was killed between the positions and the last file's name."""
    at_age(case, 10**9)
    case.turn(case.retention())
    found: list[str] = []
    end = recover_lane(case.store.directory.lane_directory(0), SEGMENT, DISK, found.append, queue_file_bytes=QUEUE_FILE)
    assert found == []
    assert end.first == case.last(0) * SEGMENT
    assert end.end == case.lanes[0].end


def test_a_damaged_segment_is_as_old_as_what_follows(case: Case) -> None:
    """Its own messages can't say how old they are."""
    case.lanes[0].write(0, b"\xff" * SEGMENT)
    at_age(case, 0)
    case.turn(case.retention())
    assert case.kept(0)[0] == 0
    case.clock.pass_seconds((case.newest(0, 1) - FIRST_MS + 1) / 1000)
    case.turn(case.retention())
    assert case.kept(0)[0] == 2


# ---- the whole store ---------------------------------------------------------------------------


def test_a_running_store_stays_below_its_size(tmp_path: Path) -> None:
    """Readers find the rest, and a queue offset still names the same message.

    A restart finds nothing wrong.
    """
    config = {
        "store": {"segment_bytes": 1 << 16},
        "retention": {"max_bytes": 6 << 16, "interval_ms": 10},
        "flusher": {"positions_interval_ms": 10},
    }
    bodies = [b"%05d" % number + bytes(1000) for number in range(1000)]
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        for body in bodies:
            producer.send("t", body)
        producer.flush(60)
        commitlog_directory = tmp_path / "store/lanes/0/commitlog"
        wait_until(lambda: len(list(commitlog_directory.iterdir())) <= 6, "old segments to go")
    with commitlog.Store.open(tmp_path / "store", config), commitlog.Reader(tmp_path / "store") as reader:
        messages = list(reader)
    assert 0 < messages[0].offset < 950
    assert [message.value for message in messages] == bodies[messages[0].offset :]


def test_an_index_that_follows_knows_what_was_deleted(tmp_path: Path) -> None:
    """An old index sees the same first and next offsets as one that is made now."""
    config = {
        "store": {"segment_bytes": 1 << 16},
        "retention": {"max_bytes": 6 << 16, "interval_ms": 10},
        "flusher": {"positions_interval_ms": 10},
        "allocator": {"interval_ms": 10},
    }
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        view = StoreView(store.path)
        following = TopicIndex(view)
        for number in range(800):
            producer.send("early" if number < 10 else f"t{number % 3}", bytes(1000))
            if number % 20 == 0:
                following.refresh()
        producer.flush(60)
        wait_until(lambda: len(list((store.path / "lanes/0/commitlog").iterdir())) <= 6, "old segments to go")
        wait_until(lambda: store.statistics().lanes[0].dispatched == producer.statistics().wrote, "dispatch")
        following.refresh()
        fresh = TopicIndex(view)
        fresh.refresh()
        ranges = {
            index: [(topic, index.ranges(topic)[0].first, index.ranges(topic)[0].end) for topic in index.topics()]
            for index in (following, fresh)
        }
        view.close()
    assert ranges[following] == ranges[fresh]
    assert ranges[fresh][0] == ("early", 10, 10)
    assert all(first > 100 for _, first, _ in ranges[fresh][1:])


def test_a_disk_that_is_too_full_refuses_until_there_is_space(tmp_path: Path) -> None:
    """What was accepted stays in memory, and DiskFull gives the reason.

    The stop has to put it somewhere, so it makes the segments nevertheless.
    """
    config = {"store": {"segment_bytes": 1 << 16}}
    with patched_stages("tests.faults.stage:on_a_full_disk"), commitlog.Store.open(tmp_path / "store", config) as store:
        producer = store.producer()
        receipt = producer.send("t", b"safe")
        with pytest.raises(errors.DiskFull):
            receipt.wait("flushed", 60)
        assert store.statistics().lanes[0].faults == {"allocator": errno.ENOSPC}
        retention = store.statistics().retention
        assert retention is not None
        assert any("no segment is made" in warning for warning in retention.warnings)
    with commitlog.Reader(tmp_path / "store") as reader:
        assert [message.value for message in reader] == [b"safe"]
