"""`commitlog topics`: topics, and the schemas of typed ones."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from commitlog.cli.app import app
from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import append_rows, declare
from tests.cli.test_cli import run


@pytest.fixture
def typed(tmp_path: Path) -> HandMadeStore:
    store = HandMadeStore(tmp_path / "store")
    schema = declare(store, "orders", "id BIGINT NOT NULL, xs ARRAY<STRUCT<a: INT>>")
    for lane in (0, 2):
        append_rows(store.lane(lane), schema, [{"id": 1}])
        store.lane(lane).append("values", b"x")
    store.publish()
    declare(store, "later", "id INT")
    return store


def test_topics(typed: HandMadeStore) -> None:
    done = run("topics", typed.path, "--schema")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == [
        "later: 0 messages, lanes none, schema version 1",
        "    id INT",
        "orders: 2 messages, lanes 0, 2, schema version 1",
        "    id BIGINT NOT NULL",
        "    xs ARRAY<STRUCT<a: INT>>",
        "values: 2 messages, lanes 0, 2",
    ]


def test_topics_as_json(typed: HandMadeStore) -> None:
    found = orjson.loads(CliRunner().invoke(app, ["topics", str(typed.path), "--json"]).stdout)["topics"]
    assert [topic["topic"] for topic in found] == ["later", "orders", "values"]
    assert found[1]["schema"]["columns"][0] == {"name": "id", "type": "BIGINT", "nullable": False}
    assert found[2] == {"topic": "values", "messages": 2, "lanes": [0, 2], "schema": None}


def test_what_can_not_be_listed(typed: HandMadeStore, tmp_path: Path) -> None:
    """An error of one line; a store without messages says so."""
    empty = HandMadeStore(tmp_path / "empty")
    assert b"no topics" in run("topics", empty.path).stdout
    (typed.path / "topics/orders/1.json").write_text("{}")
    for path, reason in ((tmp_path / "nowhere", b"no store"), (typed.path, b"not a schema of ours")):
        done = run("topics", path)
        assert done.returncode != 0
        assert reason in done.stderr
        assert done.stderr.count(b"\n") == 1
