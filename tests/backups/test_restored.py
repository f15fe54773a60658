"""A store that goes on from a backup: whoever has read more of the old one hears of it."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import BackupRefused, DataLoss, StoreSuperseded
from tests.nightly import by_url_nightly, with_nightly
from tests.served import is_by_url, place_of
from tests.spark.conftest import no_segments_mapped
from tests.spark.driven_stream import Offset, end_of, rows, stream, values
from tests.spark.jvm_frames import failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["no_segments_mapped"]
pytestmark = [by_url_nightly, pytest.mark.usefixtures("both_ways")]

SMALL = {"store": {"segment_bytes": 65536, "max_lanes": 4}}


class Restored:
    """A store, its backups, and the restores of them."""

    def __init__(self, path: Path) -> None:
        self.base, self.store = path, path / "store"
        self._names = (str(number) for number in itertools.count())

    def send(self, *values: bytes) -> None:
        """Starts the store, sends, and stops it."""
        with commitlog.Store.open(self.store, SMALL) as store, store.producer() as producer:
            for value in values:
                producer.send("orders", value)
            producer.flush()

    def backup(self) -> Path:
        made = self.base / f"backup-{next(self._names)}"
        commitlog.backup(self.store, made)
        return made

    def restore(self, backup: Path) -> None:
        """As docs/backup.md says."""
        self.store.rename(self.base / f"broken-{next(self._names)}")
        commitlog.backup(backup, self.store)

    def epochs(self) -> list[int]:
        return [one["epoch"] for one in StoreDirectory(self.store).load().epochs]


@pytest.fixture
def restored(tmp_path: Path) -> Restored:
    return Restored(tmp_path)


def read(restored: Restored) -> tuple[Offset, list[bytes]]:
    """Where a query that has read everything is, and what it has read."""
    with stream(restored.store) as reader:
        begin = reader.initialOffset()
        end = end_of(reader, begin)
        return end, rows(reader, begin, end)


def test_the_first_start_of_a_backup_begins_an_epoch(restored: Restored) -> None:
    """It begins where the lanes of the backup end. Other starts begin none."""
    restored.send(b"one")
    restored.send(b"two")
    assert restored.epochs() == []
    restored.restore(restored.backup())
    assert restored.epochs() == []
    restored.send(b"three")
    (first,) = restored.epochs()
    ends = StoreDirectory(restored.store).load().epochs[-1]["ends"]
    log = (restored.store / "lanes/0/commitlog/00000000000000000000").read_bytes()
    assert list(ends) == ["0"]
    assert log.index(b"two") < ends["0"] < log.index(b"three")
    restored.send(b"four")
    assert restored.epochs() == [first]


def test_a_scan_of_more_than_the_backup_hears_of_it(restored: Restored) -> None:
    """Although the restored store is longer than the scan by now."""
    restored.send(b"one", b"two")
    backup = restored.backup()
    restored.send(b"lost")
    scan = commitlog.read(place_of(restored.store), "orders")
    assert scan.count() == 3
    restored.restore(backup)
    restored.send(b"three", b"four")
    for ending in (scan.count, scan.to_arrow, lambda: list(scan.messages())):
        with pytest.raises(DataLoss, match=r"restored copy|the messages 2 to 2 of topic orders, lane 0 are lost"):
            ending()


def test_a_query_that_has_read_more_than_the_backup_hears_of_it(restored: Restored) -> None:
    """Although the restored store is longer than the checkpoint by now."""
    restored.send(b"one", b"two")
    backup = restored.backup()
    restored.send(b"lost", b"lost too")
    end, _ = read(restored)
    restored.restore(backup)
    restored.send(b"three", b"four", b"five")
    with stream(restored.store) as reader:
        said = "lane 0: .* a backup restored, .* has read offsets 2 to 3, .* failOnDataLoss=false"
        with pytest.raises(DataLoss, match=said):
            end_of(reader, end)
    with stream(restored.store, fails=False) as reader:
        assert rows(reader, end, end_of(reader, end)) == [b"three", b"four", b"five"]


@pytest.mark.nightly
def test_a_running_query_hears_of_it(restored: Restored) -> None:
    """The directory is another one from one batch to the next."""
    restored.send(b"one", b"two")
    backup = restored.backup()
    restored.send(b"lost")
    with stream(restored.store) as reader:
        begin = reader.initialOffset()
        end = end_of(reader, begin)
        assert rows(reader, begin, end) == [b"one", b"two", b"lost"]
        restored.restore(backup)
        restored.send(b"three", b"four")
        with pytest.raises(DataLoss, match="a backup restored"):
            end_of(reader, end)


def test_a_batch_that_was_planned_before_gives_no_others_in_place_of_its_messages(restored: Restored) -> None:
    """Where the backup has all that it was to read, it reads that."""
    restored.send(b"one", b"two")
    backup = restored.backup()
    with stream(restored.store) as reader:
        begin = reader.initialOffset()
        shared = reader.partitions(begin, end_of(reader, begin))
        restored.send(b"lost")
        planned = reader.partitions(begin, end_of(reader, begin))
        restored.restore(backup)
        restored.send(b"three", b"four")
        assert values(reader, shared) == [b"one", b"two"]
        with pytest.raises(DataLoss, match="the messages 2 to 2 of topic orders, lane 0 are lost, and new ones get"):
            values(reader, planned)


@pytest.mark.parametrize("reads", with_nightly(["any"], ["python"]))
def test_a_frame_of_spark_gives_no_others_in_place_of_its_messages(
    restored: Restored, spark: SparkSession, reads: str
) -> None:
    """Nor does it leave them out, where only some of them are wanted."""
    restored.send(b"one", b"two")
    backup = restored.backup()
    restored.send(b"lost")
    options = {"subscribe": "orders", "reader": reads}
    frame = spark.read.format("commitlog").options(**options).load(place_of(restored.store))
    assert frame.count() == 3
    restored.restore(backup)
    restored.send(b"three")
    for query in (frame, frame.where("timestamp > '2020-01-01'"), frame.where("offset = 2")):
        assert failure(query.collect).startswith("DataLoss: ")
    if reads == "any" and not is_by_url():  # else no filter is pushed down
        assert frame.where("offset < 2").count() == 2
    assert spark.read.format("commitlog").options(**options).load(place_of(restored.store)).count() == 3


def test_a_query_that_has_read_no_more_than_the_backup_goes_on(restored: Restored) -> None:
    """As when a store moves to another machine."""
    restored.send(b"one", b"two")
    end, _ = read(restored)
    restored.restore(restored.backup())
    restored.send(b"three")
    with stream(restored.store) as reader:
        assert rows(reader, end, end_of(reader, end)) == [b"three"]


@pytest.mark.parametrize(
    "chosen", with_nightly([{"topic": "orders,others"}], [{"lanes": {"orders": [0], "others": [0]}}])
)
def test_a_query_may_get_another_topic_at_the_same_time(restored: Restored, chosen: dict[str, Any]) -> None:
    restored.send(b"one")
    end, _ = read(restored)
    restored.restore(restored.backup())
    restored.send(b"two")
    with commitlog.Store.open(restored.store) as store, store.producer() as producer:
        producer.send("others", b"of another topic")
        producer.flush()
    with stream(restored.store, **chosen) as reader:
        assert rows(reader, end, end_of(reader, end)) == [b"two", b"of another topic"]


@pytest.mark.nightly
def test_what_was_lost_in_a_lane_is_no_error_of_a_query_that_leaves_it_out(restored: Restored) -> None:
    """Any more: it had read the lane before."""
    restored.send(b"one")
    with commitlog.Store.open(restored.store) as store, store.producer() as first, store.producer() as second:
        second.send("orders", b"of lane 1")
        second.flush()
        backup = restored.backup()
        first.send("orders", b"lost")
        first.flush()
    end, _ = read(restored)
    restored.restore(backup)
    restored.send(b"two")
    with stream(restored.store, lanes={"orders": [0]}) as reader, pytest.raises(DataLoss, match="offsets 1 to 1"):
        end_of(reader, end)
    with stream(restored.store, lanes={"orders": [1]}) as reader:
        assert end_of(reader, end) == end


def test_what_was_read_of_another_restore_is_refused(restored: Restored) -> None:
    """Two restores have parted where the older backup ended, which the newer one does not know."""
    restored.send(b"one")
    older = restored.backup()
    restored.send(b"two", b"three")
    newer = restored.backup()
    restored.restore(older)
    restored.send(b"other", b"others", b"more")
    end, _ = read(restored)
    restored.restore(newer)
    restored.send(b"four", b"five")
    for fails in (True, False):
        with stream(restored.store, fails=fails) as reader, pytest.raises(DataLoss, match="was never in epoch"):
            end_of(reader, end)


def test_a_backup_that_is_newer_than_the_restored_store_is_kept(restored: Restored) -> None:
    restored.send(b"0")
    first = restored.backup()
    restored.send(b"1")
    second = restored.backup()
    restored.restore(first)
    with pytest.raises(BackupRefused, match=r"is newer than .*store, which was restored from an older copy; keep this"):
        commitlog.backup(restored.store, second)
    assert [message.value for message in commitlog.Reader(second, topic="orders")] == [b"0", b"1"]


@pytest.mark.nightly
def test_the_same_backup_restored_twice(restored: Restored) -> None:
    """Both restores have the messages of the backup, and each has others behind them."""
    restored.send(b"one")
    backup = restored.backup()
    restored.restore(backup)
    restored.send(b"two", b"three")
    end, _ = read(restored)
    restored.restore(backup)
    restored.send(b"four", b"five", b"six")
    with stream(restored.store) as reader, pytest.raises(DataLoss, match="was never in epoch"):
        end_of(reader, end)


@pytest.mark.nightly
def test_restores_of_a_store_whose_clock_was_years_ahead_once(restored: Restored) -> None:
    """Its epoch is later than now. Nevertheless two restores do not begin the same one.

    Which of both began later nobody can tell then.
    """
    restored.send(b"one")
    backup = restored.backup()
    directory = StoreDirectory(backup)
    ahead = 1 << 42
    directory.save(replace(directory.load(), epoch=ahead, epochs=[{"epoch": ahead, "ends": {"0": 0}}]))
    restored.restore(backup)
    restored.send(b"two", b"three")
    end, _ = read(restored)
    restored.restore(backup)
    restored.send(b"four", b"five", b"six")
    with stream(restored.store) as reader, pytest.raises((DataLoss, StoreSuperseded)):
        end_of(reader, end)


def test_named_readers_are_those_of_the_backup(restored: Restored) -> None:
    restored.send(b"one", b"two", b"three")

    def named() -> Generator[commitlog.Message, None, None]:
        with commitlog.Reader(restored.store, topic="orders", name="billing", start="earliest") as reader:
            for message in reader:
                yield message
                reader.commit(message)

    messages = named()
    assert next(messages).value == b"one"
    messages.send(None)
    messages.close()  # one is committed
    backup = restored.backup()
    restored.send(b"lost")
    assert [message.value for message in named()] == [b"two", b"three", b"lost"]
    restored.restore(backup)
    restored.send(b"four")
    assert [message.value for message in named()] == [b"two", b"three", b"four"]
