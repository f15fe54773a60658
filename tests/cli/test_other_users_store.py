"""Root changes nothing in another user's store: its owner could not read what root writes."""

from __future__ import annotations

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


def test_a_backup(theirs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is made, and leaves no note: one that the owner can't read would hide the one before."""
    assert commitlog.backup(theirs, tmp_path / "backup").good
    assert "metrics do not tell how old its backup is" in caplog.text
    assert not (theirs / "last-backup.json").exists()
