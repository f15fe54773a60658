"""Every call of Flight that is no action, by every kind of token, about every kind of topic.

The actions have such a walk in test_reader_rights.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import flight

import commitlog
from commitlog.remote import requests
from commitlog.remote.server_errors import from_bytes
from commitlog.serving.access import Access, add_token, remove_token
from tests.serving.asking import address_of, client_of, server_of

SEEN, TYPED_SEEN, HIDDEN, TYPED_HIDDEN = TOPICS = ("orders", "orders-rows", "secret", "secret-rows")
NEVER = "secret-never"
"""A topic that the tokens are not for, and that is not there."""
TOKENS = {
    "reads": Access("reads", ("orders*",)),
    "writes": Access("writes", ("orders*",), read=False, write=True),
    "both": Access("both", ("orders*",), write=True),
    "removed": Access("removed", write=True),
}
WITHOUT = ("no token", "unknown", "removed")
COLUMNS = pa.schema({"id": pa.int64(), "name": pa.string()})


@dataclass
class Place:
    """A store with all kinds of topics, its server, and a client for each token."""

    client: flight.FlightClient
    secrets: dict[str, str]
    tickets: dict[str, dict[str, Any]]

    def options(self, token: str) -> flight.FlightCallOptions:
        secret = self.secrets.get(token)
        headers = [(b"authorization", f"Bearer {secret}".encode())] if secret else []
        return flight.FlightCallOptions(headers=headers, timeout=10)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, served_base: str) -> Iterator[Place]:
    tokens = tmp_path_factory.mktemp("rights") / "tokens.json"
    secrets = {name: add_token(tokens, access) for name, access in TOKENS.items()}
    secrets |= {"unknown": "clog_none", "every": add_token(tokens, Access("every"))}
    remove_token(tokens, "removed")
    path = tmp_path_factory.mktemp("stores") / "store"
    with commitlog.Store.open(path) as store, store.producer() as producer:
        for topic in (SEEN, HIDDEN):
            producer.send(topic, b"a value")
        for topic in (TYPED_SEEN, TYPED_HIDDEN):
            store.create_topic(topic, COLUMNS)
            producer.send_rows(topic, [{"id": 1, "name": "a"}])
        producer.flush(timeout=30)
        with server_of([path], tokens=tokens, writable=True) as server:
            with client_of(address_of(server, token=secrets["every"])) as honest:
                tickets = {topic: orjson.loads(honest.ticket(topic)) for topic in TOPICS}
            tickets[NEVER] = tickets[HIDDEN] | {"slices": [[NEVER, *tickets[HIDDEN]["slices"][0][1:]]]}
            with flight.connect(f"grpc://127.0.0.1:{server.ports[0]}") as client:
                found = Place(client, secrets, tickets)
                assert outcome(found, "every", "rows", SEEN)[0] == ""  # it connects, before leaks are looked for
                yield found


# ---- the calls ----------------------------------------------------------------------------------


def by_path(topic: str) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_path("store", topic)


def by_command(**given: str) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(orjson.dumps(given))


def put(place: Place, options: Any, request: requests.Append, batch: pa.RecordBatch) -> bytes:
    command = flight.FlightDescriptor.for_command(orjson.dumps(request))
    writer, answers = place.client.do_put(command, batch.schema, options)
    with writer:
        writer.write_batch(batch)
        writer.done_writing()
        said = []
        while (answer := answers.read()) is not None:
            said.append(answer.to_pybytes())
    return b"".join(said)


def values(**more: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": ["new"], **more})


def exchange(place: Place, options: Any, topic: str) -> bytes:
    writer, reader = place.client.do_exchange(by_path(topic), options)
    with writer:
        return bytes(reader.read_all().num_rows)


CALLS: dict[str, tuple[str, Callable[[Place, flight.FlightCallOptions, str], bytes]]] = {
    "flight info by path": ("read", lambda p, o, t: p.client.get_flight_info(by_path(t), o).serialize()),
    "flight info by command": (
        "read",
        lambda p, o, t: p.client.get_flight_info(by_command(subscribe=t, values="bytes"), o).serialize(),
    ),
    "flight info of lanes": (
        "read",
        lambda p, o, t: p.client.get_flight_info(
            by_command(assign=orjson.dumps({t: [0]}).decode(), values="bytes"), o
        ).serialize(),
    ),
    "flight info of two topics": (
        "read",
        lambda p, o, t: p.client.get_flight_info(by_command(subscribe=f"{SEEN},{t}", values="bytes"), o).serialize(),
    ),
    "schema by path": ("read", lambda p, o, t: p.client.get_schema(by_path(t), o).schema.serialize().to_pybytes()),
    "schema by command": (
        "read",
        lambda p, o, t: p.client.get_schema(by_command(subscribe=t), o).schema.serialize().to_pybytes(),
    ),
    "rows": (
        "read",
        lambda p, o, t: repr(
            p.client.do_get(flight.Ticket(orjson.dumps(p.tickets[t])), o).read_all().to_pylist()
        ).encode(),
    ),
    "append": ("write", lambda p, o, t: put(p, o, requests.Append("store", t), values())),
    "append by column": ("write", lambda p, o, t: put(p, o, requests.Append("store"), values(topic=[t]))),
    "append rows": (
        "write",
        lambda p, o, t: put(
            p,
            o,
            requests.Append("store", t, rows=True),
            pa.RecordBatch.from_pydict({"id": [1], "name": ["new"]}, COLUMNS),
        ),
    ),
    "exchange": ("", exchange),
    "flights": ("read", lambda p, o, _t: b"".join(info.serialize() for info in p.client.list_flights(options=o))),
    "flights of a store": (
        "read",
        lambda p, o, _t: b"".join(info.serialize() for info in p.client.list_flights(b"store", o)),
    ),
    "actions": ("", lambda p, o, _t: repr(p.client.list_actions(o)).encode()),
    "handshake": ("", lambda p, o, _t: repr(p.client.authenticate_basic_token("user", "word", o)).encode()),
}
"""Call → the right that it needs ("" for none), and how it is made."""


def outcome(place: Place, token: str, call: str, topic: str) -> tuple[str, str]:
    """The name of the error in which a call ends ("" for an answer), and what it says."""
    try:
        return "", str(CALLS[call][1](place, place.options(token), topic), "latin-1")
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        named = from_bytes(getattr(error, "extra_info", b"")) or error
        text: str = str(named)
    if call.startswith("schema") and re.search(r"the token \w+ is not|the server (does not know|wants)", text):
        return "AccessDenied", text  # GetSchema passes on the text alone
    return type(named).__name__, text


def expected(token: str, call: str, topic: str) -> str:
    """The name of the error, or "" where the token allows the call."""
    needs, access = CALLS[call][0], TOKENS.get(token, Access("nobody", ()))
    if token in WITHOUT:
        return "AccessDenied"
    if call == "handshake":
        return "ArrowNotImplementedError"  # there is none: each call has its token
    if call == "exchange":
        return "IllegalArgument"
    if needs and not (getattr(access, needs) and (access.covers(topic) or call.startswith("flights"))):
        return "AccessDenied"
    if needs == "write" and (call == "append rows") != topic.endswith("-rows"):
        return "NoSchema" if call == "append rows" else "ValuesRefused"
    return ""


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("token", [*WITHOUT, "reads", "writes", "both"])
def test_a_call_does_what_its_token_allows(place: Place, token: str, call: str) -> None:
    """All else is refused by name.

    A hidden topic is refused like one that is not there, so nothing is told of it, and no answer
    about other topics names it.
    """
    never = outcome(place, token, call, NEVER)
    for topic in TOPICS:
        kind, said = outcome(place, token, call, topic)
        assert (topic, kind) == (topic, expected(token, call, topic)), said
        assert "Traceback" not in said
        if topic in (HIDDEN, TYPED_HIDDEN):
            assert (kind, said.replace(topic, NEVER)) == never
        else:
            assert HIDDEN not in said
