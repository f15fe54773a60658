"""Which segments retention gives up, for age, size or the disk's sake, and which never."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import commitlog
from commitlog import errors
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.locks import file_locked
from commitlog.disk.trim_marks import TrimMark, TrimMarks
from commitlog.disk.trim_request import TrimRequest
from commitlog.reading.named_reader import NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.shm.counters import RetentionFlag
from commitlog.shm.layout import Header, Lane
from tests.builders.retention_case import FIRST_MS, HOUR, SEGMENT, RetentionCase, at_age
from tests.faults.supervisor import patched_stages


def test_age_is_that_of_the_last_message(case: RetentionCase) -> None:
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


def test_the_last_segment_with_data_stays(case: RetentionCase) -> None:
    """However old it is."""
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(0) == [case.last(0)]
    assert case.kept(3) == [case.last(3)]


def test_a_last_segment_that_is_full_stays_too(case: RetentionCase) -> None:
    """The log ends exactly at its end: there is nothing newer."""
    full = case.last(0) * SEGMENT
    case.store.set(0, WROTE=full, COMMITTED=full, FLUSHED=full, DISPATCHED=full, DISPATCH_SYNCED=full)
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(0)[0] == case.last(0) - 1


@pytest.mark.parametrize("word", ["FLUSHED", "DISPATCH_SYNCED"])
def test_what_is_not_flushed_or_not_indexed_stays(case: RetentionCase, word: str) -> None:
    """Also where the disk is full: the store's own processes need it."""
    case.store.set(0, **{word: 5 * SEGMENT + 100})
    case.disk.percent = 99
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.store.get(0, Lane.FIRST) == 5 * SEGMENT


def test_zero_hours_is_no_limit(case: RetentionCase) -> None:
    at_age(case, 10**12)
    case.turn(case.retention(reserved_hours=0))
    assert case.kept(0)[0] == case.kept(3)[0] == 0


def test_a_clock_that_jumped_deletes_nothing_and_says_so(case: RetentionCase, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_new_start_believes_the_clock(case: RetentionCase) -> None:
    """What counts is the time since the store was started."""
    case.retention()
    case.clock.wall += 100 * HOUR * 1000
    case.store.control.words[Header.GENERATION] += 1
    case.turn(case.retention())
    assert case.kept(0) == [case.last(0)]


def test_expired_segments_wait_for_their_hour(case: RetentionCase) -> None:
    """delete_when, unless the disk is over disk_max_used_percent."""
    at_age(case, 10**9)
    hours = {hour for hour in range(24) if hour != time.localtime(case.clock.wall / 1000).tm_hour}
    retention = case.retention(delete_when=";".join(map(str, hours)))
    case.turn(retention)
    assert case.kept(0)[0] == 0
    case.disk.percent = 76
    case.turn(retention)
    assert case.kept(0) == [case.last(0)]


def test_the_total_size_takes_the_oldest_of_all_lanes(case: RetentionCase) -> None:
    """Lane 3 was written later by an hour: lane 0 gives all it may first."""
    retention = case.retention(max_bytes=20 * SEGMENT)
    retention._ages._known[3] = (0, {"newest": FIRST_MS + HOUR * 1000})
    case.turn(retention)
    total = sum(case.store.get(n, Lane.ALLOCATED) - case.store.get(n, Lane.FIRST) for n in (0, 3))
    assert total == 20 * SEGMENT
    assert case.kept(3)[0] == 0
    assert not case.header(Header.FORCED_SEGMENTS)


def test_a_batch_is_not_exceeded(case: RetentionCase) -> None:
    at_age(case, 10**9)
    retention = case.retention(delete_batch_max=4)
    assert retention.retire()
    assert case.header(Header.DELETED_SEGMENTS) == 4


def test_a_damaged_segment_is_as_old_as_what_follows(case: RetentionCase) -> None:
    """Its own messages can't say how old they are."""
    case.lanes[0].write(0, b"\xff" * SEGMENT)
    at_age(case, 0)
    case.turn(case.retention())
    assert case.kept(0)[0] == 0
    case.clock.pass_seconds((case.newest(0, 1) - FIRST_MS + 1) / 1000)
    case.turn(case.retention())
    assert case.kept(0)[0] == 2


# ---- named readers ------------------------------------------------------------------------


def register(case: RetentionCase, offsets: dict[str, dict[int, int]], store_id: str = "") -> None:
    NamedReaders(case.store.directory).save(
        NamedReader("billing", store_id or case.store.facts.id, offsets, case.clock.wall)
    )


def segment_of(case: RetentionCase, lane: int, topic: str, offset: int) -> int:
    return case.lanes[lane].entries(topic)[offset][0] // SEGMENT


def test_what_a_named_reader_needs_stays(case: RetentionCase) -> None:
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


def test_a_lane_that_a_reader_has_not_seen_is_kept_for_it(case: RetentionCase) -> None:
    register(case, {"old": {0: 130}})
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(0) == [case.last(0)]
    assert case.kept(3)[0] == 0


def test_a_lane_that_a_reader_is_not_assigned_is_not_kept(case: RetentionCase) -> None:
    reader = NamedReader("billing", case.store.facts.id, {"old": {0: 130}}, 0, all_lanes=False)
    NamedReaders(case.store.directory).save(reader)
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(3) == [case.last(3)]


def test_a_topic_that_a_reader_has_not_seen_is_kept_for_it(case: RetentionCase) -> None:
    at_age(case, 10**9)
    reader = NamedReader("billing", case.store.facts.id, {"old": {0: 130, 3: 130}}, 0, pattern="ne.")
    NamedReaders(case.store.directory).save(reader)
    case.turn(case.retention())
    assert case.kept(0)[0] == segment_of(case, 0, "new", 0)


def test_a_reader_whose_place_can_not_be_read_keeps_everything(
    case: RetentionCase, caplog: pytest.LogCaptureFixture
) -> None:
    register(case, {})
    (case.store.directory.readers_directory / "billing.json").write_bytes(b'{"offsets": 5}')
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(0)[0] == case.kept(3)[0] == 0
    assert "reader billing: where it is can't be read" in caplog.text


def test_a_reader_of_another_store_keeps_nothing(case: RetentionCase) -> None:
    register(case, {"old": {0: 0}}, store_id="f" * 32)
    at_age(case, 10**9)
    case.turn(case.retention())
    assert case.kept(0) == [case.last(0)]


# ---- a full disk -------------------------------------------------------------------------------


def test_a_full_disk_takes_the_oldest_also_from_a_reader_and_says_so(
    case: RetentionCase, caplog: pytest.LogCaptureFixture
) -> None:
    """As many as are needed to get to 85 %; counted, with the reader's name in the log."""
    register(case, {"old": {0: 0, 3: 0}})
    case.disk.percent = 85.5
    with caplog.at_level(logging.ERROR):
        case.turn(case.retention())
    assert case.header(Header.FORCED_SEGMENTS) == 5
    assert len(case.kept(0)) + len(case.kept(3)) == case.last(0) + case.last(3) + 2 - 5
    assert "reader billing does not have it yet" in caplog.text
    assert case.disk.percent == pytest.approx(85, abs=0.2)


def test_forcing_can_be_switched_off(case: RetentionCase) -> None:
    case.disk.percent = 99.9
    case.turn(case.retention(disk_clean_forcibly_percent=100, disk_refuse_percent=100))
    assert case.kept(0)[0] == 0


@pytest.mark.parametrize(("percent", "refused"), [(89.9, False), (90.1, True)])
def test_a_very_full_disk_gets_no_segment(case: RetentionCase, percent: float, refused: bool) -> None:
    case.disk.percent = percent
    assert case.retention().refuses() is refused
    assert bool(case.header(Header.RETENTION_FLAGS) & RetentionFlag.DISK_REFUSES) is refused


@pytest.mark.parametrize(("percent", "full"), [(94.9, False), (95.1, True)])
def test_a_disk_with_enough_free_is_not_full(case: RetentionCase, percent: float, full: bool) -> None:
    """Percentages alone would refuse at 90 %.

    Of this disk that leaves the size of a hundred segments, which is twice what is enough.
    """
    case.disk.percent = percent
    retention = case.retention(disk_enough_bytes=50 * SEGMENT)
    assert retention.refuses() is full
    retention.retire()
    flags = RetentionFlag.DISK_HIGH | RetentionFlag.DISK_FORCES | RetentionFlag.DISK_REFUSES
    assert case.header(Header.RETENTION_FLAGS) & flags == (flags if full else 0)


def test_what_is_deleted_for_the_disks_sake_ends_when_enough_is_free(case: RetentionCase) -> None:
    """Four segments, though the disk stays far above disk_clean_forcibly_percent."""
    case.disk.percent = 95.4
    case.turn(case.retention(disk_enough_bytes=50 * SEGMENT))
    assert case.header(Header.FORCED_SEGMENTS) == 4
    assert case.disk.percent == pytest.approx(95, abs=0.2)


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


# ---- on demand ---------------------------------------------------------------------------------


def ask(case: RetentionCase, **what: int) -> None:
    TrimRequest(case.store.facts.id, **what).save(case.store.directory)  # type: ignore[arg-type]


@pytest.fixture
def waiting(case: RetentionCase) -> Iterator[None]:
    """The command waits while it holds this lock."""
    with file_locked(case.store.directory.trim_lock_file, case.store.directory, DISK):
        yield


@pytest.mark.usefixtures("waiting")
def test_what_commitlog_trim_asks_for(case: RetentionCase) -> None:
    """By time, then by size; the request is gone when the files are, and not before."""
    ask(case, before_ms=case.newest(0, 2) + 1)
    retention = case.retention(reserved_hours=0)
    assert not retention.retire()
    retention.unlink_retired()
    assert retention.is_asked()
    assert case.kept(0)[0] == 0, "positions do not say yet that it is retired"
    case.turn(retention)
    assert (case.kept(0)[0], case.kept(3)[0]) == (3, 3)
    assert not retention.is_asked()
    ask(case, keep_bytes=10 * SEGMENT)
    case.turn(retention)
    assert len(case.kept(0)) + len(case.kept(3)) == 10
    ask(case, keep_bytes=0)
    case.turn(case.retention(reserved_hours=0))
    assert (case.kept(0), case.kept(3)) == ([case.last(0)], [case.last(3)])


def test_a_request_that_can_not_be_read(case: RetentionCase, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once, is no request until it can be read, and keeps nothing from being deleted."""
    case.store.directory.trim_file.mkdir()
    retention = case.retention(reserved_hours=1)
    at_age(case, case.newest(0, case.last(0)) - FIRST_MS + HOUR)
    for _ in range(3):
        case.turn(retention)
        assert not retention.is_asked()
    assert (case.kept(0), case.kept(3)) == ([case.last(0)], [case.last(3)])
    assert caplog.text.count("trim.json: Is a directory: a request") == 1
    case.store.directory.trim_file.rmdir()
    case.turn(retention)
    ask(case, keep_bytes=0)
    assert retention.is_asked()


class Unremovable(FileChannel):
    def unlink(self, path: str | Path) -> None:
        if Path(path).name == "trim.json":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        super().unlink(path)


@pytest.mark.usefixtures("waiting")
def test_a_request_that_can_not_be_removed(case: RetentionCase, caplog: pytest.LogCaptureFixture) -> None:
    """It is carried out and told once, however often it is tried to remove it."""
    ask(case, keep_bytes=10 * SEGMENT)
    case.store.directory.channel = Unremovable()
    retention = case.retention(reserved_hours=0)
    for _ in range(3):
        case.turn(retention)
        retention.unlink_retired()
    assert len(case.kept(0)) + len(case.kept(3)) == 10
    assert caplog.text.count("trim.json: Operation not permitted: a request") == 1
    case.store.directory.channel = DISK
    case.turn(retention)
    assert not case.store.directory.trim_file.exists()


@pytest.mark.usefixtures("waiting")
def test_a_trim_leaves_what_readers_need(case: RetentionCase) -> None:
    """And takes it with `--force`. What was trimmed of a topic holds no segment."""
    register(case, {"old": {0: 50, 3: 130}, "new": {0: 110, 3: 110}})
    needed, behind = (segment_of(case, 0, "old", offset) for offset in (50, 100))
    retention = case.retention(reserved_hours=0)
    ask(case, keep_bytes=0)
    case.turn(retention)
    assert case.kept(0)[0] == needed
    assert case.kept(3) == [case.last(3)]
    assert case.header(Header.RETENTION_FLAGS) & RetentionFlag.HELD_BY_READER
    marks = TrimMarks(case.store.directory.lane_directory(0), DISK)
    marks.raise_to(case.store.facts.id, {"old": TrimMark(100)})
    ask(case, keep_bytes=0)
    case.turn(retention)
    assert case.kept(0)[0] == behind > needed
    ask(case, keep_bytes=0, force=True)
    case.turn(retention)
    assert case.kept(0) == [case.last(0)]


def test_a_request_of_a_command_that_was_killed(case: RetentionCase) -> None:
    """A later start does not carry it out: nobody asks for it any more."""
    retention = case.retention(reserved_hours=0)
    ask(case, keep_bytes=0)
    case.turn(retention)
    assert not retention.is_asked()
    assert case.kept(0)[0] == 0


@pytest.mark.usefixtures("waiting")
def test_a_request_that_is_none(case: RetentionCase) -> None:
    """It is removed with a warning, and takes nothing."""
    retention = case.retention(reserved_hours=0)
    good = TrimRequest(case.store.facts.id, keep_bytes=0)
    for bad in (b"", b"[]", b'{"store": 1}', b'{"a": 1}'):
        case.store.directory.trim_file.write_bytes(bad)
        case.turn(retention)
        assert not retention.is_asked()
    for other in (replace(good, store="0" * 32), replace(good, keep_bytes=-1), replace(good, before_ms=True)):
        other.save(case.store.directory)
        case.turn(retention)
        assert not retention.is_asked()
    assert case.kept(0)[0] == 0
