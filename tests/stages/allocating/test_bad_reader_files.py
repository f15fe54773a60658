"""Files in `readers/` that somebody else wrote.

Each can cost space, but harms no other reader, no command and no stage.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.errors import ReaderError
from commitlog.reading.named_reader import NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.stages.allocating.reader_needs import ReaderNeeds
from tests.builders.hand_made import HandMadeStore, small_store
from tests.crash.scene import pid_of
from tests.faults.supervisor import patched_stages
from tests.nightly import with_nightly
from tests.waiting import wait_until

SLOW_TOPIC = "a" * 60 + "b"
"""What the pattern (a+)+ takes for ever with."""


def position(store_id: str, **fields: object) -> bytes:
    return orjson.dumps({"name": "bad", "store": store_id, "moved_ms": 1, "offsets": {}} | fields)


def nested(depth: int) -> bytes:
    return b'{"offsets":' * depth + b"1" + b"}" * depth


UNBELIEVABLE: dict[str, Callable[[str], bytes]] = {
    "nothing": lambda store: b"",
    "no JSON": lambda store: b"{",
    "an array": lambda store: b"[]",
    "NUL in a topic": lambda store: position(store, offsets={"a\0b": {"0": 1}}),
    "a path out of the store": lambda store: position(store, offsets={"../../../etc": {"0": 1}}),
    "the directory above": lambda store: position(store, offsets={"..": {"0": 1}}),
    "a slash": lambda store: position(store, offsets={"a/b": {"0": 1}}),
    "an empty topic": lambda store: position(store, offsets={"": {"0": 1}}),
    "a topic that long": lambda store: position(store, offsets={"x" * 300: {"0": 1}}),
    "an offset below 0": lambda store: position(store, offsets={"orders": {"0": -1}}),
    "an offset too large": lambda store: position(store, offsets={"orders": {"0": (1 << 63) // 20}}),
    "an offset beyond 64 bits": lambda store: position(store, offsets={"a": {"0": 5}}).replace(b"5", b"9" * 30),
    "an offset that is a float": lambda store: position(store, offsets={"orders": {"0": 1.5}}),
    "an offset that is text": lambda store: position(store, offsets={"orders": {"0": "7"}}),
    "an offset that is true": lambda store: position(store, offsets={"orders": {"0": True}}),
    "an offset that is null": lambda store: position(store, offsets={"orders": {"0": None}}),
    "a lane too large": lambda store: position(store, offsets={"orders": {"128": 1}}),
    "a lane below 0": lambda store: position(store, offsets={"orders": {"-1": 1}}),
    "a lane that is no number": lambda store: position(store, offsets={"orders": {"x": 1}}),
    "a lane of another script": lambda store: position(store, offsets={"orders": {"٣": 1}}),
    "a lane twice": lambda store: position(store, offsets={"orders": {"0": 100, "00": 1}}),
    "lanes that are an array": lambda store: position(store, offsets={"orders": [1]}),
    "a store that is a number": lambda store: position(store).replace(orjson.dumps(store), b"5"),
    "a time that is text": lambda store: position(store, moved_ms="1"),
    "a time too late": lambda store: position(store, moved_ms=1 << 63),
    "a pattern that is a number": lambda store: position(store, pattern=5),
    "a pattern that long": lambda store: position(store, pattern="a" * 20_000),
    "passed over that is text": lambda store: position(store, pattern="a", passed_over="orders"),
    "passed over of numbers": lambda store: position(store, pattern="a", passed_over=[5]),
    "a kind that is none": lambda store: position(store, kind="perl"),
    "all lanes that is text": lambda store: position(store, all_lanes="false"),
    "lanes of nothing": lambda store: position(store, lanes=[]),
    "lanes that are text": lambda store: position(store, lanes="12"),
    "members of none": lambda store: position(store, members=[0, 0]),
    "members of floats": lambda store: position(store, members=[0.0, 2.0]),
    "not UTF-8": lambda store: b'{"store":"\xff"}',
    "half a surrogate": lambda store: position(store).replace(b'"bad"', b'"\\ud800"') + b"x",
    "nested": lambda store: nested(5_000),
    "nested a little less": lambda store: nested(900),
    "16 MiB": lambda store: position(store, offsets={f"t{n}": {"0": 1} for n in range(1 << 20)}),
    "16 MiB of blanks": lambda store: position(store) + b" " * (16 << 20),
}

ONLY_THE_OWNERS: dict[str, str] = {
    "more repetitions than there are numbers": "a{4294967296}",
    "parentheses": "(" * 5_000 + ")" * 5_000,
    "no regular expression": "(",
    "one that takes for ever": "(a+)+",
}


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """A store with topic `orders` and one for which some patterns take for ever, in two lanes.

    A reader needs the second half.
    """
    made = small_store(tmp_path / "store", topics=("orders", SLOW_TOPIC))
    at = dict.fromkeys((0, 1), 50)
    NamedReaders(made.directory).save(NamedReader("good", made.id, {"orders": at}, 1))
    return made


def holders(needs: ReaderNeeds, end: int) -> set[str]:
    """Who needs something of lane 0 below an offset of its log."""
    return {name for where, name in needs._needs.get(0, ()) if where < end}


def bad_file(store: HandMadeStore) -> Path:
    return store.directory.readers_directory / "bad.json"


def check(store: HandMadeStore, caplog: pytest.LogCaptureFixture, warned: bool) -> None:
    """Everything is kept for the bad reader until its file is gone, which is reported once.

    The good reader keeps what it had, and commands answer.
    """
    end = store.lane(0).end
    middle = store.lane(0).records[100].physical_offset
    needs = ReaderNeeds(store.directory, store.id)
    for _ in range(3):
        needs.refresh()
        assert holders(needs, 1) == {"bad"}
        assert holders(needs, end) == {"bad", "good"}
    assert caplog.text.count("reader bad: ") == warned
    for command in ("stat", "readers"):
        said = CliRunner().invoke(app, [command, str(store.path)])
        assert said.exit_code == 0, said.output
        assert ("WARNING: reader bad: " in said.output) is warned
        assert "good: 100 messages behind" in said.output
    path = bad_file(store)
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    needs.refresh()
    assert holders(needs, middle) == set()
    assert holders(needs, middle + 1) == {"good"}


@pytest.mark.parametrize("kind", with_nightly([kind for kind in UNBELIEVABLE if kind != "16 MiB"], ["16 MiB"]))
def test_a_file_that_can_not_be_believed(store: HandMadeStore, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    bad_file(store).write_bytes(UNBELIEVABLE[kind](store.id))
    with pytest.raises(ReaderError, match=r"bad\.json: not the position of a reader"):
        NamedReaders(store.directory).load("bad")
    check(store, caplog, warned=True)


@pytest.mark.parametrize("kind", ONLY_THE_OWNERS)
def test_a_pattern_is_matched_by_its_owner_only(
    store: HandMadeStore, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Topics that its owner has said nothing about are kept for it."""
    bad_file(store).write_bytes(position(store.id, pattern=ONLY_THE_OWNERS[kind]))
    check(store, caplog, warned=False)


def test_what_an_owner_has_passed_over_is_not_kept(store: HandMadeStore) -> None:
    """A file of an older version has nothing passed over: all is kept but what was read."""
    all_read = {"orders": {"0": 100, "1": 100}}
    needs = ReaderNeeds(store.directory, store.id)
    for passed_over, kept in ([SLOW_TOPIC], {"good"}), ([], {"good", "bad"}):
        bad_file(store).write_bytes(position(store.id, offsets=all_read, pattern="o.*", passed_over=passed_over))
        needs.refresh()
        assert holders(needs, store.lane(0).end) == kept
    bad_file(store).write_bytes(position(store.id, offsets=all_read, pattern="o.*"))
    needs.refresh()
    assert holders(needs, store.lane(0).end) == {"good", "bad"}


def make_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, make_link], ids=["a pipe", "a directory", "a link"])
def test_what_is_no_file(store: HandMadeStore, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits at a pipe for its other end, and no link is followed."""
    make(bad_file(store))
    check(store, caplog, warned=True)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, make_link], ids=["a pipe", "a directory", "a link"])
def test_what_is_no_file_can_be_removed(store: HandMadeStore, make: Callable[[Path], None]) -> None:
    """A directory by hand, which is said."""
    make(bad_file(store))
    readers = NamedReaders(store.directory)
    if make is os.mkdir:
        with pytest.raises(ReaderError, match="remove it by hand"):
            readers.remove("bad")
    else:
        readers.remove("bad")
        assert readers.names() == ["good"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, make_link], ids=["a pipe", "a directory", "a link"])
def test_a_lock_that_is_no_file(store: HandMadeStore, make: Callable[[Path], None]) -> None:
    """Commands say what is there, and the name can't be had."""
    readers = NamedReaders(store.directory)
    make(store.directory.readers_directory / "good.lock")
    assert CliRunner().invoke(app, ["readers", str(store.path)]).exit_code == 0
    with pytest.raises(ReaderError, match="the position of a named reader is kept in the store"):
        readers.hold("good")


def test_readers_that_is_no_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody knows who needs what, so all is kept; that is said once."""
    store = small_store(tmp_path / "store")
    store.directory.readers_directory.write_bytes(b"")
    needs = ReaderNeeds(store.directory, store.id)
    for _ in range(3):
        needs.refresh()
        assert needs.holder(0, 1) is not None
    assert caplog.text.count("can't be listed") == 1


@pytest.mark.nightly
def test_the_allocator_lives_and_goes_on_deleting(tmp_path: Path) -> None:
    """The allocator does that with all of these files in `readers/`.

    What must go to make space on the disk goes, and each file is named once in the log.
    """
    path = tmp_path / "store"
    config = {
        "store": {"segment_bytes": 1 << 16},
        "retention": {"interval_ms": 10, "disk_clean_forcibly_percent": 85, "disk_refuse_percent": 100},
        "allocator": {"interval_ms": 10},
        "flusher": {"positions_interval_ms": 10},
    }
    with patched_stages("tests.faults.stage:on_a_full_disk"), commitlog.Store.open(path, config) as store:
        pid = pid_of(store.path, "allocator")
        readers = path / "readers"
        readers.mkdir()
        store_id = store.statistics().store_id
        for number, make in enumerate(UNBELIEVABLE.values()):
            (readers / "made").write_bytes(make(store_id))
            (readers / "made").rename(readers / f"bad{number}.json")  # the allocator sees it whole: one complaint
        for number, pattern in enumerate(ONLY_THE_OWNERS.values()):
            (readers / f"slow{number}.json").write_bytes(position(store_id, pattern=pattern))
        os.mkfifo(readers / "pipe.json")
        with store.producer() as producer:
            for number in range(600):
                producer.send(SLOW_TOPIC if number % 2 else "orders", bytes(1000))
            producer.flush(timeout=60)
            commitlog_directory = path / "lanes/0/commitlog"
            wait_until(lambda: len(list(commitlog_directory.iterdir())) <= 4, "old segments to go")
        assert pid_of(store.path, "allocator") == pid
        (allocator,) = [stage for stage in store.statistics().stages if stage.stage == "allocator"]
        assert allocator.restarts == 0
    said = (path / "logs/allocator.log").read_text()
    for number in range(len(UNBELIEVABLE)):
        assert said.count(f"reader bad{number}: ") == 1
