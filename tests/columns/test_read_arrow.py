"""`commitlog.read_arrow`: a topic as an Arrow stream, typed or as Kafka has it."""

from __future__ import annotations

import base64
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

import commitlog
from commitlog.columns.mapped_segments import SEGMENTS
from commitlog.errors import (
    BadStart,
    CorruptRecord,
    DamagedFile,
    DataLoss,
    IllegalArgument,
    IllegalTopic,
    NoSchema,
    ReadingWarning,
    StoreDamaged,
    StoreNotFound,
    UnknownTopic,
)
from commitlog.record.properties import BytesKey
from commitlog.schemas.topic_schemas import TopicSchemas
from commitlog.shm.layout import segment_start
from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_data import schemas_with_rows
from tests.builders.typed_topic import append_rows, declare
from tests.builders.vector_store import load
from tests.nightly import by_url_nightly, with_nightly
from tests.served import place_of

pytestmark = pytest.mark.usefixtures("no_segments_mapped", "both_ways")
DECLARED = "id BIGINT NOT NULL, name STRING, xs ARRAY<INT>"


def row(number: int) -> dict[str, Any]:
    return {"id": number, "name": None if number % 3 == 0 else f"n{number}", "xs": list(range(number % 4))}


@pytest.fixture
def typed(tmp_path: Path) -> HandMadeStore:
    """Two lanes of five messages of six rows, over several segments, compressed or not."""
    store = HandMadeStore(tmp_path / "store", segment_bytes=1 << 12)
    schema = declare(store, "orders", DECLARED)
    for lane in range(2):
        for message in range(5):
            rows = [row(100 * lane + 6 * message + number) for number in range(6)]
            append_rows(store.lane(lane), schema, rows, (None, "lz4", "zstd")[message % 3])
            store.lane(lane).append("values", b"%d" % message)
    store.publish()
    return store


EXPECTED = [row(100 * lane + number) for lane in range(2) for number in range(30)]


def table_of(store: HandMadeStore, topic: str = "orders", **options: Any) -> pa.Table:
    table = commitlog.read_arrow(place_of(store.path), topic, **options).read_all()
    table.validate(full=True)
    return table


@by_url_nightly
@given(schemas_with_rows())
@settings(max_examples=20)
def test_rows_of_all_types_come_back(made: tuple[pa.Schema, list[dict[str, Any]]]) -> None:
    schema, rows = made
    with tempfile.TemporaryDirectory() as directory:
        store = HandMadeStore(Path(directory))
        topic = declare(store, "t", schema)
        for compression in (None, None, "lz4", "zstd"):
            append_rows(store.lane(0), topic, rows, compression)
        store.publish()
        expected = pa.Table.from_pylist(rows * 4, schema)
        assert table_of(store, "t").combine_chunks().equals(expected)
        for name in schema.names:
            assert table_of(store, "t", columns=[name]).combine_chunks().equals(expected.select([name]))
        SEGMENTS.clear()


def test_columns_and_metadata(typed: HandMadeStore) -> None:
    table = table_of(typed, metadata=True)
    assert table.select(["id", "name", "xs"]).to_pylist() == EXPECTED
    assert table["_topic"].to_pylist() == ["orders"] * 60
    assert table["_partition"].to_pylist() == [0] * 30 + [1] * 30
    assert table["_offset"].to_pylist() == [number // 6 for number in range(30)] * 2
    assert table["_row"].to_pylist() == list(range(6)) * 10
    assert table["_key"].to_pylist()[::6] == [f"k{2 * number}".encode() for number in range(5)] * 2
    stored = [record.store_timestamp for record in typed.lane(0).records if record.topic == "orders"]
    assert [time.timestamp() * 1000 for time in table["_timestamp"].to_pylist()[:30:6]] == stored
    assert table_of(typed, columns=["_row", "id"]).to_pylist()[7] == {"_row": 1, "id": 7}
    assert table_of(typed, columns=["xs", "id"]).to_pylist() == [{"xs": one["xs"], "id": one["id"]} for one in EXPECTED]
    assert table_of(typed, columns=["_offset"])["_offset"].to_pylist() == table["_offset"].to_pylist()
    assert table_of(typed, values="bytes").column_names[:3] == ["key", "value", "topic"]
    assert table_of(typed, "values")["value"].to_pylist() == [b"0", b"1", b"2", b"3", b"4"] * 2


def test_keys_of_any_bytes(typed: HandMadeStore) -> None:
    """`_key` is the key as it was sent: text, bytes that are no text, or none."""
    lane, schema = typed.lane(0), declare(typed, "keyed", "id INT")
    keys = [b"\xff\0\x01", None, b"text", b"\x02"]
    for number, key in enumerate(keys):
        append_rows(lane, schema, [{"id": number}] * 2, key=None if key is None else BytesKey.of(key))
    append_rows(lane, schema, [{"id": 4}] * 2, key="plain")
    typed.publish()
    expected = [key for key in (*keys, b"plain") for _ in range(2)]
    assert table_of(typed, "keyed", metadata=True)["_key"].to_pylist() == expected
    assert table_of(typed, "keyed", columns=["_key"], start=1)["_key"].to_pylist() == expected[2:]


def test_errors_name_its_own_arguments(typed: HandMadeStore) -> None:
    """They say what a caller of `read_arrow` can do; Spark's options are none of it."""
    late = commitlog.read_arrow(place_of(typed.path), "values")
    typed.lane(0).append("orders", b"no rows")
    typed.publish()
    with pytest.raises(CorruptRecord, match="Argument ignore_corrupt=True leaves such records out"):
        table_of(typed)
    with pytest.raises(NoSchema, match="leave the argument values out"):
        table_of(typed, "values", values="columns")
    with pytest.raises(IllegalArgument, match="only Spark reads the fields of JSON"):
        table_of(typed, "values", values="json")
    typed.lane(0).forget_before(1)
    SEGMENTS.clear()
    with pytest.raises(DataLoss, match="Argument fail_on_data_loss=False goes on without them"):
        late.read_all()


def test_a_rocketmq_root_has_values(tmp_path: Path) -> None:
    """What a real RocketMQ wrote, by topic; it has no typed topics."""
    written = load("v1_basic")
    root = written.unpack(tmp_path / "root")
    bodies = {
        line["physicOffset"]: base64.b64decode(line.get("plainBody", line["body"]) or "") for line in written.expected
    }
    entries = sorted(written.queue_entries, key=lambda entry: (entry["queueId"], entry["index"]))
    for topic in {entry["topic"] for entry in entries}:
        table = commitlog.read_arrow(place_of(root), topic, columns=["partition", "offset", "value"]).read_all()
        expected = [(one["queueId"], one["index"], bodies[one["offset"]]) for one in entries if one["topic"] == topic]
        assert [tuple(row.values()) for row in table.to_pylist()] == expected
        with pytest.raises(NoSchema):
            commitlog.read_arrow(place_of(root), topic, values="columns")
    with pytest.raises(UnknownTopic):
        commitlog.read_arrow(place_of(root), "missing")


def test_where_reading_starts_and_ends(typed: HandMadeStore) -> None:
    def offsets(**options: Any) -> list[tuple[int, int]]:
        table = table_of(typed, columns=["_partition", "_offset"], **options)
        return sorted(set(zip(table[0].to_pylist(), table[1].to_pylist(), strict=True)))

    assert offsets(start=3) == [(0, 3), (0, 4), (1, 3), (1, 4)]
    assert offsets(start="last 1") == [(0, 4), (1, 4)]
    assert offsets(start={"orders": {0: 1, 1: 5}}, end={"orders": {0: 2, 1: 5}}) == [(0, 1)]
    assert offsets(start="latest") == offsets(start=4, end=2) == offsets(end="earliest") == []
    assert len(offsets(start="2000-01-01", end="latest")) == 10
    assert table_of(typed, start="latest").schema.names == ["id", "name", "xs"]


@pytest.mark.usefixtures("polars_streams")
def test_pandas_polars_duckdb_and_numpy_read_it(typed: HandMadeStore) -> None:
    def reader() -> pa.RecordBatchReader:
        return commitlog.read_arrow(place_of(typed.path), "orders")

    assert reader().read_pandas()["id"].tolist() == [one["id"] for one in EXPECTED]
    assert pl.DataFrame(reader()).to_dicts() == EXPECTED
    orders = reader()
    with duckdb.connect(config={"threads": 1}) as database:
        assert database.sql("SELECT sum(id), count(name) FROM orders").fetchall() == [
            (sum(one["id"] for one in EXPECTED), sum(one["name"] is not None for one in EXPECTED))
        ]
    for batch in reader():
        ids = batch["id"].to_numpy(zero_copy_only=True)
        assert ids.flags.aligned
        assert ids.dtype == np.int64
    del orders


def test_wrong_calls(typed: HandMadeStore, tmp_path: Path) -> None:
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (UnknownTopic, {"topic": "missing"}),
        (NoSchema, {"topic": "values", "values": "columns"}),
        (IllegalTopic, {"topic": "../orders"}),
        (IllegalTopic, {"topic": None}),
        (IllegalArgument, {"topic": "values", "metadata": True}),
        (IllegalArgument, {"values": "rows"}),
        (IllegalArgument, {"isolation": "accepted"}),
        (IllegalArgument, {"columns": "id"}),
        (IllegalArgument, {"columns": []}),
        (IllegalArgument, {"columns": 5}),
        (IllegalArgument, {"columns": [5]}),
        (IllegalArgument, {"columns": ["id", "id"]}),
        (IllegalArgument, {"columns": ["missing"]}),
        (BadStart, {"start": "sometimes"}),
        (StoreNotFound, {"path": place_of(tmp_path / "nowhere")}),
        (IllegalArgument, {"path": "grpc://localhost/orders"}),
    ]
    for kind, options in wrong:
        with pytest.raises(kind) as caught:
            commitlog.read_arrow(**{"path": place_of(typed.path), "topic": "orders", **options})
        assert "\n" not in str(caught.value)


def test_a_schema_without_messages(typed: HandMadeStore) -> None:
    declare(typed, "empty", "id INT")
    expected = pa.table({"id": pa.array([], pa.int32())})
    assert table_of(typed, "empty").equals(expected)
    with pytest.raises(UnknownTopic, match="no topic missing; there are: empty, orders"):
        commitlog.read_arrow(place_of(typed.path), "missing")
    frame = pl.from_arrow(commitlog.read_arrow(place_of(typed.path), "empty"))
    assert isinstance(frame, pl.DataFrame)
    assert frame.equals(pl.DataFrame(expected))


def test_messages_of_older_and_newer_schemas(typed: HandMadeStore) -> None:
    """Old messages show nulls and wider values; a reader that began with the old schema goes on."""
    began_before = commitlog.read_arrow(place_of(typed.path), "orders", columns=["id", "name"])
    grown = declare(typed, "orders", "id BIGINT, name STRING, xs ARRAY<INT>, more DOUBLE", evolve=True)
    append_rows(typed.lane(0), grown, [{"id": 7, "more": 1.5}, {"id": 8}])
    typed.publish()
    assert began_before.read_all().num_rows == 60
    table = table_of(typed)
    assert table.num_rows == 62
    assert [one for one in table["more"].to_pylist() if one is not None] == [1.5]
    assert table["id"].to_pylist()[30:32] == [7, 8]


def test_what_is_no_row(typed: HandMadeStore) -> None:
    """A value among rows, and rows that the headers deny: an error, or left out."""
    lane, good = typed.lane(0), typed.lane(0).records[0]
    names = {"content-type": "application/x.arrow-record-batch", "schema-version": "1", "row-count": "6"}
    for body, changed in (
        (b"value", None),
        (b"", {}),
        (good.body, {"row-count": "7"}),
        (good.body, {"row-count": "9" * 700}),
        (good.body, {"row-count": "x"}),
        (good.body, {"schema-version": "x"}),
        (good.body, {"content-type": "text/plain"}),
        (good.body[:-100], {}),
        (b"\xff\xff\xff\xff\0\0\0\0", {"content-encoding": "lz4"}),
    ):
        lane.append("orders", body, properties=None if changed is None else names | changed)
    typed.publish()
    with pytest.raises(CorruptRecord, match="lane 0, offset 5: the message has a value and no rows"):
        table_of(typed)
    assert table_of(typed, ignore_corrupt=True).to_pylist() == EXPECTED


def test_a_value_whose_headers_say_that_it_is_rows(typed: HandMadeStore) -> None:
    """The error says what is wrong with the message, in words of ours."""
    headers = {"content-type": "application/x.arrow-record-batch", "schema-version": "1", "row-count": "6"}
    typed.lane(0).append("orders", b"junk", properties=headers)
    typed.publish()
    with pytest.raises(CorruptRecord, match="lane 0, offset 5: its headers say rows, and its value is no record batch"):
        table_of(typed)


def rows_before(store: HandMadeStore, error: str, **options: Any) -> list[dict[str, Any]]:
    """The rows that come before the error."""
    batches = commitlog.read_arrow(place_of(store.path), "orders", **options)
    found: list[pa.RecordBatch] = []
    with pytest.raises(CorruptRecord, match=error):
        found.extend(batches)
    return [row for batch in found for row in batch.to_pylist()]


def test_good_rows_come_before_the_error(typed: HandMadeStore) -> None:
    """A value hides no rows before it or of another lane, and the error names what shows it."""
    lane, schema = typed.lane(0), TopicSchemas(typed.directory).required("orders", "")
    lane.append("orders", b"value")
    append_rows(lane, schema, [row(30)])
    typed.publish()
    error = 'offset 5: the message has a value.* ignore_corrupt=True leaves.* values="bytes" reads their values$'
    assert rows_before(typed, error) == EXPECTED
    values = table_of(typed, values="bytes", columns=["value"])["value"].to_pylist()
    assert values[5] == b"value"


def test_good_rows_of_other_lanes_come_before_the_error(typed: HandMadeStore) -> None:
    """Values in two lanes hide no rows of a third one; the error is that of the first value."""
    schema = TopicSchemas(typed.directory).required("orders", "")
    for lane in (1, 2):
        typed.lane(lane).append("orders", b"value")
    append_rows(typed.lane(3), schema, [row(30), row(31)])
    typed.publish()
    append_rows(typed.lane(1), schema, [row(99)])  # behind the value, and not in the index yet
    typed.lane(1).publish()
    assert rows_before(typed, "lane 1, offset 5: the message has a value") == [*EXPECTED, row(30), row(31)]


def test_good_messages_come_before_a_damaged_one(tmp_path: Path) -> None:
    """Of one batch; `verify`, which the error names, lists the record."""
    store = HandMadeStore(tmp_path / "store")
    for number in range(9):
        store.lane(0).append("orders", b"%d" % number)
    store.publish()
    record = store.lane(0).records[6]
    with store.directory.lane_directory(0).segment_path(0).open("r+b") as segment:  # its magic number
        segment.seek(record.physical_offset + 4)
        segment.write(b"\xff")
    found = rows_before(store, "offset 6: .*`commitlog verify` lists all")
    assert [one["value"] for one in found] == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("both_ways", ["path"], indirect=True)
@pytest.mark.parametrize("compression", with_nightly([None], ["lz4", "zstd"]))
def test_flipped_bytes_crash_nothing(tmp_path: Path, compression: str | None) -> None:
    """At each byte of a message: CorruptRecord, or whole rows; never another error, never a crash.

    Values that were changed within a column come through, as those of bytes do: reading compares
    no CRC of what recovery has not noted.
    """
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "t", "id INT, name STRING, m MAP<STRING, STRUCT<a: DECIMAL(5,2)>>")
    rows = [{"id": number, "name": "ab"[:number], "m": {"k": {"a": number}}} for number in range(3)]
    record = append_rows(store.lane(0), schema, rows, compression)
    store.publish()
    path = store.directory.lane_directory(0).segment_path(0)
    data = path.read_bytes()
    start = data.index(record.body)
    corrupt = 0
    with path.open("r+b", buffering=0) as file:
        for at in range(start, start + len(record.body)):
            file.seek(at)
            file.write(bytes([data[at] ^ (1 << at % 8)]))
            try:
                assert table_of(store, "t").num_rows == 3
            except CorruptRecord:
                corrupt += 1
            file.seek(at)
            file.write(data[at : at + 1])
    assert corrupt > 100
    assert table_of(store, "t").num_rows == 3


def test_what_retention_and_others_removed(typed: HandMadeStore) -> None:
    late = commitlog.read_arrow(place_of(typed.path), "orders")
    typed.lane(0).forget_before(1)
    SEGMENTS.clear()
    with pytest.raises(DataLoss):
        late.read_all()
    assert 30 < table_of(typed).num_rows < 60
    (typed.path / "topics/orders/1.json").unlink()
    assert table_of(typed).column_names[:2] == ["key", "value"]  # it has no schema any more
    shutil.rmtree(typed.path / "topics")
    with pytest.raises(NoSchema):
        table_of(typed, values="columns")


def test_a_lost_file_of_a_consume_queue(tmp_path: Path) -> None:
    """Its messages are in the log: they were called deleted by retention."""
    store = HandMadeStore(tmp_path / "store")
    for number in range(1100):
        store.lane(0).append("orders", b"%d" % number)
    store.publish()
    next((store.directory.lane_directory(0).queue_path("orders")).glob("**/" + "0" * 20)).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReadingWarning)  # the log is walked, which is slow
        assert table_of(store)["value"].to_pylist() == [b"%d" % number for number in range(1100)]


def test_a_lost_end_that_no_queue_knows_of(tmp_path: Path) -> None:
    """After a kill nobody knows whose messages were there: it gave the others and said nothing."""
    store = HandMadeStore(tmp_path / "store", segment_bytes=1 << 12)
    lane = store.lane(0)
    for number in range(100):
        lane.append("orders", b"%d" % number)
    lane.dispatch(20)
    lane.publish(is_drained=False)
    store.directory.lane_directory(0).segment_path(segment_start(lane.end, 1 << 12)).unlink()
    kept = [record.body for record in lane.records if record.physical_offset < segment_start(lane.end, 1 << 12)]
    where = f"{segment_start(lane.end, 1 << 12):,}"
    with pytest.warns(ReadingWarning, match=f"lane 0 is damaged from offset {where} on.*`commitlog verify"):
        assert table_of(store)["value"].to_pylist() == kept
    with pytest.raises(DamagedFile, match=r"missing"), commitlog.Reader(store.path, topic="orders") as reader:
        list(reader)


def test_a_version_that_is_missing(typed: HandMadeStore) -> None:
    declare(typed, "orders", DECLARED + ", more INT", evolve=True)
    (typed.path / "topics/orders/1.json").unlink()
    with pytest.raises(StoreDamaged, match=r"orders/1\.json is missing"):
        table_of(typed)


@by_url_nightly
def test_a_lost_version_is_not_given_to_another_schema(tmp_path: Path) -> None:
    """Who puts an older copy of `topics` back never reads rows of the lost version by a new one."""
    path = tmp_path / "store"
    with commitlog.Store.open(path) as store, store.producer() as producer:
        store.create_topic("t", "id BIGINT")
        store.create_topic("t", "id BIGINT, cost BIGINT", evolve=True)
        producer.send_rows("t", [{"id": 1, "cost": 2}])
    (path / "topics/t/2.json").unlink()
    with commitlog.Store.open(path) as store, store.producer() as producer:
        assert store.create_topic("t", "id BIGINT, price BIGINT", evolve=True).version == 3
        producer.send_rows("t", [{"id": 3, "price": 4}])
        producer.flush()
    with pytest.raises(StoreDamaged, match=r"t/2\.json is missing"):
        commitlog.read_arrow(path, "t").read_all()


def test_messages_without_an_index(tmp_path: Path) -> None:
    """What is flushed and not dispatched yet is there too."""
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "t", "id INT")
    for number in range(5):
        append_rows(store.lane(0), schema, [{"id": number}])
    store.lane(0).dispatch(2)
    store.lane(0).publish()
    assert table_of(store, "t")["id"].to_pylist() == [0, 1, 2, 3, 4]
