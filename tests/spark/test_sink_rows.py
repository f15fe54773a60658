"""The sink is called as Spark calls it, over a running store: by path, and by URL.

What a row becomes, and each row or option that is refused.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import commitlog
from commitlog.errors import (
    IllegalProperty,
    IllegalTopic,
    MessageTooLarge,
    OptionError,
    PropertiesTooLarge,
    RecordError,
    StoreNotFound,
)
from commitlog.record.properties import BytesKey
from commitlog.spark.source import CommitLogDataSource
from tests.nightly import by_url_nightly
from tests.served import place_of
from tests.waiting import wait_until

CONFIG: dict[str, Any] = {"store": {"segment_bytes": 1 << 20, "max_lanes": 1}, "producer": {"lane_wait_ms": 20}}
pytestmark = pytest.mark.usefixtures("both_ways")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NO_UTF8 = pa.array([b"\xff\xfe"]).view(pa.string())
"""A string as Spark makes it with CAST(binary AS STRING)."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[commitlog.Store]:
    """Running, with one lane."""
    with commitlog.Store.open(tmp_path / "store", CONFIG) as opened:
        yield opened


def headers(*pairs: tuple[str, bytes | None]) -> pa.Array:
    return pa.array([[{"key": name, "value": value} for name, value in pairs]], HEADERS)


def write(to: Path, columns: dict[str, Any], *, overwrite: bool = False, stream: bool = False, **options: Any) -> None:
    """One task: as many rows as the columns are long."""
    batch = pa.RecordBatch.from_pydict(columns)
    given = {"path": place_of(to)} | ({} if "topic" in columns else {"topic": "t"}) | options
    source = CommitLogDataSource({name.lower(): value for name, value in given.items() if value})
    make = source.streamWriter if stream else source.writer
    writer = pickle.loads(pickle.dumps(make(from_arrow_schema(batch.schema), overwrite)))
    assert writer.write(iter([batch.slice(0, 0), batch])) is not None


def read(store: commitlog.Store) -> list[tuple[str, bytes, str | None, dict[str, str]]]:
    with commitlog.Reader(store.path) as reader:
        return [(m.topic, m.value, m.key, m.headers) for m in reader]


@by_url_nightly
def test_what_a_row_becomes(store: commitlog.Store) -> None:
    """Rows are flushed when `write` returns, also with the stream's writer.

    Then the store's one lane is free again.
    """
    both = headers(("h", b"x"), ("g", "ж".encode()))
    sliced = pa.array(["out", "in"], pa.large_string()).slice(1)
    cases: tuple[tuple[dict[str, Any], dict[str, Any], Any], ...] = (
        ({"value": [b"\x00\xff"]}, {}, ("t", b"\x00\xff", None, {})),
        ({"value": sliced}, {}, ("t", b"in", None, {})),
        ({"value": sliced, "key": sliced}, {}, ("t", b"in", "in", {})),
        ({"value": NO_UTF8}, {}, ("t", b"\xff\xfe", None, {})),
        ({"value": [b""], "key": [b"bytes"]}, {}, ("t", b"", "bytes", {})),
        ({"value": ["x"], "topic": ["a"]}, {}, ("a", b"x", None, {})),
        ({"value": ["x"], "topic": ["a"]}, {"topic": "wins"}, ("wins", b"x", None, {})),
        ({"value": ["x"], "topic": pa.nulls(1, pa.string())}, {"topic": "wins"}, ("wins", b"x", None, {})),
        ({"value": ["x"], "headers": both}, {}, ("t", b"x", None, {"h": "x", "g": "ж"})),
        ({"value": ["x"], "headers": headers()}, {}, ("t", b"x", None, {})),
        ({"value": ["x"], "headers": headers(("KEYS", b"\xff"))}, {"includeHeaders": "false"}, ("t", b"x", None, {})),
        ({"value": ["x"], "partition": pa.nulls(1, pa.int32())}, {}, ("t", b"x", None, {})),
        ({"value": ["x"], "partition": pa.array([3], pa.int32())}, {"ignorePartition": "true"}, ("t", b"x", None, {})),
        ({"value": ["x"], "offset": [7], "tags": ["y"]}, {}, ("t", b"x", None, {})),
    )
    for columns, options, expected in cases:
        for stream in (False, True):
            before = len(read(store))
            write(store.path, columns, stream=stream, **options)
            assert read(store)[before:] == [expected], (columns, options)


@by_url_nightly
def test_rows_of_one_batch_keep_their_order(store: commitlog.Store) -> None:
    """Rows keep their order, whatever topics they have, with and without keys.

    If headers are a part of a larger column, each row gets its own.
    """
    pairs = [[{"key": f"h{n}", "value": b"%d" % n}] * (n % 2) for n in range(8)]
    columns = {
        "value": [b"%d" % n for n in range(8)],
        "topic": [f"t{n % 3}" for n in range(8)],
        "headers": pa.array(pairs, HEADERS),
    }
    whole = pa.RecordBatch.from_pydict(columns)
    write(store.path, dict(zip(columns, whole.slice(2, 5).columns, strict=True)))
    assert read(store) == [(f"t{n % 3}", b"%d" % n, None, {f"h{n}": str(n)} if n % 2 else {}) for n in range(2, 7)]
    write(store.path, {"value": columns["value"], "topic": columns["topic"]})
    by_topic = [[value for topic, value, *_ in read(store)[5:] if topic == f"t{t}"] for t in range(3)]
    assert by_topic == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5"]]


@by_url_nightly
@pytest.mark.parametrize("with_headers", [False, True])
def test_keys_of_any_bytes_come_back(store: commitlog.Store, with_headers: bool) -> None:
    """They are in a property of our own, which is no header. A Reader shows them in base64."""
    keys = [b"text", b"\xff\xfe", None, (258).to_bytes(8), b"\x02", "ж".encode()]
    columns = {"value": [b"x"] * len(keys), "key": pa.array(keys, pa.binary())}
    if with_headers:
        columns["headers"] = pa.array([[{"key": "h", "value": b"1"}]] * len(keys), HEADERS)
    write(store.path, columns)
    assert [key for _, _, key, _ in read(store)] == ["text", "//4=", None, "AAAAAAAAAQI=", "Ag==", "ж"]
    assert all(found == ({"h": "1"} if with_headers else {}) for *_, found in read(store))
    options = {"path": str(store.path), "subscribe": "t", "includeHeaders": "true"}
    source = CommitLogDataSource({name.lower(): value for name, value in options.items()})
    reader = source.reader(source.schema())
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert [row["key"] for row in rows] == keys
    assert [row["headers"] for row in rows] == [[{"key": "h", "value": b"1"}] if with_headers else None] * len(keys)


@by_url_nightly
def test_a_key_in_base64_that_is_none(store: commitlog.Store) -> None:
    """A property of that name which somebody else wrote, and wrongly, is no key."""
    with store.producer() as producer:
        producer.send("t", b"x", key=BytesKey("no base64!")).wait("flushed", 60)
    source = CommitLogDataSource({"path": str(store.path), "subscribe": "t", "columns": "key"})
    reader = source.reader(source.schema())
    assert [batch.to_pylist() for task in reader.partitions() for batch in reader.read(task)] == [[{"key": None}]]


@by_url_nightly
@pytest.mark.parametrize("keyed", [False, True])
def test_a_store_that_syncs_each_message(keyed: bool, tmp_path: Path) -> None:
    """A task waits once for all of its rows, not for each row or batch.

    Nothing in its records shows that.
    """
    small = {"segment_bytes": 1 << 16, "flush_disk_type": "SYNC_FLUSH"}  # thirty rows are a batch
    config = {"store": small, "supervisor": {"hung_after_ms": 600_000}}
    rows = [b"%d" % n for n in range(400)]
    with commitlog.Store.open(tmp_path / "store", config) as store, ThreadPoolExecutor(1) as pool:
        flusher = int((store.path / "locks/flusher").read_text())
        os.kill(flusher, signal.SIGSTOP)
        try:
            done = pool.submit(write, store.path, {"value": rows, **({"key": rows} if keyed else {})})
            wait_until(lambda: sum(lane.messages for lane in store.statistics().lanes) == 400, "all rows in the log")
            assert not done.done()
        finally:
            os.kill(flusher, signal.SIGCONT)
        done.result(60)
        assert all(lane.flushed == lane.wrote for lane in store.statistics().lanes)
        keys = [row.decode() if keyed else None for row in rows]
        assert read(store) == [("t", row, key, {}) for row, key in zip(rows, keys, strict=True)]


@by_url_nightly
def test_rows_that_cannot_be_stored(store: commitlog.Store) -> None:
    """Errors name the column and the value.

    Nothing of the row is in the log, and the store's one lane is free again.
    """
    large, twice = [b"x" * 300_000], headers(("h", b"1"), ("h", b"2"))
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"value": pa.nulls(1, pa.binary())}, RecordError, "^column value: null can't be stored"),
        ({"value": ["x"], "topic": pa.nulls(1, pa.string())}, IllegalTopic, "^column topic: null"),
        ({"value": ["x"], "topic": ["a b"]}, IllegalTopic, "^column topic: topic 'a b': only letters"),
        ({"value": ["x"], "topic": NO_UTF8}, IllegalTopic, "^column topic: "),
        ({"value": ["x"], "partition": pa.array([3], pa.int32())}, RecordError, "^column partition: 3 can't be asked"),
        ({"value": ["x"], "key": [""]}, IllegalProperty, "^column key: b''"),
        ({"value": ["x"], "key": [b"\xff" * 30_000]}, PropertiesTooLarge, r"^column key: '/+…: PROPERTIES_SIZE_EXC"),
        (
            {"value": ["x"], "key": ["k" * 40_000]},
            PropertiesTooLarge,
            r"^column key: 'k+…: PROPERTIES_SIZE_EXCEEDED: key, tags and headers of 40,",
        ),
        (
            {"value": ["x"], "headers": headers(("KEYS", b"A"))},
            IllegalProperty,
            "^column headers: {'KEYS': 'A'}: .*own",
        ),
        (
            {"value": ["x"], "headers": headers(("h", b"\xff"))},
            IllegalProperty,
            r"^column headers: b'\\xff' is not UTF-8",
        ),
        ({"value": ["x"], "headers": headers(("", b"x"))}, IllegalProperty, "^column headers: b''"),
        ({"value": ["x"], "headers": headers(("h", None))}, IllegalProperty, r"^column headers: \(b'h', None\): null"),
        ({"value": ["x"], "headers": twice}, IllegalProperty, "^column headers: 'h' is there twice"),
        ({"value": large}, MessageTooLarge, "^column value: MESSAGE_SIZE_EXCEEDED"),
        ({"value": large, "key": ["k"]}, MessageTooLarge, "^column value: MESSAGE_SIZE_EXCEEDED"),
    ]
    for columns, kind, message in cases:
        with pytest.raises(kind, match=message):
            write(store.path, columns)
        assert read(store) == []
        store.producer().close()


def test_what_is_refused_before_any_row(tmp_path: Path) -> None:
    x = {"value": ["x"]}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (x, {"nonsense": "1"}, "option nonsense: there is none of this name; allowed are"),
        (x, {"subscribe": "t"}, r"option topic is one of a sink \(df.write\) and option subscribe one of a source"),
        (
            x,
            {"topic": "", "subscribe": "t"},
            r"option subscribe: it is one of a source .*; a sink takes topic; allowed are path, topic, inc",
        ),
        (x, {"kafka.acks": "all"}, r"option kafka\.acks: .* no broker; .* remove it"),
        (x, {"maxLaneWait": "soon"}, "option maxLaneWait: 'soon' is not allowed; give a time"),
        (x, {"includeHeaders": "some"}, "option includeHeaders: 'some' is not allowed; give true or false"),
        (x, {"path": ""}, "option path is missing"),
        (x, {"topic": ""}, "option topic is missing, and so is a column topic"),
        ({"body": ["x"]}, {}, "column value is missing; the DataFrame has body"),
        ({"value": [1]}, {}, "column value is bigint; it must be string or binary: CAST it"),
        ({**x, "key": [1]}, {}, "column key is bigint; it must be string or binary"),
        ({**x, "topic": [b"t"]}, {}, "column topic is binary; it must be string"),
        ({**x, "partition": [1]}, {}, "column partition is bigint; it must be int"),
        ({**x, "headers": [["a"]]}, {}, "column headers is array<string>; it must be array<struct<key:string"),
    ]
    for columns, options, message in cases:
        for stream in (False, True):
            with pytest.raises(OptionError, match=message):
                write(tmp_path / "nowhere", columns, stream=stream, **options)
    with pytest.raises(OptionError, match=r"mode overwrite: .* nothing was deleted\. Use \.mode\('append'\)"):
        write(tmp_path / "nowhere", x, overwrite=True)
    for stream in (False, True):
        with pytest.raises(StoreNotFound, match="nowhere: there is no store here"):
            write(tmp_path / "nowhere", x, stream=stream, checkpointLocation="c", queryName="q")


def test_a_column_named_twice(tmp_path: Path) -> None:
    schema = from_arrow_schema(pa.schema([("value", pa.string()), ("value", pa.string())]))
    with pytest.raises(OptionError, match="column value is there twice"):
        CommitLogDataSource({"path": str(tmp_path), "topic": "t"}).writer(schema, False)
