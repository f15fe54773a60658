"""A declared topic is known before its first message: each door gives none of it, and lists it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import CommitLogError, IllegalTopic, OptionError, ReadingWarning, UnknownTopic
from tests.builders.hand_made import HandMadeStore
from tests.builders.spark_source import spark_source
from tests.builders.typed_topic import declare
from tests.command_line import run
from tests.served import place_of


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """Messages of one topic, and another that is only declared."""
    made = HandMadeStore(tmp_path / "store")
    made.lane(0).append("clicks", b"1")
    made.publish()
    declare(made, "sales", "id BIGINT")
    return made


def by_reader(path: str, topic: str) -> int:
    with commitlog.Reader(path, topic) as reader:
        return len(list(reader))


def by_named_reader(path: str, topic: str) -> int:
    with commitlog.Reader(path, topic, name="mine") as reader:
        return len(list(reader))


def by_arrow(path: str, topic: str) -> int:
    return len(commitlog.read_arrow(path, topic).read_all())


def by_arrow_as_bytes(path: str, topic: str) -> int:
    return len(commitlog.read_arrow(path, topic, values="bytes").read_all())


def by_spark(path: str, topic: str) -> int:
    return spark_tasks(path, subscribe=topic)


def by_spark_and_lane(path: str, topic: str) -> int:
    return spark_tasks(path, assign=json.dumps({topic: [0]}))


def spark_tasks(path: str, **options: str) -> int:
    source = spark_source({"path": path, **options})
    return len(source.reader(source.schema()).partitions())


def by_cat(path: str, topic: str) -> int:
    done = run("cat", path, "--topic", topic)
    raise_named(done.stderr)
    return done.stdout.count(b"\n")


def by_trim(path: str, topic: str) -> int:
    done = run("topics", path, "--trim", topic, "--before", "latest", "--yes")
    raise_named(done.stderr)
    return int(not done.stdout.startswith(b"trimmed 0 messages of sales, kept 0;"))


def raise_named(said: bytes) -> None:
    """Raises the error that a command has ended with."""
    for error in (UnknownTopic, IllegalTopic):
        if said.endswith(f"[{error.__name__}]\n".encode()):
            raise error(said.decode())


def check(store: HandMadeStore, door: Callable[[str, str], int], illegal: type[CommitLogError]) -> None:
    place = place_of(store.path)
    assert door(place, "sales") == 0
    with pytest.raises(UnknownTopic, match="no topic saels; there are: clicks, sales"):
        door(place, "saels")
    with pytest.raises(illegal, match="only letters, digits"):
        door(place, "a b")
    assert run("topics", store.path, "--delete", "sales", "--yes").returncode == 0
    with pytest.raises(UnknownTopic, match="no topic sales; there are: clicks"):
        door(place, "sales")


@pytest.mark.parametrize("door", [by_reader, by_named_reader, by_trim])
def test_a_declared_topic_has_no_messages(store: HandMadeStore, door: Callable[[str, str], int]) -> None:
    """It is no error; a name that is misspelt is one, which lists the declared topic, too."""
    check(store, door, IllegalTopic)


@pytest.mark.parametrize("door", [by_arrow, by_arrow_as_bytes, by_cat, by_spark, by_spark_and_lane])
@pytest.mark.usefixtures("both_ways")
def test_it_has_none_by_path_and_by_url(store: HandMadeStore, door: Callable[[str, str], int]) -> None:
    """All say the same; Spark names its option, too, where a name is illegal."""
    check(store, door, OptionError if door in (by_spark, by_spark_and_lane) else IllegalTopic)


@pytest.mark.usefixtures("both_ways")
def test_a_pattern_takes_it_and_a_catalog_lists_it(store: HandMadeStore) -> None:
    """As a frame without rows, and as a table."""
    assert spark_tasks(place_of(store.path), subscribePattern="sal.*", values="columns") == 0
    from commitlog.spark import jvm_planner

    asked = {"options": {"path": place_of(store.path)}}
    assert jvm_planner.topics(asked) == {"topics": ["clicks", "sales"]}
    assert jvm_planner.topic({**asked, "topic": "sales"})["read"]["values"] == "columns"
    assert jvm_planner.topic({**asked, "topic": "saels"}) == {}


def test_who_waits_is_warned_of_those_that_are_not_declared(
    store: HandMadeStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A follower, and a stream of Spark; a topic that can't come is an error at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        commitlog.Reader(store.path, "sales", follow=True).close()
    expected = "no topic saels yet, and the {} waits for it; there are: clicks, sales"
    with pytest.warns(ReadingWarning, match=expected.format("reader")):
        commitlog.Reader(store.path, ["sales", "saels"], follow=True).close()
    with pytest.raises(IllegalTopic):
        commitlog.Reader(store.path, "a b", follow=True)
    source = spark_source({"path": str(store.path), "subscribe": "sales,saels"})
    reader = source.streamReader(source.schema())
    reader.initialOffset()
    reader.stop()
    (line,) = caplog.messages
    assert line.endswith(expected.format("query"))
