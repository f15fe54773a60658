"""Rows that can't be read are an error that names their place, and never missing silently.

With an option they are left out instead, counted and warned about.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.columns.damaged_rows import Damage
from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.file_channel import DISK
from commitlog.errors import CorruptRecord, DamagedFile, DataLoss, ReadingWarning
from commitlog.opening.recovery import recover_lane
from commitlog.shm.layout import segment_start
from commitlog.spark.source import CommitLogDataSource
from commitlog.spark.task_reading import RemoteTask, Task
from commitlog.text.quantities import counted
from tests.builders.hand_made import HandMadeStore
from tests.nightly import by_url_nightly
from tests.served import place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[int, int, bytes]]

pytestmark = [
    pytest.mark.usefixtures("both_ways"),
    # nobody has counted the entries of the lane that the tests harm
    pytest.mark.filterwarnings("ignore:.*lane 3 is damaged from offset:commitlog.errors.ReadingWarning"),
]


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """200 messages in lane 3, over several segments, every fifth of another topic."""
    made = HandMadeStore(tmp_path / "store", 1 << 12)
    for row in range(200):
        made.lane(3).append("orders" if row % 5 else "other", b"body of %d" % row, key="k")
    made.publish()
    return made


def rows(store: HandMadeStore, **options: object) -> Rows:
    given = {"path": place_of(store.path), "subscribe": "orders", "columns": "partition,offset,value"} | options
    source = CommitLogDataSource({name.lower(): str(value) for name, value in given.items()})
    reader = source.reader(source.schema())
    tables = (batch for task in reader.partitions() for batch in reader.read(task))
    return [(r["partition"], r["offset"], r["value"]) for batch in tables for r in batch.to_pylist()]


def harm(store: HandMadeStore, numbers: list[int], where: int) -> None:
    """Changes a byte of each record: `where` counts from its start."""
    for number in numbers:
        record = store.lane(3).records[number]
        start = segment_start(record.physical_offset, store.segment_bytes)
        with store.directory.lane_directory(3).segment_path(start).open("r+b") as file:
            file.seek(record.physical_offset - start + where)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 0x55]))


def recover(store: HandMadeStore, *, queues: str) -> None:
    """A start after a crash, which looks through all of the log."""
    lane_directory = store.directory.lane_directory(3)
    PositionsFile(lane_directory, store.id, DISK).store(Positions(2, store.lane(3).end, 0, 0, 0, False))
    if queues == "built anew":
        shutil.rmtree(lane_directory.consumequeue)
    end = recover_lane(lane_directory, store.segment_bytes, DISK, lambda line: None, queue_file_bytes=20_000)
    PositionsFile(lane_directory, store.id, DISK).store(Positions(3, end.end, end.end, 0, 0, True))


BODY, SIZE, PLACE = 90, 2, 30
"""Bytes of a record: in its body, which only its CRC protects; in its size, its physical offset."""


LAST = 199  # an index that is built anew can't know of it


@by_url_nightly
@pytest.mark.parametrize("where", [BODY, SIZE, PLACE])
@pytest.mark.parametrize(
    ("numbers", "queues"),
    [([41], "kept"), ([41], "built anew"), ([1, 41, 42, 43, 151], "built anew"), ([1, 41, 42, 43, LAST], "kept")],
    ids=str,
)
def test_quarantined_records(
    store: HandMadeStore, numbers: list[int], where: int, queues: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All their neighbours are read, whatever was harmed, and whether the index is kept or new."""
    everything = store.rows("orders")
    harm(store, numbers, where)
    recover(store, queues=queues)
    bad = [store.lane(3).records[number] for number in numbers]
    with pytest.raises(
        CorruptRecord, match=rf"topic orders, lane 3, offset {bad[0].queue_offset}\b.*ignoreCorruptRec"
    ) as raised:
        rows(store)
    if queues == "kept":
        assert raised.value.offset == bad[0].physical_offset
    assert re.search(r"lanes/3/commitlog/\d{20}", str(raised.value))
    kept = [row for row in everything if row[1] not in {record.queue_offset for record in bad}]
    assert rows(store, ignoreCorruptRecords=True) == kept
    said = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert f"{counted(len(bad), 'corrupt record')} of the offsets [0, 160) were left out" in said[0]
    assert f"first at offset {bad[0].queue_offset}" in said[0]


def test_records_around_the_damage_are_no_reason_for_an_error(store: HandMadeStore) -> None:
    harm(store, [41], BODY)
    recover(store, queues="kept")
    offset = store.lane(3).records[41].queue_offset
    for begin, end in ((0, offset), (offset + 1, 160)):
        bounds = {
            "startingOffsets": f'{{"orders": {{"3": {begin}}}}}',
            "endingOffsets": f'{{"orders": {{"3": {end}}}}}',
        }
        assert rows(store, **bounds) == store.rows("orders")[begin:end]


def test_what_was_brought_back_is_good_again(store: HandMadeStore) -> None:
    """The note stays, the bytes decide."""
    harm(store, [41], BODY)
    recover(store, queues="kept")
    harm(store, [41], BODY)
    assert rows(store) == store.rows("orders")


def test_a_note_that_can_not_be_read(store: HandMadeStore) -> None:
    """It hides no damage: all behind it is looked at."""
    harm(store, [41], BODY)
    recover(store, queues="kept")
    (note,) = store.directory.lane_directory(3).quarantine.glob("corrupt-*.json")
    note.write_bytes(b"")
    with pytest.raises(CorruptRecord, match=r"offset 32: the body's CRC"):
        rows(store)
    assert len(rows(store, ignoreCorruptRecords=True)) == 159


def test_damage_that_nobody_noted(store: HandMadeStore, caplog: pytest.LogCaptureFixture) -> None:
    """Since the last start: found by the record's place."""
    harm(store, [41, 77], PLACE)
    offsets = {store.lane(3).records[number].queue_offset for number in (41, 77)}
    with pytest.raises(
        CorruptRecord, match=r"topic orders, lane 3, offset 32: physical offset [0-9]+ belongs to another place"
    ):
        rows(store)
    assert rows(store, ignoreCorruptRecords=True) == [row for row in store.rows("orders") if row[1] not in offsets]
    assert "2 corrupt records" in caplog.text


def _planned_before_dispatch(store: HandMadeStore) -> Callable[[], Rows]:
    """A read whose rows from 60 on had no entry when it was planned, and have one when it runs."""
    lane = store.lane(3)
    lane.dispatched = 75
    lane.publish()
    source = CommitLogDataSource(
        {"path": place_of(store.path), "subscribe": "orders", "columns": "partition,offset,value"}
    )
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    batches = (batch for task in tasks for batch in reader.read(task))
    return lambda: [(r["partition"], r["offset"], r["value"]) for batch in batches for r in batch.to_pylist()]


def test_a_wrong_entry_of_a_row_that_the_log_leads_to(store: HandMadeStore) -> None:
    """Planned without it, the row does not depend on it."""
    read = _planned_before_dispatch(store)
    queue = ConsumeQueue(store.directory.lane_directory(3).queue_path("orders"), 20 * 1000)
    entry = queue.entries(90, 1)
    queue.place(np.array([90]), entry["physical_offset"] + 8, entry["size"], entry["tags_code"])
    queue.close()
    assert read() == store.rows("orders")


def test_what_the_index_led_to_is_said_where_the_log_leads_to_nothing(store: HandMadeStore) -> None:
    """The last row is another topic's now. The error keeps the place to which the index has led."""
    record = [record for record in store.lane(3).records if record.topic == "orders"][-1]
    read = _planned_before_dispatch(store)
    harm(store, [store.lane(3).records.index(record)], 91 + len(record.body))
    with pytest.raises(CorruptRecord) as raised:
        read()
    assert f"nothing leads to the rows from offset {record.queue_offset} on" in str(raised.value)
    assert f"at offset {record.physical_offset}: topic orders, lane 3, offset {record.queue_offset}: " in str(
        raised.value
    )


@pytest.mark.parametrize(
    ("number", "dispatched", "started"), [(0, 200, False), (-1, 200, False), (2, 0, False), (2, 200, True)]
)
def test_a_lost_segment(
    store: HandMadeStore, number: int, dispatched: int, started: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention has recorded nothing of it: so it is damage, and no loss that may be accepted."""
    if dispatched < 200:
        _make_killed(store, store.lane(3).records[dispatched].physical_offset)
    number %= 1 + store.lane(3).end // 4096
    store.directory.lane_directory(3).segment_path(number << 12).unlink()
    if started:
        recover(store, queues="kept")
    missing = [r for r in store.lane(3).records if r.physical_offset // 4096 == number and r.topic == "orders"]
    pattern = rf"offset {missing[0].queue_offset} and {len(missing) - 1} more: .*{number << 12:020d}: missing"
    for options in ({}, {"failOnDataLoss": False}):
        with pytest.raises(DamagedFile, match=pattern):
            rows(store, **options)
    offsets = {record.queue_offset for record in missing}
    assert rows(store, ignoreCorruptRecords=True) == [row for row in store.rows("orders") if row[1] not in offsets]
    assert f"{len(missing)} corrupt records" in caplog.text


def test_rows_that_retention_takes_between_plan_and_task(
    store: HandMadeStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Without failOnDataLoss the later segments are still read, and missing rows are counted."""
    source = CommitLogDataSource(
        {"path": place_of(store.path), "subscribe": "orders", "columns": "offset", "failondataloss": "false"}
    )
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    store.lane(3).forget_before(2)
    kept = [r.queue_offset for r in store.lane(3).records if r.physical_offset >= 2 << 12 and r.topic == "orders"]
    found = [offset for task in tasks for batch in reader.read(task) for offset in batch.column(0).to_pylist()]
    assert found == kept
    assert f"{kept[0]} messages of the offsets [0, 160) were deleted by retention" in caplog.text
    (task,) = tasks
    assert isinstance(task, Task | RemoteTask)
    task.plan = replace(task.plan, options=replace(task.plan.options, fail_on_data_loss=True))
    expected = f"topic orders, lane 3: offset 0 was to be read and the first one kept is {kept[0]}; {kept[0]} messages"
    with pytest.raises(DataLoss, match=f"^{expected} were deleted .* Option failOnDataLoss=false goes on"):
        list(reader.read(task))


def _make_killed(store: HandMadeStore, dispatched: int) -> None:
    """As after a kill, without its pool: the queues are known to reach up to a log offset."""
    positions = Positions(1, store.lane(3).end, dispatched, 0, 0, False)
    PositionsFile(store.directory.lane_directory(3), "", DISK).store(positions)


@by_url_nightly
@pytest.mark.parametrize("dispatched", [0, 100, 200])
@pytest.mark.parametrize("numbers", [range(121, 128), range(121, 200), range(3)], ids=str)
def test_a_hole_in_a_store_that_was_killed(
    store: HandMadeStore, dispatched: int, numbers: range, caplog: pytest.LogCaptureFixture
) -> None:
    """Or in a copy of one that runs: the rows before it and behind it are there, indexed or not."""
    lane = store.lane(3)
    where = lane.records[dispatched].physical_offset if dispatched < 200 else lane.end
    _make_killed(store, where)
    for record in (lane.records[number] for number in numbers):
        start = segment_start(record.physical_offset, store.segment_bytes)
        with store.directory.lane_directory(3).segment_path(start).open("r+b") as file:
            file.seek(record.physical_offset - start)
            file.write(bytes(record.total_size))
    gone = {lane.records[number].queue_offset for number in numbers if number % 5}
    good = [row for row in store.rows("orders") if row[1] not in gone]
    first = min(gone)
    bounds = {"endingOffsets": f'{{"orders": {{"3": {first}}}}}'}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReadingWarning)  # of what no queue knows
        assert rows(store, ignoreCorruptRecords=True) == good
        assert (
            f"{len(gone)} corrupt records" in caplog.text
        ) or numbers.stop == 200  # nobody may know of the last ones
        if first:
            assert rows(store, **bounds) == good[:first]
        if dispatched == 200 or numbers.stop < 200:
            with pytest.raises(CorruptRecord, match=f"offset {first}.*ignoreCorruptRecords=true"):
                rows(store)


@by_url_nightly
def test_in_a_session(spark: SparkSession, store: HandMadeStore) -> None:
    harm(store, [41], BODY)
    recover(store, queues="kept")
    reader = spark.read.format("commitlog").option("subscribe", "orders")
    with pytest.raises(Exception, match=r"CorruptRecord: .*topic orders, lane 3, offset 32"):
        reader.load(place_of(store.path)).collect()
    assert reader.option("ignoreCorruptRecords", True).load(place_of(store.path)).count() == 159


@given(
    ranges=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=6),
    records=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 10)), max_size=10),
)
def test_touching(ranges: list[tuple[int, int]], records: list[tuple[int, int]]) -> None:
    """Against the plain definition, also where noted ranges overlap."""
    starts = np.array(sorted(start for start, _ in ranges), np.int64)
    ends = np.array([start + length for start, length in sorted(ranges)], np.int64)
    damage = Damage(starts, np.maximum.accumulate(ends))
    where, size = (np.array([record[index] for record in records], np.int64) for index in (0, 1))
    expected = [any(s < at + n and at < s + m for s, m in ranges) for at, n in records]
    assert damage.touches(where, size).tolist() == expected
