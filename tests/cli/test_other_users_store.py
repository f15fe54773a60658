"""Root changes nothing in another user's store: its owner could not read what root writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import StoreRefused
from commitlog.reading.named_readers import NamedReaders
from tests.another_user import NOBODY, as_root
from tests.builders.hand_made import small_store
from tests.builders.named_reader import CHANGES, billing
from tests.command_line import run
from tests.waiting import wait_until

pytestmark = as_root


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Path]:
    """A store of somebody else, with a named reader."""
    store = small_store(tmp_path / "store")
    billing(store).close()
    _give(store.path, NOBODY)
    yield store.path
    _give(store.path, os.geteuid())


def _give(path: Path, user: int) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, user, -1)


def owners(path: Path) -> dict[Path, int]:
    return {one: one.lstat().st_uid for one in path.rglob("*")}


@pytest.mark.parametrize("words", CHANGES)
def test_commands(theirs: Path, words: tuple[str, ...]) -> None:
    before = owners(theirs)
    done = run(words[0], theirs, *words[1:])
    assert done.returncode == 1
    assert f"belongs to user {NOBODY}, not to user 0: run as its owner, or chown it".encode() in done.stderr
    assert owners(theirs) == before


@pytest.mark.parametrize(
    "action",
    [
        lambda path: commitlog.Reader(path, topic="orders", name="new"),
        lambda path: NamedReaders(StoreDirectory(path)).hold("new"),  # as Spark and forwarders do
    ],
    ids=["reader", "name"],
)
def test_named_readers(theirs: Path, action: Callable[[Path], object]) -> None:
    before = owners(theirs)
    with pytest.raises(StoreRefused, match=f"belongs to user {NOBODY}"):
        action(theirs)
    assert owners(theirs) == before
    with commitlog.Reader(theirs, topic="orders") as reader:
        assert len(list(reader)) == 200


def test_one_that_runs(tmp_path: Path) -> None:
    """Nobody says that it starts, or was killed: its pool is not for other users, root too."""
    config = {"flusher": {"positions_interval_ms": 600_000}}
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        directory = StoreDirectory(store.path)
        producer.send("orders", b"x").wait("flushed", timeout=60)
        wait_until(lambda: directory.load().lanes, "the lane in store.json")
        producer.send("orders", b"in no file's positions").wait("flushed", timeout=60)
        pool = directory.load().pool
        assert pool is not None
        owned = store.path, Path(pool.directory)
        for one in owned:
            os.chown(one, NOBODY, -1)
        try:
            said = {word: run(word, store.path) for word in ("top", "stat", "topics", "metrics")}
            facts = json.loads(run("stat", store.path, "--json").stdout)
        finally:
            for one in owned:
                os.chown(one, os.geteuid(), -1)
    assert f"DOWN: it runs, and belongs to user {NOBODY}: ".encode() in said["top"].stdout
    assert (facts["running"], facts["starting"], facts["killed"]) == (True, False, False)
    assert b'commitlog_health_reasons{code="unreadable"' in said["metrics"].stdout
    for done in said.values():
        assert done.returncode == 0
        assert f"is run by user {NOBODY}".encode() in done.stderr
        assert b"not stopped properly" not in done.stderr


def test_a_backup(theirs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is made, and leaves no note: one that the owner can't read would hide the one before."""
    assert commitlog.backup(theirs, tmp_path / "backup").good
    assert "metrics do not tell how old its backup is" in caplog.text
    assert not (theirs / "last-backup.json").exists()
