"""`commitlog backup` as a user types it, and the recipes of docs/backup.md, line by line."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

import commitlog
from commitlog.disk.locks import is_running
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import BackupRefused
from tests import command_line
from tests.builders.hand_made import small_store
from tests.builders.killed import kill_store
from tests.cli.test_width import on_terminal
from tests.nightly import with_nightly
from tests.waiting import wait_until

PAGE = (Path(__file__).parents[2] / "docs/backup.md").read_text()
SMALL = {"store": {"segment_bytes": 1 << 16, "max_lanes": 2}, "retention": {"reserved_hours": 0}}
"""Nothing is deleted for its age: the hand-made messages are old."""


def run(*words: object, directory: Path) -> subprocess.CompletedProcess[str]:
    with contextlib.chdir(directory):
        done = command_line.run(*words)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def recipe(heading: str, directory: Path) -> None:
    """Runs the shell lines below a heading, with `/backup` and `/mnt` in a directory of the test.

    `commitlog run` is left to the test. What a line removes or moves has to be there.
    """
    section = re.split(r"^## ", PAGE.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    for line in "".join(re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)).splitlines():
        words = [re.sub("^/", f"{directory}/", word) for word in shlex.split(line, comments=True)]
        if words[:2] == ["commitlog", "run"]:
            continue
        if words[0] == "commitlog":
            run(*words[1:], directory=directory)
        else:
            subprocess.run(words, cwd=directory, check=True)


def values(store: Path) -> list[bytes]:
    with commitlog.Reader(store, topic="orders") as reader:
        return sorted(message.value for message in reader)


def test_a_backup_is_not_started_by_mistake(tmp_path: Path) -> None:
    """A start ends it as a backup: the next one would be refused for ever. So each start asks."""
    store = small_store(tmp_path / "store")
    commitlog.backup(store.path, tmp_path / "backup")
    for words in (
        ("run", "backup"),
        ("produce", "backup", "orders"),
        ("ingest", "--store", "backup", "--seconds", "1"),
    ):
        done = run(*words, directory=tmp_path)
        assert done.returncode == 1, done
        assert (
            "backup is a backup: a start makes it a store of its own, and no later backup goes into it" in done.stderr
        )
        assert done.stderr.endswith("[StoreRefused]\n")
    asked = " ".join(on_terminal("run", tmp_path / "backup", typed=b"n\n", exit_code=1))
    assert "Start it? [y/N]: " in asked
    assert commitlog.backup(store.path, tmp_path / "backup").good


@pytest.mark.parametrize("yes", with_nightly([False], [True]))
def test_somebody_may_start_a_backup(tmp_path: Path, yes: bool) -> None:
    store = small_store(tmp_path / "store")
    commitlog.backup(store.path, tmp_path / "backup")
    with ThreadPoolExecutor() as other:
        words = ("run", tmp_path / "backup", *(("--yes",) if yes else ()))
        running = other.submit(on_terminal, *words, typed=b"" if yes else b"y\n")
        wait_until(lambda: running.done() or is_running(StoreDirectory(tmp_path / "backup"), None), "it runs")
        assert run("stop", "backup", directory=tmp_path).returncode == 0
    assert "stopped, all is on disk" in running.result()
    with pytest.raises(BackupRefused):
        commitlog.backup(store.path, tmp_path / "backup")


def test_a_start_in_python_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    commitlog.backup(small_store(tmp_path / "store").path, tmp_path / "backup")
    commitlog.Store.open(tmp_path / "backup", SMALL).close()
    assert f"{tmp_path}/backup was a backup, and is a store of its own from now on" in caplog.text


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    done = run("backup", "store", "backup", directory=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"\S+/backup: good, 400 messages and [\d,]+ bytes copied from 2 lanes, 0 old .*\n", done.stdout)
    done = run("backup", "store", "backup", "--verify-all", "--json", directory=tmp_path)
    said = orjson.loads(done.stdout)
    assert (said["good"], said["lanes"], said["copied_bytes"], said["findings"]) == (True, 2, 0, [])
    store.directory.lane_directory(1).segment_path(0).write_bytes(b"x" * store.segment_bytes)
    shutil.rmtree(tmp_path / "backup")
    done = run("backup", "store", "backup", directory=tmp_path)
    assert done.returncode == 1
    assert "corruption: " in done.stdout
    assert ": NOT good, " in done.stdout
    done = run("backup", "backup", "store", directory=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("[BackupRefused]\n")


def test_restore(tmp_path: Path) -> None:
    small_store(tmp_path / "data/events")
    before = values(tmp_path / "data/events")
    commitlog.backup(tmp_path / "data/events", tmp_path / "backup/events")
    shutil.rmtree(tmp_path / "data/events/lanes")
    recipe("Restore", tmp_path)
    with commitlog.Store.open(tmp_path / "data/events", SMALL):
        assert values(tmp_path / "data/events") == before


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_restore_beside_the_memory_of_a_killed_store(tmp_path: Path) -> None:
    """The pool of the old store is neither adopted nor in the way."""
    place = tmp_path / "data/events"
    store = commitlog.Store.open(place, SMALL)
    store.producer().send("orders", b"old").wait("flushed")
    commitlog.backup(place, tmp_path / "backup/events")
    store.producer().send("orders", b"later").wait("flushed")
    kill_store(store)
    recipe("Restore", tmp_path)
    with commitlog.Store.open(place, SMALL) as restored:
        assert values(place) == [b"old"]
        restored.producer().send("orders", b"new").wait("flushed")
    with pytest.raises(BackupRefused):
        commitlog.backup(place, tmp_path / "data/events.broken")


def test_move_to_another_machine(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data/events")
    recipe("Move to another machine", tmp_path)
    store.lane(0).append("orders", b"the rest")
    store.publish()
    recipe("Move to another machine", tmp_path)
    assert values(tmp_path / "mnt/disk/events") == values(tmp_path / "data/events")


def test_a_damaged_record(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data/events")
    before = values(store.path)
    commitlog.backup(store.path, tmp_path / "backup/events")
    segment = store.directory.lane_directory(0).segment_path(0)
    segment.write_bytes(segment.read_bytes().replace(b"orders-0-3", b"orders-0-x"))
    recipe("A damaged record", tmp_path)
    assert values(store.path) == before
    assert run("verify", store.path, directory=tmp_path).stdout.endswith("\ngood\n")


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_shared_memory_is_lost(shm_root: Path, tmp_path: Path) -> None:
    """What was flushed is there after the next start, and before it in a backup."""
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    store.producer().send("orders", b"one").wait("flushed")
    kill_store(store)
    for pool in shm_root.iterdir():
        shutil.rmtree(pool)
    assert commitlog.backup(tmp_path / "store", tmp_path / "backup", verify_all=True).good
    assert values(tmp_path / "backup") == [b"one"]
    with commitlog.Store.open(tmp_path / "store", SMALL):
        assert values(tmp_path / "store") == [b"one"]
