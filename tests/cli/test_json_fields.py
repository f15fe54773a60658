"""docs/command-line.md has each field that a command prints as JSON, and no other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.disk.forwarder_files import ForwarderStatistics, write_forwarder
from commitlog.disk.replica_files import ReplicaFiles, ReplicaState
from commitlog.disk.server_files import ClientTraffic, ServerFile, ServerStatistics
from commitlog.disk.store_directory import StoreDirectory
from commitlog.record.properties import BytesKey
from tests.builders.hand_made import HandMadeStore
from tests.builders.killed import kill_store
from tests.command_line import run
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
BY_NAME = (
    "topics[].lanes",
    "lanes[].topics",
    "reasons[].lanes",
    "lanes[].faults",
    "lanes[].put_times",
    "offsets",
    "lag",
    "headers",
    "properties",
)
"""Objects and lists whose keys and items are a user's: they count as one field."""
SMALL: dict[str, Any] = {"store": {"segment_bytes": 1 << 16}}


def documented() -> dict[str, set[str]]:
    """Command → the fields of its table."""
    sections = re.findall(r"^### `commitlog ([^`]+)`\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    tables = {name: re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name, text in sections}
    return {name: set(re.findall(r"`([^`]+)`", " ".join(rows))) for name, rows in tables.items()}


def fields(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all values: `lanes[].wrote`."""
    if path and path.endswith(BY_NAME):
        yield path
    elif isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from fields(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value or [None]:
            yield from fields(inner, f"{path}[]")
    else:
        yield path


def printed(*words: object) -> Iterator[Any]:
    """The objects that a command prints: one, or one a line."""
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code in (0, 1, 2), done.output
    if done.stdout.startswith("{\n"):
        yield orjson.loads(done.stdout)
    else:
        yield from map(orjson.loads, done.stdout.splitlines())


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each command prints of a store that has everything, and of one that is damaged."""
    path = tmp_path_factory.mktemp("json") / "store"
    found: dict[str, list[Any]] = {}
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:
        store.create_topic("sales", schema="id BIGINT")
        producer.send_rows("sales", [{"id": 1}])
        producer.send("orders", b"apple", key="1", tags="t", headers={"a": "b"})
        producer.send("orders", b"\xff", key=BytesKey.of(b"\xff"))
        producer.flush()
        with commitlog.Reader(path, "orders", name="billing") as reader:
            reader.commit(next(reader))
        wait_until(lambda: next(printed("stat", path, "--json"))["throughput"], "the supervisor to count")
        found["backup --json"] = list(printed("backup", path, path.parent / "backup", "--json"))
        server = ServerFile(StoreDirectory(path))
        server.write(ServerStatistics("commitlog://127.0.0.1:4433/store", 1, {"everybody": ClientTraffic()}))
        ReplicaFiles(StoreDirectory(path)).save(ReplicaState("standby", "replica", "id", acknowledged={0: 1}))
        write_forwarder(StoreDirectory(path), ForwarderStatistics("kafka", "kafka://127.0.0.1:9092", 1))
        for command in ("stat", "topics", "readers", "replicas", "logs", "dump"):
            found[f"{command} --json"] = list(printed(command, path, "--json"))
        server.close()
        found["cat --format json"] = list(printed("cat", path, "--format", "json"))
    tokens = path.parent / "tokens.json"
    found["token --json"] = [
        *printed("token", "add", tokens, "billing", "--json"),
        *printed("token", "list", tokens, "--json"),
    ]
    found["version --json"] = list(printed("version", "--json"))
    found["doctor --json"] = list(printed("doctor", path, "--json"))
    found["health --json"] = list(printed("health", path, "--json", "--explain"))  # stopped: down
    damaged = HandMadeStore(path.parent / "damaged")
    damaged.lane(0).append("t", b"x" * 100)
    damaged.publish()
    file = next((damaged.path / "lanes/0/commitlog").iterdir())
    file.write_bytes(file.read_bytes().replace(b"xx", b"xy", 1))
    (damaged.path / "lanes" / "odd").write_text("")
    found["verify --json"] = [*printed("verify", damaged.path, "--json"), *printed("verify", path, "--json")]
    return found


def test_every_command_with_json_is_documented(outputs: dict[str, list[Any]]) -> None:
    assert set(documented()) == set(outputs)


@pytest.mark.parametrize("command", sorted(documented()))
def test_the_fields_are_those_of_the_page(command: str, outputs: dict[str, list[Any]]) -> None:
    there = {field for value in outputs[command] for field in fields(value)}
    inner = {field for field in there if any(other.startswith((f"{field}.", f"{field}[]")) for other in there)}
    assert documented()[command] == there - inner


def test_each_command_that_has_the_option_is_here() -> None:
    from commitlog.cli.app import COMMANDS

    with_option = {
        command for command in COMMANDS if "--json" in CliRunner().invoke(app, [command, "--help"]).output.split()
    }
    named = {command.partition(" ")[0] for command in documented()}
    assert with_option - {"config"} <= named  # `config` has the knobs of configs/default.toml


def test_no_pid_is_null(tmp_path: Path) -> None:
    """Of a lane without a producer, a killed stage, a stopped forwarder: 0 would kill the shell."""
    path = tmp_path / "store"
    store = commitlog.Store.open(path, SMALL)
    with commitlog.Producer(path) as producer:
        producer.send("t", b"x")
        (lane,) = next(printed("stat", path, "--json"))["lanes"]
        assert lane["producer"] == os.getpid()
    write_forwarder(StoreDirectory(path), ForwarderStatistics("kafka", "kafka://127.0.0.1:9092", 1))
    found = next(printed("stat", path, "--json"))
    assert [lane["producer"] for lane in found["lanes"]] == [None]
    assert [one["pid"] for one in found["forwarders"]] == [None]
    assert all(stage["pid"] for stage in found["stages"])
    kill_store(store)
    killed = orjson.loads(run("stat", path, "--json").stdout)
    assert {stage["pid"] for stage in killed["stages"]} == {None}
    commitlog.Store.open(path).close()
