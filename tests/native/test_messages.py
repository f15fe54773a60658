"""The native core makes the messages that Python makes, in a class that users take for it."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from commitlog.message import Message, messages_in_python, messages_of
from commitlog.native import core
from commitlog.record.properties import BytesKey
from commitlog.record.record_layout import HOSTS_V6
from commitlog.record.scan import scan
from commitlog.record.table import RecordTable
from tests.native.test_scan import BUFFER_START, FEW, MANY, RECORDS, log_of

if core is None:
    pytest.skip("there is no native core", allow_module_level=True)

NAMES = [each.name for each in dataclasses.fields(Message)]
FIELDS: dict[str, Any] = {
    "topic": "orders", "partition": 2, "offset": 7, "key": "k", "value": b"v", "headers": {"a": "b"}, "tags": None,
    "timestamp": 1, "born_timestamp": 2, "physical_offset": 3, "message_id": "00", "properties": {"a": "b"},
}  # fmt: skip


def table_of(records: list[tuple[Any, ...]]) -> tuple[RecordTable, bytes]:
    """A table of the records with IPv4 hosts, as readers have it, and the bytes."""
    data = log_of([record for record in records if not record[3]])
    table = scan(data, 0, len(data), BUFFER_START, None, check_crc=False)
    assert not (table.sys_flags & HOSTS_V6).any()
    return table, data


def fields_of(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in NAMES}


def some() -> Message:
    table, data = table_of([(b"orders", b"some", b"KEYS\x01k\x02a\x01b\x02TAGS\x01t\x02", 0, True, 0, 1)])
    (message,) = messages_of(table, data)
    return message


def check_messages(records: list[tuple[Any, ...]]) -> None:
    table, data = table_of(records)
    ours, theirs = messages_of(table, data), messages_in_python(table, data)
    assert [fields_of(message) for message in ours] == [fields_of(message) for message in theirs]
    assert [list(message.properties) for message in ours] == [list(message.properties) for message in theirs]
    assert (ours, repr(ours)) == (theirs, repr(theirs))
    assert [message.to_json() for message in ours] == [message.to_json() for message in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert (type(one.key), type(one.value)) == (type(other.key), bytes)


@FEW
@given(RECORDS)
def test_the_core_makes_the_messages_that_python_makes(records: list[tuple[Any, ...]]) -> None:
    check_messages(records)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@MANY
@given(RECORDS)
def test_the_core_makes_the_messages_that_python_makes_at_length(records: list[tuple[Any, ...]]) -> None:
    check_messages(records)


def test_a_message_outlives_the_bytes_that_it_was_made_of() -> None:
    table, data = table_of([(b"orders", b"some", b"KEYS\x01k\x02a\x01b\x02", 0, True, 0, 3)])
    buffer = bytearray(data)
    messages = messages_of(table, buffer)
    buffer[:] = bytes(len(buffer))
    buffer.clear()  # nobody holds it
    assert [(message.value, message.key, message.headers) for message in messages] == [(b"some", "k", {"a": "b"})] * 3


def test_a_key_of_bytes_is_one_again() -> None:
    for name in (b"", b"KEYS\x01k\x02"):
        coded = BytesKey.of(b"\xff\x01").encode()
        table, data = table_of([(b"t", b"v", b"__KEY_BASE64\x01" + coded + b"\x02" + name, 0, True, 0, 1)])
        (message,) = messages_of(table, data)
        assert message.key == ("k" if name else coded.decode())
        assert name or (type(message.key) is BytesKey and message.key.data == b"\xff\x01")


def test_a_message_is_made_of_its_fields_and_has_them() -> None:
    message = Message(**FIELDS)
    assert fields_of(message) == FIELDS
    assert Message(*FIELDS.values()) == message
    with pytest.raises(TypeError):
        Message("orders")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Message(**(FIELDS | {"offset": "7"}))


def test_it_compares_prints_copies_and_pickles_as_the_dataclass_does() -> None:
    message = some()
    same = Message(**fields_of(message))
    assert (message, repr(message)) == (same, repr(same))
    assert message != Message(**FIELDS)
    others: list[Any] = ["other", tuple(FIELDS.values())]
    assert message not in others
    assert repr(message).startswith("Message(topic='orders', partition=3, offset=0, key='k', value=b'some', headers={")
    assert "properties" not in repr(message)
    for copied in (copy.copy(message), copy.deepcopy(message), *map(pickled, range(pickle.HIGHEST_PROTOCOL + 1))):
        assert (copied == message, copied is message) == (True, False)
    moved = dataclasses.replace(message, topic="other", key=None)
    assert fields_of(moved) == fields_of(message) | {"topic": "other", "key": None}
    assert dataclasses.asdict(message) == fields_of(message)
    match message:
        case Message(topic, partition, offset):
            assert (topic, partition, offset) == ("orders", 3, 0)
    with pytest.raises(TypeError, match="unhashable"):
        hash(message)


def pickled(protocol: int) -> Message:
    made = pickle.loads(pickle.dumps(some(), protocol))
    assert isinstance(made, Message)
    return made


def test_a_field_cannot_be_set_or_deleted() -> None:
    message = some()
    for name in NAMES:
        with pytest.raises(AttributeError):
            setattr(message, name, 1)
        with pytest.raises(AttributeError):
            delattr(message, name)
    with pytest.raises(AttributeError):
        message.other = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("here", ["on", "off"])
def test_what_one_core_has_pickled_the_other_one_loads(here: str) -> None:
    """Both are `commitlog.message.Message`."""
    there = "off" if here == "on" else "on"
    message = f"Message(**{FIELDS!r})"
    dump = f"import pickle, sys; from commitlog import Message; sys.stdout.buffer.write(pickle.dumps({message}))"
    load = f"import pickle, sys; from commitlog import Message; print(pickle.load(sys.stdin.buffer) == {message})"
    made = run(here, dump)
    assert run(there, load, made).strip() == b"True"


def run(wish: str, program: str, given_bytes: bytes = b"") -> bytes:
    environment = {"COMMITLOG_NATIVE": wish, "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, input=given_bytes, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize(
    "column", ["positions", "body_positions", "body_sizes", "properties_positions", "properties_sizes", "topic_index"]
)
@pytest.mark.parametrize("number", [-1, 1 << 20, 1 << 62, -(1 << 63)])
def test_places_outside_of_the_buffer_are_an_error(column: str, number: int) -> None:
    table, data = table_of([(b"orders", b"some", b"", 0, True, 0, 2)])
    harmed: Any = {column: np.array([0, number], np.int64)}
    with pytest.raises(ValueError, match="not within"):
        messages_of(dataclasses.replace(table, **harmed), data)


def test_columns_of_other_lengths_are_an_error() -> None:
    table, data = table_of([(b"orders", b"some", b"", 0, True, 0, 2)])
    with pytest.raises(ValueError, match="not within"):
        messages_of(dataclasses.replace(table, queue_offsets=table.queue_offsets[:1]), data)
