"""Any bytes as ticket, action or name: a named error, and a server that goes on.

Its log has no traceback.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import flight

from commitlog.errors import CommitLogError, IllegalArgument, IllegalTopic, SchemaError
from commitlog.planning.address import parse_address
from commitlog.remote.server_errors import from_bytes
from tests.builders.hand_made import HandMadeStore, small_store
from tests.serving.asking import ask, client_of

ACTIONS = ("look", "find_by_times", "sizes", "limit_rows", "schemas", "hold_name", "hold_reader", "move_name", "stores")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["orders", "other", "", "../x", "a/b", "\0", "x" * 300]) | st.text(max_size=20)
PLACES = st.integers(-2, 202) | st.sampled_from([-(1 << 63), (1 << 63) - 1, 1 << 63, 1 << 80])
FIELDS = (
    "isolation",
    "options",
    "topics",
    "seen",
    "times",
    "ranges",
    "most",
    "first",
    "name",
    "lease",
    "position",
    "now",
    "extra",
)


def as_json(value: object) -> bytes:
    """JSON with numbers of any size, and with what is none: NaN, half of a surrogate pair."""
    return json.dumps(value).encode()


@dataclass
class Target:
    """A server under attack, the client that attacks it, and the server's log."""

    url: str
    client: flight.FlightClient
    store: HandMadeStore
    ticket: dict[str, object]
    log: Path

    def refused(self, call: Callable[[], object]) -> CommitLogError | None:
        """The error that a call ends in, which is one of ours; None if it has an answer."""
        try:
            call()
        except flight.FlightError as error:
            found, said = from_bytes(error.extra_info), str(error)
        else:
            return None
        assert found is not None, said
        assert str(self.store.path) not in str(found)
        assert "its log says how" not in str(found)
        return found

    def act(self, kind: str, body: bytes) -> CommitLogError | None:
        return self.refused(lambda: list(self.client.do_action(flight.Action(kind, body))))

    def get(self, ticket: bytes) -> CommitLogError | None:
        return self.refused(lambda: list(self.client.do_get(flight.Ticket(ticket))))


@pytest.fixture(scope="module", autouse=True)
def _pipe_of_pyarrow() -> None:
    """PyArrow's pipe for signals, which it keeps, is there before leaks are looked for."""
    pa.csv.read_csv(io.BytesIO(b"a\n1"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """At the end the server still gives all rows, and its log has no traceback."""
    directory = tmp_path_factory.mktemp("hostile")
    store, log = small_store(directory / "store"), directory / "log"
    words = [sys.executable, "-m", "commitlog.cli", "serve", str(store.path), "--listen", "127.0.0.1:0"]
    with log.open("wb") as stderr, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr) as process:
        assert process.stdout is not None
        address = parse_address(process.stdout.readline().decode())
        with client_of(address) as honest, flight.connect(f"grpc://127.0.0.1:{address.hosts[0][1]}") as client:
            list(client.do_action(flight.Action("stores", b"{}")))  # connects
            yield Target(str(address), client, store, orjson.loads(honest.ticket()), log)
            assert sorted(honest.rows(honest.ticket())) == store.rows("orders")
        process.terminate()
        process.wait(60)
    assert "Traceback" not in log.read_text()


@settings(max_examples=25)
@given(kind=st.sampled_from(ACTIONS), body=st.binary(max_size=200) | JSON.map(as_json))
def test_actions_of_any_bytes(target: Target, kind: str, body: bytes) -> None:
    target.act(kind, body)


@settings(max_examples=25)
@given(kind=st.text(max_size=40))
def test_names_of_actions(target: Target, kind: str) -> None:
    assert target.act(kind, b"{}") is not None or kind == "stores"


@settings(max_examples=25)
@given(kind=st.sampled_from(ACTIONS), fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_actions_of_the_right_names_and_wrong_values(target: Target, kind: str, fields: dict[str, object]) -> None:
    target.act(kind, as_json({"store": "store", **fields}))


@settings(max_examples=25)
@given(
    kind=st.sampled_from(["sizes", "limit_rows"]),
    ranges=st.lists(st.tuples(NAMES, PLACES, PLACES, PLACES), max_size=4),
    most=PLACES,
    first=st.tuples(NAMES, PLACES),
)
def test_any_ranges(target: Target, kind: str, ranges: list[object], most: int, first: object) -> None:
    more = {"most": most, "first": first} if kind == "limit_rows" else {}
    target.act(kind, as_json({"store": "store", "ranges": ranges, **more}))


@settings(max_examples=25)
@given(times=st.lists(st.tuples(NAMES, PLACES, PLACES), max_size=4))
def test_any_times(target: Target, times: list[object]) -> None:
    target.act("find_by_times", as_json({"store": "store", "times": times}))


@settings(max_examples=25)
@given(name=NAMES)
def test_names_of_readers(target: Target, name: str) -> None:
    """A name is never the path of another file."""

    def others() -> set[Path]:
        return {path for path in target.store.path.parent.rglob("*") if not {"readers", "servers"} & {*path.parts}}

    before = others()
    for action in ("hold_name", "hold_reader"):
        target.act(action, as_json({"store": "store", "name": name}))
    assert others() == before
    assert not [path for path in target.store.path.parent.iterdir() if path.name not in ("store", "log")]


@settings(max_examples=25)
@given(ticket=st.binary(max_size=300) | JSON.map(as_json))
def test_tickets_of_any_bytes(target: Target, ticket: bytes) -> None:
    assert target.get(ticket) is not None


@settings(max_examples=25)
@given(st.data())
def test_tickets_with_one_wrong_field(target: Target, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(sorted(target.ticket)))
    target.get(as_json({**target.ticket, field: data.draw(JSON)}))


@settings(max_examples=25)
@given(slices=st.lists(st.tuples(NAMES, PLACES, PLACES, PLACES), max_size=4))
def test_tickets_of_any_offsets(target: Target, slices: list[object]) -> None:
    target.get(as_json({**target.ticket, "slices": slices}))


@pytest.mark.parametrize("topic", ["other/../orders", "../consumequeue/orders", "/", "..", "orders/", "a\0"])
def test_a_topic_is_never_a_path(target: Target, topic: str) -> None:
    """Or a token for `other*` would read `orders`."""
    found = target.get(as_json({**target.ticket, "slices": [(topic, 0, 0, 1)]}))
    assert type(found) is IllegalTopic


@settings(max_examples=25)
@given(schema=st.binary(max_size=200), names=st.lists(NAMES, max_size=3))
def test_tickets_of_any_columns(target: Target, schema: bytes, names: list[str]) -> None:
    """A schema that is none, one that is cut off, and columns that there are not."""
    made = pa.schema([(name, pa.int64()) for name in names if name.isprintable()])
    for data in (schema, made.serialize().to_pybytes(), made.serialize().to_pybytes()[: len(schema)]):
        target.get(as_json({**target.ticket, "schema": base64.b64encode(data).decode()}))


def nested(levels: int) -> pa.DataType:
    kind = pa.int64()
    for _ in range(levels):
        kind = pa.list_(kind)
    return kind


@pytest.mark.parametrize(
    ("columns", "kind", "said"),
    [
        ([(f"c{number}", pa.int64()) for number in range(5_000)], IllegalArgument, "allowed are 4,096"),
        ([("wide", pa.struct([(f"c{number}", pa.int64()) for number in range(5_000)]))], IllegalArgument, "4,096"),
        ([("deep", nested(60))], SchemaError, "nested at most 32 deep"),
        ([("coded", pa.dictionary(pa.int32(), pa.string()))], IllegalArgument, "coded is dictionary"),
        ([("one", pa.sparse_union([pa.field("a", pa.int64())]))], SchemaError, "Spark has no type"),
        ([("runs", pa.run_end_encoded(pa.int32(), pa.int64()))], SchemaError, "Spark has no type"),
        ([("time", pa.duration("ns"))], SchemaError, "Spark has no type"),
    ],
)
def test_columns_that_no_read_gives(
    target: Target, columns: list[tuple[str, pa.DataType]], kind: type[CommitLogError], said: str
) -> None:
    """Many, deep, or of types that Arrow's JSON reader does not make: each is refused by name."""
    schema = base64.b64encode(pa.schema(columns).serialize()).decode()
    found = target.get(as_json({**target.ticket, "options": {"values": "json"}, "schema": schema}))
    assert type(found) is kind
    assert said in str(found)


def test_a_descriptor_with_many_columns(target: Target) -> None:
    """It is refused soon: the time for a check grows with the number of columns only."""
    command = {
        "store": "store",
        "subscribe": "orders",
        "values": "json",
        "schema": ", ".join(f"c{number} INT" for number in range(50_000)),
    }
    descriptor = flight.FlightDescriptor.for_command(as_json(command))
    found = target.refused(lambda: target.client.get_flight_info(descriptor))
    assert type(found) is IllegalArgument
    assert "50,000 columns" in str(found)
    with pytest.raises(pa.ArrowException, match="50,000 columns"):  # PyArrow passes no class on here
        target.client.get_schema(descriptor)


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("look", {"topics": ["orders"] * 100_001}),
        ("schemas", {"topics": ["orders"] * 100_001}),
        ("find_by_times", {"times": [("orders", 0, 0)] * 100_001}),
        ("sizes", {"ranges": [("orders", 0, 0, 1)] * 100_001}),
        (
            "move_name",
            {"lease": "", "position": {"store_id": "", "offsets": {"o": dict.fromkeys(map(str, range(100_001)), 0)}}},
        ),
    ],
)
def test_requests_that_name_too_much(target: Target, action: str, fields: dict[str, object]) -> None:
    found = target.act(action, as_json({"store": "store", **fields}))
    assert type(found) is IllegalArgument
    assert "100,001 in" in str(found)


def test_other_calls_of_flight(target: Target) -> None:
    """Each ends in an error of one line without a path, and does the server no harm."""
    junk = flight.FlightDescriptor.for_command(b"\xff\n"), flight.FlightDescriptor.for_path("a\nb", "c")
    client, schema = target.client, pa.schema({"value": pa.binary()})
    calls: list[Callable[[], object]] = [
        lambda: list(client.list_flights(b"\xff\n")),
        lambda: list(client.do_action(flight.Action("a\nb", b""))),
        lambda: client.do_get(flight.Ticket(b"\xff\n")).read_all(),
        lambda: client.authenticate_basic_token("a", "b"),
    ]
    for one in junk:
        calls += [partial(client.get_flight_info, one), partial(client.get_schema, one)]
        calls += [partial(_writes_to, client.do_put, one, schema), partial(_writes_to, client.do_exchange, one)]
    for call in calls:
        with pytest.raises((pa.ArrowException, NotImplementedError)) as it:
            call()
        said = str(it.value)
        assert "\n" not in said
        assert "Traceback" not in said
        assert ".py" not in said
    assert ask(parse_address(target.url)) == ["store"]


def _writes_to(call: Callable[..., tuple[Any, Any]], *given: object) -> None:
    """A DoPut or DoExchange: it is over when its answers are."""
    writer, reader = call(*given)
    try:
        writer.done_writing()
        while reader.read() if hasattr(reader, "read") else reader.read_chunk():
            pass
    finally:
        writer.close()
