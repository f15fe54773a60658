"""Named readers: where each is, how far behind, and who holds a name.

Also what `stat` and `readers` show of them.
"""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

from commitlog.cli.app import app
from commitlog.client.reader import Reader
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import BadStart, DiskInputOutput, OffsetOutOfRange, ReaderError, ReaderInUse
from commitlog.reading import named_readers
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.named_reader import PYTHON, NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.watching.snapshot import StoreWatch
from tests.builders.hand_made import BEGIN_MS, HandMadeStore, small_store
from tests.children import without_privileges
from tests.fake_clock import SetClock

DAY_MS = 86_400_000


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """100 messages of `orders` and of `other` in each of lanes 0 and 1."""
    return small_store(tmp_path / "store")


def register(
    store: HandMadeStore, name: str, offsets: dict[str, dict[int, int]], ago_ms: int = 0, **more: object
) -> None:
    moved = SYSTEM_CLOCK.wall_ms() - ago_ms
    NamedReaders(store.directory).save(NamedReader(name, store.id, offsets, moved, **more))  # type: ignore[arg-type]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def lag(store: HandMadeStore, name: str) -> dict[str, dict[int, int]]:
    view = StoreView(store.path)
    index = TopicIndex(view)
    index.refresh()
    view.close()
    return NamedReaders(store.directory).load(name).lag(index)


def test_what_is_saved_is_loaded(store: HandMadeStore) -> None:
    readers = NamedReaders(store.directory)
    saved = [
        NamedReader("a", store.id, {"orders": {0: 42, 10: 7}, "none-yet": {}}, 17),
        NamedReader("b.c", store.id, {"orders": {1: 3}}, 17, pattern="ord.*"),
        NamedReader("_d-1", store.id, {"orders": {1: 3}}, 17, all_lanes=False),
        NamedReader("e", store.id, {"orders": {1: 3}}, 17, pattern="ord.*", passed_over=frozenset({"other"})),
        NamedReader("f", store.id, {}, 17, kind=PYTHON, all_topics=True, lanes=LaneChoice(frozenset({0, 2}))),
        NamedReader("g", store.id, {}, 17, kind=PYTHON, lanes=LaneChoice(member=(1, 3))),
    ]
    for reader in saved:
        readers.save(reader)
    assert readers.names() == ["_d-1", "a", "b.c", "e", "f", "g"]
    assert [readers.load(reader.name) for reader in saved] == saved


@pytest.mark.parametrize("name", ["", ".a", "-a", "a/b", "a b", "x" * 101, "é"])
def test_names_are_names_of_files(store: HandMadeStore, name: str) -> None:
    with pytest.raises(ReaderError, match="is not a reader's name"):
        NamedReaders(store.directory).hold(name)


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ({"offsets": {"orders": {0: 42, 1: 100}}}, {"orders": {0: 58, 1: 0}}),
        ({"offsets": {"orders": {0: 42}}}, {"orders": {0: 58, 1: 100}}),
        ({"offsets": {"orders": {0: 42}}, "all_lanes": False}, {"orders": {0: 58}}),
        (
            {"offsets": {"orders": {0: 100, 1: 100}}, "pattern": "o.*"},
            {"orders": {0: 0, 1: 0}, "other": {0: 100, 1: 100}},
        ),
        ({"offsets": {"orders": {0: 9}}, "pattern": "(", "passed_over": {"other"}}, {"orders": {0: 91, 1: 100}}),
        ({"offsets": {"new": {}}}, {}),
        (
            {"offsets": {"orders": {0: 42}}, "all_topics": True, "lanes": LaneChoice(frozenset({0}))},
            {"orders": {0: 58}, "other": {0: 100}},
        ),
        ({"offsets": {"orders": {}}, "lanes": LaneChoice(member=(3, 4))}, {}),
    ],
    ids=[
        "all",
        "a lane it has not seen",
        "assigned lanes",
        "a topic that may match",
        "a topic that does not",
        "a topic that is not there",
        "all topics of a lane",
        "another member's lanes",
    ],
)
def test_lag(store: HandMadeStore, reads: dict[str, object], expected: dict[str, dict[int, int]]) -> None:
    register(store, "billing", reads.pop("offsets"), **reads)  # type: ignore[arg-type]
    assert lag(store, "billing") == expected


def test_what_retention_took_is_no_lag(store: HandMadeStore) -> None:
    register(store, "billing", {"orders": {0: 0, 1: 100}})
    store.lane(0).forget_before(2)
    kept = [r for r in store.lane(0).records if r.topic == "orders" and r.physical_offset >= 2 << 13]
    assert lag(store, "billing") == {"orders": {0: len(kept), 1: 0}}


def test_a_name_is_held_by_one(store: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the process that holds it; it is free again when that lets go."""
    monkeypatch.setattr(named_readers, "PATIENCE_SECONDS", 0.05)
    readers = NamedReaders(store.directory)
    register(store, "billing", {"orders": {}})
    held = readers.hold("billing")
    assert readers.is_held("billing")
    with pytest.raises(ReaderInUse, match=rf"reader billing .* process {os.getpid()}: "):
        readers.hold("billing")
    with pytest.raises(ReaderInUse, match="stop that reader"):
        readers.remove("billing")
    other = readers.hold("shipping")
    readers.let_go(held)
    readers.let_go(other)
    assert not readers.is_held("billing")
    readers.let_go(readers.hold("billing"))


def test_an_error_keeps_no_name(store: HandMadeStore) -> None:
    """Not even as long as somebody keeps the error, and what it came through."""

    class Broken(FileChannel):
        def list(self, path: str | Path) -> list[str]:  # which is called when the name is taken already
            raise OSError(errno.EIO, "the disk is broken")

    with pytest.raises(DiskInputOutput, match="taking the reader's name: EIO") as kept:
        NamedReaders(StoreDirectory(store.path, Broken())).hold("billing")
    readers = NamedReaders(store.directory)
    assert not readers.is_held("billing")
    assert kept.value.__traceback__ is not None


def test_a_name_that_was_removed_is_held_by_one_again(store: HandMadeStore) -> None:
    """The lock file goes with the reader; a process that had the old one open does not hold it."""
    readers = NamedReaders(store.directory)
    register(store, "billing", {"orders": {}})
    readers.let_go(readers.hold("billing"))
    readers.remove("billing")
    assert os.listdir(store.directory.readers_directory) == []
    with pytest.raises(ReaderError, match="no reader 'billing'"):
        readers.remove("billing")


POSITION = b'{"name":"billing","store":"s","moved_ms":1,"offsets":%s}'


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b'{"offsets": 5}', POSITION % b'{"a":{"0":-1}}', POSITION % b'{},"pattern":5'],
)
def test_a_damaged_position_is_named(store: HandMadeStore, content: bytes) -> None:
    store.directory.readers_directory.mkdir()
    (store.directory.readers_directory / "billing.json").write_bytes(content)
    with pytest.raises(ReaderError, match=r"billing\.json: not the position of a reader"):
        NamedReaders(store.directory).load("billing")
    assert "WARNING: reader billing: " in call("stat", store.path).output
    assert call("readers", store.path).exit_code == 0


def test_a_store_that_may_only_be_read(tmp_path: Path) -> None:
    """Tried without root's privileges, with which one may write anywhere."""
    store = HandMadeStore(tmp_path / "store")
    store.path.chmod(0o500)
    said = without_privileges(lambda: NamedReaders(store.directory).hold("billing"))
    assert said.startswith("ReaderError: ")
    assert "readers: Permission denied; " in said
    store.path.chmod(0o700)


# ---- the command line --------------------------------------------------------------------------


def test_stat_shows_lag_and_warns_of_one_that_stands_still(store: HandMadeStore) -> None:
    """Behind and not moved for a day; one that has read everything is none to warn of."""
    register(store, "fresh", {"orders": {0: 42, 1: 100}})
    register(store, "stale", {"orders": {0: 42, 1: 100}}, DAY_MS + 3_600_000)
    register(store, "done", {"orders": {0: 100, 1: 100}}, 5 * DAY_MS)
    output = call("stat", store.path).output
    assert "reader fresh: 58 messages behind" in output
    assert "reader done: 0 messages behind" in output
    assert [line for line in output.splitlines() if "WARNING" in line] == [
        "WARNING: reader stale has not moved for 25 hours and keeps what it has not read: start it again, or "
        f"`commitlog readers {store.path} --remove stale`"
    ]
    facts = orjson.loads(call("stat", store.path, "--json").output)
    assert facts["readers"][1]["name"] == "fresh"
    assert facts["readers"][1]["lag"] == {"orders": {"0": 58, "1": 0}}
    assert facts["readers"][1]["running"] is False


@pytest.mark.parametrize("jump_ms", [-DAY_MS, 2 * DAY_MS])
def test_the_wall_clock_may_be_set_while_a_reader_stands_still(store: HandMadeStore, jump_ms: int) -> None:
    """Set back, it hid a reader that stands still; set forward, each reader was one."""
    clock = SetClock()
    with Reader(store.path, topic="orders", name="billing", start="earliest", clock=clock) as reader:
        reader.commit(next(iter(reader)))
    clock.wall += jump_ms
    clock.pass_seconds(40)
    with StoreWatch(store.path, clock) as watch:
        assert [state.still_ms for state in watch.snapshot().readers] == [40_000]


def test_readers_lists_and_removes(store: HandMadeStore) -> None:
    assert "no named readers" in call("readers", store.path).output
    register(store, "billing", {"orders": {0: 42, 1: 100}}, 600_000)
    register(store, "shipping", {"other": {}})
    output = call("readers", store.path).output
    assert "billing: 58 messages behind, moved 10 minutes ago" in output
    assert "    orders, lane 0: at 42, 58 behind" in output
    listed = orjson.loads(call("readers", store.path, "--json").output)["readers"]
    assert [reader["name"] for reader in listed] == ["billing", "shipping"]
    assert listed[0]["offsets"] == {"orders": {"0": 42, "1": 100}}
    assert "removed reader billing" in call("readers", store.path, "--remove", "billing").output
    assert NamedReaders(store.directory).names() == ["shipping"]
    wrong = call("readers", store.path, "--remove", "biling")
    assert isinstance(wrong.exception, ReaderError)
    assert "no reader 'biling'; there are shipping" in str(wrong.exception)


@pytest.fixture
def named(store: HandMadeStore) -> HandMadeStore:
    """A store with Python's reader `billing`, which has read 10 messages of `orders`.

    It has read 5 in each lane.
    """
    with Reader(store.path, topic="orders", name="billing") as reader:
        for message in reader:
            if message.offset == 4:
                reader.commit(message)
    return store


def test_readers_of_python_are_shown(named: HandMadeStore) -> None:
    """Their lag, whether somebody reads under the name, and of which kind they are."""
    assert "billing: 190 messages behind" in call("readers", named.path).output
    assert "reader billing: 190 messages behind" in call("stat", named.path).output
    with Reader(named.path, topic="orders", name="billing"):
        assert " ago, in use" in call("readers", named.path).output.splitlines()[0]
        (state,) = orjson.loads(call("readers", named.path, "--json").output)["readers"]
    assert (state["kind"], state["running"], state["behind"]) == ("python", True, 190)


@pytest.mark.parametrize(
    ("to", "offsets"),
    [
        ("earliest", {0: 0, 1: 0}),
        ("latest", {0: 100, 1: 100}),
        ("last 10", {0: 90, 1: 90}),
        ("42", {0: 42, 1: 42}),
        ("1 hour ago", {0: 100, 1: 100}),
        (datetime.fromtimestamp((BEGIN_MS + 20_000) / 1000, UTC).isoformat(), {0: 10, 1: 10}),
        ('{"orders": {"1": 42}}', {0: 5, 1: 42}),
        ('{"orders": {"0": -1, "1": -2}}', {0: 100, 1: 0}),
    ],
)
def test_seek_moves_a_reader(named: HandMadeStore, to: str, offsets: dict[int, int]) -> None:
    """To a time, an end, offsets: forward and back. The next reader of the name begins there."""
    said = call("readers", named.path, "--seek", "billing", to)
    assert said.output == f"moved reader billing: it is {200 - sum(offsets.values())} messages behind now\n"
    moved = NamedReaders(named.directory).load("billing")
    assert (moved.offsets, moved.kind) == ({"orders": offsets}, PYTHON)
    with Reader(named.path, topic="orders", name="billing") as reader:
        assert reader.position() == {"orders": offsets}
        assert len(list(reader)) == 200 - sum(offsets.values())


@pytest.mark.parametrize(
    ("name", "to", "error", "text"),
    [
        ("biling", "earliest", ReaderError, "no reader 'biling'; there are billing"),
        ("billing", "whenever", BadStart, "is no place in a topic"),
        ("billing", "101", OffsetOutOfRange, "outside"),
        ("billing", '{"orders": {"0": 101}}', OffsetOutOfRange, "outside"),
        ("billing", '{"orders": {"5": 1}}', OffsetOutOfRange, "no messages, or is not read"),
        ("billing", '{"other": {"0": 1}}', OffsetOutOfRange, "no messages, or is not read"),
        ("billing", '{"orders": 1}', BadStart, "not a mapping"),
        ("billing", "{", BadStart, "not JSON"),
        ("billing", "{}", BadStart, "names no queue"),
        ("billing", '{"other": {"0": -1}}', OffsetOutOfRange, "no messages, or is not read"),
    ],
)
def test_a_seek_that_can_not_be(named: HandMadeStore, name: str, to: str, error: type[Exception], text: str) -> None:
    """Nothing is moved."""
    said = call("readers", named.path, "--seek", name, to)
    assert isinstance(said.exception, error)
    assert text in str(said.exception)
    assert NamedReaders(named.directory).load("billing").offsets == {"orders": {0: 5, 1: 5}}
    assert not NamedReaders(named.directory).is_held("billing")


def test_who_may_not_be_moved(named: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that runs; a Spark query, which goes by its checkpoint; one of another store."""
    monkeypatch.setattr(named_readers, "PATIENCE_SECONDS", 0.05)
    with Reader(named.path, topic="orders", name="billing"):
        assert isinstance(call("readers", named.path, "--seek", "billing", "earliest").exception, ReaderInUse)
    register(named, "query", {"orders": {0: 42}})
    refused = call("readers", named.path, "--seek", "query", "earliest").exception
    assert isinstance(refused, ReaderError)
    assert "is a Spark query's, and its checkpoint says where it is" in str(refused)
    stranger = NamedReader("old", "f" * 32, {"orders": {}}, 5, kind=PYTHON)
    NamedReaders(named.directory).save(stranger)
    assert "another store" in str(call("readers", named.path, "--seek", "old", "earliest").exception)


def test_a_reader_of_another_store_is_shown_as_such(store: HandMadeStore) -> None:
    NamedReaders(store.directory).save(NamedReader("old", "f" * 32, {"orders": {}}, 5))
    output = call("stat", store.path).output
    assert "WARNING: reader old: belongs to another store" in output
