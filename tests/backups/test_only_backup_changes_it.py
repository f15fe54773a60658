"""A backup is changed by `commitlog backup` alone: the next one would undo what others have done.

A named reader that read a backup would be moved to where the store's reader of its name is, and so
pass over messages. What was trimmed or deleted there would come back.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import StoreRefused
from commitlog.reading.named_readers import NamedReaders
from tests import command_line
from tests.builders.hand_made import small_store
from tests.builders.named_reader import CHANGES, billing

UNDONE = "is a backup, and the next `commitlog backup` to it would undo this"


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    store, made = small_store(tmp_path / "store"), tmp_path / "backup"
    with billing(store) as reader:
        next(iter(reader))
        reader.commit()
    commitlog.backup(store.path, made)
    return made


def files(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in place.rglob("*")}


@pytest.mark.parametrize("name", ["billing", "new"])
def test_named_readers(backup: Path, name: str) -> None:
    before = files(backup)
    with pytest.raises(StoreRefused, match=UNDONE):
        commitlog.Reader(backup, topic="orders", name=name)
    with pytest.raises(StoreRefused, match=UNDONE):
        NamedReaders(StoreDirectory(backup)).hold(name)  # as Spark's readerName, forwarders and servers do
    assert files(backup) == before


@pytest.mark.parametrize("words", CHANGES)
def test_commands(backup: Path, words: tuple[str, ...]) -> None:
    before = files(backup)
    done = command_line.run(words[0], backup, *words[1:])
    assert done.returncode == 1
    assert UNDONE in done.stderr.decode()
    assert files(backup) == before


def test_once_it_is_a_store(backup: Path) -> None:
    commitlog.Store.open(backup, {"retention": {"reserved_hours": 1_000_000}}).close()
    with commitlog.Reader(backup, topic="orders", name="billing") as reader:
        assert len(list(reader)) == 199
        reader.commit()
    assert command_line.run("topics", backup, "--delete", "orders", "--yes").returncode == 0
