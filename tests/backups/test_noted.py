"""A store that was backed up says when."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog.disk.backup_note import backup_note
from commitlog.disk.store_directory import StoreDirectory
from commitlog.system.clock import SYSTEM_CLOCK
from tests.builders.hand_made import small_store


def test_the_store_knows_when_it_was_backed_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By a good backup. A note that can't be written is a warning, and the backup counts."""
    store = small_store(tmp_path / "store")
    directory = StoreDirectory(store.path)
    assert backup_note(directory) is None
    began_ms = SYSTEM_CLOCK.wall_ms()
    assert commitlog.backup(store.path, tmp_path / "copy").good
    note = backup_note(directory)
    assert note is not None
    assert note.destination == str(tmp_path / "copy")
    assert began_ms <= note.ended_ms <= SYSTEM_CLOCK.wall_ms()
    directory.backup_note_file.unlink()
    directory.backup_note_file.mkdir()
    assert commitlog.backup(store.path, tmp_path / "copy").good
    assert "metrics do not tell how old its backup is" in caplog.text
