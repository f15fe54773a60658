"""Power loss, and `positions` is lost or old: what else says that a record was flushed counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.checkpoint import Positions, PositionsFile, StoreCheckpoint
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import LaneDirectory, StoreFacts
from commitlog.errors import CorruptRecord, DamagedFile, ReadingWarning
from commitlog.inspecting.verify import verify_store
from tests.builders.hand_made import BEGIN_MS, HandMadeLane, HandMadeStore
from tests.nightly import with_nightly

SEGMENT = 1 << 12
COUNT = 100
BAD = 20
KEEPS = {"retention": {"reserved_hours": 1_000_000}}
"""The messages of stores made by hand are old."""
TOPIC = "orders"


@pytest.fixture
def lane(tmp_path: Path) -> HandMadeLane:
    """A lane that was killed, with its positions lost and a damaged record among its first."""
    lane = HandMadeStore(tmp_path / "store", SEGMENT).lane(0)
    for row in range(COUNT):
        lane.append(TOPIC, b"%d" % row * 70)
    lane.dispatch()
    lane.publish()
    directory = directory_of(lane)
    directory.positions_file.unlink()
    directory.abort_file.touch()
    place = lane.records[BAD].physical_offset
    with directory.segment_path(place - place % SEGMENT).open("r+b") as segment:
        segment.seek(place % SEGMENT + 90)
        segment.write(b"\xff\xff")
    return lane


def directory_of(lane: HandMadeLane) -> LaneDirectory:
    return lane.store.directory.lane_directory(lane.number)


def old_positions(lane: HandMadeLane) -> None:
    """The flusher had recorded them just before the damaged record came."""
    where = lane.records[BAD - 5].physical_offset
    PositionsFile(directory_of(lane), lane.store.id, DISK).store(Positions(1, where, where, 0, 0, False))


def lose_queues(lane: HandMadeLane) -> None:
    shutil.rmtree(directory_of(lane).consumequeue)


def intact(lane: HandMadeLane, count: int = COUNT) -> list[bytes]:
    return [record.body for number, record in enumerate(lane.records[:count]) if number != BAD]


def check(lane: HandMadeLane, path: Path, wanted: list[bytes]) -> None:
    """A start keeps these messages, and the damaged one is an error and not silent."""
    with commitlog.Store.open(path, KEEPS):
        pass
    with pytest.raises(CorruptRecord), commitlog.Reader(path, topic=TOPIC) as strict:
        list(strict)
    with pytest.warns(ReadingWarning), commitlog.Reader(path, topic=TOPIC, ignore_corrupt=True) as reader:
        assert [message.value for message in reader] == wanted


@pytest.mark.parametrize("kind", with_nightly(["lost"], ["old"]))
def test_consume_queues_tell(lane: HandMadeLane, kind: str) -> None:
    """They name what was flushed: no start takes it for a torn tail."""
    if kind == "old":
        old_positions(lane)
    check(lane, lane.store.path, intact(lane))


def test_a_checkpoint_tells(lane: HandMadeLane) -> None:
    """Where the queues are lost as well: all that is older than its time was flushed."""
    lose_queues(lane)
    checkpoint = StoreCheckpoint(BEGIN_MS + 1000 * (COUNT - 10))
    checkpoint.save(directory_of(lane).checkpoint_file, DISK)
    check(lane, lane.store.path, intact(lane))


def test_nothing_tells(lane: HandMadeLane) -> None:
    """Then the log ends before the damage, and what is behind it is in the quarantine."""
    lose_queues(lane)
    with commitlog.Store.open(lane.store.path, KEEPS):
        pass
    with commitlog.Reader(lane.store.path, topic=TOPIC) as reader:
        assert [message.value for message in reader] == intact(lane, BAD)
    assert list(directory_of(lane).quarantine.glob("torn-*.json"))


@pytest.mark.parametrize("kind", with_nightly(["old"], ["lost"]))
def test_entries_of_another_lane_tell_nothing(lane: HandMadeLane, kind: str, tmp_path: Path) -> None:
    """An entry counts only where its record is."""
    other = HandMadeStore(tmp_path / "other", SEGMENT).lane(0)
    for row in range(COUNT):
        other.append(TOPIC, b"%d" % row * 60)
    other.dispatch()
    lose_queues(lane)
    shutil.copytree(directory_of(other).consumequeue, directory_of(lane).consumequeue)
    if kind == "old":
        old_positions(lane)
    with commitlog.Store.open(lane.store.path, KEEPS):
        pass
    with commitlog.Reader(lane.store.path, topic=TOPIC) as reader:
        assert [message.value for message in reader] == intact(lane, BAD)


@pytest.mark.parametrize("kind", with_nightly(["old"], ["lost"]))
def test_a_backup_has_what_a_start_keeps(lane: HandMadeLane, kind: str, tmp_path: Path) -> None:
    """Of a store that was killed. `verify` does not call it a torn tail either."""
    if kind == "old":
        old_positions(lane)
    (found,) = verify_store(lane.store.path).lanes
    assert any("hold no record" in finding.reason for finding in found.findings)
    report = commitlog.backup(lane.store.path, tmp_path / "backup")
    assert any("hold no record" in finding for finding in report.findings)
    check(lane, tmp_path / "backup", intact(lane))


@pytest.mark.parametrize("harm", with_nightly(["removed"], ["zeros"]))
@pytest.mark.parametrize("kind", ["killed", "stopped", "old"])
def test_consume_queues_tell_of_a_lost_end(lane: HandMadeLane, kind: str, harm: str) -> None:
    """The last segment is lost, the positions are lost or old: no offset is used again."""
    if kind == "stopped":
        directory_of(lane).abort_file.unlink()
    if kind == "old":
        old_positions(lane)
    last = lane.end - lane.end % SEGMENT
    segment = directory_of(lane).segment_path(last)
    segment.write_bytes(bytes(SEGMENT)) if harm == "zeros" else segment.unlink()
    kept = sum(record.physical_offset < last for record in lane.records)
    with commitlog.Store.open(lane.store.path, KEEPS) as store, store.producer() as producer:
        assert producer.send(TOPIC, b"new").offset == COUNT
        producer.flush()
    reader = commitlog.Reader(lane.store.path, topic=TOPIC, start=BAD + 1)
    with pytest.raises((CorruptRecord, DamagedFile)), reader:
        list(reader)
    with pytest.warns(ReadingWarning), commitlog.Reader(lane.store.path, topic=TOPIC, ignore_corrupt=True) as reader:
        assert [message.value for message in reader] == [*intact(lane, kept), b"new"]


@pytest.mark.parametrize("kind", with_nightly(["claims more"], ["of its own topic"]))
def test_the_last_record_was_flushed(kind: str, tmp_path: Path) -> None:
    """It is damaged, and its entry says that it was flushed: it is no torn tail.

    Either its size seems to reach behind what was flushed, or no other record has its topic.
    """
    lane = HandMadeStore(tmp_path / "store", SEGMENT).lane(0)
    for row in range(BAD):
        lane.append(TOPIC, b"%d" % row * 70)
    topic = TOPIC if kind == "claims more" else "rare"
    last = lane.append(topic, b"last" * 70)
    lane.dispatch()
    old_positions(lane)
    directory_of(lane).abort_file.touch()
    start = last.physical_offset - last.physical_offset % SEGMENT
    with directory_of(lane).segment_path(start).open("r+b") as segment:
        if topic == TOPIC:
            segment.seek(last.physical_offset - start)
            segment.write((last.total_size + 256).to_bytes(4, "big"))
        segment.seek(last.physical_offset - start + 90)
        segment.write(b"\xff\xff")
    assert not verify_store(lane.store.path).good
    assert commitlog.backup(lane.store.path, tmp_path / "backup").findings
    for path in (tmp_path / "backup", lane.store.path):
        with commitlog.Store.open(path, KEEPS):
            pass
        with pytest.raises((CorruptRecord, DamagedFile)), commitlog.Reader(path, topic=topic) as reader:
            list(reader)


@pytest.mark.parametrize("queues", with_nightly(["lost"], ["kept"]))
def test_nothing_is_left_of_the_log(queues: str, tmp_path: Path) -> None:
    """But for the file that was made ahead: the log does not begin with it."""
    store = HandMadeStore(tmp_path / "store", SEGMENT)
    lane = store.lane(0)
    for row in range(5):
        lane.append(TOPIC, b"%d" % row)
    lane.dispatch()
    directory_of(lane).abort_file.touch()
    directory_of(lane).segment_path(0).unlink()
    directory_of(lane).segment_path(0).symlink_to("nowhere")
    directory_of(lane).segment_path(SEGMENT).write_bytes(bytes(SEGMENT))
    if queues == "lost":
        lose_queues(lane)
        store.directory.save(StoreFacts(store.id, SEGMENT, lanes={0: lane.end}))
    else:
        assert not verify_store(store.path).good
    with commitlog.Store.open(store.path, KEEPS):
        pass
    assert not verify_store(store.path).good
    with pytest.raises((CorruptRecord, DamagedFile)), commitlog.Reader(store.path) as reader:
        list(reader)
