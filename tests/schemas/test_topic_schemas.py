"""The schemas of a store: versions that grow, files that last, and who may make them at once."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import (
    DiskFull,
    IllegalTopic,
    SchemaConflict,
    StoreDamaged,
    StoreNotFound,
    StoreRefused,
    StoreTooNew,
)
from commitlog.schemas.declaring import declared_schema
from commitlog.schemas.topic_schemas import TopicSchema, TopicSchemas
from tests.another_user import as_nobody, as_root
from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import declare
from tests.children import in_child


@pytest.fixture
def made(tmp_path: Path) -> HandMadeStore:
    return HandMadeStore(tmp_path / "store")


def latest(store: HandMadeStore, topic: str = "orders") -> TopicSchema | None:
    return TopicSchemas(store.directory).latest(topic)


def test_a_schema_is_kept(made: HandMadeStore) -> None:
    """The same one again changes nothing."""
    assert latest(made) is None
    first = declare(made, "orders", "id BIGINT NOT NULL, xs ARRAY<STRUCT<a: DECIMAL(5,2)>>")
    for _ in range(2):
        assert declare(made, "orders", first.columns, evolve=True) == first
        assert latest(made) == first
    assert first.version == 1
    assert str(first) == "version 1: id BIGINT NOT NULL, xs ARRAY<STRUCT<a: DECIMAL(5,2)>>"
    assert TopicSchemas(made.directory).topics() == ["orders"]
    assert os.listdir(made.path / "topics/orders") == ["1.json"]


GROWS = [
    ("id INT", "id INT, name STRING"),
    ("id INT NOT NULL", "id INT"),
    ("id TINYINT", "id BIGINT"),
    ("x FLOAT", "x DOUBLE"),
    ("x DECIMAL(5,2)", "x DECIMAL(10,4)"),
    ("a INT, b INT", "b INT, a INT"),
]
CONFLICTS = [
    ("id INT, name STRING", "id INT", "column name is missing in the new one"),
    ("id BIGINT", "id INT", "column id can't change from BIGINT to INT"),
    ("id INT", "id INT NOT NULL", "column id may be null in old messages"),
    ("id INT", "id INT, name STRING NOT NULL", "column name is new"),
    ("id INT", "id STRING", "column id can't change"),
    ("id INT", "id DOUBLE", "column id can't change"),
    ("id INT", "ID INT", "column id is missing"),
    ("x DECIMAL(5,2)", "x DECIMAL(6,4)", "column x can't change"),
    ("s STRUCT<a: INT>", "s STRUCT<a: INT, b: INT>", "column s can't change"),
    ("t TIMESTAMP", "t TIMESTAMP_NTZ", "column t can't change"),
]


@pytest.mark.parametrize(("old", "new"), GROWS)
def test_a_schema_may_grow(made: HandMadeStore, old: str, new: str) -> None:
    """Only where it is said: a typing mistake makes no new version."""
    declare(made, "orders", old)
    with pytest.raises(SchemaConflict, match=r"say so in Python, store.create_topic\(…, evolve=True\)"):
        declare(made, "orders", new)
    assert declare(made, "orders", new, evolve=True).version == 2
    found = latest(made)
    assert found is not None
    assert found.columns.equals(declared_schema(new))


@pytest.mark.parametrize(("old", "new", "reason"), CONFLICTS)
def test_all_other_changes_are_refused(made: HandMadeStore, old: str, new: str, reason: str) -> None:
    declare(made, "orders", old)
    with pytest.raises(SchemaConflict, match=reason) as caught:
        declare(made, "orders", new, evolve=True)
    assert old.replace(", ", "") in str(caught.value).replace(", ", "")
    assert new.replace(", ", "") in str(caught.value).replace(", ", "")
    assert latest(made) == declare(made, "orders", old)


def test_nulls_within_are_named(made: HandMadeStore) -> None:
    """Two types that Spark writes alike."""
    declare(made, "orders", pa.schema({"xs": pa.list_(pa.int32())}))
    with pytest.raises(SchemaConflict, match="column xs can't change: nulls within it"):
        declare(made, "orders", pa.schema({"xs": pa.list_(pa.field("e", pa.int32(), nullable=False))}), evolve=True)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../x", "a\0", "ä", "x" * 300, None, 5])
def test_a_topic_with_a_wrong_name(made: HandMadeStore, topic: Any) -> None:
    with pytest.raises(IllegalTopic):
        declare(made, topic, "id INT")
    with pytest.raises(IllegalTopic):
        latest(made, topic)


def test_names_that_look_hidden(made: HandMadeStore) -> None:
    for topic in (".orders", "%RETRY%x", "a|b"):
        declare(made, topic, "id INT")
    assert TopicSchemas(made.directory).topics() == ["%RETRY%x", ".orders", "a|b"]


def test_what_lies_beside_the_schemas(made: HandMadeStore) -> None:
    """A file of a writer that was killed, an empty directory, files of others."""
    declare(made, "orders", "id INT")
    (made.path / "topics/orders/.2.json.77.tmp").write_bytes(b"half")
    (made.path / "topics/orders/0002.json").write_bytes(b"half")
    (made.path / "topics/empty").mkdir()
    (made.path / "topics/notes.txt").write_text("x")
    assert TopicSchemas(made.directory).topics() == ["orders"]
    with pytest.raises(StoreDamaged, match=r"topics/notes\.txt is no directory"):
        latest(made, "notes.txt")
    assert declare(made, "orders", "id INT, x INT", evolve=True).version == 2


class KilledBeforeRename(FileChannel):
    def rename(self, source: str | Path, target: str | Path) -> None:
        os._exit(0)


def test_a_kill_before_the_schema_has_its_name(made: HandMadeStore) -> None:
    def declare_and_die() -> object:
        schemas = TopicSchemas(made.directory, KilledBeforeRename())
        return schemas.declare("orders", declared_schema("id INT"), evolve=False)

    assert in_child(declare_and_die) == ""
    assert latest(made) is None
    assert declare(made, "orders", "id BIGINT").version == 1


class FullDisk(FileChannel):
    def fdatasync(self, fd: int) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk(made: HandMadeStore) -> None:
    with pytest.raises(DiskFull, match=r"orders/1\.json: writing it: ENOSPC"):
        TopicSchemas(made.directory, FullDisk()).declare("orders", declared_schema("id INT"), evolve=False)
    assert os.listdir(made.path / "topics/orders") == []


def test_files_that_are_no_schema(made: HandMadeStore) -> None:
    declare(made, "orders", "id INT")
    file = made.path / "topics/orders/1.json"
    good = orjson.loads(file.read_bytes())
    del good["crc32"]  # what an older package has written: only the fields themselves tell
    foreign = base64.b64encode(pa.schema({"a": pa.duration("s")}).serialize()).decode()
    other_form = base64.b64encode(pa.schema({"a": pa.large_string()}).serialize()).decode()  # ours are strings
    for wrong in (
        b"",
        b"[]",
        b"{}",
        file.read_bytes()[:100],
        orjson.dumps(good | {"format": "x"}),
        orjson.dumps(good | {"topic": "other"}),
        orjson.dumps(good | {"version": 2}),
        orjson.dumps(good | {"arrow": good["arrow"][:40]}),
        orjson.dumps(good | {"arrow": 5}),
        orjson.dumps(good | {"arrow": ""}),
        orjson.dumps(good | {"arrow": foreign}),
        orjson.dumps(good | {"arrow": other_form}),
    ):
        file.write_bytes(wrong)
        with pytest.raises(StoreDamaged, match=r"orders/1\.json: not a schema of ours"):
            latest(made)
    file.write_bytes(orjson.dumps(good | {"format": 99}))
    with pytest.raises(StoreTooNew, match="upgrade"):
        latest(made)


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    schemas = TopicSchemas(StoreDirectory(tmp_path / "none"))
    with pytest.raises(StoreNotFound):
        schemas.declare("orders", declared_schema("id INT"), evolve=False)
    assert not (tmp_path / "none").exists()
    assert schemas.topics() == []


@as_root
def test_another_user(made: HandMadeStore) -> None:
    declare(made, "orders", "id INT")
    for directory in (made.path, *made.path.parents):
        if os.access(directory, os.W_OK) and str(directory).startswith("/tmp/"):
            directory.chmod(0o755)
    for action in (lambda: latest(made), lambda: declare(made, "new", "id INT")):
        said = as_nobody(action)
        assert said.startswith(StoreRefused.__name__)
        assert "owner and permissions" in said


def test_processes_that_declare_at_once(made: HandMadeStore) -> None:
    """Each adds a column of its own: all are there in the end, in as many versions."""
    code = """
import sys
import pyarrow as pa
from pathlib import Path
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import SchemaConflict
from commitlog.schemas.topic_schemas import TopicSchemas
schemas = TopicSchemas(StoreDirectory(Path(sys.argv[1])))
sys.stdin.read()
while True:
    columns = schemas.latest("orders").columns.append(pa.field(sys.argv[2], pa.int32()))
    try:
        schemas.declare("orders", columns, evolve=True)
        break
    except SchemaConflict:
        pass  # another one was quicker: its column would be missing
"""
    declare(made, "orders", "id INT")
    command = [sys.executable, "-c", code, str(made.path)]
    writers = [subprocess.Popen([*command, f"c{number}"], stdin=subprocess.PIPE) for number in range(4)]
    for writer in writers:
        assert writer.stdin
        writer.stdin.close()
    assert [writer.wait(100) for writer in writers] == [0] * 4
    found = latest(made)
    assert found is not None
    assert (found.version, sorted(found.columns.names)) == (5, ["c0", "c1", "c2", "c3", "id"])
