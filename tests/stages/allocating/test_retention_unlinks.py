"""In which order retention removes names, and what a crash, a restart or a reader finds then."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.file_channel import DISK
from commitlog.opening.recovery import recover_lane
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from commitlog.shm.counters import RetentionFlag
from commitlog.shm.layout import Header, Lane
from tests.builders.made_lane import QUEUE_FILE
from tests.builders.retention_case import SEGMENT, Disk, RetentionCase, at_age
from tests.waiting import wait_until

# ---- names and crashes -------------------------------------------------------------------------


def test_names_go_after_positions_say_so(case: RetentionCase) -> None:
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


def test_what_counts_is_what_the_flusher_says_is_durable(case: RetentionCase) -> None:
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


def test_a_damaged_queue_keeps_only_its_own_files(case: RetentionCase, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_segment_that_the_system_does_not_let_go(
    case: RetentionCase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and a flag stays until it is over. What is behind it stays, too."""

    def unlink(path: str | Path) -> None:
        if Path(path) == case.store.directory.lane_directory(0).segment_path(2 * SEGMENT):
            raise PermissionError(errno.EPERM, "immutable", str(path))
        Disk.unlink(case.disk, path)

    at_age(case, 10**9)
    retention = case.retention()
    with monkeypatch.context() as patch:
        patch.setattr(case.disk, "unlink", unlink)
        for _ in range(3):
            case.turn(retention)
    assert case.kept(0)[0] == 2
    assert case.kept(3) == [case.last(3)]
    assert case.header(Header.RETENTION_FLAGS) & RetentionFlag.NOT_DELETED
    assert caplog.text.count("can't be deleted") == 1
    case.turn(retention)
    assert case.kept(0) == [case.last(0)]
    assert not case.header(Header.RETENTION_FLAGS) & RetentionFlag.NOT_DELETED


def test_a_killed_allocators_leftovers_go_at_the_next_start(case: RetentionCase) -> None:
    """Retired and not unlinked: the next one does it."""
    at_age(case, 10**9)
    while case.retention().retire():
        pass
    case.record_positions()
    case.retention().unlink_retired()
    assert case.kept(0) == [case.last(0)]


def test_a_directory_in_a_segments_place_is_left_and_costs_no_sync(case: RetentionCase) -> None:
    """Only names that were removed have to be durable."""
    lane_directory = case.store.directory.lane_directory(0)
    place = lane_directory.segment_path(0)
    place.unlink()
    place.mkdir()
    at_age(case, 10**9)
    retention = case.retention(delete_batch_max=1)
    while retention.retire():
        case.record_positions()
        retention.unlink_retired()
        if case.store.get(0, Lane.FIRST) == SEGMENT:
            assert lane_directory.commitlog not in case.disk.synced
    assert place.is_dir()
    assert lane_directory.commitlog in case.disk.synced


def test_queue_files_below_go_and_the_last_stays(case: RetentionCase) -> None:
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


def test_recovery_after_retention_finds_nothing_missing(case: RetentionCase) -> None:
    """Also when it was killed between the positions and the last file's name."""
    at_age(case, 10**9)
    case.turn(case.retention())
    found: list[str] = []
    end = recover_lane(case.store.directory.lane_directory(0), SEGMENT, DISK, found.append, queue_file_bytes=QUEUE_FILE)
    assert found == []
    assert end.first == case.last(0) * SEGMENT
    assert end.end == case.lanes[0].end


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
        producer.flush(timeout=60)
        commitlog_directory = tmp_path / "store/lanes/0/commitlog"
        wait_until(lambda: len(list(commitlog_directory.iterdir())) <= 6, "old segments to go")
    with commitlog.Store.open(tmp_path / "store", config), commitlog.Reader(tmp_path / "store") as reader:
        messages = list(reader)
    assert 0 < messages[0].offset < 950
    assert [message.value for message in messages] == bodies[messages[0].offset :]


@pytest.mark.nightly
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
        producer.flush(timeout=60)
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
