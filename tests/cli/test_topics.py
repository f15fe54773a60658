"""`commitlog topics`: topics, and the schemas of typed ones; trims and deletions."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from typer.testing import CliRunner, Result

import commitlog
from commitlog.cli.app import app
from commitlog.client.reader import Reader
from commitlog.client.store import Store
from commitlog.disk.file_channel import FileChannel
from commitlog.errors import IllegalTopic, SchemaConflict, SchemaError, StoreRefused, UnknownTopic
from commitlog.system.clock import SYSTEM_CLOCK
from tests.builders.hand_made import BEGIN_MS, HandMadeStore, small_store
from tests.builders.killed import kill_store
from tests.builders.typed_topic import append_rows, declare
from tests.command_line import run
from tests.crash.scene import pid_of


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


def size(store: HandMadeStore, topic: str) -> int:
    return sum(record.total_size for lane in store.lanes.values() for record in lane.records if record.topic == topic)


def shown(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "seconds")


def test_topics(typed: HandMadeStore) -> None:
    done = run("topics", typed.path, "--columns")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == [
        "later: 0 messages, 0 bytes, lanes none, schema version 1",
        "    id INT",
        f"orders: 2 messages, {size(typed, 'orders'):,} bytes, lanes 0, 2, schema version 1",
        f"    stored {shown(BEGIN_MS)} to {shown(BEGIN_MS)}",
        "    last minute 0.00 messages/s",
        "    id BIGINT NOT NULL",
        "    xs ARRAY<STRUCT<a: INT>>",
        f"values: 2 messages, {size(typed, 'values'):,} bytes, lanes 0, 2",
        f"    stored {shown(BEGIN_MS + 1000)} to {shown(BEGIN_MS + 1000)}",
        "    last minute 0.00 messages/s",
    ]


def test_a_clock_that_was_ahead(typed: HandMadeStore) -> None:
    """Times that are still to come count for no rate, and the line says why."""
    with patch.object(SYSTEM_CLOCK, "wall_ms", return_value=BEGIN_MS - 3_600_000):
        lines = run("topics", typed.path).stdout.decode().splitlines()
    assert lines[3] == "    last minute 0.00 messages/s; the newest is stored later than now: the clock was ahead"


def test_topics_as_json(typed: HandMadeStore) -> None:
    found = orjson.loads(CliRunner().invoke(app, ["topics", str(typed.path), "--json"]).stdout)["topics"]
    assert [topic["topic"] for topic in found] == ["later", "orders", "values"]
    assert found[1]["schema"]["columns"][0] == {"name": "id", "type": "BIGINT", "nullable": False}
    assert found[2] == {
        "topic": "values",
        "messages": 2,
        "bytes": size(typed, "values"),
        "bytes_are_estimated": False,
        "first_timestamp": BEGIN_MS + 1000,
        "last_timestamp": BEGIN_MS + 1000,
        "messages_per_second": 0.0,
        "lanes": [0, 2],
        "schema": None,
    }
    page = (Path(__file__).parents[2] / "docs/operate.md").read_text()
    assert not [field for field in found[2] if f"`{field}`" not in page], "docs/operate.md has the fields"


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


def test_bytes_of_a_large_topic_are_estimated(tmp_path: Path) -> None:
    """From a sample of its messages; these have nearly the same size."""
    store = HandMadeStore(tmp_path / "store", 1 << 18)
    for row in range(2_500):
        store.lane(0).append("orders", b"x" * (row % 10))
    store.publish()
    (found,) = orjson.loads(run("topics", store.path, "--json").stdout)["topics"]
    assert found["bytes_are_estimated"]
    assert abs(found["bytes"] / size(store, "orders") - 1) < 0.01
    assert b"orders: 2,500 messages, about " in run("topics", store.path).stdout


def test_topics_of_a_rocketmq_root(tmp_path: Path) -> None:
    """It is listed; it is never trimmed."""
    root = small_store(tmp_path / "store").path / "lanes/1"
    assert b"orders: 100 messages" in run("topics", root).stdout
    done = run("topics", root, "--trim", "orders", "--before", "latest", "--yes")
    assert (done.returncode, b"a RocketMQ store root and no store of ours" in done.stderr) == (1, True)


# ---- create ------------------------------------------------------------------------------------


def create(path: Path, topic: str, columns: str) -> Result:
    return CliRunner().invoke(app, ["topics", str(path), "--create", topic, "--schema", columns])


def test_a_typed_topic_is_made(tmp_path: Path) -> None:
    """In a store that is made with it, and then takes rows. To do it again changes nothing."""
    path = tmp_path / "store"
    for _ in range(2):
        done = create(path, "sales", "id BIGINT NOT NULL, name STRING")
        assert (done.exit_code, done.output) == (0, "sales has schema version 1: id BIGINT NOT NULL, name STRING\n")
    (tmp_path / "rows.json").write_text('{"id": 1, "name": "x"}\n')
    assert run("produce", path, "sales", tmp_path / "rows.json", "--rows").returncode == 0
    assert commitlog.read_arrow(path, "sales").read_all().to_pylist() == [{"id": 1, "name": "x"}]
    assert isinstance(create(path, "sales", "id STRING").exception, SchemaConflict)
    assert isinstance(create(path, "bad topic", "id INT").exception, IllegalTopic)


def test_nothing_is_made_of_a_wrong_schema(tmp_path: Path) -> None:
    assert isinstance(create(tmp_path / "store", "sales", "id BIGINTEGER").exception, SchemaError)
    assert isinstance(create(tmp_path / "store", "bad topic", "id INT").exception, IllegalTopic)
    assert not (tmp_path / "store").exists()
    root = small_store(tmp_path / "rocketmq").path / "lanes/1"
    assert isinstance(create(root, "sales", "id INT").exception, StoreRefused)


# ---- trim and delete ---------------------------------------------------------------------------


def test_trim_and_delete(tmp_path: Path) -> None:
    """Both say how much would go, ask, and say what they have done."""
    store = small_store(tmp_path / "store")
    orders = [record for lane in store.lanes.values() for record in lane.records if record.topic == "orders"]
    old = [record for record in orders if record.queue_offset < 90]
    first, last = (shown(choose(record.store_timestamp for record in old)) for choose in (min, max))
    trim = ("topics", store.path, "--trim", "orders", "--before", "last 10")
    done = run(*trim, given=b"n\n")
    assert done.returncode == 1
    assert done.stdout.decode() == (
        f"orders: 180 messages, {sum(record.total_size for record in old):,} bytes, stored {first} to {last} would go; "
        "20 stay\nTrim them? [y/N]: n\n"
    )
    done = run(*trim, given=b"y\n")
    assert done.stdout.endswith(
        b"trimmed 180 messages of orders, kept 20; the disk space comes back when the segments are deleted\n"
    )
    assert run("cat", store.path, "--topic", "orders").stdout.count(b"\n") == 20
    assert run(*trim).stdout.startswith(b"trimmed 0 messages of orders, kept 20"), "it does not ask for nothing"
    done = run("topics", store.path, "--delete", "orders", given=b"y\n")
    assert re.match(rb"orders: 20 messages, [\d,]+ bytes, stored .* would go\nDelete the topic\?", done.stdout)
    assert b"deleted orders with 20 messages;" in done.stdout
    assert b"orders" not in run("topics", store.path).stdout + run("stat", store.path).stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--delete", "ordrs"), b"no topic ordrs; there are: orders, other"),
        (("--trim", "ordrs", "--before", "latest"), b"no topic ordrs; there are: orders, other"),
        (("--trim", "orders", "--before", "101"), b"topic orders, lane 0: offset 101 is outside [0, 100]"),
        (("--trim", "orders", "--before", '{"0": 101}'), b"topic orders, lane 0: offset 101 is outside [0, 100]"),
        (("--trim", "orders", "--before", '{"7": 1}'), b"topic 'orders' has no lane 7; it has 0, 1"),
        (("--trim", "orders", "--before", "{}"), b"{} names no lane; give an offset of each lane"),
        (("--trim", "orders", "--before", '{"0": '), b"is not JSON"),
        (("--trim", "orders", "--before", '{"0": 1, "0": 5}'), b"'0' is named twice"),
        (("--trim", "orders", "--before", "9999-01-01"), b"'9999-01-01' is in the future"),
        (("--trim", "orders", "--before", "soon"), b"'soon' is no place in a topic; give earliest, latest"),
        (("--trim", "orders"), b"--trim TOPIC and --before TO go together"),
        (("--before", "latest"), b"--trim TOPIC and --before TO go together"),
        (("--trim", "a", "--before", "latest", "--delete", "a"), b"give one of --create, --trim and --delete"),
        (("--create", "a", "--schema", "id INT", "--delete", "a"), b"give one of --create, --trim and --delete"),
        (("--create", "a"), b"--create TOPIC and --schema COLUMNS go together"),
        (("--schema", "id INT"), b"--create TOPIC and --schema COLUMNS go together"),
    ],
    ids=str,
)
def test_what_can_not_be_trimmed(tmp_path: Path, options: tuple[str, ...], reason: bytes) -> None:
    """Nothing is asked, and nothing is trimmed."""
    store = small_store(tmp_path / "store")
    done = run("topics", store.path, *options)
    assert done.returncode > 0
    assert reason in done.stderr
    assert not store.directory.lane_directory(0).trimmed_file.exists()


def test_what_a_named_reader_has_not_read(tmp_path: Path) -> None:
    """It stays, unless the user insists."""
    store = small_store(tmp_path / "store")
    with Reader(store.path, "orders", name="billing", start="last 30"):
        pass
    assert run("topics", store.path, "--trim", "orders", "--before", "last 30", "--yes").returncode == 0
    delete = ("topics", store.path, "--delete", "orders", "--yes")
    done = run(*delete)
    assert b"reader billing has not read 60 of these messages of orders: let it read them, drop it with" in done.stderr
    assert b"[TopicInUse]" in done.stderr
    assert run(*delete, "--force").returncode == 0
    (store.path / "readers/billing.json").write_bytes(b"{}")
    done = run("topics", store.path, "--trim", "other", "--before", "latest", "--yes")
    assert b"not the position of a reader" in done.stderr


def test_a_typed_topic_is_deleted(tmp_path: Path) -> None:
    """With its schema, while no producer runs. A new schema gets a version that none had."""
    path = tmp_path / "store"
    with commitlog.Store.open(path) as store:
        store.create_topic("sales", schema="id BIGINT")
        with store.producer() as producer:
            producer.send_rows("sales", [{"id": 1}])
            producer.flush()
            done = run("topics", path, "--delete", "sales", "--yes")
            assert b"topic sales has a schema, and lane 0 has a producer (process %d)" % os.getpid() in done.stderr
            assert b"--trim sales --before latest [TopicInUse]" in done.stderr
        done = run("topics", path, "--delete", "sales", given=b"y\n")
        assert re.match(rb"sales: 1 message, [\d,]+ bytes, .* and its schema would go\nDelete", done.stdout)
        assert b"no topics" in run("topics", path).stdout
        with pytest.raises(UnknownTopic):
            commitlog.read_arrow(path, "sales")
        store.create_topic("sales", schema="name STRING")
        with store.producer() as producer:
            producer.send_rows("sales", [{"name": "x"}])
            producer.flush()
        assert commitlog.read_arrow(path, "sales").read_all().to_pylist() == [{"name": "x"}]
        assert b"sales: 1 message," in run("topics", path).stdout
        assert b"schema version 2" in run("topics", path).stdout
    (path / "topics/sales/deleted").write_bytes(b"x")
    assert b"does not say which versions were deleted" in run("topics", path).stderr


def test_what_is_only_in_memory_does_not_come_back(tmp_path: Path) -> None:
    """Rows of a schema that is deleted would be left, and nobody could read the topic made anew."""
    path = tmp_path / "store"
    store = Store.open(path, {"store": {"segment_bytes": 1 << 16}})
    store.create_topic("sales", schema="id BIGINT")
    with store.producer() as producer:
        producer.send_rows("sales", [{"id": 1}])
        producer.flush()
        os.kill(pid_of(path, "committer"), signal.SIGSTOP)
        producer.send_rows("sales", [{"id": 2}])
    kill_store(store)
    delete = ("topics", path, "--delete", "sales", "--yes")
    done = run(*delete)
    assert b"lane 0 has messages that are only in memory: they would come back" in done.stderr
    assert done.stderr.endswith(b"[TopicInUse]\n")
    Store.open(path).close()
    assert b"deleted sales with 2 messages" in run(*delete).stdout
    Store.open(path).close()
    assert b"sales" not in run("topics", path).stdout


def test_a_producer_comes_in_the_middle_of_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may know the schema by then, so the topic keeps it, and the producer's rows are read."""
    path = tmp_path / "store"
    write, come = FileChannel.replace_file, list[commitlog.Producer]()

    def write_late(channel: FileChannel, file: str | Path, *data: bytes, **options: Any) -> None:
        if Path(file).name == "deleted" and not come:
            come.append(commitlog.Producer(path))
            come[0].send_rows("sales", [{"id": 2}])
        write(channel, file, *data, **options)

    with commitlog.Store.open(path) as store:
        store.create_topic("sales", schema="id BIGINT")
        with store.producer() as producer:
            producer.send_rows("sales", [{"id": 1}])
        with monkeypatch.context() as patched:
            patched.setattr(FileChannel, "replace_file", write_late)
            done = run("topics", path, "--delete", "sales", "--yes")
        assert b"lane 0 has a producer (process %d)" % os.getpid() in done.stderr
        assert b"Its older messages are deleted, and it has its schema still [TopicInUse]" in done.stderr
        come[0].send_rows("sales", [{"id": 3}])
        come[0].flush()
        come[0].close()
        assert commitlog.read_arrow(path, "sales").read_all().to_pylist() == [{"id": 2}, {"id": 3}]
        assert b"deleted sales with 2 messages" in run("topics", path, "--delete", "sales", "--yes").stdout


def test_what_a_killed_producer_has_left_is_deleted_too(tmp_path: Path) -> None:
    """Its rows are accepted, and on their way to the disk: the deletion waits for them."""
    path = tmp_path / "store"
    send = "import commitlog, os, sys; commitlog.Producer(sys.argv[1]).send_rows('sales', [{'id': 1}]); os._exit(0)"
    with commitlog.Store.open(path) as store:
        store.create_topic("sales", schema="id BIGINT")
        os.kill(pid_of(path, "flusher"), signal.SIGSTOP)
        timer = threading.Timer(1, os.kill, (pid_of(path, "flusher"), signal.SIGCONT))
        try:
            subprocess.run([sys.executable, "-P", "-c", send, str(path)], check=True)
            timer.start()
            done = run("topics", path, "--delete", "sales", "--yes")
        finally:
            timer.join()
            os.kill(pid_of(path, "flusher"), signal.SIGCONT)
        assert b"deleted sales with 1 message;" in done.stdout
        store.create_topic("sales", schema="id STRING")
        with store.producer() as producer:
            producer.send_rows("sales", [{"id": "x"}])
            producer.flush()
        assert commitlog.read_arrow(path, "sales").read_all().to_pylist() == [{"id": "x"}]


def test_a_schema_without_messages_is_deleted(tmp_path: Path) -> None:
    """Also where the schema alone is left of a deletion that was killed."""
    store = HandMadeStore(tmp_path / "store")
    declare(store, "later", "id INT")
    assert run("topics", store.path, "--delete", "later", "--yes").returncode == 0
    assert b"no topics" in run("topics", store.path).stdout
    assert b"no topic later; there are: none" in run("topics", store.path, "--delete", "later", "--yes").stderr
