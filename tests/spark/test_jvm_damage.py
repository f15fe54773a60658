"""Damage and loss under the JVM: the same errors as the Python source's, and never other rows."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.errors import PySparkException

from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.errors import CommitLogError, ReadingWarning
from commitlog.spark.source import CommitLogDataSource
from tests.builders.hand_made import HandMadeStore
from tests.builders.random_damage import Damage, damage, damages
from tests.nightly import with_nightly
from tests.spark.jvm_frames import (
    BY_JVM,
    TaskReader,
    error_line,
    failure,
    harm,
    load,
    plan_of,
    segment_of,
    store_of_all_kinds,
    store_of_one_lane,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW = settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller case would take hundreds of queries
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    """No test changes it."""
    return store_of_all_kinds(tmp_path_factory.mktemp("kinds") / "store")


@pytest.fixture
def own_store(tmp_path: Path) -> HandMadeStore:
    return store_of_one_lane(tmp_path / "store")


def note_damage(store: HandMadeStore) -> None:
    """What recovery leaves behind for a record of which a byte of the body was harmed."""
    harm(store, 41, 90)
    quarantine = store.directory.lane_directory(3).quarantine
    quarantine.mkdir()
    (quarantine / f"corrupt-{store.lane(3).records[41].physical_offset:020}.json").write_text("{}")


def put_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


HARMS: dict[str, Callable[[HandMadeStore], object]] = {
    "size": lambda store: harm(store, 41, 2),
    "magic": lambda store: harm(store, 1, 4),
    "lane": lambda store: harm(store, 199, 15),
    "queue offset": lambda store: harm(store, 42, 27),
    "place": lambda store: harm(store, 42, 35),
    "noted": note_damage,
    "cut short": lambda store: os.truncate(segment_of(store, 100), 1000),
    "segment missing": lambda store: segment_of(store, 100).unlink(),
    "a directory in place": lambda store: put_directory(segment_of(store, 100)),
}


DAILY = ["cut short"]


@pytest.mark.parametrize("what", with_nightly(DAILY, [what for what in HARMS if what not in DAILY]))
def test_damage_is_an_error_in_the_python_source_s_words(
    spark: SparkSession, own_store: HandMadeStore, what: str
) -> None:
    HARMS[what](own_store)
    said = failure(load(spark, own_store.path).collect)
    assert said == failure(load(spark, own_store.path, reader="python").collect)
    assert re.match("(CorruptRecord|DamagedFile|DataLoss|UnknownTopic): ", said)


@pytest.mark.parametrize("what", with_nightly(["noted"], [what for what in HARMS if what != "noted"]))
def test_damage_that_is_left_out(spark: SparkSession, own_store: HandMadeStore, what: str) -> None:
    """The JVM reads up to the damage with ignoreCorruptRecords, and Python leaves it out."""
    HARMS[what](own_store)
    options = {"ignoreCorruptRecords": "true", "failOnDataLoss": "false"}
    frame, by_python = (load(spark, own_store.path, reader=reader, **options) for reader in ("any", "python"))
    assert BY_JVM in plan_of(frame)
    rows = by_python.collect()
    time = own_store.lane(3).records[40].store_timestamp
    middle = [row for row in rows if row.partition == 3 and 20 <= row.offset <= 150]
    late = [row for row in rows if round(row.timestamp.timestamp() * 1000) >= time]
    for condition, expected in (
        ("true", rows),
        ("partition = 3 AND offset BETWEEN 20 AND 150", middle),
        (f"timestamp >= timestamp_millis({time})", late),
    ):
        assert frame.where(condition).collect() == expected != []
        assert frame.where(condition).count() == len(expected)


@pytest.mark.nightly
def test_each_query_leaves_out_the_same_rows(spark: SparkSession, own_store: HandMadeStore) -> None:
    """A value that does not unpack is damage also for a query that does not want the value."""
    own_store.lane(3).append("orders", b"not packed", sys_flag=1)
    own_store.lane(3).append("orders", b"the last")
    own_store.lane(3).dispatch()
    own_store.lane(3).publish()
    frame = load(spark, own_store.path, ignoreCorruptRecords="true")
    assert BY_JVM in plan_of(frame)
    assert frame.count() == len(frame.select("offset").collect()) == len(frame.collect()) == 161


@pytest.mark.nightly
def test_the_error_of_a_task_has_few_lines(spark: SparkSession, own_store: HandMadeStore) -> None:
    harm(own_store, 41, 2)
    with pytest.raises(PySparkException) as raised:
        load(spark, own_store.path).collect()
    assert len(str(raised.value).strip().splitlines()) <= 4, str(raised.value)


@pytest.mark.nightly
@pytest.mark.parametrize("what", with_nightly(["entry"], ["record"]))
def test_a_size_that_fits_into_no_memory(spark: SparkSession, tmp_path: Path, what: str) -> None:
    """No memory is taken for a record that seems to have a gigabyte: that would end the JVM."""
    made = HandMadeStore(tmp_path / "store", 1 << 30)
    lane = made.lane(0)
    for row in range(9):
        lane.append("orders", b"body of %d" % row)
    where = lane.records[4].physical_offset
    if what == "entry":
        lane.dispatch()
        queue = ConsumeQueue(made.directory.lane_directory(0).queue_path("orders"), 20 * 1000)
        queue.place([4], [where], [(1 << 30) - where], [0])
        queue.close()
    else:
        with made.directory.lane_directory(0).segment_path(0).open("r+b") as segment:
            segment.seek(where)
            segment.write(((1 << 30) - where).to_bytes(4))
    lane.publish(flushed=1 << 30 if what == "record" else None)
    assert outcome_of(load(spark, made.path).collect) == expected_of(made.path)


@pytest.mark.nightly
def test_a_record_of_another_topic_with_a_wrong_name(spark: SparkSession, tmp_path: Path) -> None:
    """Python takes it for damage, and the next record too, whose CRC is wrong."""
    store = HandMadeStore(tmp_path / "store", 1 << 12)
    lane = store.lane(0)
    for row in range(9):
        lane.append("orders" if row % 3 else "other", b"body of %d" % row)
    lane.publish()
    segment = store.directory.lane_directory(0).segment_path(0)
    data = (
        segment.read_bytes().replace(b"body of 3\x05other", b"body of 3\x05o/her").replace(b"body of 4", b"body 0f 4")
    )
    segment.write_bytes(data)
    said = outcome_of(load(spark, store.path).collect)
    assert said == expected_of(store.path)
    assert "is not a name" in said


def _taken_by_retention(store: HandMadeStore) -> None:
    store.lane(3).publish(first=2 * store.segment_bytes)
    for number in (0, 1):
        store.directory.lane_directory(3).segment_path(number * store.segment_bytes).unlink()


def _made_again(store: HandMadeStore) -> None:
    shutil.rmtree(store.path)
    HandMadeStore(store.path, store.segment_bytes).lane(3).append("orders", b"another")


@pytest.mark.parametrize(
    ("change", "message"),
    with_nightly(
        [
            (
                _taken_by_retention,
                r"DataLoss: topic orders, lane 3: offset 0 was to be read and the first one kept is \d+",
            )
        ],
        [
            (_made_again, "DataLoss: .* was deleted and made again since this read was planned; load it anew"),
            (lambda store: shutil.rmtree(store.path), "StoreNotFound: this executor does not see"),
            (lambda store: store.directory.lane_directory(3).quarantine.touch(), "DamagedFile: .*: Not a directory"),
        ],
    ),
    ids=["retention", "made again", "removed", "notes can't be listed"],
)
def test_what_happens_between_the_plan_and_its_tasks(
    spark: SparkSession, own_store: HandMadeStore, change: Callable[[HandMadeStore], None], message: str
) -> None:
    frame = load(spark, own_store.path)
    assert frame.count() == 160
    change(own_store)
    assert re.match(message, failure(frame.collect))


def test_a_loss_that_is_accepted(spark: SparkSession, own_store: HandMadeStore) -> None:
    """Rows that retention took are left out with failOnDataLoss=false, and all others are read."""
    frame = load(spark, own_store.path, failOnDataLoss="false")
    before = frame.collect()
    _taken_by_retention(own_store)
    kept = frame.collect()
    assert 0 < len(kept) < len(before)
    assert kept == before[-len(kept) :]


def test_rows_that_python_reads_of_a_task_are_counted(spark: SparkSession, own_store: HandMadeStore) -> None:
    """A count wants no column at all, and still has each row."""
    frame = load(spark, own_store.path, failOnDataLoss="false")
    assert frame.count() == 160
    _taken_by_retention(own_store)
    assert frame.count() == len(frame.select("offset").collect()) > 0


@pytest.mark.parametrize("what", with_nightly(["cut short"], ["removed", "made again"]))
def test_what_happens_while_a_task_reads(spark: SparkSession, own_store: HandMadeStore, what: str) -> None:
    """A file that is cut short, and a store that is replaced, are errors; the JVM goes on."""
    reader = TaskReader(spark, own_store.path)
    first = reader.values()  # of the first segment
    assert 0 < len(first) < 40
    if what == "cut short":
        os.truncate(segment_of(own_store, 0), 100)
        os.truncate(segment_of(own_store, 100), 100)
    elif what == "made again":
        _made_again(own_store)
    else:
        shutil.rmtree(own_store.path)
    rest: list[bytes] = []
    with pytest.raises(Exception, match=r"commitlog\.errors\.(CorruptRecord|DataLoss|StoreNotFound)") as raised:
        reader.read_to(rest)
    assert ("made again" in str(raised.value)) == (what == "made again")
    assert len(first) + len(rest) < 160
    assert spark.range(3).count() == 3


# ---- random damage -------------------------------------------------------------------------------


def outcome_of(read: Callable[[], Any]) -> list[tuple[Any, ...]] | str:
    """The rows, or the error's name and text."""
    try:
        return [(row["partition"], row["offset"], bytes(row["value"]), row["key"]) for row in read()]
    except CommitLogError as error:
        return f"{type(error).__name__}: {error}"
    except PySparkException as error:
        return error_line(error)


def read_in_this_process(path: Path, **options: str) -> list[dict[str, Any]]:
    source = CommitLogDataSource({"path": str(path), "subscribe": "orders"} | options)
    reader = source.reader(source.schema())
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def expected_of(path: Path, **options: str) -> list[tuple[Any, ...]] | str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReadingWarning)
        return outcome_of(lambda: read_in_this_process(path, **options))


def check_damaged(
    spark: SparkSession, undamaged: HandMadeStore, damages: list[Damage], which: str, **options: str
) -> None:
    with TemporaryDirectory(dir=undamaged.path.parent) as place:
        path = Path(place) / "store"
        shutil.copytree(undamaged.path, path)
        damage(path / "lanes" / "0", damages, which)
        assert outcome_of(load(spark, path, **options).collect) == expected_of(path, **options)


@pytest.mark.parametrize("which", with_nightly(["commitlog"], ["consumequeue"]))
@settings(FEW)
@given(damages=damages)
def test_damage_never_gives_other_rows(
    spark: SparkSession, store: HandMadeStore, which: str, damages: list[Damage]
) -> None:
    """Whatever happens to the files, the rows or the error are the Python source's."""
    check_damaged(spark, store, damages, which)
