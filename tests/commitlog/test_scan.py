"""`commitlog.read`: a scan gives the same rows however, and however often, it is asked."""

from __future__ import annotations

import base64
import multiprocessing
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commitlog
from commitlog import Scan
from commitlog.columns.mapped_segments import SEGMENTS
from commitlog.errors import (
    BadStart,
    CommitLogError,
    CorruptRecord,
    DataLoss,
    IllegalArgument,
    IllegalTopic,
    MissingPackage,
    NoSchema,
    OffsetOutOfRange,
    OptionError,
    StoreNotFound,
    UnknownTopic,
)
from tests.builders.hand_made import BEGIN_MS, HandMadeStore, small_store
from tests.builders.typed_topic import append_rows, declare
from tests.builders.vector_store import load
from tests.nightly import by_url_nightly
from tests.served import place_of

pytestmark = pytest.mark.usefixtures("no_segments_mapped", "both_ways")


def scan_of(store: HandMadeStore, topic: str = "orders", **options: Any) -> Scan:
    return commitlog.read(place_of(store.path), topic, **options)


def given_by(scan: Scan) -> list[tuple[int, int, bytes]]:
    """Lane, offset and value of each message, as one that gives messages has them."""
    return sorted((message.partition, message.offset, message.value) for message in scan.messages())


def rows_of(table: pa.Table) -> list[tuple[int, int, bytes]]:
    return [(row["partition"], row["offset"], row["value"]) for row in table.to_pylist()]


# ---- the same rows by every method --------------------------------------------------------------


@st.composite
def stores_and_options(draw: st.DrawFn) -> tuple[list[tuple[int, str]], int, dict[str, Any]]:
    """Messages (lane and topic), how many of them have entries, and arguments of `read`."""
    messages = draw(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["orders", "other"])), min_size=1))
    ends = st.sampled_from(["earliest", "latest", "last 2", "last 100", "2000-01-01"])
    times = st.integers(0, len(messages)).map(lambda at: datetime.fromtimestamp(BEGIN_MS / 1000 + at, UTC))
    options: dict[str, Any] = {"start": draw(ends | times), "end": draw(ends | times)}
    lanes = draw(st.none() | st.sets(st.integers(0, 2), min_size=1))
    if lanes is not None:
        options["lanes"] = lanes
    return messages, draw(st.integers(0, len(messages))), options


@by_url_nightly
@given(stores_and_options())
@settings(max_examples=40)
def test_all_methods_give_the_same(made: tuple[list[tuple[int, str]], int, dict[str, Any]]) -> None:
    """And so do read_arrow and a Reader, where they take the same arguments."""
    messages, dispatched, options = made
    with tempfile.TemporaryDirectory() as directory:
        store = HandMadeStore(Path(directory))
        store.lane(0).append("orders", b"first")
        for number, (lane, topic) in enumerate(messages):
            store.lane(lane).append(topic, b"%d" % number)
        for made_lane in store.lanes.values():
            made_lane.dispatch(min(dispatched, len(made_lane.records)))
            made_lane.publish()
        scan = scan_of(store, **options)
        table = scan.to_arrow()
        rows = rows_of(table)
        assert rows == sorted(rows)
        assert scan.to_arrow().equals(table)
        assert pa.Table.from_batches(scan.batches()).equals(table)
        assert given_by(scan) == rows
        assert scan.count() == scan.select("offset").to_arrow().num_rows == len(rows)
        assert scan.to_polars().rows() == pl.DataFrame(table).rows()
        again = scan_of(store, **options | {"start": scan.start_offsets, "end": scan.end_offsets})
        assert again.to_arrow().equals(table)
        lanes = options.pop("lanes", {0, 1, 2})
        of_lanes = rows_of(commitlog.read_arrow(scan.path, "orders", **options).read_all())
        assert [row for row in of_lanes if row[0] in lanes] == rows
        if options["end"] == "latest":
            with commitlog.Reader(store.path, "orders", start=options["start"], lanes=lanes) as reader:
                assert sorted((one.partition, one.offset, one.value) for one in reader) == rows
        SEGMENTS.clear()


def test_messages_are_merged_by_time_and_whole(tmp_path: Path) -> None:
    """As a Reader gives them: lane after lane is for columns."""
    store = HandMadeStore(tmp_path / "store")
    for number in range(6):
        store.lane(number % 2).append("orders", b"%d" % number, key=f"k{number}", properties={"a": "b"})
    store.publish()
    scan = scan_of(store, columns=["offset"])
    with commitlog.Reader(store.path, "orders") as reader:
        assert list(scan.messages()) == list(reader)
    assert scan.to_arrow().column_names == ["offset"]


def test_a_topic_with_a_schema(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "orders", "id BIGINT NOT NULL, name STRING")
    rows = [{"id": number, "name": f"n{number}"} for number in range(12)]
    for number in range(4):
        codec = (None, "lz4")[number % 2]
        append_rows(store.lane(number % 2), schema, rows[3 * number : 3 * number + 3], codec)
    store.publish()
    scan = scan_of(store)
    assert scan.schema == pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    assert sorted(scan.to_arrow().to_pylist(), key=lambda row: int(row["id"])) == rows
    assert scan.count() == 12
    assert scan.select("name", "_offset").to_arrow()["_offset"].to_pylist() == [0] * 3 + [1] * 3 + [0] * 3 + [1] * 3
    assert scan_of(store, metadata=True).schema.names[2:] == [
        *("_topic", "_partition", "_offset", "_row", "_timestamp", "_key")
    ]
    as_bytes = scan_of(store, values="bytes")
    assert as_bytes.count() == len(list(scan.messages())) == 4
    assert sorted(as_bytes.to_arrow()["value"].to_pylist()) == sorted(one.value for one in scan.messages())
    assert scan.to_pandas()["id"].sum() == sum(range(12))
    append_rows(store.lane(0), declare(store, "orders", "id BIGINT, name STRING, more INT", evolve=True), rows[:1])
    store.publish()
    assert scan.count() == 12
    assert scan.select("name").schema.names == ["name"]


def test_a_rocketmq_root(tmp_path: Path) -> None:
    written = load("v1_basic")
    root = written.unpack(tmp_path / "root")
    bodies = {
        one["physicOffset"]: base64.b64decode(one.get("plainBody", one["body"]) or "") for one in written.expected
    }
    for topic in {entry["topic"] for entry in written.queue_entries}:
        scan = commitlog.read(place_of(root), topic)
        expected = sorted(
            (one["queueId"], one["index"], bodies[one["offset"]])
            for one in written.queue_entries
            if one["topic"] == topic
        )
        assert rows_of(scan.to_arrow()) == given_by(scan) == expected
        assert scan.count() == len(expected)
    with pytest.raises(UnknownTopic):
        commitlog.read(place_of(root), "missing")


@pytest.mark.usefixtures("polars_streams")
def test_pandas_polars_and_duckdb(tmp_path: Path) -> None:
    """They get whole tables; and the scan itself is a stream, as often as somebody asks."""
    scan = scan_of(small_store(tmp_path / "store"), columns=["partition", "offset"])
    expected = scan.to_arrow()
    assert scan.to_pandas().equals(expected.to_pandas())
    assert str(scan.to_pandas(types_mapper=pd.ArrowDtype)["offset"].dtype) == "int64[pyarrow]"
    assert scan.to_polars().equals(pl.DataFrame(expected))
    assert pa.table(scan).equals(expected)
    assert pl.DataFrame(scan).equals(pl.DataFrame(expected))
    with scan.to_duckdb("orders") as database:
        assert database.sql('SELECT count(*), sum("offset") FROM orders').fetchall() == [(200, 9900)]
        assert scan.select("offset").to_duckdb('a "b', database) is database
        assert database.sql('SELECT max("offset") FROM "a ""b"').fetchall() == [(99,)]
        database.register("stream", scan)
        for _ in range(2):
            assert database.sql("SELECT count(*) FROM stream").fetchall() == [(200,)]


@pytest.mark.parametrize("package", ["pandas", "polars", "duckdb"])
def test_a_package_that_is_missing(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = scan_of(small_store(tmp_path / "store", 2))
    monkeypatch.setitem(sys.modules, package, None)
    arguments = ["orders"] if package == "duckdb" else []
    with pytest.raises(MissingPackage, match=f"^to_{package} needs .*`pip install {package}`"):
        getattr(scan, f"to_{package}")(*arguments)
    assert scan.to_arrow().num_rows == 4


# ---- a fixed range ------------------------------------------------------------------------------


@pytest.mark.parametrize("both_ways", ["path"], indirect=True)
def test_the_same_while_producers_write(tmp_path: Path) -> None:
    """Also what was not yet in the consume queues at first, and after the store has stopped."""
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as one, store.producer() as other:
        one.send_batch("orders", [b"%d" % number for number in range(50)])
        one.flush()
        scan = commitlog.read(tmp_path / "store", "orders")
        first = scan.to_arrow()
        for number in range(20):
            one.send("orders", b"more")
            other.send_batch("orders", [b"more"] * 3)
            other.flush()
            assert scan.to_arrow().equals(first)
            assert scan.count() == 50
            assert len(given_by(scan)) == 50, number
    assert rows_of(scan.to_arrow()) == given_by(scan) == rows_of(first)
    more = commitlog.read(tmp_path / "store", "orders", start=scan.end_offsets)
    assert more.count() == 80
    assert set(more.to_arrow()["value"].to_pylist()) == {b"more"}


def test_a_topic_that_has_no_lane_yet(tmp_path: Path) -> None:
    """Its offsets are a start for what comes."""
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "orders", "id INT")
    empty = scan_of(store)
    assert empty.to_arrow().equals(pa.table({"id": pa.array([], pa.int32())}))
    assert (empty.count(), list(empty.messages()), empty.to_polars().height) == (0, [], 0)
    append_rows(store.lane(1), schema, [{"id": 1}])
    append_rows(store.lane(0), schema, [{"id": 2}])
    store.publish()
    assert empty.count() == 0
    assert scan_of(store, start=empty.end_offsets).to_arrow()["id"].to_pylist() == [2, 1]


def test_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time that names no zone is this machine's, as text and as a datetime."""
    store = small_store(tmp_path / "store", 10, lanes=1, topics=("orders",))
    at = datetime.fromtimestamp(BEGIN_MS / 1000, UTC) + timedelta(seconds=4)
    for zone in ("UTC", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        here = at.astimezone().replace(tzinfo=None)
        for start in (at, at.isoformat(), here, str(here)):
            assert scan_of(store, start=start, end=at + timedelta(seconds=3)).start_offsets == {"orders": {0: 4}}
            assert scan_of(store, start=start, end=at + timedelta(seconds=3)).count() == 3


def test_an_end_before_the_start_gives_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 10)
    for start, end in ((5, 3), ("latest", "earliest"), ("last 1", "last 5"), ({"orders": {0: 5}}, {"orders": {0: 2}})):
        scan = scan_of(store, start=start, end=end)
        assert (scan.count(), scan.to_arrow().num_rows, list(scan.messages())) == (0, 0, [])
    assert scan_of(store, end={"orders": {1: 4}}).end_offsets == {"orders": {0: 0, 1: 4}}


def test_wrong_calls(tmp_path: Path) -> None:
    """They fail in the line that has them, and a misspelt column is recognized."""
    store = small_store(tmp_path / "store", 3)
    wrong: list[tuple[type[CommitLogError], str, dict[str, Any]]] = [
        (StoreNotFound, "nowhere", {"path": place_of(tmp_path / "nowhere")}),
        (UnknownTopic, "no topic oders; there are: orders, other", {"topic": "oders"}),
        (IllegalTopic, "topic", {"topic": ["orders"]}),
        (NoSchema, "leave the argument values out", {"values": "columns"}),
        (IllegalArgument, "only Spark", {"values": "json"}),
        (IllegalArgument, "did you mean offset and value", {"columns": ["ofset", "valeu"]}),
        (IllegalArgument, "each once", {"columns": ["offset", "offset"]}),
        (IllegalArgument, "give flushed or committed", {"isolation": "accepted"}),
        (BadStart, "is no place in a topic", {"start": "sometimes"}),
        (BadStart, "is no place in a topic", {"end": 1.5}),
        (OffsetOutOfRange, "outside", {"end": 4}),
        (OffsetOutOfRange, "offset 2 of topic oders, lane 0: this queue", {"start": {"oders": {0: 2}}}),
        (OffsetOutOfRange, "topic orders, lane 9: this queue", {"end": {"orders": {9: 2}}}),
        (OptionError, "lanes", {"lanes": [-1]}),
        (IllegalArgument, "it is for a served store", {"path": str(tmp_path), "token": "x"}),
    ]
    for kind, text, options in wrong:
        with pytest.raises(kind, match=text) as caught:
            commitlog.read(**{"path": place_of(store.path), "topic": "orders", **options})
        assert "\n" not in str(caught.value)
    with pytest.raises(IllegalArgument, match="did you mean key"):
        scan_of(store).select("keys")
    with pytest.raises(IllegalArgument, match=r"call commitlog.read\("):
        Scan(store.path)
    for name in ("", None):
        with pytest.raises(IllegalArgument, match="what DuckDB calls the view"):
            scan_of(store).to_duckdb(name)  # type: ignore[arg-type]


def test_it_outlives_its_process_and_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan holds nothing: a pickle of it, and a relative path after a chdir, mean the same."""
    store = small_store(tmp_path / "store", 10)
    monkeypatch.chdir(tmp_path)
    scan = commitlog.read("store", "orders") if place_of("") == "" else scan_of(store)
    expected = scan.to_arrow()
    monkeypatch.chdir("/")
    assert scan.to_arrow().equals(expected)
    copied: Scan = pickle.loads(pickle.dumps(scan))
    assert copied.to_arrow().equals(expected)
    assert given_by(copied) == given_by(scan)


@pytest.mark.parametrize("both_ways", ["path"], indirect=True)
def test_a_forked_child_reads_it_too(tmp_path: Path) -> None:
    scan = scan_of(small_store(tmp_path / "store", 10))
    expected = rows_of(scan.to_arrow())

    def check() -> None:
        os._exit(0 if rows_of(scan.to_arrow()) == given_by(scan) == expected and scan.count() == 20 else 1)

    child = multiprocessing.get_context("fork").Process(target=check)
    child.start()
    child.join()
    assert child.exitcode == 0


# ---- what happens to a store between two calls --------------------------------------------------

ENDINGS: list[Callable[[Scan], object]] = [
    Scan.to_arrow,
    Scan.count,
    lambda scan: list(scan.messages()),
    lambda scan: scan.batches().read_all(),
    Scan.to_pandas,
    Scan.to_polars,
    lambda scan: scan.to_duckdb("orders"),
]


def raise_all(scan: Scan, kind: type[CommitLogError], text: str) -> None:
    for ending in ENDINGS:
        with pytest.raises(kind, match=text) as caught:
            ending(scan)
        assert type(caught.value) is kind


def test_a_store_that_is_deleted_and_made_again(tmp_path: Path) -> None:
    scan = scan_of(small_store(tmp_path / "store"))
    shutil.rmtree(tmp_path / "store")
    SEGMENTS.clear()
    raise_all(scan, StoreNotFound, "store")
    small_store(tmp_path / "store")
    raise_all(scan, DataLoss, "another store.* Call commitlog.read again")


def test_an_older_copy_in_its_place(tmp_path: Path) -> None:
    """Its offsets may be those of other messages."""
    store = small_store(tmp_path / "store", 10)
    older = tmp_path / "older"
    shutil.copytree(store.path, older)
    store.lane(0).append("orders", b"lost")
    store.publish()
    scan = scan_of(store)
    store.path.rename(tmp_path / "broken")
    older.rename(store.path)
    SEGMENTS.clear()
    raise_all(scan, DataLoss, "restored copy")


def test_another_root_of_rocketmq_in_its_place(tmp_path: Path) -> None:
    """It has no id; its directory is another one."""
    written = load("v1_basic")
    root = written.unpack(tmp_path / "root")
    topic = written.queue_entries[0]["topic"]
    scan = commitlog.read(place_of(root), topic)
    assert scan.count() == scan.to_arrow().num_rows > 0
    root.rename(tmp_path / "moved")
    written.unpack(tmp_path / "root")
    raise_all(scan, DataLoss, "another store")


def test_retention_between_two_calls(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    scan, tolerant = scan_of(store), scan_of(store, fail_on_data_loss=False)
    before = given_by(scan)
    store.lane(0).forget_before(1)
    SEGMENTS.clear()
    raise_all(scan, DataLoss, "lane 0: offset 0 was to be read.*Argument fail_on_data_loss=False goes on without")
    kept = given_by(tolerant)
    assert 100 < len(kept) < 200
    assert kept == [row for row in before if row in set(kept)]
    assert rows_of(tolerant.to_arrow()) == kept
    assert tolerant.count() == len(kept)
    assert scan_of(store, lanes={1}).count() == 100


@pytest.mark.parametrize("both_ways", ["path"], indirect=True)
def test_retention_in_the_middle(tmp_path: Path) -> None:
    """After a batch, or after a message: what is gone is an error, never a gap."""
    store = small_store(tmp_path / "store", 400)
    columns, messages = iter(scan_of(store).batches()), scan_of(store).messages()
    next(columns), next(messages)
    store.lane(0).forget_before(3)
    store.lane(1).forget_before(3)
    SEGMENTS.clear()
    with pytest.raises(DataLoss):
        list(columns)
    with pytest.raises(DataLoss):
        list(messages)


def damage(store: HandMadeStore, lane: int, offset: int) -> None:
    """The magic number of the record of a topic's message."""
    record = next(one for one in store.lane(lane).records if (one.topic, one.queue_offset) == ("orders", offset))
    start = record.physical_offset - record.physical_offset % store.segment_bytes
    with store.directory.lane_directory(lane).segment_path(start).open("r+b") as segment:
        segment.seek(record.physical_offset - start + 4)
        segment.write(b"\xff")


def test_damage(tmp_path: Path) -> None:
    """Within the range it is an error, or left out; beyond its end it is nobody's business."""
    store = small_store(tmp_path / "store", 10, topics=("orders",))
    damage(store, 0, 6)
    whole = scan_of(store)
    for ending in ENDINGS:
        if ending is not Scan.count:  # the offsets say how many there are
            with pytest.raises(CorruptRecord):
                ending(whole)
    tolerant = scan_of(store, ignore_corrupt=True)
    expected = [row for row in store.rows("orders") if row[:2] != (0, 6)]
    assert rows_of(tolerant.to_arrow()) == expected
    assert tolerant.count() == len(expected)
    before = scan_of(store, end={"orders": {0: 6, 1: 10}})
    assert given_by(before) == rows_of(before.to_arrow()) == [row for row in expected if row[0] == 1 or row[1] < 6]
    assert given_by(scan_of(store, lanes={1})) == [row for row in expected if row[0] == 1]
