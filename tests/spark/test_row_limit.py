"""Option `maxRowsPerTrigger`: how the rows of a batch are shared out among queues.

Offsets are asked as Spark asks for them, without a session.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from commitlog.spark.source import CommitLogDataSource, StreamReader
from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import append_rows, declare
from tests.served import place_of

pytestmark = pytest.mark.usefixtures("look_each_time", "both_ways")


def typed_store(path: Path, *messages: list[int], segment_bytes: int = 1 << 16) -> HandMadeStore:
    """A lane for each list, which has the number of rows of each of its messages."""
    store = HandMadeStore(path, segment_bytes)
    schema = declare(store, "orders", "id INT")
    for lane, sizes in enumerate(messages):
        for size in sizes:
            append_rows(store.lane(lane), schema, [{"id": number} for number in range(size)])
    store.publish()
    return store


def reader(store: HandMadeStore, most: int, **options: object) -> StreamReader:
    given: dict[str, object] = {
        "path": place_of(store.path),
        "subscribe": "orders",
        "values": "columns",
        "columns": "_partition,_offset",
    }
    given |= {"startingOffsets": "earliest", "maxRowsPerTrigger": most} | options
    source = CommitLogDataSource({name.lower(): str(value) for name, value in given.items()})
    return source.streamReader(source.schema())


def rows(of: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> Counter[tuple[int, int]]:
    """How many rows of each message a batch has: by lane and offset."""
    found: Counter[tuple[int, int]] = Counter()
    for task in of.partitions(start, end):
        for batch in of.read(task):
            found.update((row["_partition"], row["_offset"]) for row in batch.to_pylist())
    return found


def batches(of: StreamReader) -> list[Counter[tuple[int, int]]]:
    """All batches until there is nothing new."""
    found, start = [], of.initialOffset()
    while (end := of.latestOffset(start, ReadAllAvailable())) != start:
        found.append(rows(of, start, end))
        start = end
    of.stop()
    return found


def test_a_large_message_does_not_wait_for_small_ones(tmp_path: Path) -> None:
    """Each queue is the first one in its turn, and gives a message then, also one of too many rows.

    New small messages come before each batch, so a queue that is passed over would wait for ever.
    """
    store = typed_store(tmp_path / "store", [1], [50, 2], [1])
    schema = declare(store, "orders", "id INT")
    of = reader(store, most=5)
    start, found = of.initialOffset(), []
    for _ in range(6):
        for lane in (0, 2):
            for size in (2, 2, 2):
                append_rows(store.lane(lane), schema, [{"id": number} for number in range(size)])
        store.publish()
        end = of.latestOffset(start, ReadAllAvailable())
        found.append(rows(of, start, end))
        start = end
    of.stop()
    assert Counter({(1, 0): 50}) in found
    assert any((1, 1) in batch for batch in found)
    assert all(sum(batch.values()) <= 5 or len(batch) == 1 for batch in found)


def test_all_rows_come_in_batches_of_the_limit(tmp_path: Path) -> None:
    """Shares follow the queues' messages, and what one queue leaves over goes to the others."""
    sizes = [10] * 9, [10] * 9, [10] * 3, [7]
    found = batches(reader(typed_store(tmp_path / "store", *sizes), most=80))
    assert sum(found, Counter()) == Counter(
        {(lane, offset): rows for lane, of_lane in enumerate(sizes) for offset, rows in enumerate(of_lane)}
    )
    assert Counter(lane for lane, _ in found[0]) == {0: 4, 1: 3, 2: 1}
    assert all(70 < sum(batch.values()) <= 80 for batch in found[:-1])


def test_messages_that_are_gone_have_no_rows(tmp_path: Path) -> None:
    """failOnDataLoss=false: a batch has as many rows as the limit allows, behind the gap too."""
    store = typed_store(tmp_path / "store", [5] * 40, segment_bytes=1 << 12)
    of = reader(store, most=20, failOnDataLoss="false", startingOffsets='{"orders": {"0": 0}}')
    start = of.initialOffset()
    of.stop()
    store.lane(0).forget_before(2)
    end = of.latestOffset(start, ReadAllAvailable())
    assert sum(rows(of, start, end).values()) == 20
    of.stop()


def test_messages_that_are_left_out_have_no_rows(tmp_path: Path) -> None:
    """ignoreCorruptRecords: damaged messages and values without rows take nothing of the limit."""
    store = typed_store(tmp_path / "store", [5] * 2)
    lane, schema = store.lane(0), declare(store, "orders", "id INT")
    for number in range(28):
        if number % 2:
            lane.append("orders", b"no rows")
        else:
            append_rows(lane, schema, [{"id": 0}] * 5)
    store.publish()
    with store.directory.lane_directory(0).segment_path(0).open("r+b") as file:
        file.write(b"\xff" * 8)  # the first message is no record any more
    found = batches(reader(store, most=20, ignoreCorruptRecords="true"))
    assert [sum(batch.values()) for batch in found if batch] == [20, 20, 20, 15]
