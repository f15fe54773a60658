"""`Reader.arrow_batches`: the rows of `commitlog.read` from the reader's place on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import commitlog
from commitlog.client.reader import Reader
from commitlog.errors import CorruptRecord, IllegalArgument, OptionError
from tests.builders.hand_made import HandMadeStore, small_store
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("look_each_time")

ROWS = pa.schema([("number", pa.int64()), ("text", pa.string())])


@pytest.fixture
def made(tmp_path: Path) -> HandMadeStore:
    """100 messages of `orders` and of `other` in each of lanes 0 and 1."""
    return small_store(tmp_path / "made")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[commitlog.Store]:
    with commitlog.Store.open(tmp_path / "store") as opened:
        opened.create_topic("rows", ROWS)
        yield opened


def send(store: commitlog.Store, first: int, messages: int, rows: int) -> None:
    with store.producer() as producer:
        for message in range(messages):
            numbers = range(first + message * rows, first + (message + 1) * rows)
            batch = pa.table({"number": numbers, "text": [str(number) for number in numbers]}, schema=ROWS)
            producer.send_rows("rows", batch.to_batches()[0])
        producer.flush()


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch.column("number").to_pylist()]


def test_they_are_the_rows_of_read(made: HandMadeStore) -> None:
    with Reader(made.path, "orders") as reader:
        batches = list(reader.arrow_batches())
        assert reader.position() == {"orders": {0: 100, 1: 100}}
        assert reader.statistics().messages == 200
        assert list(reader) == []
    wanted = commitlog.read(made.path, "orders").to_arrow()
    found = pa.Table.from_batches(batches)
    assert found.schema == wanted.schema
    assert found.sort_by([("partition", "ascending"), ("offset", "ascending")]) == wanted.sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )


def test_messages_and_columns_take_turns(made: HandMadeStore) -> None:
    """Each goes on where the other one has stopped."""
    with Reader(made.path, "orders") as reader:
        first = [(message.partition, message.offset) for message in islice(reader, 30)]
        batches = reader.arrow_batches(["offset"])
        rows = next(batches)
        assert rows.schema.names == ["offset"]
        batches.close()  # type: ignore[attr-defined]
        rest = [(message.partition, message.offset) for message in reader]
    assert len(first) + rows.num_rows + len(rest) == 200
    assert len({*first, *rest}) == len(first) + len(rest)


def test_a_name_goes_on_behind_the_last_commit(store: commitlog.Store) -> None:
    send(store, 0, 3, 100)
    with Reader(store.path, "rows", name="billing") as reader:
        found = []
        for batch in reader.arrow_batches():
            found.append(batch)
            reader.commit()
        assert reader.committed() == {"rows": {0: 3}}
    assert numbers(found) == [*range(300)]
    send(store, 300, 2, 100)
    with Reader(store.path, "rows", name="billing") as reader:
        next(reader.arrow_batches(["number"]))
        assert sum(reader.committed()["rows"].values()) == 3
    with Reader(store.path, "rows", name="billing") as reader:
        assert numbers(list(reader.arrow_batches(["number"]))) == [*range(300, 500)]


def test_an_automatic_commit_leaves_out_the_batch_that_is_worked_on(store: commitlog.Store) -> None:
    send(store, 0, 3, 100)
    with Reader(store.path, "rows", name="billing", auto_commit_seconds=0) as reader:
        for _ in reader.arrow_batches():
            break
    with Reader(store.path, "rows", name="billing") as reader:
        assert numbers(list(reader.arrow_batches()))[-300:] == [*range(300)]


def test_a_follower_waits_for_more_and_gets_the_columns_of_a_later_schema(store: commitlog.Store) -> None:
    send(store, 0, 1, 10)
    with Reader(store.path, "rows", follow=True) as reader:
        batches = reader.arrow_batches()
        assert numbers([next(batches)]) == [*range(10)]
        store.create_topic("rows", ROWS.append(pa.field("more", pa.float64())), evolve=True)
        send(store, 10, 1, 10)
        second = next(batches)
        assert numbers([second]) == [*range(10, 20)]
        assert second.schema.names == ["number", "text", "more"]
        reader.close()
        assert list(batches) == []


def test_damage_comes_after_the_good_rows(made: HandMadeStore) -> None:
    at = made.lane(0).records[150].physical_offset + 4  # its magic number
    segment = made.directory.lane_directory(0).segment_path(at // made.segment_bytes * made.segment_bytes)
    whole = segment.read_bytes()
    place = at % made.segment_bytes
    segment.write_bytes(whole[:place] + b"?" + whole[place + 1 :])
    with Reader(made.path, made.lane(0).records[150].topic) as reader:
        batches, found = reader.arrow_batches(["partition", "offset"]), 0

        def damaged() -> bool:
            nonlocal found
            try:
                found += next(batches).num_rows
            except CorruptRecord:
                return True
            return False

        wait_until(damaged, "the damage")
        segment.write_bytes(whole)
        rest = sum(batch.num_rows for batch in reader.arrow_batches())
        assert found >= 100
        assert found + rest == 200


def test_damage_at_the_end_that_is_left_out_is_the_end(made: HandMadeStore) -> None:
    record = made.lane(0).records[-1]
    segment = made.directory.lane_directory(0).segment_path(
        record.physical_offset // made.segment_bytes * made.segment_bytes
    )
    with segment.open("r+b") as file:
        file.seek(record.physical_offset % made.segment_bytes + 4)
        file.write(bytes(4))
    with Reader(made.path, record.topic, ignore_corrupt=True, start="last 1", lanes={0}) as reader:
        assert sum(batch.num_rows for batch in reader.arrow_batches(["offset"])) == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topic": None}, OptionError),
        ({"topic": ["orders", "other"]}, OptionError),
        ({"isolation": "accepted"}, OptionError),
    ],
    ids=str,
)
def test_what_has_no_columns_is_an_error(made: HandMadeStore, options: dict[str, Any], error: type[Exception]) -> None:
    with Reader(made.path, **{"topic": "orders"} | options) as reader, pytest.raises(error, match="arrow_batches"):
        reader.arrow_batches()


def test_a_column_that_is_not_there_is_an_error(made: HandMadeStore) -> None:
    with Reader(made.path, "orders") as reader, pytest.raises(IllegalArgument, match="offset"):
        next(reader.arrow_batches(["offsett"]))
