"""What a server lets a client of Arrow Flight append: columns, answers, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import flight

import commitlog
from commitlog.errors import (
    CommitLogError,
    IllegalArgument,
    IllegalProperty,
    IllegalRow,
    IllegalTopic,
    MessageTooLarge,
    NoFreeLane,
    NoSchema,
    RecordError,
    StoreNotFound,
    ValuesRefused,
)
from commitlog.remote import requests
from commitlog.remote.server_errors import from_bytes
from tests.served import name_of
from tests.serving.appending import shared_store
from tests.serving.asking import await_free_lane
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def max_lanes() -> int:
    return 1


@pytest.fixture
def client(served_base: str) -> Iterator[flight.FlightClient]:
    """A plain client of Arrow Flight."""
    with flight.connect(served_base.replace("commitlog", "grpc")) as connected:
        yield connected


def messages(store: commitlog.Store) -> list[tuple[str, bytes, str | None, dict[str, str], str | None]]:
    return [(m.topic, m.value, m.key, m.headers, m.tags) for m in shared_store.messages(store)]


def append(client: flight.FlightClient, command: bytes, *tables: pa.Table) -> list[dict[str, Any]]:
    """Sends the tables, all of one schema, and returns the answers. Raises what the server does."""
    writer, reader = client.do_put(flight.FlightDescriptor.for_command(command), tables[0].schema)
    answers = []
    try:
        for table in tables:
            writer.write_table(table)
        writer.done_writing()
        while (answer := reader.read()) is not None:
            answers.append(orjson.loads(answer.to_pybytes()))
        writer.close()
    except flight.FlightError:
        with pytest.raises(flight.FlightError) as it:
            writer.close()
        error = from_bytes(it.value.extra_info)
        assert error is not None
        raise error from None
    return answers


def command(store: commitlog.Store, **fields: object) -> bytes:
    return orjson.dumps({"store": name_of(store.path), **fields})


def test_what_becomes_of_the_columns(store: commitlog.Store, client: flight.FlightClient) -> None:
    """Strings or bytes, with and without headers and tags, in their order."""
    headers = [[{"key": "h", "value": b"1"}], None, []]
    pairs = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    whole = pa.table(
        {
            "value": pa.array([b"a", b"b", b"c"], pa.large_binary()),
            "key": [None, "k", None],
            "topic": ["x", "y", "x"],
            "headers": pa.array(headers, pairs),
            "tags": ["T", None, None],
        }
    )
    append(client, command(store), whole)
    append(client, command(store, topic="z"), pa.table({"value": ["d"], "tags": pa.nulls(1, pa.string())}))
    assert messages(store) == [
        ("x", b"a", None, {"h": "1"}, "T"),
        ("y", b"b", "k", {}, None),
        ("x", b"c", None, {}, None),
        ("z", b"d", None, {}, None),
    ]


def test_rows_of_several_topics_keep_their_order(store: commitlog.Store, url: str) -> None:
    """Those of a lane do, as its messages are in the order in which they came."""
    values = [b"%d" % number for number in range(20)]
    with commitlog.RemoteProducer(url) as producer:
        for number, value in enumerate(values):
            producer.send("bills" if number % 3 else "returns", value, key=str(number))
    assert [message.value for message in shared_store.messages(store)] == values


def test_the_answers_say_how_far_it_is_flushed(store: commitlog.Store, client: flight.FlightClient) -> None:
    """While the stream is open, without another batch; and the lane is free at its end."""
    descriptor = flight.FlightDescriptor.for_command(command(store, topic="t"))
    writer, reader = client.do_put(descriptor, pa.schema({"value": pa.binary()}))

    def answer() -> dict[str, Any]:
        return dict(orjson.loads(reader.read().to_pybytes()))

    assert answer() == asdict(requests.Opened(0, 1 << 18))
    for rows in (1_000, 2_000):
        writer.write_batch(pa.record_batch({"value": pa.array([b"x"] * 1_000, pa.binary())}))
        told: dict[str, Any] = {"flushed": 0}
        while told["flushed"] < rows:
            told = answer()
            assert told["flushed"] <= told["accepted"] <= rows
        assert len(messages(store)) == rows
        with pytest.raises(NoFreeLane):
            commitlog.Producer(store.path)
    writer.close()
    commitlog.Producer(store.path).close()


def test_rows_of_a_typed_topic(store: commitlog.Store, client: flight.FlightClient) -> None:
    columns = pa.schema({"id": pa.int64(), "name": pa.string()})
    store.create_topic("orders", columns)
    rows = pa.table({"id": [1, 2], "name": ["a", None]}, columns)
    answers = append(client, command(store, topic="orders", rows=True), rows, rows.select(["id", "name"]))
    assert answers[-1] == asdict(requests.Appended(4, 4))
    assert commitlog.read_arrow(store.path, "orders").read_all().to_pylist() == rows.to_pylist() * 2
    cases: list[tuple[dict[str, object], pa.Table, type[CommitLogError], str]] = [
        ({"topic": "orders"}, pa.table({"no": [1]}), IllegalRow, "there is no column 'no'; topic orders has version 1"),
        ({"topic": "orders"}, pa.table({"id": ["1"]}), IllegalRow, "column id: Arrow's string is no BIGINT"),
        ({"topic": "other"}, rows, NoSchema, "topic other has no schema"),
        ({}, rows, IllegalArgument, "rows are those of one topic: name it"),
    ]
    for fields, table, kind, message in cases:
        with pytest.raises(kind, match=message) as it:
            append(client, command(store, rows=True, **fields), table)
        assert str(store.path) not in str(it.value)
        commitlog.Producer(store.path).close()


def test_what_is_refused_says_how_many_rows_are_in(store: commitlog.Store, client: flight.FlightClient) -> None:
    """Those of the batches before it, and of its own batch before the row. The lane is free."""
    good = pa.table({"value": [b"1", b"2"], "key": ["k", "l"], "topic": ["t", "t"]})
    store.create_topic("typed", "id BIGINT")
    cases: list[tuple[dict[str, Any], type[CommitLogError], str]] = [
        ({"value": pa.nulls(1, pa.binary())}, RecordError, "^column value: null can't be stored"),
        ({"topic": ["a b"]}, IllegalTopic, "^column topic: topic 'a b': only letters"),
        ({"topic": ["typed"]}, ValuesRefused, "^topic typed has a schema, so it takes rows"),
        ({"key": [""]}, IllegalProperty, "^column key: b''"),
        ({"value": [b"x" * 300_000]}, MessageTooLarge, "^column value: MESSAGE_SIZE_EXCEEDED"),
    ]
    for columns, kind, message in cases:
        before = len(messages(store))
        bad = pa.table({"value": [b"x"], "key": ["k"], "topic": ["t"]} | columns, good.schema)
        with pytest.raises(kind, match=message) as it:
            append(client, command(store), good, bad)
        assert it.value.rows_sent == 2
        wait_until(lambda count=before + 2: len(messages(store)) == count, "the rows before are flushed")  # type: ignore[misc]
        commitlog.Producer(store.path).close()


def test_columns_and_commands_that_are_none(store: commitlog.Store, client: flight.FlightClient) -> None:
    """Each is refused before a lane is leased; fields that nobody knows are, too."""
    good = pa.table({"value": [b"x"]})
    cases: list[tuple[bytes, pa.Table, type[CommitLogError], str]] = [
        (b"", good, IllegalArgument, "Append: : Invalid JSON"),
        (b'{"store": 1}', good, IllegalArgument, "Append: store: Input should be a valid string"),
        (command(store, topic="t", lane=1), good, IllegalArgument, "Append: lane: Unexpected keyword argument"),
        (orjson.dumps({"store": "~nowhere", "topic": "t"}), good, StoreNotFound, "there is no store here"),
        (command(store, topic="a/b"), good, IllegalTopic, "topic 'a/b': only letters"),
        (command(store), good, IllegalArgument, "column topic is missing; there are value"),
        (command(store, topic="t"), pa.table({"body": [b"x"]}), IllegalArgument, "column 'body': messages have value,"),
        (command(store, topic="t"), pa.table({"value": [1]}), IllegalArgument, "column value is int64; it must be"),
        (
            command(store, topic="t"),
            pa.table({"value": [b"x"], "headers": [["a"]]}),
            IllegalArgument,
            "column headers is list",
        ),
    ]
    for given, table, kind, message in cases:
        with pytest.raises(kind, match=message):
            append(client, given, table)
    with pytest.raises(flight.FlightServerError, match="Append: : Invalid JSON"):
        client.do_put(flight.FlightDescriptor.for_path("a"), good.schema)[0].close()
    assert messages(store) == []


def test_a_batch_that_lies_about_its_bytes(store: commitlog.Store, client: flight.FlightClient) -> None:
    """Offsets outside of the values: it is refused, and the server lives."""
    offsets, data = pa.py_buffer(b"\0\0\0\0\xff\xff\xff\x7f\1\0\0\0"), pa.py_buffer(b"x")
    lying = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, data])
    writer, _ = client.do_put(
        flight.FlightDescriptor.for_command(command(store, topic="t")), pa.schema({"value": pa.binary()})
    )
    writer.write_batch(pa.record_batch([lying], ["value"]))
    with pytest.raises(flight.FlightServerError, match="a batch of the stream can't be read"):
        writer.close()
    append(client, command(store, topic="t"), pa.table({"value": [b"x"]}))
    assert len(messages(store)) == 1


def test_a_stream_that_breaks_off_gives_its_lane_back(store: commitlog.Store, served_base: str) -> None:
    """What it has sent stays in the log."""
    client = flight.connect(served_base.replace("commitlog", "grpc"))
    descriptor = flight.FlightDescriptor.for_command(command(store, topic="t"))
    writer, reader = client.do_put(descriptor, pa.schema({"value": pa.binary()}))
    writer.write_batch(pa.record_batch({"value": pa.array([b"x"], pa.binary())}))
    reader.read()
    with pytest.raises(NoFreeLane):
        commitlog.Producer(store.path)
    del writer, reader
    client.close()

    await_free_lane(store)
    assert [value for _, value, *_ in messages(store)] == [b"x"]
