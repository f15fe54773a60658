"""What a backup has: of stores made by hand, without stages."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import commitlog
from commitlog.backups.store_backup import StoreBackup
from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import BackupRefused, ReadingWarning
from commitlog.inspecting.verify import verify_store
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.topic_trim import carry_out, parse_before, plan_deletion, plan_trim
from commitlog.reading.view import StoreView
from commitlog.schemas.topic_schemas import TopicSchemas
from tests.builders.hand_made import HandMadeStore
from tests.builders.named_reader import billing
from tests.nightly import with_nightly

KEEPS = {"retention": {"reserved_hours": 1_000_000}}
"""The messages of stores made by hand are old."""
Rows = list[tuple[int, int, bytes]]


def rows(path: Path, topic: str = "orders") -> Rows:
    with commitlog.Reader(path, topic=topic) as reader:
        return sorted((message.partition, message.offset, message.value) for message in reader)


def add(store: HandMadeStore, count: int = 50, topic: str = "orders") -> None:
    for lane in store.lanes.values():
        for number in range(count):
            lane.append(topic, b"more-%d" % number * 20)
    store.publish()


def trim(path: Path, topic: str, before: str | None = None) -> None:
    """Trims the topic; without `before`, deletes it."""
    with closing(StoreView(path)) as view:
        index = TopicIndex(view)
        index.refresh()
        carry_out(view, plan_trim(index, topic, parse_before(topic, before)) if before else plan_deletion(index, topic))


def topics(path: Path) -> list[str]:
    with closing(StoreView(path)) as view:
        index = TopicIndex(view)
        index.refresh()
        return index.topics()


def test_a_second_backup_copies_what_is_new(store: HandMadeStore, dest: Path) -> None:
    first = commitlog.backup(store.path, dest)
    assert (first.lanes, first.copied_messages, first.good) == (2, 400, True)
    add(store)
    second = commitlog.backup(store.path, dest, verify_all=True)
    assert (second.copied_messages, second.good) == (100, True)
    assert 0 < second.copied_bytes < first.copied_bytes
    assert commitlog.backup(store.path, dest).copied_bytes == 0
    assert rows(dest) == store.rows("orders")
    assert rows(dest, "other") == store.rows("other")


def test_a_backup_of_a_backup(store: HandMadeStore, dest: Path, tmp_path: Path) -> None:
    """A backup is a store that was stopped: it can be copied on, and moved to the store's place."""
    commitlog.backup(store.path, dest)
    commitlog.backup(dest, tmp_path / "third")
    shutil.rmtree(store.path)
    (tmp_path / "third").rename(store.path)
    assert rows(store.path) == store.rows("orders")
    add(store)
    assert commitlog.backup(store.path, dest).copied_messages == 100


def test_a_restored_backup_runs_and_goes_on_with_its_offsets(store: HandMadeStore, dest: Path) -> None:
    commitlog.backup(store.path, dest)
    with commitlog.Store.open(dest) as opened, opened.producer() as producer:
        receipt = producer.send("orders", b"new")
        receipt.wait("flushed")
    assert (receipt.partition, receipt.offset) == (0, 100)
    assert verify_store(dest).good
    with pytest.raises(BackupRefused, match="was started since"):
        commitlog.backup(store.path, dest)


def test_old_segments_go_from_the_backup_too(store: HandMadeStore, dest: Path) -> None:
    commitlog.backup(store.path, dest)
    for lane in store.lanes.values():
        lane.forget_before(2)
    report = commitlog.backup(store.path, dest, verify_all=True)
    assert (report.removed_segments, report.copied_bytes, report.good) == (4, 0, True)
    names = [DISK.list(StoreDirectory(path).lane_directory(1).commitlog) for path in (store.path, dest)]
    assert names[0] == names[1]
    assert rows(dest) == rows(store.path)


def test_all_that_the_backup_had_is_deleted(store: HandMadeStore, dest: Path) -> None:
    """There is a hole between what was copied and what the store still has."""
    commitlog.backup(store.path, dest)
    add(store, 200)
    for lane in store.lanes.values():
        lane.forget_before(lane.end // store.segment_bytes - 1)
    report = commitlog.backup(store.path, dest, verify_all=True)
    assert report.good
    assert report.removed_segments > 2
    assert rows(dest) == rows(store.path) != []


@pytest.mark.parametrize("had_a_backup", with_nightly([False], [True]))
def test_a_topic_whose_messages_are_deleted_keeps_its_next_offset(
    had_a_backup: bool, store: HandMadeStore, dest: Path
) -> None:
    """Otherwise a named reader, which is at the old offset, would pass over new messages."""
    if had_a_backup:
        commitlog.backup(store.path, dest)
        add(store, 10)
    add(store, 200, "other")
    for lane in store.lanes.values():
        last = max(record.physical_offset for record in lane.records if record.topic == "orders")
        lane.forget_before(last // store.segment_bytes + 1)
    commitlog.backup(store.path, dest, verify_all=True)
    assert rows(dest) == []
    with commitlog.Store.open(dest) as opened, opened.producer() as producer:
        assert producer.send("orders", b"new").offset == store.lanes[0].next_offsets["orders"]


def test_readers_and_schemas_are_copied(store: HandMadeStore, dest: Path) -> None:
    schemas = store.directory.topics_directory / "orders"
    schemas.mkdir(parents=True)
    (schemas / "1.json").write_text("{}")
    with billing(store) as reader:
        next(iter(reader))
        reader.commit()
    with billing(store, name="gone") as reader:
        reader.commit()
    commitlog.backup(store.path, dest)
    there = StoreDirectory(dest)
    assert DISK.list(there.readers_directory) == ["billing.json", "gone.json"]
    assert (there.topics_directory / "orders" / "1.json").read_text() == "{}"
    (store.directory.readers_directory / "gone.json").unlink()
    commitlog.backup(store.path, dest)
    assert DISK.list(there.readers_directory) == ["billing.json"]
    assert sum(NamedReaders(there).load("billing").offsets["orders"].values()) == 1


def test_what_was_trimmed_or_deleted_stays_so(store: HandMadeStore, dest: Path) -> None:
    """In the backup, in the store that is restored from it, and after the next backup."""
    trim(store.path, "orders", '{"0": 40, "1": 70}')
    trim(store.path, "other")
    assert commitlog.backup(store.path, dest, verify_all=True).good
    left = [row for row in store.rows("orders") if row[1] >= (40, 70)[row[0]]]
    assert (rows(dest), topics(dest)) == (left, ["orders"])
    restored = dest.with_name("restored")
    commitlog.backup(dest, restored)
    with commitlog.Store.open(restored, KEEPS) as opened, opened.producer() as producer:
        assert (rows(restored), topics(restored)) == (left, ["orders"])
        assert producer.send("other", b"new").offset == 100

    trim(store.path, "orders", "latest")
    assert commitlog.backup(store.path, dest).copied_bytes == 0
    assert (rows(dest), topics(dest)) == ([], ["orders"])
    add(store, 5)
    trim(store.path, "orders", '{"0": 102}')
    commitlog.backup(store.path, dest)
    assert [row[:2] for row in rows(dest)] == [
        *((0, offset) for offset in range(102, 105)),
        *((1, n) for n in range(100, 105)),
    ]
    for lane in store.lanes:
        store.directory.lane_directory(lane).trimmed_file.unlink()
    commitlog.backup(store.path, dest)
    assert topics(dest) == ["orders", "other"]


def test_no_mark_is_above_what_was_copied(store: HandMadeStore, dest: Path) -> None:
    """Else the restored store would hide new messages. Here the marks are of a later time."""
    earlier = [store.directory.lane_directory(lane).positions_file.read_bytes() for lane in store.lanes]
    add(store)
    trim(store.path, "orders", "latest")
    for lane, data in zip(store.lanes, earlier, strict=True):
        store.directory.lane_directory(lane).positions_file.write_bytes(data)
    commitlog.backup(store.path, dest)
    with commitlog.Store.open(dest) as opened, opened.producer() as producer:
        producer.send("orders", b"new").wait("flushed")
    assert [row for row in rows(dest) if row[0] == 0] == [(0, 100, b"new")]


def test_marks_that_are_damaged_are_named_and_the_backup_keeps_its_own(store: HandMadeStore, dest: Path) -> None:
    trim(store.path, "orders", '{"0": 40}')
    commitlog.backup(store.path, dest)
    before = rows(dest)
    file = store.directory.lane_directory(0).trimmed_file
    file.write_text("{")
    add(store)
    report = commitlog.backup(store.path, dest)
    assert (report.copied_messages, report.good) == (100, False)
    assert str(file) in report.findings[0]
    assert len(rows(dest)) == len(before) + 100
    assert min(rows(dest)) == min(before)


def test_a_damaged_reader_is_named_and_the_backup_keeps_its_own(store: HandMadeStore, dest: Path) -> None:
    """Where the backup has none, it gets the damaged one: it would begin anew without a word."""
    with billing(store) as reader:
        reader.commit()
    file, copy = (StoreDirectory(path).readers_directory / "billing.json" for path in (store.path, dest))
    intact = file.read_bytes()
    assert commitlog.backup(store.path, dest).good
    damaged = intact[:60] + bytes([intact[60] ^ 1]) + intact[61:]
    file.write_bytes(damaged)
    for kept in (intact, damaged):
        report = commitlog.backup(store.path, dest)
        assert [str(file) in finding for finding in report.findings] == [True]
        assert copy.read_bytes() == kept
        if kept == intact:
            copy.unlink()
    file.write_bytes(intact)
    assert commitlog.backup(store.path, dest).good
    assert copy.read_bytes() == intact


def test_damaged_schemas_and_deletions_are_named(store: HandMadeStore, dest: Path) -> None:
    """The backup keeps the deletion that it has. A schema that it has not is copied as it is."""
    schemas = TopicSchemas(store.directory)
    schemas.declare("orders", pa.schema({"number": pa.int64()}), evolve=False)
    schemas.delete("orders")
    assert commitlog.backup(store.path, dest).good
    file, copy = (StoreDirectory(path).topics_directory / "orders" / "deleted" for path in (store.path, dest))
    intact = file.read_bytes()
    file.write_bytes(intact.replace(b"1", b"3", 1))
    report = commitlog.backup(store.path, dest)
    assert [str(file) in finding for finding in report.findings] == [True]
    assert copy.read_bytes() == intact
    file.write_bytes(intact)
    second = schemas.declare("orders", pa.schema({"number": pa.int64()}), evolve=False)
    schema, copied = (path.with_name(f"{second.version}.json") for path in (file, copy))
    schema.write_bytes(schema.read_bytes().replace(b"number", b"numbes", 1))
    for _ in range(2):
        report = commitlog.backup(store.path, dest)
        assert [str(schema) in finding for finding in report.findings] == [True]
        assert copied.read_bytes() == schema.read_bytes()


@pytest.mark.parametrize("name", ["quarantine", "tmp"])
def test_a_file_in_place_of_a_directory_is_named(name: str, store: HandMadeStore, dest: Path) -> None:
    """No start takes such a lane. All that is flushed is copied nevertheless."""
    place = store.directory.lane_directory(0).path / name
    if place.is_dir():
        place.rmdir()
    place.write_text("somebody's")
    for _ in range(2):
        report = commitlog.backup(store.path, dest)
        assert [str(place) in finding for finding in report.findings] == [True]
    assert len(rows(dest)) == 200


def test_a_deleted_schema_stays_deleted(store: HandMadeStore, dest: Path) -> None:
    """And its number is not given out again."""
    schemas, copies = (StoreDirectory(path).topics_directory / "orders" for path in (store.path, dest))
    schemas.mkdir(parents=True)
    (schemas / "1.json").write_text("{}")
    commitlog.backup(store.path, dest)
    (schemas / "deleted").write_text("1\n")
    commitlog.backup(store.path, dest)
    assert (DISK.list(copies), (copies / "deleted").read_text()) == (["1.json", "deleted"], "1\n")
    (schemas / "deleted").unlink()
    commitlog.backup(store.path, dest)
    assert DISK.list(copies) == ["1.json"]


def test_a_file_among_the_topics_is_passed_over(store: HandMadeStore, dest: Path) -> None:
    """One in the place of all topics is named, and all else is copied."""
    topics = store.directory.topics_directory
    topics.mkdir()
    (topics / "notes.txt").write_text("somebody's")
    assert commitlog.backup(store.path, dest).good
    (topics / "notes.txt").unlink()
    topics.rmdir()
    topics.write_text("somebody's")
    (finding,) = commitlog.backup(store.path, dest).findings
    assert finding.startswith(f"{topics} is no directory")
    assert commitlog.read_arrow(dest, "orders").read_all().num_rows == len(store.rows("orders"))


def test_damage_is_named_and_all_else_is_copied(store: HandMadeStore, dest: Path) -> None:
    """The bytes are as they are in the store, so that offsets stay; readers know the place."""
    record = store.lanes[0].records[20]
    segment = store.directory.lane_directory(0).segment_path(0)
    data = bytearray(segment.read_bytes())
    data[record.physical_offset + 92] ^= 1  # in its body
    segment.write_bytes(data)
    report = commitlog.backup(store.path, dest)
    assert not report.good
    assert f"at offset {record.physical_offset}" in report.findings[0]
    assert report.copied_messages == 399
    with pytest.warns(ReadingWarning), commitlog.Reader(dest, topic="orders", ignore_corrupt=True) as reader:
        assert len(list(reader)) == 199
    add(store)
    assert commitlog.backup(store.path, dest).good, "what is new is whole"
    assert not commitlog.backup(store.path, dest, verify_all=True).good


def test_a_segment_that_is_lost_in_the_backup_is_copied_again(store: HandMadeStore, dest: Path) -> None:
    commitlog.backup(store.path, dest)
    StoreDirectory(dest).lane_directory(1).segment_path(store.segment_bytes).unlink()
    assert not verify_store(dest).good
    report = commitlog.backup(store.path, dest, verify_all=True)
    assert report.good
    assert report.copied_bytes == store.segment_bytes


def test_a_segment_that_is_lost_in_the_store_stays_in_the_backup(store: HandMadeStore, dest: Path) -> None:
    commitlog.backup(store.path, dest)
    store.directory.lane_directory(1).segment_path(store.segment_bytes).unlink()
    add(store)
    assert commitlog.backup(store.path, dest, verify_all=True).good
    assert rows(dest) == store.rows("orders")


def test_another_stores_log_is_named(store: HandMadeStore, dest: Path, tmp_path: Path) -> None:
    """Each of its records is good, and messages are missing all the same."""
    other = HandMadeStore(tmp_path / "other", segment_bytes=store.segment_bytes)
    for number in range(1_000):
        other.lane(0).append("orders", b"foreign %d" % number)
    other.publish()
    for segment in store.directory.lane_directory(0).commitlog.iterdir():
        shutil.copy(other.directory.lane_directory(0).commitlog / segment.name, segment)
    report = commitlog.backup(store.path, dest)
    assert not report.good
    assert any("not the log that was flushed here" in finding for finding in report.findings)


def test_half_a_record_below_the_positions_is_left_for_the_next_backup(store: HandMadeStore, dest: Path) -> None:
    """The flusher counts bytes and no records."""
    last = store.lanes[0].records[-1]
    for cut in (1, 3, 30, last.total_size - 1):
        store.lanes[0].publish(flushed=last.physical_offset + cut)
        report = commitlog.backup(store.path, dest, verify_all=True)
        assert report.good, report
        assert len(rows(dest, "other")) == 199
    store.publish()
    assert commitlog.backup(store.path, dest).copied_messages == 1
    assert rows(dest, "other") == store.rows("other")


def test_records_behind_old_positions_are_copied(store: HandMadeStore, dest: Path) -> None:
    """The machine went down: the positions on the disk are those of a second ago."""
    for number, flushed in ((0, store.lanes[0].records[100].physical_offset), (1, 0)):
        directory = store.directory.lane_directory(number)
        if flushed:
            known = PositionsFile(directory, store.id, DISK)
            found = known.load()
            assert found is not None
            known.store(replace(found, flushed_where=flushed, dispatched_where=0, drained=False, entries=-1))
        else:
            directory.positions_file.unlink()
        directory.abort_file.touch()
    assert commitlog.backup(store.path, dest, verify_all=True).good
    assert rows(dest) == store.rows("orders")


# ---- retention meanwhile -------------------------------------------------------------------------


class _Retiring(FileChannel):
    """Deletes the store's oldest segments when one of them is opened: before it, or after."""

    def __init__(self, store: HandMadeStore, upto: int) -> None:
        self.store, self.upto, self.is_done = store, upto, False

    def open(self, path: str | Path, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        lane = self.store.directory.lane_directory(0)
        if not self.is_done and Path(path) == lane.segment_path(self.store.segment_bytes):
            self.is_done = True
            if self.upto < 0:  # all that was there when the backup began, and more has come
                add(self.store, 200)
            self.store.lanes[0].forget_before(
                self.upto if self.upto > 0 else self.store.lanes[0].end // self.store.segment_bytes
            )
        return super().open(path, write=write, create=create, exclusive=exclusive)


@pytest.mark.parametrize("upto", [2, 3, -1])
def test_retention_deletes_what_is_being_copied(upto: int, store: HandMadeStore, dest: Path) -> None:
    report = StoreBackup(store.path, dest, _Retiring(store, upto)).run(verify_all=True)
    assert report.good, report
    assert [row for row in rows(dest) if row[0] == 0] == [row for row in rows(store.path) if row[0] == 0] != []
