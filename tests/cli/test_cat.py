"""`commitlog cat`: formats, filters, how many, rows."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import re
import subprocess
import sys
import tty
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.record.properties import BytesKey
from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import append_rows, declare
from tests.command_line import run
from tests.nightly import with_nightly


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    made = HandMadeStore(tmp_path / "store")
    lane = made.lane(0)
    lane.append("orders", b"apple", key="1", tags="red", properties={"trace": "x", "a": "b"})
    lane.append("orders", b"p\xffar", key="2", properties={"trace": "x"})
    lane.append("orders", b"")
    made.publish()
    return made


def cat(store: HandMadeStore, *words: str) -> bytes:
    done = CliRunner().invoke(app, ["cat", str(store.path), *words])
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


def test_a_format_of_ones_own(store: HandMadeStore) -> None:
    """kcat's letters and escapes; what is not there is empty."""
    lines = cat(store, "--format", r"%t %p %o [%k] %K %S [%g] [%h]\x21\t%s%%\n").split(b"\n")
    assert lines == [
        b"orders 0 0 [1] 1 5 [red] [trace=x,a=b]!\tapple%",
        b"orders 0 1 [2] 1 4 [] [trace=x]!\tp\xffar%",
        b"orders 0 2 [] -1 0 [] []!\t%",
        b"",
    ]


@pytest.mark.parametrize("words", with_nightly([("--format", r"\x1b[1m%k %h %s\n")], [((),), (("--format", "json"),)]))
def test_a_terminal_gets_nothing_that_it_would_obey(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Of messages; the escapes of a format are the user's own. A pipe gets the bytes."""
    made = HandMadeStore(tmp_path / "store")
    evil = "\x1b]0;title\x07\r\x9b31m\x7f"
    made.lane(0).append("orders", evil.encode() + b"\x9b\tend", key=evil, properties={"h": evil})
    made.publish()
    main, side = os.openpty()
    try:
        tty.setraw(side)
        command = [sys.executable, "-m", "commitlog.cli", "cat", str(made.path), *words]
        subprocess.run(command, stdout=side, check=True, timeout=60)
        shown = os.read(main, 4096).replace(b"\x1b[1m", b"", 1)
    finally:
        os.close(main)
        os.close(side)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown.decode())
    assert b"title" in shown
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout == cat(made, *words)


def test_json_has_bytes_as_base64(store: HandMadeStore) -> None:
    first, second, _ = map(orjson.loads, cat(store, "--format", "json").splitlines())
    assert (first["value"], first["headers"]) == ("apple", {"trace": "x", "a": "b"})
    assert second["value_base64"] == "cP9hcg=="
    assert "value" not in second


def test_json_is_that_of_a_message(store: HandMadeStore) -> None:
    with commitlog.Reader(store.path) as reader:
        messages = list(reader)
    assert cat(store, "--format", "json").decode().splitlines() == [message.to_json() for message in messages]
    keyed = dataclasses.replace(messages[0], key=BytesKey.of(b"\xff"))
    assert orjson.loads(keyed.to_json()).items() >= {"key_base64": "/w==", "value": "apple"}.items()


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("-n", "2"), [b"apple", b"p\xffar"]),
        (("-n", "0"), []),
        (("--from", "last 1"), [b""]),
        (("--where", "key=2"), [b"p\xffar"]),
        (("--where", "trace=x"), [b"apple", b"p\xffar"]),
        (("--where", "trace=x", "-n", "1"), [b"apple"]),
        (("--where", "trace=x", "--where", "tags=red"), [b"apple"]),
        (("--where", "key=1", "--where", "key=2"), []),
        (("-f", "-n", "3"), [b"apple", b"p\xffar", b""]),
    ],
)
def test_which_messages(store: HandMadeStore, words: tuple[str, ...], values: list[bytes]) -> None:
    assert cat(store, *words) == b"".join(value + b"\n" for value in values)


def test_the_messages_of_some_partitions(store: HandMadeStore) -> None:
    """With and without the quick way of values alone."""
    store.lane(1).append("orders", b"fig")
    store.lane(2).append("orders", b"kiwi")
    store.publish()
    for more in ((), ("--skip-corrupt",)):
        assert cat(store, "--partition", "1", *more) == b"fig\n"
        assert cat(store, "--partition", "1", "--partition", "2", *more) == b"fig\nkiwi\n"
        assert cat(store, "--partition", "7", *more) == b""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--partition", "-1"), "for '--partition'"),
        (("--rows", "--topic", "t", "--partition", "1"), "--rows needs one --topic"),
        (("--format", "xml"), "allowed are value, json, or a text with %"),
        (("--format", "%q"), "'%q' is not known"),
        (("--format", r"%s\q"), "is not known"),
        (("--where", "trace"), "write key=VALUE"),
        (("--rows",), "--rows needs one --topic"),
        (("--rows", "--topic", "t", "-f"), "--rows needs one --topic"),
        (("--rows", "--topic", "t", "--isolation", "accepted"), "--rows takes --isolation"),
    ],
)
def test_wrong_words_are_a_usage_error(store: HandMadeStore, words: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(app, ["cat", str(store.path), *words])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_rows_of_a_typed_topic(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "sales", "id BIGINT NOT NULL, name STRING, raw BINARY, xs ARRAY<INT>")
    append_rows(store.lane(0), schema, [{"id": 1, "name": "apple", "raw": b"\xff", "xs": [1, 2]}, {"id": 2}])
    append_rows(store.lane(0), schema, [{"id": 3}])
    store.publish()
    rows = [orjson.loads(line) for line in cat(store, "--rows", "--topic", "sales", "-n", "2").splitlines()]
    assert rows == [
        {"id": 1, "name": "apple", "raw": "/w==", "xs": [1, 2]},
        {"id": 2, "name": None, "raw": None, "xs": None},
    ]


def test_rows_before_a_value_are_printed(tmp_path: Path) -> None:
    """Then comes the error. `--skip-corrupt` prints all rows."""
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "sales", "id BIGINT")
    append_rows(store.lane(0), schema, [{"id": 1}])
    store.lane(0).append("sales", b"value")
    append_rows(store.lane(0), schema, [{"id": 2}])
    store.publish()
    done = run("cat", store.path, "--rows", "--topic", "sales")
    assert (done.returncode, done.stdout) == (1, b'{"id":1}\n')
    assert b"offset 1: the message has a value and no rows" in done.stderr
    assert b"Option --skip-corrupt leaves such records out" in done.stderr
    assert cat(store, "--rows", "--topic", "sales", "--skip-corrupt") == b'{"id":1}\n{"id":2}\n'


def test_a_time_that_python_does_not_have_hides_no_row(tmp_path: Path) -> None:
    """It is written as Arrow writes it, and changes nothing in other rows."""
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "t", "at TIMESTAMP, day DATE, xs ARRAY<STRUCT<n: TIMESTAMP_NTZ>>, by MAP<INT, DATE>")
    far, day = 253_402_300_800_000_000, 2_932_897  # the year 10000 begins
    good = {"at": dt.datetime(2024, 1, 5, tzinfo=dt.UTC), "day": dt.date(2024, 1, 5)}
    append_rows(store.lane(0), schema, [good])
    columns = [
        pa.array([0, far, -far], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([0, day, 0], pa.int32()).cast(pa.date32()),
        pa.array([None, [{"n": far}], None], pa.list_(pa.struct({"n": pa.int64()}))),
        pa.array([None, None, [(1, day)]], pa.map_(pa.int32(), pa.int32())),
    ]
    kinds = [field.type for field in schema.columns]
    table = pa.table([column.cast(kind) for column, kind in zip(columns, kinds, strict=True)], schema.columns.names)
    append_rows(store.lane(0), schema, table)
    store.publish()
    assert [orjson.loads(line) for line in cat(store, "--rows", "--topic", "t").splitlines()] == [
        {"at": "2024-01-05T00:00:00+00:00", "day": "2024-01-05", "xs": None, "by": None},
        {"at": "1970-01-01T00:00:00+00:00", "day": "1970-01-01", "xs": None, "by": None},
        {
            "at": "10000-01-01 00:00:00.000000Z",
            "day": "10000-01-01",
            "xs": [{"n": "10000-01-01 00:00:00.000000"}],
            "by": None,
        },
        {"at": "-6060-01-02 00:00:00.000000Z", "day": "1970-01-01", "xs": None, "by": [[1, "10000-01-01"]]},
    ]


def test_a_number_that_is_none_is_not_written_as_null(tmp_path: Path) -> None:
    """At every depth."""
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "t", "x DOUBLE, xs ARRAY<FLOAT>, by MAP<STRING, STRUCT<y: DOUBLE>>")
    nan, infinity = float("nan"), float("inf")
    rows = [{"x": nan, "xs": [infinity, None, 0.5], "by": {"k": {"y": -infinity}}}, {"x": 1.5}, {}]
    append_rows(store.lane(0), schema, rows)
    store.publish()
    assert [orjson.loads(line) for line in cat(store, "--rows", "--topic", "t").splitlines()] == [
        {"x": "NaN", "xs": ["Infinity", None, 0.5], "by": [["k", {"y": "-Infinity"}]]},
        {"x": 1.5, "xs": None, "by": None},
        {"x": None, "xs": None, "by": None},
    ]
