"""Foreign files in a store's directories are named, left alone, and do no harm."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.errors import CommitLogError
from tests.builders.made_lane import SEGMENT, make_lane
from tests.command_line import run, run_process
from tests.nightly import with_nightly

SENT = 20
NAMES = {
    "not UTF-8": b"\xff\xfe.txt",
    "another script's digits": ("\u0660" * 20).encode(),
    "digits, but not twenty": b"20261121",
}


def add(path: Path) -> None:
    """Opens the store, appends, closes it."""
    with commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 16, "max_lanes": 2}}) as store:
        producer = store.producer()
        for row in range(SENT):
            producer.send("orders", b"%d" % row)
        producer.flush()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store to which `add` was done once; `path` is a test's own copy."""
    path = tmp_path_factory.mktemp("made") / "store"
    add(path)
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "store")


def offsets(path: Path) -> list[int]:
    return [message.offset for message in commitlog.Reader(path, topic="orders", start="earliest")]


@pytest.mark.nightly
@pytest.mark.parametrize("name", with_nightly(list(NAMES)[:1], list(NAMES)[1:]))
def test_files_with_odd_names(name: str, path: Path) -> None:
    """The store opens, goes on where it was, and does not touch the files.

    They are in the log and in a consume queue.
    """
    lane = path / "lanes/0"
    foreign = [lane / part / os.fsdecode(NAMES[name]) for part in ("commitlog", "consumequeue/orders/0")]
    for file in foreign:
        file.write_bytes(b"mine")
    add(path)
    assert offsets(path) == list(range(2 * SENT))
    assert [file.read_bytes() for file in foreign] == [b"mine"] * 2
    said = run("verify", path, "--json")
    (found,) = orjson.loads(said.stdout)["lanes"]
    assert (found["records"], found["entries"]) == (2 * SENT, 2 * SENT)
    assert [finding["reason"] for finding in found["findings"]] == ["not a segment's name; passed over"]
    shutil.rmtree(os.fsencode(path))  # pytest's own clean-up does not get past every name


def test_a_number_that_no_lane_can_have(path: Path) -> None:
    """Passed over."""
    (path / "lanes/999/commitlog").mkdir(parents=True)
    add(path)
    assert offsets(path) == list(range(2 * SENT))
    assert run("verify", path).returncode == 0


def test_a_file_in_place_of_a_lane(path: Path) -> None:
    """A named error of every command and of a start; without it all is well."""
    (path / "lanes/1").write_bytes(b"mine")
    for name in ("verify", "dump", "cat", "run"):
        said = run(name, path)
        assert said.returncode == 1, name
        assert b"Traceback" not in said.stderr
        assert b"lanes/1" in said.stderr
    (path / "lanes/1").unlink()
    add(path)
    assert offsets(path) == list(range(2 * SENT))


@pytest.mark.nightly
def test_a_damaged_store_in_a_directory_whose_name_is_no_utf8(tmp_path: Path) -> None:
    """What recovery finds is noted and told all the same."""
    lane = make_lane(tmp_path / os.fsdecode(b"\xe9t\xe9") / "3")
    lane.write(lane.places[5][0] + 90, b"\xee\xee")
    lane.set_positions(lane.end, 0)
    assert len(lane.recover().findings) == 1
    (note,) = lane.directory.quarantine.glob("corrupt-*.json")
    assert "\\xe9t\\xe9" in orjson.loads(note.read_bytes())["file"]
    assert b"NOT good" in run_process("verify", lane.directory.path).stdout
    assert orjson.loads(run_process("verify", lane.directory.path, "--json").stdout)["lanes"][0]["lane"] == 3
    shutil.rmtree(os.fsencode(lane.directory.path.parent))


@pytest.mark.filterwarnings("ignore::commitlog.errors.ReadingWarning")
@pytest.mark.parametrize(
    "name", with_nightly(["lock"], ["positions", "consumequeue/orders/0/00000000000000000000", "checkpoint"])
)
def test_a_named_pipe_keeps_nobody_waiting(name: str, path: Path) -> None:
    """A named pipe is ignored, or gives a named error.

    To open one would wait for somebody at its other end. Without the pipe all is well, and no start
    that failed has left a pool.
    """
    pipe = path / "lanes/0" / name
    pipe.unlink()
    os.mkfifo(pipe)
    for words in (("verify",), ("cat", "--topic", "orders"), ("stat",), ("produce",)):
        more = ["orders", os.devnull] if words == ("produce",) else []
        said = CliRunner().invoke(app, [words[0], str(path), *words[1:], *more])
        assert said.exit_code == 0 or isinstance(said.exception, CommitLogError) or "NOT good" in said.output
    pipe.unlink(missing_ok=True)
    add(path)
    assert offsets(path) == list(range(2 * SENT))


def test_what_a_segment_file_has_too_much_of_is_copied_without_its_holes(tmp_path: Path) -> None:
    """A length is cheap to claim: setting it aside must not fill the disk."""
    lane = make_lane(tmp_path / "3")
    with lane.directory.segment_path(SEGMENT).open("r+b") as file:
        file.truncate(SEGMENT + (1 << 28))
        file.seek(SEGMENT + (100 << 20))
        file.write(b"something")
    assert lane.recover().end == lane.end
    (copy,) = lane.directory.quarantine.glob("surplus-*")
    assert copy.stat().st_size == 1 << 28
    assert copy.stat().st_blocks * 512 <= 8 << 20
    with copy.open("rb") as file:
        file.seek(100 << 20)
        assert file.read(9) == b"something"
