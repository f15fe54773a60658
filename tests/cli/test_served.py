"""`cat`, `topics` and `stat` of a URL print what they print of the directory."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from commitlog import Store, read_arrow
from commitlog.cli.app import app
from commitlog.client.reader import Reader
from commitlog.errors import (
    CommitLogError,
    CorruptRecord,
    IllegalArgument,
    IllegalTopic,
    ReadingWarning,
    StoreNotFound,
    UnknownTopic,
)
from tests.builders.hand_made import HandMadeStore, small_store
from tests.builders.typed_topic import append_rows, declare
from tests.builders.vector_store import load
from tests.served import by_url, name_of, place_of

pytestmark = pytest.mark.usefixtures("no_segments_mapped", "look_each_time")


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """Three lanes of two topics with keys, tags, headers; bytes that are no text; a typed topic."""
    made = HandMadeStore(tmp_path / "secret-place")
    schema = declare(made, "orders", "id INT")
    for lane in range(3):
        for number in range(2 + lane):
            made.lane(lane).append("values", b"%d.%d" % (lane, number), key=f"k{number}", properties={"trace": "x"})
            made.lane(lane).append("more", b"p\xff", tags="red")
        append_rows(made.lane(lane), schema, [{"id": lane}, {"id": 10 + lane}])
        made.lane(lane).append("values", b"")
        made.lane(lane).dispatch(3)
    made.publish()
    return made


def printed(store: object, *words: str) -> bytes:
    done = CliRunner().invoke(app, [words[0], str(store), *words[1:]], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


def both(served_base: str, store: Path, *words: str) -> bytes:
    """What is printed by path, which is what is printed by URL, but for the store's name."""
    by_path = printed(store, *words)
    with by_url(served_base):
        assert printed(place_of(store), *words) == by_path.replace(bytes(store), name_of(store).encode())
    return by_path


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--format", "json"),
        ("--format", r"%t %p %o %k %K %s %h %g %T\n", "--topic", "values", "--topic", "more"),
        ("-n", "3", "--topic", "values"),
        ("-n", "0"),
        ("--from", "last 1"),
        ("--from", "2023-11-14T22:13:22+00:00", "--format", "json"),
        ("--from", '{"values": {"1": 2}}', "--topic", "values"),
        ("--where", "key=k1"),
        ("--where", "tags=red", "--where", "trace=y"),
        ("--isolation", "committed", "--skip-corrupt"),
        ("--topic", "orders", "--rows"),
        ("--topic", "orders", "--rows", "-n", "1"),
    ],
)
def test_cat(store: HandMadeStore, served_base: str, words: tuple[str, ...]) -> None:
    assert both(served_base, store.path, "cat", *words) or "-n" in words or "--where" in words


def test_topics_and_stat(store: HandMadeStore, served_base: str) -> None:
    for words in (("topics",), ("topics", "--columns"), ("topics", "--json"), ("stat",), ("stat", "--json")):
        assert both(served_base, store.path, *words)
    with Reader(store.path, topic="values", name="billing") as reader:
        reader.commit(next(reader))
    with by_url(served_base):
        assert "reader billing: " in printed(place_of(store.path), "stat").decode()
        assert str(store.path) not in printed(place_of(store.path), "stat", "--json").decode()


def test_a_rocketmq_root(tmp_path: Path, served_base: str) -> None:
    root = load("v1_basic").unpack(tmp_path / "root")
    assert both(served_base, root, "cat", "--format", "json")
    assert both(served_base, root, "topics")


def test_damage(store: HandMadeStore, served_base: str) -> None:
    """What is good before it is printed, then its error. It can be passed over."""
    damaged = store.lane(2).records[2]
    segment = store.directory.lane_directory(2).segment_path(0)
    with segment.open("r+b") as file:
        file.seek(damaged.physical_offset + 4)
        file.write(b"\xff" * 4)
    words = ("--topic", "values", "--format", r"%p %o\n")
    with pytest.warns(ReadingWarning):
        left = printed(store.path, "cat", "--skip-corrupt", *words)
    with by_url(served_base):
        with pytest.warns(ReadingWarning):
            assert printed(place_of(store.path), "cat", "--skip-corrupt", *words) == left
        done = CliRunner().invoke(app, ["cat", place_of(store.path), *words])
    by_path = CliRunner().invoke(app, ["cat", str(store.path), *words]).stdout_bytes  # its error keeps a mapping
    assert isinstance(done.exception, CorruptRecord)
    assert str(store.path) not in str(done.exception)
    assert left.count(b"\n") == 11
    assert done.stdout_bytes == by_path


@pytest.mark.filterwarnings("ignore:.*was not stopped properly")  # it may look while a lane is made by hand
def test_following(tmp_path: Path, served_base: str) -> None:
    """What comes later is printed too, also of a topic and of a lane that were not there."""
    store = small_store(tmp_path / "store")
    with by_url(served_base):
        url = place_of(store.path)
    with pytest.warns(ReadingWarning, match="no topic later yet"):
        reader = Reader(url, ["orders", "later"], start="latest", follow=True)
    with reader:
        store.lane(0).append("orders", b"new")
        store.lane(0).append("later", b"first")
        store.publish()
        store.lane(7).append("orders", b"new lane")
        store.publish()
        found = list(islice(reader, 3))
    assert sorted(message.value for message in found) == [b"first", b"new", b"new lane"]


def test_what_is_wrong(store: HandMadeStore, served_base: str) -> None:
    """One line, without a path of the server."""
    with by_url(served_base):
        url, nowhere = place_of(store.path), place_of("/nowhere/at-all")
    wrong: list[tuple[list[str], type[CommitLogError]]] = [
        (["cat", url, "--topic", "missing"], UnknownTopic),
        (["cat", nowhere], StoreNotFound),
        (["topics", nowhere], StoreNotFound),
        (["stat", nowhere], StoreNotFound),
        (["stat", "commitlog://elsewhere/events"], IllegalArgument),
        (["cat", "grpc://elsewhere/events"], IllegalArgument),
        (["cat", url, "--ca-file", "f"], IllegalArgument),
        (["topics", str(store.path), "--token-file", "f"], IllegalArgument),
    ]
    CliRunner().invoke(app, ["topics", nowhere])  # the server of the tests gets to know the store
    for words, kind in wrong:
        done = CliRunner().invoke(app, words)
        assert isinstance(done.exception, kind)
        assert "\n" not in str(done.exception)
        assert "/nowhere" not in str(done.exception)
    for words in (["topics", url, "--delete", "values"], ["topics", url, "--trim", "values", "--before", "latest"]):
        assert CliRunner().invoke(app, words).exit_code == 2
    assert orjson.loads(printed(store.path, "topics", "--json"))["topics"]


def test_lines_and_rows_are_sent_to_a_url(served_base: str, tmp_path: Path) -> None:
    lines, rows = tmp_path / "lines", tmp_path / "rows"
    lines.write_bytes(b"a:one\nb:two\n")
    rows.write_bytes(b'{"id": 1}\n{"id": 2}\n')
    with Store.open(tmp_path / "store") as running, by_url(served_base):
        running.create_topic("typed", schema="id INT")
        url = place_of(running.path)
        assert not printed(url, "produce", "orders", str(lines), "-K", ":", "--header", "source=shop")
        printed(url, "produce", "typed", str(rows), "--rows")
        with Reader(running.path, topic="orders") as reader:
            sent = [(message.key, message.value, message.headers) for message in reader]
        assert sent == [("a", b"one", {"source": "shop"}), ("b", b"two", {"source": "shop"})]
        assert read_arrow(running.path, "typed").read_all()["id"].to_pylist() == [1, 2]
        with pytest.raises(IllegalTopic):
            printed(url, "produce", "no/topic", str(lines))
