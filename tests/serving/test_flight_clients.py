"""Clients of Arrow Flight that know nothing of our package, and what they are told."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.errors import AccessDenied, IllegalArgument
from commitlog.planning.address import parse_address
from commitlog.planning.option_names import SPELLING
from commitlog.remote.remote_index import RemoteIndex
from commitlog.serving.access import Access, add_token
from commitlog.serving.server_processes import Server
from commitlog.serving.server_settings import settings_of
from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import append_rows, declare
from tests.builders.vector_store import load
from tests.served import by_url, name_of, place_of

pytestmark = pytest.mark.usefixtures("no_segments_mapped", "served_base")
JSON = {"values": "json", "schema": "id INT, name STRING, _corrupt_record STRING"}


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """Two lanes: `values`, of which some have no entry yet, and a typed topic that has grown."""
    made = HandMadeStore(tmp_path / "secret-place")
    schema = declare(made, "orders", "id INT NOT NULL")
    for lane in (made.lane(0), made.lane(1)):
        for number in range(5):
            append_rows(lane, schema, [{"id": 10 * number + row} for row in range(3)])
            lane.append("values", b'{"id": %d, "name": "n"}' % number, key=f"k{number}")
        schema = declare(made, "orders", "id BIGINT, name STRING", evolve=True)
        append_rows(lane, schema, [{"id": 1 << 40, "name": "new"}])
        lane.append("values", b"no JSON")
        lane.dispatch(9)
    made.publish()
    declare(made, "empty", "x DOUBLE")
    return made


@pytest.fixture(scope="module", autouse=True)
def signal_pipe() -> None:
    """PyArrow's pipe for signals, which it keeps, is there before leaks are looked for."""
    pa.csv.read_csv(io.BytesIO(b"a\n1"))


@pytest.fixture
def client(served_base: str) -> Iterator[flight.FlightClient]:
    """A client of the server that has all stores of this machine."""
    with flight.FlightClient(served_base.replace("commitlog://", "grpc://")) as made:
        yield made


def at(store: HandMadeStore, topic: str) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_path(name_of(store.path), topic)


def asking(store: HandMadeStore, **options: object) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(json.dumps({"store": name_of(store.path), **options}))


def table_of(client: flight.FlightClient, descriptor: flight.FlightDescriptor) -> pa.Table:
    """The rows of all endpoints, one behind the other."""
    info = client.get_flight_info(descriptor)
    assert client.get_schema(descriptor).schema == info.schema
    tables = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
    assert [table.schema for table in tables] == [info.schema] * len(tables)
    found = pa.concat_tables([info.schema.empty_table(), *tables])
    assert info.total_records in (-1, found.num_rows)
    return found


def test_topics_are_read(store: HandMadeStore, client: flight.FlightClient) -> None:
    """By a path or by JSON, a client gets what `read_arrow` gets of the directory."""
    for topic in ("values", "orders"):
        expected = commitlog.read_arrow(store.path, topic).read_all()
        assert expected.num_rows > 11
        assert table_of(client, at(store, topic)).equals(expected)
        assert table_of(client, asking(store, subscribe=topic, minPartitions="3")).equals(expected)
    assert table_of(client, at(store, "orders")).column_names == ["id", "name"]
    assert table_of(client, at(store, "empty")).equals(pa.table({"x": pa.array([], pa.float64())}))
    assert client.get_flight_info(at(store, "values")).total_records == 12
    assert len(client.get_flight_info(asking(store, subscribe="values", minPartitions="3")).endpoints) >= 3


def test_options_of_spark(store: HandMadeStore, client: flight.FlightClient) -> None:
    def found(**options: str) -> list[dict[str, object]]:
        return list(table_of(client, asking(store, **options)).to_pylist())

    assert found(subscribe="values", columns="partition,offset", startingOffsets="last 1") == [
        {"partition": 0, "offset": 5},
        {"partition": 1, "offset": 5},
    ]
    assert found(assign='{"values": [1]}', columns="key", endingOffsets='{"values": {"1": 2}}') == [
        {"key": b"k0"},
        {"key": b"k1"},
    ]
    assert (
        found(subscribe="orders", metadata="true", columns="_offset,id", startingOffsets="last 1")
        == [{"_offset": 5, "id": 1 << 40}] * 2
    )
    assert len(found(subscribe="orders,values", values="bytes", includeHeaders="true")) == 24
    rows = found(subscribe="values", **JSON)
    assert rows[4:6] == [
        {"id": 4, "name": "n", "_corrupt_record": None},
        {"id": None, "name": None, "_corrupt_record": "no JSON"},
    ]
    assert len(found(subscribe="values", mode="DROPMALFORMED", **JSON)) == 10


def test_polars_and_duckdb_take_the_stream(store: HandMadeStore, client: flight.FlightClient) -> None:
    (endpoint,) = client.get_flight_info(at(store, "orders")).endpoints
    ids = commitlog.read_arrow(store.path, "orders").read_all()["id"].to_pylist()
    assert pl.DataFrame(client.do_get(endpoint.ticket).to_reader())["id"].to_list() == ids
    orders = client.do_get(endpoint.ticket).to_reader()
    with duckdb.connect(config={"threads": 1}) as database:
        assert database.sql("SELECT sum(id), count(*) FROM orders").fetchall() == [(sum(ids), len(ids))]
    del orders


def test_a_rocketmq_root(tmp_path: Path, client: flight.FlightClient) -> None:
    written = load("v1_basic")
    root = written.unpack(tmp_path / "root")
    topics = {entry["topic"] for entry in written.queue_entries}
    assert len(topics) == 6
    for topic in topics:
        descriptor = flight.FlightDescriptor.for_path(name_of(root), topic)
        assert table_of(client, descriptor).equals(commitlog.read_arrow(root, topic).read_all())


def test_wrong_descriptors(store: HandMadeStore, client: flight.FlightClient) -> None:
    """One line each, which says what is wrong; no path of the server, and no traceback."""
    path, command = flight.FlightDescriptor.for_path, flight.FlightDescriptor.for_command
    name = name_of(store.path)
    wrong: list[tuple[flight.FlightDescriptor, str]] = [
        (at(store, "missing"), "no topic missing; there are: empty, orders, values"),
        (at(store, "../values"), "topic"),
        (at(store, "values,orders"), "not one of a topic"),
        (path(), "not one of a topic"),
        (path(name, "values", "more"), "not one of a topic"),
        (command(b"SELECT 1"), "its command is not JSON"),
        (command(b"[]"), "is not a JSON object"),
        (command(b'{"store": "' + b"x" * (1 << 20) + b'"}'), "too many for a command"),
        (asking(store, subscribe=["values"]), "subscribe: give its value as a string"),
        (asking(store), "option subscribe is missing"),
        (asking(store, subscribePattern="(a+)+$"), "name the topics in option subscribe"),
        (asking(store, SUBSCRIBEPATTERN="(a+)+$"), "name the topics in option subscribe"),
        (asking(store, subscribe="values", path="/etc"), "option path: it is one of a source"),
        (asking(store, subscribe="values", token="t"), "option token: it is one of a source"),
        (asking(store, subscribe="values", strange="1"), "option strange: there is none of this name"),
        (asking(store, subscribe="values", schema="id INT"), "it is for option values=json"),
        (asking(store, subscribe="values", values="columns"), "topic values has no schema"),
        (asking(store, subscribe="orders", columns="wrong"), "there is no column 'wrong'"),
        (asking(store, subscribe="values", values="json"), "json needs the fields"),
        (asking(store, subscribe="values", values="json", schema="id"), "a type is missing"),
        (asking(store, subscribe="values", values="json", schema="id INT NOT NULL"), "can't be NOT NULL"),
        (asking(store, subscribe="values", values="json", schema="_offset STRING"), "'_offset' is BIGINT"),
        (asking(store, subscribe="values", values="json", schema="x " + "ARRAY<" * 9000), "nested too deep"),
        (asking(store, assign="[" * 90_000), "option assign"),
        (asking(store, subscribe="values", startingOffsets="99"), "is no place in a topic"),
        (asking(store, subscribe="values", startingOffsets='{"values": {"0": 99, "1": 0}}'), "beyond its end, 6"),
    ]
    for descriptor, reason in wrong:
        with pytest.raises(flight.FlightError) as caught:
            client.get_flight_info(descriptor)
        text = str(caught.value).partition(". gRPC client debug context")[0]
        assert reason in text
        assert "Traceback" not in str(caught.value)
        assert str(store.path) not in str(caught.value)


def test_a_wrong_question_costs_others_nothing(
    store: HandMadeStore, client: flight.FlightClient, served_base: str
) -> None:
    """The server goes on with the index that it has, so others see that nothing has moved."""
    with by_url(served_base):
        index = RemoteIndex(parse_address(place_of(store.path)))
    assert index.refresh()
    for descriptor in (
        at(store, "missing"),
        asking(store, subscribe="values", startingOffsets='{"values": {"0": 99}}'),
    ):
        with pytest.raises(flight.FlightError):
            client.get_flight_info(descriptor)
    assert not index.refresh()


VALUES = st.sampled_from(["values", "orders", "json", "bytes", "columns", "true", "id INT", "1", "earliest", "last 3"])
OPTIONS = st.sampled_from([*SPELLING.values(), "schema"])
JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda one: st.lists(one) | st.dictionaries(VALUES, one)
)


@given(
    st.dictionaries(OPTIONS, VALUES | st.text(max_size=20) | JSON_VALUES.map(json.dumps))
    | st.dictionaries(OPTIONS, VALUES).map(lambda options: {"subscribe": "values", **options})
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_no_command_is_a_surprise(store: HandMadeStore, client: flight.FlightClient, options: dict[str, str]) -> None:
    """Whatever it says: rows, or an error of ours. A server that has failed says so."""
    known, text = True, ""
    try:
        table_of(client, asking(store, **options))
    except flight.FlightError as error:
        known, text = bool(error.extra_info), str(error)
    assert known, text
    assert "the server has failed" not in text


# ---- a server as users run it ------------------------------------------------------------------


@contextmanager
def serving(*stores: str, tokens: Path | None = None, processes: int = 1) -> Iterator[Server]:
    settings = settings_of(
        stores,
        "127.0.0.1:0",
        certificate=None,
        key=None,
        client_authority=None,
        tokens=tokens,
        writable=False,
        advertise=None,
    )
    with Server(settings, processes) as server:
        yield server


def connected(server: Server, token: str = "") -> tuple[flight.FlightClient, flight.FlightCallOptions]:
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    return flight.FlightClient(f"grpc://127.0.0.1:{server.ports[0]}"), flight.FlightCallOptions(headers=headers)


def run(*words: object) -> str:
    """What a command prints."""
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False).stdout


def names(infos: Iterator[flight.FlightInfo]) -> list[tuple[str, str]]:
    return [(info.descriptor.path[0].decode(), info.descriptor.path[1].decode()) for info in infos]


@pytest.mark.nightly
def test_a_token_shows_its_topics_only(store: HandMadeStore, tmp_path: Path) -> None:
    """The others are not listed, not named in errors, and refused."""
    tokens = tmp_path / "tokens.json"
    some = add_token(tokens, Access("billing", ("val*",)))
    with commitlog.Reader(store.path, topic="orders", name="billing") as reader:
        reader.commit(next(reader))
    none = add_token(tokens, Access("writer", read=False, write=True))
    with serving(f"events={store.path}", tokens=tokens) as server:
        client, options = connected(server, some)
        with client:
            assert names(client.list_flights(options=options)) == [("events", "values")]
            (info,) = client.list_flights(b"events", options)
            assert (info.total_records, info.endpoints) == (12, [])
            assert info.schema.names[:2] == ["key", "value"]
            for descriptor in (
                flight.FlightDescriptor.for_path("orders"),
                flight.FlightDescriptor.for_command('{"subscribe": "values,orders", "values": "bytes"}'),
            ):
                with pytest.raises(flight.FlightUnauthenticatedError, match="billing is not for topic orders"):
                    client.get_flight_info(descriptor, options)
            missing = flight.FlightDescriptor.for_path("valuable")
            with pytest.raises(flight.FlightServerError, match=r"there are: values(\.|$)"):
                client.get_flight_info(missing, options)
            with pytest.raises(flight.FlightServerError, match="no store 'other' is served here; those are events"):
                list(client.list_flights(b"other", options))
            for wrong in (flight.FlightCallOptions(), connected(server, none)[1]):
                with pytest.raises(flight.FlightUnauthenticatedError, match="token"):
                    list(client.list_flights(options=wrong))
        url = f"commitlog://127.0.0.1:{server.ports[0]}/events"
        (tmp_path / "token").write_text(some + "\n")
        with pytest.raises(AccessDenied, match="wants a token"):
            run("topics", url)
        words = ("--json", "--token-file", tmp_path / "token")
        assert [found["topic"] for found in json.loads(run("topics", url, *words))["topics"]] == ["values"]
        facts = json.loads(run("stat", url, *words))
        assert [list(lane["topics"]) for lane in facts["lanes"]] == [["values"], ["values"]]
        assert facts["readers"] == []
        assert facts["path"] == "events"
        for credentials in ({"token": some}, {"token_file": tmp_path / "token"}):
            assert commitlog.read_arrow(url, "values", **credentials).read_all().num_rows == 12
        with pytest.raises(AccessDenied, match="wants a token"):
            commitlog.read_arrow(url, "values")
        with pytest.raises(AccessDenied, match="billing is not for topic orders; it is for val"):
            commitlog.read_arrow(url, "orders", token=some)


@pytest.mark.nightly
def test_several_stores_and_processes(store: HandMadeStore, tmp_path: Path) -> None:
    """All are listed. Endpoints name the processes, and each process takes any ticket."""
    other = HandMadeStore(tmp_path / "other")
    other.lane(0).append("more", b"x")
    other.publish()
    with serving(f"events={store.path}", str(other.path), processes=2) as server:
        client, _ = connected(server)
        with client:
            listed = [("events", "empty"), ("events", "orders"), ("events", "values"), ("other", "more")]
            assert names(client.list_flights()) == listed
            assert names(client.list_flights(b"other")) == listed[3:]
            with pytest.raises(
                flight.FlightServerError, match="it names no store; those served here are events, other"
            ):
                client.get_flight_info(flight.FlightDescriptor.for_path("more"))
            command = '{"store": "events", "subscribe": "values", "minPartitions": "2"}'
            info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
        expected = [f"grpc+tcp://127.0.0.1:{port}".encode() for port in server.ports]
        first, second = info.endpoints[:2]
        assert [location.uri for location in first.locations] == expected
        assert [location.uri for location in second.locations] == expected[::-1]
        rows = 0
        for endpoint in info.endpoints:
            with flight.FlightClient(endpoint.locations[0]) as near:
                rows += near.do_get(endpoint.ticket).read_all().num_rows
        assert rows == info.total_records == 12


def test_credentials_of_read_arrow(store: HandMadeStore) -> None:
    """They are refused beside a directory, and where they do not go together."""
    url = "commitlog://localhost:1/events"
    wrong: list[tuple[str, dict[str, Any], str]] = [
        (str(store.path), {"token": "t"}, "token: it is for a served store"),
        (str(store.path), {"ca_file": "f"}, "ca_file: it is for a served store"),
        (url, {"token": "t", "token_file": "f"}, "token and token_file: give only one"),
        (url, {"ca_file": "f"}, r"ca_file: it is for commitlog\+tls://"),
        ("commitlog+tls://host/events", {"cert_file": "f"}, "cert_file and key_file: give both"),
        ("commitlog://host/events", {}, "is not encrypted"),
        ("commitlog://localhost", {}, "names no store"),
    ]
    for path, credentials, reason in wrong:
        with pytest.raises(IllegalArgument, match=reason):
            commitlog.read_arrow(path, "orders", **credentials)


def test_a_store_that_cant_be_read_is_left_out_of_a_list(store: HandMadeStore, tmp_path: Path) -> None:
    broken = HandMadeStore(tmp_path / "broken")
    broken.publish()
    with serving(f"events={store.path}", str(broken.path)) as server:
        client, _ = connected(server)
        with client:
            (broken.path / "store.json").write_text("{")
            assert {name for name, _ in names(client.list_flights())} == {"events"}
            with pytest.raises(flight.FlightServerError, match=r"broken/store\.json"):
                list(client.list_flights(b"broken"))
