"""Topics to send to come by many doors. Each refuses the same ones, by the same errors.

A door that is not in these lists fails the tests, and so does one that checks names on its own.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import typer
from pyarrow import flight
from pyspark.sql.pandas.types import from_arrow_schema

import commitlog
import commitlog.logging
from commitlog.cli.app import app
from commitlog.errors import CommitLogError, IllegalTopic, NoSchema, TopicNotWritable, ValuesRefused
from commitlog.remote import requests
from commitlog.remote.server_errors import from_bytes
from commitlog.spark.source import CommitLogDataSource
from tests.command_line import run
from tests.served import ROOT, name_of
from tests.serving.appending import shared_store

ILLEGAL = ("a b", "..", "a/b", "ü", "t" * 256)
"""Names that no topic may have. No option can be empty, so "" is tried where Python calls."""

SENDING = {
    "Producer.send", "Producer.send_batch", "Producer.send_rows", "Producer.rows", "RemoteProducer.send",
    "RemoteProducer.send_batch", "RemoteProducer.send_rows", "RemoteProducer.rows", "Store.create_topic",
    "logging.Handler", "request Append", "request CheckAppend", "commitlog produce", "commitlog topics --create",
}  # fmt: skip
"""The public names by which a topic comes in to be sent to, or declared; the sink has options."""
READING = {
    "Producer.last", "Reader", "RemoteReceipt", "TopicSchema", "read", "read_arrow", "request Look",
    "request Looked", "request Position", "request Schemas", "commitlog cat --topic", "commitlog forward --topic",
    "commitlog forward --topic-map", "commitlog token --topics", "commitlog topics --delete", "commitlog topics --trim",
}  # fmt: skip
"""Those by which a topic is read, or is told."""
MODULES_THAT_READ = {
    "forwarding/forward_settings", "planning/option_values", "reading/known_topics", "reading/named_reader",
    "reading/reader_position", "reading/starting_point", "remote/topic_reading", "schemas/topic_schemas",
    "disk/writable_topic", "serving/answers",
}  # fmt: skip
"""The modules that may ask for a name's letters alone. All who send ask `writable_topic`."""

Door = Callable[[str], object]
Doors = tuple[dict[str, Door], dict[str, Door], dict[str, Door]]


def _public_names() -> Iterator[str]:
    owners = {name: getattr(commitlog, name) for name in commitlog.__all__ if name != "Message"}  # it tells, not asks
    for owner, made in {**owners, "logging.Handler": commitlog.logging.Handler}.items():
        if not inspect.isclass(made):
            if callable(made) and _takes_topic(made):
                yield owner
            continue
        for name, method in inspect.getmembers(made, callable):
            if (not name.startswith("_") or name == "__init__") and _takes_topic(method):
                yield owner if name == "__init__" else f"{owner}.{name}"


def _takes_topic(called: Any) -> bool:
    try:
        return bool({"topic", "topics"} & set(inspect.signature(called).parameters))
    except (ValueError, TypeError):
        return False


def _requests() -> Iterator[str]:
    for name, made in vars(requests).items():
        if dataclasses.is_dataclass(made) and any("topic" in field.name for field in dataclasses.fields(made)):
            yield f"request {name}"


def _commands() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    for name in group.list_commands(None):
        for parameter in group.get_command(None, name).params:
            if "topic" in parameter.name or "TOPIC" in (parameter.metavar or ""):
                option = next((text for text in parameter.opts if text.startswith("--")), "")
                yield f"commitlog {name} {option}".strip()


def test_all_doors_are_known() -> None:
    """Public names, requests of clients and commands that take a topic are in one of the lists."""
    assert {*_public_names(), *_requests(), *_commands()} == SENDING | READING


def test_only_readers_ask_for_the_letters_of_a_name() -> None:
    """A door for messages asks `writable_topic`, which knows all that such a topic must be."""
    package = ROOT / "commitlog"
    asking = (file for file in package.rglob("*.py") if re.search(r"^ *from .* check_topic\b", file.read_text(), re.M))
    assert {str(file.relative_to(package).with_suffix("")) for file in asking} == MODULES_THAT_READ


# ---- walking through them ----------------------------------------------------------------------


def _exchanged(client: flight.FlightClient, fields: dict[str, Any], table: pa.Table) -> None:
    """Appends a table as a plain client of Arrow Flight does. Raises the error that it is told."""
    writer, reader = client.do_put(flight.FlightDescriptor.for_command(orjson.dumps(fields)), table.schema)
    try:
        writer.write_table(table)
        writer.done_writing()
        while reader.read() is not None:
            pass
        writer.close()
    except flight.FlightError:
        with pytest.raises(flight.FlightError) as raised:
            writer.close()
        raise from_bytes(raised.value.extra_info) or raised.value from None


def _asked(client: flight.FlightClient, store: str, topic: str) -> None:
    body = orjson.dumps({"store": store, "topic": topic})
    try:
        list(client.do_action(flight.Action("check_append", body)))
    except flight.FlightError as error:
        raise from_bytes(error.extra_info) or error from None


def _written(place: str, columns: dict[str, list[Any]], **options: str) -> None:
    """Writes rows as a task of Spark does."""
    batch = pa.RecordBatch.from_pydict(columns)
    source = CommitLogDataSource({"path": place, **options})
    source.writer(from_arrow_schema(batch.schema), overwrite=False).write(iter([batch]))


def _commanded(*words: object) -> None:
    """Runs a command. Raises the error that its last line names, or that stopped its sending."""
    ended = run(*words)
    if ended.returncode:
        line = ended.stderr.decode().splitlines()[-1]
        kinds = {kind.__name__: kind for kind in (IllegalTopic, ValuesRefused, NoSchema)}
        raise kinds.get(line.rpartition("[")[2].rstrip("]"), AssertionError)(line)


@pytest.fixture(scope="module")
def max_lanes() -> int:
    """Two producers stay, and each other door leases a lane of its own."""
    return 6


@contextmanager
def _doors(store: commitlog.Store, url: str, served_base: str, lines: Path) -> Iterator[Doors]:
    """The doors for values (bytes), those for rows, and those that send nothing."""
    name, path, row = name_of(store.path), str(store.path), {"id": 1}
    lines.write_text('{"id": 1}\n')
    with ExitStack() as stack:
        client = stack.enter_context(flight.connect(served_base.replace("commitlog", "grpc")))
        near = stack.enter_context(commitlog.Producer(path))
        far = stack.enter_context(commitlog.RemoteProducer(url))

        def put(columns: dict[str, list[Any]], **fields: Any) -> None:
            _exchanged(client, {"store": name, **fields}, pa.table(columns))

        def logged(topic: str) -> None:
            with ExitStack() as closing:
                handler = commitlog.logging.Handler(path, topic)
                closing.callback(handler.close)
                _emit(handler)

        values: dict[str, Door] = {
            "Producer.send": lambda topic: near.send(topic, b"x"),
            "Producer.send_batch": lambda topic: near.send_batch(topic, [b"x"]),
            "RemoteProducer.send": lambda topic: far.send(topic, b"x"),
            "RemoteProducer.send_batch": lambda topic: far.send_batch(topic, [b"x"]),
            "logging.Handler": logged,
            "request Append": lambda topic: put({"value": [b"x"]}, topic=topic),
            "request Append, column": lambda topic: put({"value": [b"x"], "topic": [topic]}),
            "sink": lambda topic: _written(path, {"value": ["x"]}, topic=topic),
            "sink, column": lambda topic: _written(path, {"value": ["x"], "topic": [topic]}),
            "sink by URL": lambda topic: _written(url, {"value": ["x"]}, topic=topic),
            "sink by URL, column": lambda topic: _written(url, {"value": ["x"], "topic": [topic]}),
            "commitlog produce": lambda topic: _commanded("produce", path, topic, lines),
            "commitlog produce by URL": lambda topic: _commanded("produce", url, topic, lines),
        }
        rows: dict[str, Door] = {
            "Producer.send_rows": lambda topic: near.send_rows(topic, [row]),
            "Producer.rows": lambda topic: near.rows(topic).close(),
            "RemoteProducer.send_rows": lambda topic: far.send_rows(topic, [row]),
            "RemoteProducer.rows": lambda topic: far.rows(topic).close(),
            "request Append, rows": lambda topic: put({"id": [1]}, topic=topic, rows=True),
            "commitlog produce --rows": lambda topic: _commanded("produce", path, topic, lines, "--rows"),
        }
        asking: dict[str, Door] = {
            "request CheckAppend": lambda topic: _asked(client, name, topic),
            "Store.create_topic": lambda topic: store.create_topic(topic, "id BIGINT"),
            "commitlog topics --create": lambda topic: _commanded(
                "topics", path, "--create", topic, "--schema", "id BIGINT"
            ),
        }
        assert {door.partition(", ")[0].removesuffix(" by URL") for door in {**values, **rows, **asking}} >= SENDING
        yield values, rows, asking


def _emit(handler: logging.Handler) -> None:
    """Logs one record. Raises what the handler meets."""
    met: list[CommitLogError] = []

    def note(record: logging.LogRecord) -> None:
        error = sys.exception()
        assert isinstance(error, CommitLogError)
        met.append(error)

    handler.handleError = note  # type: ignore[method-assign]
    handler.emit(logging.LogRecord("n", logging.INFO, __file__, 1, "text", None, None))
    if met:
        raise met[0]


def _walk(
    subtests: pytest.Subtests, doors: dict[str, Door], topic: str, kind: type[TopicNotWritable | NoSchema]
) -> None:
    for door, enter in doors.items():
        with subtests.test(door, topic=topic[:8]):
            with pytest.raises(CommitLogError) as raised:
                enter(topic)
            assert type(raised.value) is kind
            assert topic[:20] in str(raised.value) or "256 bytes" in str(raised.value)


def test_every_door_refuses_the_same_names(
    store: commitlog.Store, url: str, served_base: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Nothing is sent or declared; and where Python calls, other types are no names either."""
    with _doors(store, url, served_base, tmp_path / "lines") as (values, rows, asking):
        for topic in ILLEGAL:
            _walk(subtests, values | rows | asking, topic, IllegalTopic)
        for name, door in (values | rows | asking).items():
            for other in ("", None, 5, b"t", ["t"]) if name in SENDING and " " not in name else ():
                with subtests.test(name, topic=other), pytest.raises(IllegalTopic):
                    door(other)  # type: ignore[arg-type]
    assert shared_store.messages(store) == []


def test_values_are_for_topics_of_bytes_and_rows_for_typed_ones(
    store: commitlog.Store, url: str, served_base: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Each door sends to the topics of its own kind, and refuses those of the other."""
    with _doors(store, url, served_base, tmp_path / "lines") as (values, rows, asking):
        store.create_topic("typed", "id BIGINT")
        _walk(subtests, values, "typed", ValuesRefused)
        _walk(subtests, rows, "plain", NoSchema)
        assert shared_store.messages(store) == []
        for name, door in (values | rows | asking).items():
            with subtests.test(name):
                door("plain" if name in values else "typed")
