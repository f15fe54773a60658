"""Every wrong option is an error that names it in its documented spelling.

The error also has its value and what is allowed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from commitlog.errors import OptionError
from commitlog.reading.starting_point import Start
from commitlog.spark.options import Subscription, parse_options
from commitlog.spark.source import BatchReader, CommitLogDataSource

JSON = '{"orders": {"0": 3}}'


def source(**options: str) -> CommitLogDataSource:
    given = {"path": "/dev/null/store", "subscribe": "orders"} | options
    return CommitLogDataSource({name.lower().replace("__", "."): value for name, value in given.items()})


def batch(**options: str) -> BatchReader:
    made = source(**options)
    return made.reader(made.schema())


WRONG = [
    ({"subscirbe": "x"}, "option subscirbe: there is none of this name; allowed are path, subscribe"),
    ({"queryName": "q"}, "option queryName: it is one of a query .* only; allowed are path, subscribe"),
    ({"maxLaneWait": "1s"}, "option maxLaneWait is one of a sink .* and option subscribe one of a source"),
    ({"kafka__bootstrap__servers": "x"}, "kafka.bootstrap.servers: .* as option path"),
    ({"kafka__linger__ms": "1"}, "kafka.linger.ms: .* remove it"),
    ({"paths": "[]"}, "option path: one store"),
    ({"path": ""}, "option path is missing"),
    ({"subscribe": " , "}, "option subscribe: .* separated by commas"),
    ({"subscribe": "a b"}, "option subscribe: 'a b' is not allowed"),
    ({"subscribePattern": "x"}, "subscribe and subscribePattern: give only one"),
    (
        {"startingOffsets": "ealiest"},
        "option startingOffsets: 'ealiest' is not a start; give earliest, latest, 'last 100'",
    ),
    ({"startingOffsets": "42"}, "option startingOffsets: '42' is not a start"),
    ({"startingOffsets": "{"}, "option startingOffsets: .* give JSON such as"),
    ({"startingOffsets": '{"orders": {"0": -3}}'}, "option startingOffsets: .*−1 latest, −2 earliest"),
    ({"startingOffsets": '{"orders": {"0": true}}'}, "option startingOffsets"),
    ({"startingOffsets": '{"orders": [0]}'}, "option startingOffsets"),
    ({"startingOffsets": '{"others": {"0": 3}}'}, "option startingOffsets: 'others' .* subscribed"),
    ({"startingOffsets": "latest"}, "option startingOffsets: 'latest' is not allowed; a batch begins"),
    ({"startingOffsets": '{"orders": {"0": -1}}'}, "a batch can't begin at latest"),
    ({"endingOffsets": "earliest"}, "option endingOffsets: 'earliest'"),
    ({"endingOffsets": "last 3"}, "option endingOffsets: 'last'"),
    ({"endingOffsets": '{"orders": {"0": -2}}'}, "a batch can't end at earliest"),
    (
        {"startingOffsetsByTimestamp": JSON, "startingOffsets": "bogus"},
        "option startingOffsets: 'bogus' is not a start",
    ),
    ({"startingTimestamp": "7", "startingOffsetsByTimestamp": "x"}, "option startingOffsetsByTimestamp: 'x'"),
    ({"endingTimestamp": "7", "endingOffsets": "bogus"}, "option endingOffsets: 'bogus' is not a start"),
    ({"startingTimestamp": "yesterday"}, "option startingTimestamp: 'yesterday' is not allowed; give milliseconds"),
    ({"endingTimestamp": "-1"}, "option endingTimestamp"),
    ({"startingOffsetsByTimestamp": '{"orders": {"0": -1}}'}, "option startingOffsetsByTimestamp"),
    ({"endingOffsetsByTimestamp": "x"}, "option endingOffsetsByTimestamp"),
    ({"startingOffsetsByTimestampStrategy": "x"}, "option startingOffsetsByTimestampStrategy: 'x' .* error or latest"),
    ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: 'maybe' is not allowed; give true or false"),
    ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger: '0' is not allowed; give a whole number"),
    ({"minOffsetsPerTrigger": "x"}, "option minOffsetsPerTrigger"),
    ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger: '9' .* at most max"),
    ({"maxTriggerDelay": "15 weeks"}, "option maxTriggerDelay: '15 weeks' .* 15m"),
    ({"minPartitions": "-1"}, "option minPartitions"),
    ({"maxRecordsPerPartition": "1.5"}, "option maxRecordsPerPartition"),
    ({"includeHeaders": "1"}, "option includeHeaders"),
    ({"includeHeaders": "true", "columns": "value"}, "option includeHeaders: .* name headers there"),
    ({"columns": "value,body"}, "option columns: 'value,body' .* key, value, topic"),
    ({"columns": "value,value"}, "option columns: .* each once"),
    ({"readerName": "a/b"}, "option readerName: 'a/b' is not a reader's name"),
    ({"readerName": "billing"}, "option readerName: a batch has no position to keep"),
    ({"ignoreCorruptRecords": "yes"}, "option ignoreCorruptRecords: 'yes' is not allowed; give true or false"),
    ({"isolation": "read"}, "option isolation: 'read' is not allowed; give flushed or committed"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[next(iter(options)) for options, _ in WRONG])
def test_wrong_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        batch(**options)
    assert "\n" not in str(raised.value)


def test_no_subscription() -> None:
    with pytest.raises(OptionError, match="option subscribe is missing"):
        CommitLogDataSource({"path": "/dev/null/store"}).schema()


@pytest.mark.parametrize(
    "assign", ["[]", "{}", '{"orders": 0}', '{"orders": [-1]}', '{"orders": ["0"]}', '{"a b": [0]}']
)
def test_wrong_assignments(assign: str) -> None:
    with pytest.raises(OptionError, match="option assign"):
        CommitLogDataSource({"path": "/dev/null/store", "assign": assign})


def test_precedence_and_defaults() -> None:
    """As Kafka's: a timestamp before offsets by timestamp before offsets."""
    parsed = source(startingTimestamp="7", startingOffsetsByTimestamp=JSON, startingOffsets="earliest").parsed
    assert parsed.starting is not None
    assert parsed.starting.start == Start("time", 7)
    parsed = source(startingOffsetsByTimestamp=JSON, startingOffsets="earliest").parsed
    assert parsed.starting is not None
    assert parsed.starting.times == {"orders": {0: 3}}
    assert parsed.starting.strict
    parsed = source().parsed
    assert (parsed.starting, parsed.ending, parsed.fail_on_data_loss) == (None, None, True)
    assert (parsed.max_delay_ms, parsed.isolation) == (900_000, "flushed")


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_options({"path": "data/../events"}).path == str(tmp_path / "events")


def test_subscriptions() -> None:
    present = ["a", "ab", "b"]
    assert Subscription(pattern="a.?").chosen(present) == ["a", "ab"]
    assert Subscription(pattern="b").chosen(present) == ["b"]
    assert Subscription(topics=("z", "a", "z")).chosen(present) == ["a", "z"]
    assigned = Subscription(assigned={"a": (0, 2)})
    assert assigned.chosen(present) == ["a"]
    assert [lane for lane in range(4) if assigned.has_lane("a", lane)] == [0, 2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("body", StringType())], "no column 'body'; allowed are key binary"),
        ([("value", StringType())], "column 'value' is binary, not string"),
        ([("offset", LongType()), ("offset", LongType())], "named twice"),
        ([], "at least one column"),
    ],
)
def test_wrong_schemas(fields: list, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source().reader(StructType([StructField(name, kind) for name, kind in fields]))


def test_schema_and_columns() -> None:
    with pytest.raises(OptionError, match=r"either it or \.schema"):
        source(columns="value").reader(StructType([StructField("offset", LongType())]))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(", "give a regular expression"),
        ("a{4294967296}", "give a regular expression"),
        ("(" * 4_000 + ")" * 4_000, "give a regular expression"),
        ("a" * 20_000, "at most 10,000 letters"),
    ],
    ids=["open", "too many", "too deep", "too long"],
)
def test_a_pattern_that_is_none(pattern: str, text: str) -> None:
    """Whatever Python's `re` raises for it; and none that a reader's file can't hold."""
    with pytest.raises(OptionError, match=f"option subscribePattern: .* {text}"):
        parse_options({"path": "x", "subscribePattern": pattern})
