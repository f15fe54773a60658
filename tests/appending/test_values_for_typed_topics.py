"""Values that are sent to a topic with a schema are refused: no reader of its rows meets one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog.client.stream_producer import StreamProducer
from commitlog.errors import ValuesRefused
from tests.command_line import run

ROWS = [{"id": 1}, {"id": 2}]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    """A running store; each test has a topic of its own."""
    path = tmp_path_factory.mktemp("typed") / "store"
    with commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 16}}) as opened:
        yield opened


def rows_of(store: commitlog.Store, topic: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = commitlog.read_arrow(store.path, topic).read_all().to_pylist()
    return rows


WAYS: dict[str, Callable[[commitlog.Producer, str], object]] = {
    "send": lambda producer, topic: producer.send(topic, b"poison"),
    "with headers": lambda producer, topic: producer.send(topic, b"poison", headers={"content-type": "text/plain"}),
    "batch": lambda producer, topic: producer.send_batch(topic, [b"poison"], keys=["k"]),
    "empty batch": lambda producer, topic: producer.send_batch(topic, []),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [commitlog.Producer, StreamProducer])
def test_a_value_is_refused(store: commitlog.Store, kind: type[commitlog.Producer], way: str) -> None:
    """By a producer that knows the topic and by one that does not; rows go on."""
    topic = f"{way.replace(' ', '-')}-{kind.__name__}"
    store.create_topic(topic, "id BIGINT")
    with kind(store.path) as producer:
        with pytest.raises(ValuesRefused, match=f"topic {topic} has a schema.*send_rows"):
            WAYS[way](producer, topic)
        producer.send_rows(topic, ROWS[:1])
        with pytest.raises(ValuesRefused):
            WAYS[way](producer, topic)
        last = producer.send_rows(topic, ROWS[1:])
        assert last is not None
        assert last.offset == 1
        producer.send("plain", b"value")
        found = producer.last(topic)
        assert found is not None
        assert found.offset == 1
        producer.flush()
    assert rows_of(store, topic) == ROWS


def test_a_batch_of_rows_that_is_encoded_already(store: commitlog.Store) -> None:
    """Its headers say so: whoever copies messages sends them along."""
    store.create_topic("original", "id BIGINT")
    store.create_topic("copy", "id BIGINT")
    with commitlog.Producer(store.path) as producer:
        producer.send_rows("original", ROWS, compression="zstd")
        found = producer.last("original")
        assert found is not None
        producer.send("copy", found.value, headers=found.headers)
        producer.send_batch("copy", [found.value], headers=found.headers)
        for missing in ("content-type", "schema-version", "row-count"):
            with pytest.raises(ValuesRefused, match=missing):
                producer.send("copy", found.value, headers={**found.headers, missing: "x"})
        with pytest.raises(ValuesRefused, match="topic copy has no version 2 of its schema"):
            producer.send("copy", found.value, headers={**found.headers, "schema-version": "2"})
        store.create_topic("copy", "id BIGINT, more INT", evolve=True)
        store.create_topic("original", "id BIGINT, more INT", evolve=True)
        producer.send_rows("original", [{"id": 3, "more": 4}])
        found = producer.last("original")
        assert found is not None
        producer.send("copy", found.value, headers=found.headers)
        producer.flush()
    assert rows_of(store, "copy") == [{**row, "more": None} for row in ROWS * 2] + [{"id": 3, "more": 4}]


def test_a_topic_whose_schema_was_deleted_takes_values(store: commitlog.Store) -> None:
    """Its offsets go on."""
    store.create_topic("was-typed", "id BIGINT")
    with commitlog.Producer(store.path) as producer:
        producer.send_rows("was-typed", ROWS)
        with pytest.raises(ValuesRefused):
            producer.send("was-typed", b"value")
    done = run("topics", str(store.path), "--delete", "was-typed", "--yes")
    assert done.returncode == 0, done.stderr
    with commitlog.Producer(store.path) as producer:
        assert producer.send("was-typed", b"value").offset == 1


def test_produce_without_rows_is_refused(store: commitlog.Store, tmp_path: Path) -> None:
    """It says which option sends rows."""
    store.create_topic("by-line", "id BIGINT")
    (tmp_path / "lines").write_text('{"id": 1}\n')
    done = run("produce", str(store.path), "by-line", str(tmp_path / "lines"))
    assert done.returncode == 1
    assert "topic by-line has a schema, so it takes rows" in done.stderr.decode()
    assert "produce --rows" in done.stderr.decode()
    done = run("produce", str(store.path), "by-line", str(tmp_path / "lines"), "--rows")
    assert done.returncode == 0, done.stderr
    assert rows_of(store, "by-line") == ROWS[:1]
