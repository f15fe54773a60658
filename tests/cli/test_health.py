"""`commitlog health`: its lines, JSON and exit codes, and what docs/operate.md says of them."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

import commitlog
from commitlog.cli.app import app
from commitlog.cli.health import health
from commitlog.text.quantities import seconds_of
from commitlog.watching.health import CODES, HealthLimits
from tests.builders.hand_made import small_store
from tests.builders.killed import kill_store
from tests.builders.package_tree import package_tree
from tests.cli.test_width import on_terminal

SMALL = {"store": {"segment_bytes": 1 << 16}}
ROOM = "--full-percent=100"
"""The disk of a machine that runs tests may be full."""
PAGE = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["health", ROOM, *map(str, arguments)])


@pytest.mark.leaves_pools
def test_good_and_down(tmp_path: Path) -> None:
    """As a probe calls it: one line and an exit code, of a store that runs, stops and is killed."""
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    command = [sys.executable, "-m", "commitlog.cli", "health", ROOM, str(store.path)]
    done = subprocess.run(command, capture_output=True, timeout=60, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"good: {store.path}\n", "")
    store.close()
    down = call(store.path)
    assert (down.exit_code, down.stderr) == (2, "")
    assert down.stdout == f"down stopped: the store does not run; start it: commitlog run {store.path}\n"
    kill_store(commitlog.Store.open(store.path))
    killed = call(store.path)
    assert killed.exit_code == 2
    assert killed.output.startswith("down killed: ")


def test_degraded(tmp_path: Path) -> None:
    """The reader has not moved for the shortest time that can be asked for."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        producer.send_batch("t", [b"x"] * 3)
        producer.flush(timeout=60)
        with commitlog.Reader(store.path, topic="t", start="earliest", name="billing") as reader:
            reader.commit(next(iter(reader)))
        behind = call(store.path, "--reader-behind", 1)
        assert behind.exit_code == 1
        assert (
            behind.output
            == "degraded reader-behind: reader billing is 2 messages behind; more readers, or quicker ones; how far each "
            f"is: commitlog readers {store.path}\n"
        )
        still = orjson.loads(call(store.path, "--json", "--reader-still", 0).output)
        assert still["status"] == "degraded"
        (reason,) = still["reasons"]
        assert {name: reason[name] for name in ("code", "severity", "reader")} == {
            "code": "reader-still",
            "severity": "degraded",
            "reader": "billing",
        }
        assert call(store.path, "--reader-still", 0, "--ignore", "reader-still").exit_code == 0
        assert call(store.path).exit_code == 0


@pytest.mark.parametrize("place", ["absent", "file", "damaged"])
def test_what_can_not_be_looked_at_is_down(tmp_path: Path, place: str) -> None:
    """The error is the reason, in JSON too, and nothing is made."""
    (tmp_path / "file").write_text("")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "store.json").write_text("{")
    error = {"absent": "StoreNotFound", "file": "StoreRefused", "damaged": "StoreDamaged"}[place]
    done = call(tmp_path / place)
    assert done.exit_code == 2
    assert done.output.startswith("down unreadable: ")
    assert done.output.endswith(f" [{error}]; what is wrong with it: commitlog doctor {tmp_path / place}\n")
    assert done.output.count("\n") == 1
    found = orjson.loads(call(tmp_path / place, "--json").output)
    assert (found["status"], found["reasons"][0]["code"]) == ("down", "unreadable")
    assert not (tmp_path / "absent").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a store away")
def test_another_users_store(tmp_path: Path) -> None:
    """Root may read the files, but not the pool: the store would seem to start for ever."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        os.chown(store.path, 12345, -1)
        done = call(store.path)
        os.chown(store.path, 0, -1)
    assert done.exit_code == 2
    assert "run as its owner" in done.output


def test_a_core_that_is_missing_is_no_matter(tmp_path: Path) -> None:
    """A probe reads no records: it works where COMMITLOG_NATIVE asks for a core in vain."""
    small_store(tmp_path / "store")
    environment = package_tree(tmp_path, None) | {"COMMITLOG_NATIVE": "on"}
    command = [sys.executable, "-P", "-m", "commitlog.cli", "health", "store"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("down stopped: ")


def test_what_was_looked_at(tmp_path: Path) -> None:
    """Behind the verdict, a line for each check; in JSON, too."""
    small_store(tmp_path / "store")
    first, *others = call("--explain", "--silent", "7s", tmp_path / "store").output.splitlines()
    assert first.startswith("down stopped: ")
    assert "down stopped, killed, closing, starting: the store is stopped" in others
    assert "not looked at stage-silent: the stages of the store do not run; a reason if over 7.0 s (--silent)" in others
    found = orjson.loads(call("--explain", "--json", tmp_path / "store").output)
    assert [len(others)] == [len(found["checks"])]
    assert found["checks"][0]["codes"] == ["unreadable"]
    assert "checks" not in orjson.loads(call("--json", tmp_path / "store").output)


def test_a_command_can_be_pasted_from_a_narrow_terminal(tmp_path: Path) -> None:
    """Words wrap, and a command has a line of its own that stays whole."""
    place = tmp_path / "a store whose name is long, and has blanks, so that a line would break in it"
    small_store(place)
    shown = on_terminal("health", place, exit_code=2)
    assert shown[0].startswith("down stopped: the store does not run; ")
    assert shlex.split(shown[-1]) == ["commitlog", "run", str(place)]
    assert len(shown[-1]) > 80


def test_an_unknown_reason_can_not_be_ignored(tmp_path: Path) -> None:
    done = call(tmp_path, "--ignore", "nonsense")
    assert done.exit_code == 2
    assert "'nonsense' is no reason" in done.output
    assert "reader-behind" in done.output


def test_the_defaults_are_those_of_the_limits() -> None:
    """Command and help spell them out, because it is quick without an import of the limits."""
    text = " ".join(call("--help").output.split())
    limits, options = HealthLimits(), inspect.signature(health).parameters
    for name in ("silent", "blocked", "unflushed", "undispatched", "reader_still"):
        option, seconds = name.replace("_", "-"), getattr(limits, f"{name}_ms") / 1000
        shown = re.search(rf"--{option} TIME .*?\[default: (\w+)\]", text)
        assert shown, option
        assert (options[name].default, seconds_of(shown[1])) == (seconds, seconds), option
    for name in ("reader_behind", "full_percent"):
        assert re.search(rf"--{name.replace('_', '-')} .*?\[default: {getattr(limits, name)};", text), name


def test_the_page_has_every_code() -> None:
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (degraded|down) \|", PAGE, re.MULTILINE))
    assert rows == CODES
