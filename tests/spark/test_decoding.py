"""Every column of every kind of record is what record.decode says of it.

No record of another place is given out.
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog.columns.read_plan import ReadPlan, Slice
from commitlog.errors import CorruptRecord, DataLoss, StoreNotFound
from commitlog.record.host import Host
from commitlog.spark.columns import ALL_COLUMNS, schema_of
from commitlog.spark.source import arrow_schema
from commitlog.spark.task_reading import Task, read_task
from tests.builders.hand_made import V4, V6, HandMadeStore
from tests.spark.model import expected_row, plain_row

LONG_TOPIC = "t" * 200


def read(store: HandMadeStore, piece: Slice, columns: tuple[str, ...] = tuple(ALL_COLUMNS)) -> list[dict[str, Any]]:
    task = Task(ReadPlan(str(store.path), store.id, store.segment_bytes, (piece,)))
    rows: list[dict[str, Any]] = []
    for batch in read_task(task, arrow_schema(schema_of(columns))):
        batch.validate(full=True)
        rows += batch.to_pylist()
    return [plain_row(row) for row in rows]


@pytest.mark.parametrize("topic", ["orders", LONG_TOPIC])
@pytest.mark.parametrize("dispatched", [True, False])
def test_all_columns_of_all_kinds_of_records(tmp_path: Path, topic: str, dispatched: bool) -> None:
    """Columns are right for all kinds of records, over several segments.

    V1 and V2, IPv4 and IPv6, with and without CRC, all kinds of properties, compressed bodies.
    """
    store, rng = HandMadeStore(tmp_path / "store", 1 << 15), random.Random(1)
    lane = store.lane(3)
    raws = [
        None,
        b"",
        b"KEYS\x01a",
        b"KEYS\x01a\x02",
        b"a\x01\x02\x01b\x02KEYS\x01k k\x02",
        b"x\x01y\x01z\x02TAGS\x01\xc3\xa9\x02",
    ]
    for row in range(700):
        kind = rng.randrange(8)
        lane.append(
            topic,
            zlib.compress(b"z" * row) if kind == 0 else rng.randbytes(rng.randrange(300)),
            key=f"key {row}" if rng.random() < 0.5 else None,
            tags="tag" if rng.random() < 0.3 else None,
            properties={"header": str(row), "__RMQ_": "mine"} if rng.random() < 0.4 else None,
            raw_properties=rng.choice(raws),
            born=rng.choice([V4, V6]) if row > 300 else V4,
            stored=rng.choice([V4, V6]) if row > 300 else V4,
            sys_flag=1 if kind == 0 and row > 350 else 0,
            crc=rng.random() < 0.7,
        )
        if row % 50 == 0:
            lane.append("other", b"between")
            lane.append(topic, b"prepared", sys_flag=4)
    lane.dispatch(None if dispatched else 100)
    lane.publish()
    wanted = [expected_row(record) for record in lane.records if record.topic == topic and not record.sys_flag & 4]
    piece = Slice(topic, 3, 0, len(wanted), 0, lane.end)
    assert read(store, piece) == wanted
    assert read(store, Slice(topic, 3, 37, 411, 0, lane.end)) == wanted[37:411]
    assert read(store, piece, ("offset", "value")) == [{"offset": r["offset"], "value": r["value"]} for r in wanted]


def test_records_without_properties(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store")
    records = [store.lane(0).append("orders", b"x" * row) for row in range(20)]
    store.publish()
    assert read(store, Slice("orders", 0, 0, 20, -1, 0)) == [expected_row(record) for record in records]


@pytest.mark.parametrize("body_bytes", [0, 1, 100])
@pytest.mark.parametrize("topic", ["orders", "x", LONG_TOPIC])
@pytest.mark.parametrize("stored", [V4, V6])
def test_records_of_one_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, body_bytes: int, stored: Host
) -> None:
    """Records of one size are decoded in every arrangement.

    They are evenly spaced, as a batch writes them; or have bodies of other sizes in records of the
    same size; or only every second one is read.
    """
    monkeypatch.setattr("commitlog.columns.arrow_columns._BLOCK_ROWS", 64)
    store, rng = HandMadeStore(tmp_path / "store"), random.Random(2)
    lane = store.lane(0)
    for row in range(300):
        name, crc = topic if row < 200 or row % 2 else "s" * len(topic), row < 250
        lane.append(name, rng.randbytes(body_bytes), stored=stored, crc=crc)
    for row in range(100):
        spare = b"x\x01" + b"y" * (50 - row % 10) + b"\x02"
        lane.append(topic, rng.randbytes(body_bytes + row % 10), raw_properties=spare, crc=row < 50)
    store.publish()
    wanted = [expected_row(record) for record in lane.records if record.topic == topic]
    assert read(store, Slice(topic, 0, 0, len(wanted), -1, 0)) == wanted
    assert read(store, Slice(topic, 0, 205, 240, -1, 0)) == wanted[205:240]


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows where rows are large, but at least one."""
    store = HandMadeStore(tmp_path / "store")
    for row in range(30):
        store.lane(0).append("orders", bytes(3000 if row % 3 else 9000))
    store.publish()
    monkeypatch.setattr("commitlog.columns.arrow_columns.BATCH_BYTES_MAX", 8000)
    monkeypatch.setattr("commitlog.columns.arrow_columns.BATCH_ROWS_MAX", 2)
    task = Task(ReadPlan(str(store.path), store.id, store.segment_bytes, (Slice("orders", 0, 0, 30, -1, 0),)))
    batches = list(read_task(task, arrow_schema(schema_of(["value"]))))
    assert sum(batch.num_rows for batch in batches) == 30
    assert {batch.num_rows for batch in batches} == {1, 2}
    assert isinstance(batches[0], pa.RecordBatch)


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, HandMadeStore]:
    """100 records, by whether they are of one size."""
    made = {}
    for same in (True, False):
        made[same] = HandMadeStore(tmp_path_factory.mktemp("undamaged") / "store")
        for number in range(100):
            made[same].lane(0).append("orders", b"body", key=None if same else "k" * (number % 3) or None)
        made[same].publish()
    return made


@pytest.mark.parametrize("row", [0, 4, 40, 99])
@pytest.mark.parametrize("same", [True, False])
def test_a_damaged_record_is_an_error_with_its_place(
    undamaged: dict[bool, HandMadeStore], monkeypatch: pytest.MonkeyPatch, row: int, same: bool
) -> None:
    """Each field is checked, among records of one size and of several sizes.

    The fields are size, magic, queue id, both ends of queue offset and physical offset, body
    length, topic length, both ends of the topic, and the properties' length.
    """
    monkeypatch.setattr("commitlog.columns.arrow_columns._BLOCK_ROWS", 16)
    store = undamaged[same]
    start = store.lane(0).records[row].physical_offset
    for byte in (0, 4, 12, 20, 27, 28, 35, 84, 92, 93, 98, 100):
        _flip(store, start + byte)
        with pytest.raises(CorruptRecord, match=f"orders, lane 0, offset {row}:") as raised:
            read(store, Slice("orders", 0, 0, 100, -1, 0), ("value",))
        assert raised.value.offset == start, byte
        _flip(store, start + byte)
    assert len(read(store, Slice("orders", 0, 0, 100, -1, 0), ("value",))) == 100


def _flip(store: HandMadeStore, where: int) -> None:
    with store.directory.lane_directory(0).segment_path(0).open("r+b") as file:
        file.seek(where)
        (byte,) = file.read(1)
        file.seek(where)
        file.write(bytes([byte ^ 0x41]))


def test_another_store_at_the_path(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store")
    store.lane(0).append("orders", b"x")
    store.publish()
    again = HandMadeStore(tmp_path / "store")
    assert again.id != store.id
    with pytest.raises(DataLoss, match="made again"):
        read(store, Slice("orders", 0, 0, 1, -1, 0))


def test_an_executor_that_does_not_see_the_store(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store")
    store.path = tmp_path / "elsewhere"
    with pytest.raises(StoreNotFound, match="executor does not see"):
        read(store, Slice("orders", 0, 0, 1, -1, 0))


def test_rows_that_retention_took_after_planning(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store", 1 << 12)
    for _ in range(100):
        store.lane(0).append("orders", bytes(200))
    store.publish()
    store.lane(0).forget_before(2)
    first = next(record.queue_offset for record in store.lane(0).records if record.physical_offset >= 2 << 12)
    for end, kept in ((100, f"the first one kept is {first}"), (5, "none up to 5 is kept")):
        expected = f"offset 2 was to be read and {kept}; {min(end, first) - 2} messages .* failOnDataLoss=false"
        with pytest.raises(DataLoss, match=expected):
            read(store, Slice("orders", 0, 2, end, -1, 0))
