"""Damage of all kinds under the JVM's readers, many times: the same rows and errors as Python's."""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
import zlib
from decimal import Decimal
from pathlib import Path

import pytest

from commitlog.record.properties import BytesKey
from tests.builders.hand_made import V4, V6, HandMadeStore
from tests.builders.typed_topic import append_rows, declare
from tests.nightly import with_nightly
from tests.spark.fuzzed_reads import Counts, Damaged, JavaReads, check_follow, check_read, followed, java_reads, run
from tests.spark.jvm_frames import ALL, LONG

SCHEMA = (
    "n BIGINT NOT NULL, a ARRAY<STRING>, s STRUCT<b: ARRAY<STRUCT<n: INT, t: STRING>>, d: DECIMAL(9,2)>, "
    "m MAP<STRING, BIGINT>, o BOOLEAN, x BINARY"
)
ROWS = [
    {"n": 1, "a": [], "o": True},
    {"n": 2, "a": ["x", None, "é"], "x": b"\xff"},
    {"n": 3, "s": {"b": [{"n": 1, "t": "y"}], "d": Decimal(1)}, "m": {"k": None}},
    {"n": 4},
]


def bytes_store(path: Path) -> HandMadeStore:
    """A few records of each kind in three segments, of which the last ones have no entries yet."""
    store = HandMadeStore(path, 1 << 12)
    for number in range(40):
        store.lane(0).append(
            ("orders", "other", LONG)[number % 5 % 3],
            b"body %d " % number * (number % 20),
            key=(None, f"key {number}", BytesKey.of(b"\x01%d" % number))[number % 3],
            tags="a tag" if number % 4 else None,
            properties={f"name {name}": "välue" for name in range(number % 3)},
            born=V6 if number % 7 == 0 else V4,
            stored=V6 if number % 11 == 0 else V4,
            sys_flag=4 if number % 50 == 9 else 0,
            crc=number % 6 > 0,
        )
    packed = zlib.compress(b"packed " * 9)
    store.lane(0).append("orders", packed, sys_flag=1)
    store.lane(0).append("orders", packed, sys_flag=1, key="k")
    store.lane(0).dispatch(30)
    store.lane(0).publish()
    return store


def typed_store(path: Path) -> HandMadeStore:
    """Messages of two versions of a schema in two segments, of which the last have no entries."""
    store = HandMadeStore(path, 1 << 13)
    first = declare(store, "orders", SCHEMA)
    for number in range(5):
        append_rows(store.lane(0), first, ROWS[number % 4 :] * (number % 3 + 1), key=("k", None)[number % 2])
        store.lane(0).append("other", b"x" * number)
    grown = declare(store, "orders", SCHEMA.replace("NOT NULL", "") + ", more INT", evolve=True)
    append_rows(store.lane(0), grown, [{"n": None, "more": 1}, {"n": 5}])
    store.lane(0).dispatch(8)
    store.lane(0).publish()
    return store


def kinds_of(place: Path) -> list[Damaged]:
    kept = {"ignoreCorruptRecords": "true", "failOnDataLoss": "false"}
    of_bytes, typed = bytes_store(place / "bytes"), typed_store(place / "typed")
    values, columns = {"subscribe": "orders"}, {"subscribe": "orders", "values": "columns"}
    whole = values | {"columns": ALL, "includeHeaders": "true"}
    return [
        *(Damaged(of_bytes, options) for options in (whole, values, values | kept)),
        *(Damaged(typed, options) for options in (columns | {"metadata": "true"}, columns, columns | kept)),
    ]


def followed_kinds(place: Path) -> list[Damaged]:
    columns = {"subscribe": "orders", "values": "columns", "metadata": "true"}
    whole = {"subscribe": "orders", "columns": ALL, "includeHeaders": "true"}
    return [followed(bytes_store(place / "bytes"), whole), followed(typed_store(place / "typed"), columns)]


CHECKS = {"read": (kinds_of, check_read), "follow": (followed_kinds, check_follow)}


def fuzz(java: JavaReads, place: Path, what: str, cases: int, seed: int) -> Counts:
    """Tries so many cases. An AssertionError says which one it was."""
    kinds_in, check = CHECKS[what]
    logging.disable(logging.WARNING)  # rows that are left out
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(java, kinds_in(place), check, cases, seed)
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("cases", with_nightly([50], [20_000]))
@pytest.mark.parametrize("what", CHECKS)
def test_damage_never_gives_other_rows(java: JavaReads, tmp_path: Path, what: str, cases: int) -> None:
    counts = fuzz(java, tmp_path, what, cases, seed=cases)
    assert min(counts.whole, counts.handed_over, counts.errors) > cases / 20, counts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, java_reads(Path(tempfile.mkdtemp(dir=place))) as started:
        print(fuzz(started, Path(place), sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
