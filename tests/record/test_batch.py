"""A batch has the bytes that the encoder makes of its bodies one by one, whatever their form."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from commitlog.errors import IllegalTopic, PropertiesTooLarge, RecordError
from commitlog.record.batch import batch_size, encode_batch
from commitlog.record.bodies import Bodies
from commitlog.record.host import Host
from commitlog.record.record import RecordEncoder

RANDOM = random.Random(7)
BODIES: dict[str, list[bytes]] = {
    "none": [],
    "one": [b"a"],
    "one empty": [b""],
    "all empty": [b""] * 5,
    "some empty": [b"", b"abc", b"", b"de"],
    "equal": [RANDOM.randbytes(100) for _ in range(3000)],
    "equal, larger": [RANDOM.randbytes(1024) for _ in range(600)],
    "mixed": [RANDOM.randbytes(RANDOM.randrange(300)) for _ in range(3000)],
    "large": [RANDOM.randbytes(size) for size in (300_000, 5, 400_000)],
}
FORMS: dict[str, Callable[[list[bytes]], Any]] = {
    "list": list,
    "tuple": tuple,
    "bytearrays": lambda bodies: [bytearray(body) for body in bodies],
    "memoryviews": lambda bodies: [memoryview(body) for body in bodies],
    "arrow": lambda bodies: pa.array(bodies, pa.binary()),
    "large arrow, sliced": lambda bodies: pa.array([b"zz", *bodies, b"y"], pa.large_binary())[1:-1],
    "chunked arrow": lambda bodies: pa.chunked_array([bodies[:2], bodies[2:]], pa.binary()),
}
EQUAL_FORMS: dict[str, Callable[[list[bytes]], Any]] = {
    "numpy": lambda bodies: np.frombuffer(b"".join(bodies), np.uint8).reshape(len(bodies), -1),
    "numpy by columns": lambda bodies: np.asfortranarray(EQUAL_FORMS["numpy"](bodies)),
    "numpy, every second": lambda bodies: np.repeat(EQUAL_FORMS["numpy"](bodies), 2, axis=0)[::2],
    "fixed arrow, sliced": lambda bodies: pa.array([bodies[0], *bodies], pa.binary(len(bodies[0])))[1:],
}
ENCODERS = [
    RecordEncoder(7, Host.of(born, 5), Host.of(store, 10911), append_crc)
    for born, store, append_crc in product(("127.0.0.1", "::1"), ("10.0.0.1", "fe80::1"), (True, False))
]


def check(encoder: RecordEncoder, bodies: Sequence[bytes], given: Any, topic: bytes, properties: bytes) -> None:
    expected, places = bytearray(), []
    for number, body in enumerate(bodies):
        places.append(1000 + len(expected))
        expected += encoder.encode(topic, body, properties, 10 + number, places[-1], 5, 6)
    assert batch_size(encoder, topic, given, properties) == len(expected)
    out = bytearray(b"\xee" * (len(expected) + 10))
    offsets = encode_batch(encoder, topic, given, properties, 10, 1000, 5, 6, memoryview(out))
    assert out == expected + b"\xee" * 10
    assert offsets.tolist() == places


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", BODIES)
def test_every_form_of_bodies(name: str, form: str) -> None:
    bodies = BODIES[name]
    check(ENCODERS[0], bodies, FORMS[form](bodies), b"orders", b"TAGS\x01a\x02")


@pytest.mark.parametrize("form", EQUAL_FORMS)
@pytest.mark.parametrize("name", ["one", "equal", "equal, larger"])
def test_forms_of_equal_bodies(name: str, form: str) -> None:
    check(ENCODERS[0], BODIES[name], EQUAL_FORMS[form](BODIES[name]), b"orders", b"")


def test_numpy_of_empty_bodies() -> None:
    check(ENCODERS[0], [b""] * 3, np.empty((3, 0), np.uint8), b"orders", b"")
    check(ENCODERS[0], [], np.empty((0, 10), np.uint8), b"orders", b"")


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("properties", [b"", b"K\x01V"])
@pytest.mark.parametrize("topic", [b"t", b"t" * 200])
def test_every_form_of_record(encoder: RecordEncoder, topic: bytes, properties: bytes) -> None:
    for name in ("all empty", "some empty", "equal", "mixed"):
        check(encoder, BODIES[name], BODIES[name], topic, properties)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"one body", "sequence of bytes"),
        ("text", "sequence of bytes"),
        ({"a": 1}, "sequence of bytes"),
        (iter([b"a"]), "sequence of bytes"),
        (["text"], r"\.encode\(\)"),
        ([b"a", "text"], r"value 1 .*\.encode\(\)"),
        ([b"a", "t"], r"value 1 .*\.encode\(\)"),
        ([b"a", {"b": 1}], r"value 1 .*orjson\.dumps\(\)"),
        ([{}], r"orjson\.dumps\(\)"),
        ([b"a", None], "value 1 .*NoneType"),
        ([b"a", 5], "value 1 .*int"),
        ([bytearray(b"a"), "t"], r"value 1 .*\.encode\(\)"),
        ([memoryview(b"abcd").cast("I")], "format 'B'|contiguous"),
        (np.zeros((2, 2)), "uint8"),
        (np.zeros(4, np.uint8), "shape"),
        (pa.array(["text"]), "cast"),
    ],
)
def test_what_is_no_batch(given: Any, message: str) -> None:
    """A TypeError that shows the way out."""
    out = memoryview(bytearray(10_000))
    with pytest.raises(TypeError, match=message):
        encode_batch(ENCODERS[0], b"t", given, b"", 0, 0, 1, 2, out)


def test_nulls_of_arrow() -> None:
    with pytest.raises(RecordError, match="null"):
        Bodies.of(pa.array([b"a", None], pa.binary()))


def test_limits() -> None:
    """Those of single records; and nothing is written where there is no room for all."""
    out = memoryview(bytearray(100))
    with pytest.raises(ValueError, match="does not fit"):
        encode_batch(ENCODERS[0], b"t", [b"a"], b"", 0, 0, 1, 2, out)
    assert bytes(out) == bytes(100)
    with pytest.raises(IllegalTopic):
        batch_size(ENCODERS[0], b"", [b"a"], b"")
    with pytest.raises(PropertiesTooLarge):
        batch_size(ENCODERS[0], b"t", [b"a"], b"p" * 32_750)


def test_facts_of_bodies() -> None:
    """Count, sizes and largest, without looking twice: `Bodies.of` of Bodies is itself."""
    made = Bodies.of(BODIES["some empty"])
    assert (made.count, made.total_bytes, made.size, made.largest) == (4, 5, None, 3)
    assert made.sizes.tolist() == [0, 3, 0, 2]
    assert Bodies.of(made) is made
    assert Bodies.of([]).largest == 0
    assert Bodies.of([b"ab", b"cd"]).sizes.tolist() == [2, 2]
