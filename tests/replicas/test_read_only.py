"""A copy is read-only by every door: only what follows the primary writes to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import StoreRefused
from tests import command_line
from tests.replicas.scene import Scene
from tests.serving.asking import Certificates
from tests.waiting import wait_until

_COMMANDS = {
    "topics --delete": ("topics", "{copy}", "--delete", "orders", "--yes", "--force"),
    "topics --delete of a typed one": ("topics", "{copy}", "--delete", "sales", "--yes", "--force"),
    "topics --trim": ("topics", "{copy}", "--trim", "orders", "--before", "latest", "--yes", "--force"),
    "topics --create": ("topics", "{copy}", "--create", "more", "--schema", "id INT"),
    "trim": ("trim", "{copy}", "--keep-bytes", "1MB", "--yes"),
    "readers --seek": ("readers", "{copy}", "--seek", "billing", "earliest"),
    "readers --remove": ("readers", "{copy}", "--remove", "billing"),
    "produce": ("produce", "{copy}", "orders"),
    "run": ("run", "{copy}"),
}
_CALLS: dict[str, Callable[[Path], object]] = {
    "Store.open": commitlog.Store.open,
    "Producer": commitlog.Producer,
    "Reader with a name": lambda copy: commitlog.Reader(copy, topic="orders", name="mine", start="earliest"),
    "Reader with a name of the store": lambda copy: commitlog.Reader(copy, topic="orders", name="billing"),
}


def fill(store: commitlog.Store) -> None:
    """Two topics, one of them typed, and a named reader that has read a message."""
    store.create_topic("sales", schema="id BIGINT NOT NULL")
    with store.producer() as producer:
        producer.send("orders", b"one")
        producer.send("orders", b"two")
        producer.send_rows("sales", [{"id": 1}])
        producer.flush()
    with commitlog.Reader(store.path, topic="orders", name="billing", start="earliest") as reader:
        message = reader.poll(10)
        assert message is not None
        reader.commit(message)
    position = store.path / "readers" / "billing.json"
    copied = store.path.with_name("copy") / position.relative_to(store.path)
    wait_until(lambda: copied.exists() and copied.read_bytes() == position.read_bytes(), "the position is copied")


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def copy(certificates: Certificates, templates: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that nobody follows with now. No test changes it."""
    scene = Scene(tmp_path_factory.mktemp("read-only"), certificates, templates)
    scene.copied(fill)
    return scene.copy


@pytest.mark.parametrize("command", _COMMANDS)
def test_commands_leave_a_copy_as_it_is(copy: Path, command: str) -> None:
    """It is refused by name, with where to do it instead. No file of the copy changes."""
    before = files_of(copy)
    done = command_line.run(*(word.format(copy=copy) for word in _COMMANDS[command]), given=b"three\n")
    assert done.returncode == 1
    assert b"is a replica of localhost" in done.stderr
    assert files_of(copy) == before


@pytest.mark.parametrize("call", _CALLS)
def test_python_leaves_a_copy_as_it_is(copy: Path, call: str) -> None:
    """Positions of named readers are the store's, too: the copy would forget one of its own."""
    before = files_of(copy)
    with pytest.raises(StoreRefused, match="is a replica of localhost"):
        _CALLS[call](copy)
    assert files_of(copy) == before


def test_a_copy_can_be_read(copy: Path) -> None:
    """Readers without a name, and the lists of topics and readers."""
    assert [message.value for message in commitlog.Reader(copy, topic="orders", start="earliest")] == [b"one", b"two"]
    assert b"billing: 1 message behind" in command_line.run("readers", copy).stdout
    assert b"sales: 1 message" in command_line.run("topics", copy).stdout
