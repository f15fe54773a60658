"""The native core appends what its twin in Python appends: bytes, receipts, numbers, errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import commitlog
from commitlog.native import core
from commitlog.record.batch import batch_size, encode_batch
from commitlog.record.host import Host
from commitlog.record.properties import encode_keyed_properties
from commitlog.record.record import RecordEncoder
from tests.builders.timeless import without_times
from tests.faults.bench import Bench, bench
from tests.nightly import with_nightly

pytestmark = pytest.mark.skipif(core is None, reason="the native core is not there")

SEGMENT_BYTES = 1 << 22
SOME = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
MANY = settings(SOME, max_examples=10_000)


class Pair:
    """Two stores that get the same messages: one from the core, one from its twin."""

    def __init__(self, made: list[Bench]) -> None:
        self._made = made
        self._producers = [bench.producer() for bench in made]
        native, twin = self._producers
        self._sends: list[Any] = [native.send, getattr(twin, "_send")]  # noqa: B009  not a name of the class for mypy
        self._read = 0

    def send(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Asserts that both say the same."""
        said = [_said(send, arguments, named) for send in self._sends]
        assert said[0] == said[1]

    def compare_logs(self) -> None:
        """Asserts that both have written the same since the last look."""
        numbers = [producer.statistics() for producer in self._producers]
        assert [(seen.messages, seen.wrote) for seen in numbers][:1] * 2 == [
            (seen.messages, seen.wrote) for seen in numbers
        ]
        logs, end = [], min(numbers[0].wrote, SEGMENT_BYTES)
        for made in self._made:
            made.settle()
            with made.supervisor.directory.lane_directory(0).segment_path(0).open("rb") as file:
                file.seek(self._read)
                logs.append(without_times(file.read(end - self._read), True))
        assert logs[0] == logs[1]
        self._read = end

    @property
    def is_full(self) -> bool:
        return self._read > SEGMENT_BYTES // 2


def _said(send: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    try:
        receipt = send(*arguments, **named)
    except Exception as error:
        return type(error), re.sub(r"\b1\d{12}\b", "now", str(error))
    assert type(receipt) is commitlog.Receipt
    return receipt.topic, receipt.partition, receipt.offset, receipt.physical_offset, receipt.end


class Pairs:
    """The pair that is in use; a new one where its segment is half full."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._number, self._stack = directory, 0, ExitStack()
        self._pair: Pair | None = None

    def current(self) -> Pair:
        if self._pair is None or self._pair.is_full:
            self._stack.close()
            self._number += 1
            store = {"segment_bytes": SEGMENT_BYTES, "max_lanes": 1}
            opened = [
                self._stack.enter_context(bench(self._directory / f"{core}-{self._number}", store=store))
                for core in ("native", "twin")
            ]
            self._pair = Pair(opened)
        return self._pair

    def close(self) -> None:
        self._pair = None  # hypothesis keeps this object for a while, and producers keep descriptors
        self._stack.close()


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[Pairs]:
    made = Pairs(tmp_path)
    yield made
    made.close()


texts = st.text(max_size=20) | st.sampled_from(
    ["", "a", "é😀", "\x01", "a\x02b", "\ud800", "__RMQ.x", "KEYS", "TRAN_MSG"]
)
anything: Any = st.sampled_from([None, 0, 1, True, False, 3.5, b"bytes", ["list"], {1: "a"}, ("a", "b")])
headers: Any = (
    st.none()
    | st.dictionaries(texts, texts, max_size=4)
    | st.dictionaries(st.text("abc", min_size=1), st.text("xyz", min_size=1), max_size=4)
    | st.dictionaries(texts, texts, max_size=2).map(MappingProxyType)
    | st.sampled_from([{"a": 1}, {2: "b"}, {"a": None}])
    | anything
)
values: Any = (
    st.binary(max_size=300)
    | st.binary(max_size=50).map(bytearray)
    | st.binary(max_size=50).map(lambda value: memoryview(value))
    | st.sampled_from(["text", None, 5])
)
topics: Any = st.sampled_from(["t", "orders", "a" * 127, "a" * 255, "%RETRY%g"]) | texts | anything
arguments: Any = st.fixed_dictionaries(
    {},
    optional={
        "key": st.none() | texts | anything,
        "tags": st.none() | texts | anything,
        "headers": headers,
        "wait": st.sampled_from([True, False, None, 0, 1]),
        "flag": st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, None, "x"]),
        "born_timestamp": st.sampled_from([None, 0, -1, 2**62, 2**63, "x"]),
    },
)
messages: Any = st.lists(st.tuples(st.tuples(topics, values), arguments), min_size=1, max_size=12)


def check_messages(pairs: Pairs, sent: Any) -> None:
    pair = pairs.current()
    for given_values, named in sent:
        pair.send(given_values, named)
    pair.compare_logs()


@SOME
@given(sent=messages)
def test_messages(pairs: Pairs, sent: Any) -> None:
    check_messages(pairs, sent)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@MANY
@given(sent=messages)
def test_many_messages(pairs: Pairs, sent: Any) -> None:
    check_messages(pairs, sent)


@pytest.mark.parametrize("size", with_nightly([0, 65_535, 1 << 21], [1, 100, (1 << 20) - 200, 1 << 20]))
def test_sizes(pairs: Pairs, size: int) -> None:
    """Up to what a store takes, and above."""
    pair = pairs.current()
    for named in ({}, {"key": "k" * 32_000}, {"key": "k" * 32_740}, {"headers": {"a": "b" * 32_767}}):
        pair.send(("t", bytes(size)), named)
        pair.send(("t", bytes(size)), named)
    pair.compare_logs()


FORMS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "bytearrays": lambda bodies: [bytearray(body) for body in bodies],
    "arrow": lambda bodies: pa.array([b"cut off", *bodies], pa.binary())[1:],
    "large arrow": lambda bodies: pa.array(bodies, pa.large_binary()),
    "chunked arrow": lambda bodies: pa.chunked_array([bodies[:1], bodies[1:]], pa.binary()),
    "numpy": lambda bodies: np.array([list(body[:5].ljust(5)) for body in bodies], np.uint8),
    "strided numpy": lambda bodies: np.array([list(body[:5].ljust(5)) for body in bodies], np.uint8)[::2, ::-1],
}
HOSTS = [("127.0.0.1", "10.0.0.1"), ("::1", "10.0.0.1"), ("127.0.0.1", "fe80::1"), ("::1", "fe80::1")]
batches: Any = st.tuples(
    st.sampled_from(sorted(FORMS)),
    st.lists(st.binary(max_size=200), min_size=1, max_size=40)
    | st.lists(st.binary(min_size=7, max_size=7), min_size=1),
    st.sampled_from(["t", "a" * 127, "é" * 64]),
    st.sampled_from(HOSTS),
    st.booleans(),
    st.none() | st.lists(st.none() | st.text("abcé", min_size=1, max_size=5), min_size=1, max_size=5),
    st.sampled_from([None, "tag"]),
)


def check_batch(batch: Any) -> None:
    form, bodies, topic, (born, store), has_crc, keys, tags = batch
    encoder = RecordEncoder(3, Host.of(born, 0), Host.of(store, 10911), has_crc)
    name, given_bodies = topic.encode(), FORMS[form](bodies)
    count = len(given_bodies)
    keys = [keys[number % len(keys)] for number in range(count)] if keys else [None] * count
    encoded = encode_keyed_properties(keys, tags, {"h": "v"}, append_crc=has_crc)
    properties = encoded if any(keys) else encoded[0]
    assert core is not None
    template = core.Topic(*encoder.template(name), 0)
    size = batch_size(encoder, name, given_bodies, properties)
    made = []
    for by in (template, None):
        out = bytearray(b"\xee" * (size + 5))
        places = encode_batch(encoder, name, given_bodies, properties, 9, 1 << 40, -5, 6, memoryview(out), by)
        made.append((bytes(out), places.tolist(), places.dtype))
    assert made[0] == made[1]
    assert made[0][0].endswith(b"\xee" * 5)


@SOME
@given(batches)
def test_batches(batch: Any) -> None:
    check_batch(batch)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@MANY
@given(batches)
def test_many_batches(batch: Any) -> None:
    check_batch(batch)


def test_memory_that_does_not_fit_is_refused() -> None:
    """Nothing is written beyond what was lent."""
    assert core is not None
    encoder = RecordEncoder(0, Host.of("127.0.0.1", 0), Host.of("127.0.0.1", 1), True)
    template = core.Topic(*encoder.template(b"t"), 0)
    out, places = memoryview(bytearray(1000)), np.empty(1, np.int64)
    flat = np.zeros(10, np.uint8)
    for bounds in ([0, 11], [5, 3], [-1, 3], [2**62, 2**62 + 1]):
        with pytest.raises(ValueError, match="not within its buffer"):
            core.encode_batch(template, flat, np.array(bounds), b"", 0, 0, 0, 0, out, places)
    with pytest.raises(ValueError, match="does not fit"):
        core.encode_batch(template, [b"x" * 900], None, b"", 0, 0, 0, 0, out, places)
    with pytest.raises(TypeError, match="fewer places"):
        core.encode_batch(template, [b"x", b"y"], None, b"", 0, 0, 0, 0, out, places)
    with pytest.raises(BufferError):
        core.encode_batch(template, [b"x"], None, b"", 0, 0, 0, 0, memoryview(bytes(1000)), places)
    with pytest.raises(ValueError, match="not the head of a record"):
        core.Topic(b"short", b"\x01t", True, 0)
