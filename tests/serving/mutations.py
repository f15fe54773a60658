"""Thousands of mutated requests to a real server, as a script too:

    python -m tests.serving.mutations 10000 [SEED]

Tickets, descriptors, actions, criteria, and the commands, schemas and rows of DoPut. Each has an
answer or an error of ours. No answer shows another token's topics, the server's process stays the
same and does not grow, and its log has no traceback.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyarrow import flight

import commitlog
from commitlog.planning.address import parse_address
from commitlog.remote.server_errors import from_bytes
from commitlog.serving.access import Access, add_token

OWN = "orders", "typed"
HIDDEN_TOPIC, HIDDEN_VALUE = "treasures", b"sesame"
"""A topic that the token is not for, and what is in its values, keys and headers."""
CALL_SECONDS = 60.0
GROWTH_BYTES_MAX = 128 << 20
"""What the process's memory may grow by after the first tenth of the requests."""
_ODD: list[Any] = [
    None, True, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**70, -(2**63), 1.5, 1e308, "", "x" * 5_000, "\0", "\ud800",
    "../x", "a/b", "*", "orders", HIDDEN_TOPIC, f"orders,{HIDDEN_TOPIC}", "last 5", "earliest", "2024-01-01", [], {},
    [[]], ["orders", 0], {"orders": {"0": 0}}, {HIDDEN_TOPIC: {"0": 0}}, ["orders"] * 300,
    [[HIDDEN_TOPIC, 0, 0, 1]], [["orders", 0, 0, 1]] * 50, [["orders/../treasures", 0, 0, 1]],
]  # fmt: skip
_NAMES = [
    "store", "topic", "topics", "isolation", "seen", "wait_ms", "epoch", "queues", "times", "ranges", "most", "first",
    "name", "lease", "position", "now", "release", "rows", "version", "subscribe", "assign", "columns", "values",
    "schema", "startingOffsets", "endingOffsets", "minPartitions", "metadata", "mode", "slices", "reader",
]  # fmt: skip
_TYPES = [
    pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.int64(), pa.float16(), pa.bool_(), pa.null(),
    pa.decimal128(38, 5), pa.timestamp("us", "UTC"), pa.duration("ns"), pa.list_(pa.int8()), pa.binary_view(),
    pa.map_(pa.string(), pa.binary()), pa.dictionary(pa.int8(), pa.string()), pa.struct([("a", pa.int8())] * 2),
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])), pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.list_(pa.struct([("key", pa.binary()), ("value", pa.string())])), pa.list_(pa.int8(), 3),
]  # fmt: skip


@dataclass
class Target:
    """The server, its one process, and a client that may use the topics of OWN."""

    client: flight.FlightClient
    options: flight.FlightCallOptions
    process: psutil.Process
    log: Path
    store: Path
    sent: bytes = b""
    """What the last request had in it."""
    outcomes: Counter[str] = field(default_factory=Counter)

    def call(self, kind: str, sent: bytes, call: Callable[[], object]) -> None:
        """Makes a call, and checks what comes back."""
        self.sent = sent
        try:
            answer = repr(call())
            self.outcomes[f"{kind}: answer"] += 1
        except (flight.FlightError, pa.ArrowException, OSError, ValueError) as error:
            answer = str(error)
            self.outcomes[f"{kind}: {self._named(error)}"] += 1
        self._check(answer)

    @staticmethod
    def _named(error: Exception) -> str:
        """The class of our error, or of one by which PyArrow itself has refused the request."""
        found = from_bytes(getattr(error, "extra_info", None) or b"")
        assert found is not None or not isinstance(error, flight.FlightServerError), str(error)
        return type(error if found is None else found).__name__

    def _check(self, answer: str) -> None:
        assert HIDDEN_VALUE.decode() not in answer
        assert HIDDEN_TOPIC not in answer or HIDDEN_TOPIC.encode() in self.sent
        for sign in ("Traceback", ".py", str(self.store.parent), "its log says how", "Deadline Exceeded"):
            assert sign not in answer, answer


class Mutator:
    """Makes requests from good ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def changed(self, data: bytes) -> bytes:
        """Flipped, cut, doubled, or with other bytes in it."""
        made = bytearray(data)
        for _ in range(self.random.choice((1, 1, 1, 3, 20))):
            at = self.random.randrange(len(made) + 1)
            match self.random.randrange(5):
                case 0 if made:
                    made[min(at, len(made) - 1)] ^= 1 << self.random.randrange(8)
                case 1:
                    del made[at:]
                case 2:
                    made[at:at] = self.random.randbytes(self.random.randrange(9))
                case 3:
                    made[at:at] = made[: self.random.randrange(len(made) + 1)]
                case _:
                    del made[at : at + self.random.randrange(9)]
        return bytes(made)

    def as_json(self, value: Any) -> bytes:
        """The JSON of the value, in which something is another value; or other bytes."""
        made = json.dumps(self._other(value)).encode()
        return self.changed(made) if self.random.random() < 0.2 else made

    def _other(self, value: Any) -> Any:
        if self.random.random() < 0.15:
            return self.random.choice(_ODD)
        if isinstance(value, dict):
            made = dict(value)
            if made and self.random.random() < 0.9:
                name = self.random.choice(sorted(made))
                made[name] = self._other(made[name])
            if self.random.random() < 0.4:
                made[self.random.choice(_NAMES)] = self.random.choice(_ODD)
            return made
        if isinstance(value, list) and value:
            at = self.random.randrange(len(value))
            return [*value[:at], self._other(value[at]), *value[at + 1 :]]
        if isinstance(value, str) and value:
            return self.changed(value.encode(errors="replace")).decode(errors="replace")
        return self.random.choice(_ODD)

    def schema(self) -> pa.Schema:
        """Columns of any types, and the names that messages and rows have."""
        names = ["value", "key", "topic", "headers", "tags", "id", "name", "\x1b[2J", ""]
        count = self.random.choice((0, 1, 1, 2, 3, 60))
        return pa.schema([(self.random.choice(names), self.random.choice(_TYPES)) for _ in range(count)])

    def coded_schema(self) -> str:
        data = self.schema().serialize().to_pybytes()
        return base64.b64encode(self.changed(data) if self.random.random() < 0.6 else data).decode()


def hunt(count: int, seed: int, directory: Path) -> Counter[str]:
    """Sends so many requests. Returns how often each kind had which outcome."""
    with target_at(directory) as target:
        mutator, bases = Mutator(seed), _bases(target)
        before = 0
        for number in range(count):
            _send(target, mutator, bases)
            if number == count // 10:
                before = target.process.memory_info().rss
        assert target.process.is_running(), target.sent
        grown = target.process.memory_info().rss - before
        assert grown < GROWTH_BYTES_MAX, f"{grown:,} bytes more"
        assert _rows(target) >= 20
    assert "Traceback" not in target.log.read_text()
    target.outcomes[f"MiB grown: {grown >> 20}"] += 1
    return target.outcomes


@contextmanager
def target_at(directory: Path) -> Iterator[Target]:
    """A store that runs, and its server."""
    store, log, tokens = directory / "store", directory / "log", directory / "tokens.json"
    secret = add_token(tokens, Access("mutant", OWN, write=True))
    config = {"store": {"segment_bytes": 1 << 20, "max_lanes": 4}}
    words = [sys.executable, "-m", "commitlog.cli", "serve", str(store), "--listen", "127.0.0.1:0"]
    words += ["--tokens", str(tokens), "--writable"]
    with commitlog.Store.open(store, config) as running, log.open("wb") as stderr:
        _fill(running)
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr) as server:
            assert server.stdout is not None
            ((_, port),) = parse_address(server.stdout.readline().decode()).hosts
            options = flight.FlightCallOptions(CALL_SECONDS, headers=[(b"authorization", f"Bearer {secret}".encode())])
            (process,) = psutil.Process(server.pid).children()
            try:
                with flight.connect(f"grpc://127.0.0.1:{port}") as client:
                    yield Target(client, options, process, log, store)
            finally:
                server.terminate()


def _fill(store: commitlog.Store) -> None:
    store.create_topic("typed", schema="id BIGINT, name STRING")
    with commitlog.Producer(store.path) as producer:
        for number in range(20):
            producer.send("orders", b'{"id": %d}' % number, key="k", headers={"h": "v"})
            word = HIDDEN_VALUE.decode()
            producer.send(HIDDEN_TOPIC, HIDDEN_VALUE, key=word, headers={word: word}, tags=word)
        producer.send_rows("typed", [{"id": 1, "name": "one"}] * 9)
        producer.flush()


def _rows(target: Target) -> int:
    info = target.client.get_flight_info(flight.FlightDescriptor.for_path("store", "orders"), target.options)
    return sum(target.client.do_get(one.ticket, target.options).read_all().num_rows for one in info.endpoints)


@dataclass
class Bases:
    """Good requests."""

    tickets: list[dict[str, Any]]
    commands: list[dict[str, Any]]
    actions: dict[str, dict[str, Any]]
    puts: list[dict[str, Any]]


def _bases(target: Target) -> Bases:
    commands: list[dict[str, Any]] = [
        {"store": "store", "subscribe": "orders", "columns": "key,value,headers,offset", "startingOffsets": "last 5"},
        {"store": "store", "subscribe": "typed", "values": "columns", "metadata": "true"},
        {"subscribe": "orders", "values": "json", "schema": "id BIGINT, _corrupt_record STRING", "minPartitions": "3"},
        {"assign": '{"orders": [0]}', "startingOffsets": '{"orders": {"0": 3}}', "endingOffsets": "latest"},
    ]
    tickets = []
    for command in commands:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
        for endpoint in target.client.get_flight_info(descriptor, target.options).endpoints:
            tickets.append(json.loads(endpoint.ticket.ticket))
    store_id, part = tickets[0]["store_id"], ["orders", 0, 0, 5]
    actions: dict[str, dict[str, Any]] = {
        "look": {"topics": ["orders"], "wait_ms": 1},
        "shared_ends": {"epoch": 0, "queues": [["orders", 0]]},
        "find_by_times": {"times": [["orders", 0, 1]]},
        "sizes": {"ranges": [part]},
        "limit_rows": {"ranges": [["typed", 0, 0, 1]], "most": 5, "first": ["typed", 0]},
        "schemas": {"topics": ["typed"]},
        "hold_name": {"name": "etl"},
        "hold_reader": {"name": "billing"},
        "move_name": {"lease": "x", "position": {"store_id": store_id, "offsets": {"orders": {"0": 3}}}},
        "check_append": {"topic": "typed"},
        "topics": {},
        "stat": {},
        "stores": {},
    }
    known = {one.type for one in target.client.list_actions(target.options)}
    assert set(actions) == known, "a new action: add it here"
    puts: list[dict[str, Any]] = [{"topic": "orders"}, {"topic": "typed", "rows": True}, {}]
    return Bases(tickets, commands, actions, puts)


def _send(target: Target, mutator: Mutator, bases: Bases) -> None:
    chosen, client, options = mutator.random, target.client, target.options
    match chosen.choice(("ticket", "ticket", "descriptor", "action", "action", "action", "put", "criteria")):
        case "ticket":
            ticket = dict(chosen.choice(bases.tickets))
            if chosen.random() < 0.3:
                ticket["schema"] = mutator.coded_schema()
            data = mutator.as_json(ticket)
            target.call("do_get", data, lambda: client.do_get(flight.Ticket(data), options).read_all().to_pylist())
        case "descriptor":
            data = mutator.as_json(chosen.choice(bases.commands))
            one = flight.FlightDescriptor.for_command(data)
            if chosen.random() < 0.2:
                path = [chosen.choice(["store", "orders", HIDDEN_TOPIC, "\x1b", "", "a,b"]) for _ in range(3)]
                one, data = flight.FlightDescriptor.for_path(*path[: chosen.randrange(4)]), str(path).encode()
            target.call("get_flight_info", data, lambda: client.get_flight_info(one, options))
            target.call("get_schema", data, lambda: client.get_schema(one, options).schema)
        case "action":
            kind = chosen.choice(sorted(bases.actions))
            data = mutator.as_json({"store": "store", **bases.actions[kind]})
            target.call(kind, data, lambda: _bodies(client.do_action(flight.Action(kind, data), options)))
        case "put":
            data = mutator.as_json({"store": "store", **chosen.choice(bases.puts)})
            table = _table(mutator)
            target.call("do_put", data + str(table.to_pydict()).encode(), lambda: _put(target, data, table))
        case "criteria":
            data = mutator.changed(b"store")
            target.call("list_flights", data, lambda: [one.descriptor for one in client.list_flights(data, options)])


def _bodies(results: Iterator[flight.Result]) -> list[bytes]:
    return [result.body.to_pybytes() for result in results]


def _table(mutator: Mutator) -> pa.Table:
    """Nulls, or values of any bytes, in columns of any types."""
    chosen = mutator.random
    if chosen.random() < 0.4:
        schema, rows = mutator.schema(), chosen.randrange(3)
        return pa.Table.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)
    count, table = chosen.randrange(5), {}
    for name in chosen.sample(["value", "key", "topic", "tags", "id", "name"], chosen.randrange(5)):
        words = [None, b"", b"orders", HIDDEN_TOPIC.encode(), chosen.randbytes(40), b"\xff", b"\x01", b"x" * 100_000]
        table[name] = pa.array([chosen.choice(words) for _ in range(count)], pa.binary())
        if name in ("id", "name"):
            table[name] = pa.array([chosen.randrange(99)] * count, pa.int64()).cast(_KIND[name])
    return pa.table(table)


_KIND = {"id": pa.int64(), "name": pa.string()}


def _put(target: Target, data: bytes, table: pa.Table) -> list[bytes]:
    writer, reader = target.client.do_put(flight.FlightDescriptor.for_command(data), table.schema, target.options)
    answers = []
    try:
        if table.num_columns:
            writer.write_table(table)
        writer.done_writing()
        while (answer := reader.read()) is not None:
            answers.append(answer.to_pybytes())
    finally:
        writer.close()
    return answers


if __name__ == "__main__":
    asked, given = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    sys.stdout.write(f"seed {given}\n")
    with tempfile.TemporaryDirectory() as place:
        for outcome, times in sorted(hunt(asked, given, Path(place)).items()):
            sys.stdout.write(f"{times:6,} {outcome}\n")
