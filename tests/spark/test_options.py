"""What options mean. test_wrong_uses.py has those that are errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from commitlog.errors import OptionError, StoreNotFound
from commitlog.planning import session_zone
from commitlog.planning.options import Subscription, parse_options
from commitlog.reading.starting_point import Start
from commitlog.spark.columns import HEADERS_TYPE
from commitlog.spark.source import CommitLogDataSource

JSON = '{"orders": {"0": 3}}'


def source(**options: str) -> CommitLogDataSource:
    given = {"path": "/dev/null/store", "subscribe": "orders"} | options
    return CommitLogDataSource({name.lower().replace("__", "."): value for name, value in given.items()})


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
    assert (parsed.starting, parsed.ending, parsed.read.fail_on_data_loss) == (None, None, True)
    assert (parsed.max_delay_ms, parsed.read.isolation) == (900_000, "flushed")


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events").mkdir()
    assert parse_options({"path": "data/../events"}).path == str(tmp_path / "events")


@pytest.mark.parametrize("given", ["data/events", "./data/events"])
def test_a_relative_path_that_leads_nowhere(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Spark Connect it may be there for the client, and the server has another directory."""
    monkeypatch.chdir(tmp_path)
    rows = StructType([StructField("value", BinaryType())])
    for use in (
        lambda: source(path=given).reader(rows),
        lambda: source(path=given).streamReader(rows),
        lambda: CommitLogDataSource({"path": given, "topic": "orders"}).writer(rows, overwrite=False),
    ):
        with pytest.raises(StoreNotFound) as raised:
            use()
        assert str(raised.value) == (
            f"option path: {given!r} is relative, and Spark's driver has no {tmp_path}/data/events; with Spark Connect the "
            f"driver is the server, in its own directory: give an absolute path"
        )


@pytest.mark.parametrize("path", ["file:/a b/c#d", "file:///a%20b/c#d", "FILE://localhost/a%20b/c%23d", "/a b/c#d"])
def test_a_path_may_be_a_uri(path: str) -> None:
    assert parse_options({"path": path}).path == "/a b/c#d"


def test_a_path_that_only_looks_like_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "12:30/events").mkdir(parents=True)
    assert parse_options({"path": "12:30/events"}).path == str(tmp_path / "12:30/events")


@pytest.mark.parametrize(("zone", "hours"), [("Asia/Tokyo", 9), ("+05", 5), ("GMT-03:00", -3), ("UTC", 0), ("Z", 0)])
def test_a_time_without_a_zone_is_in_the_session_s(zone: str, hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session_zone.VARIABLE, zone)
    utc = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for text, expected in (("2026-03-01T12:00:00", utc - timedelta(hours=hours)), ("2026-03-01T12:00:00Z", utc)):
        starting = source(startingOffsets=text).parsed.starting
        assert starting is not None
        assert starting.start == Start("time", int(expected.timestamp() * 1000))


def test_a_session_s_zone_that_python_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It matters only for a time without a zone."""
    monkeypatch.setenv(session_zone.VARIABLE, "Mars/Olympus")
    assert source(startingOffsets="2026-03-01T12:00:00Z", endingOffsets="latest").parsed.starting
    with pytest.raises(OptionError, match=r"session\.timeZone is 'Mars/Olympus', .* with a zone"):
        source(startingOffsets="2026-03-01T12:00:00")


def test_a_pattern_is_trimmed() -> None:
    assert parse_options({"path": "/x", "subscribePattern": " ord.* "}).subscription.chosen(["orders"]) == ["orders"]


def test_subscriptions() -> None:
    present = ["a", "ab", "b"]
    assert Subscription(pattern="a.?").chosen(present) == ["a", "ab"]
    assert Subscription(pattern="b").chosen(present) == ["b"]
    assert Subscription(topics=("z", "a", "z")).chosen(present) == ["a", "z"]
    assigned = Subscription(assigned={"a": (0, 2)})
    assert assigned.chosen(present) == ["a"]
    assert [lane for lane in range(4) if assigned.has_lane("a", lane)] == [0, 2]


def test_a_schema_without_columns() -> None:
    with pytest.raises(OptionError, match="at least one column"):
        source().reader(StructType([]))


@pytest.mark.parametrize(
    "field",
    [
        StructField("key", BinaryType(), nullable=False),
        StructField("tags", StringType(), nullable=False),
        StructField("headers", ArrayType(cast(ArrayType, HEADERS_TYPE).elementType, containsNull=False)),
    ],
    ids=lambda field: field.name,
)
def test_a_schema_without_nulls_that_there_may_be(field: StructField) -> None:
    """Spark would believe it: `key IS NULL` has no row then."""
    whole = StructField("value", BinaryType(), nullable=False)
    with pytest.raises(OptionError, match=f"schema: column '{field.name}' may have nulls"):
        source().reader(StructType([whole, field]))
    assert source().reader(StructType([whole]))


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
        parse_options({"path": "/x", "subscribePattern": pattern})
