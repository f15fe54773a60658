"""What a backup refuses: another history, other things in its place, paths that can't be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import commitlog
from commitlog.errors import BackupRefused, StoreRefused, StoreRunning
from commitlog.schemas.topic_schemas import TopicSchemas
from tests.backups.test_backup import add
from tests.builders.hand_made import HandMadeStore, small_store


def _other_store(store: HandMadeStore, dest: Path) -> None:
    commitlog.backup(small_store(dest.parent / "other").path, dest)


def _newer(store: HandMadeStore, dest: Path) -> None:
    shutil.copytree(store.path, dest.parent / "old")
    add(store)
    commitlog.backup(store.path, dest)
    shutil.rmtree(store.path)
    (dest.parent / "old").rename(store.path)


def _other_history(store: HandMadeStore, dest: Path) -> None:
    """An older store that went on in another way."""
    shutil.copytree(store.path, dest.parent / "old")
    add(store, 3)
    commitlog.backup(store.path, dest)
    shutil.rmtree(store.path)
    (dest.parent / "old").rename(store.path)
    for lane in store.lanes.values():
        lane.end -= sum(record.total_size for record in lane.records[-3:])
        del lane.records[-3:]
        lane.dispatched -= 3
        lane.next_offsets["orders"] -= 3
    add(store, 9, "other")


def _other_schema(store: HandMadeStore, dest: Path) -> None:
    """An older store whose schema has grown in another way. No message tells, as the logs agree."""
    schemas = TopicSchemas(store.directory)
    first = schemas.declare("sales", pa.schema({"id": pa.int64()}), evolve=False)
    schemas.declare("sales", first.columns.append(pa.field("price", pa.float64())), evolve=True)
    commitlog.backup(store.path, dest)
    (store.directory.topics_directory / "sales" / "2.json").unlink()
    schemas.declare("sales", first.columns.append(pa.field("color", pa.string())), evolve=True)
    add(store, 3)


def _lost_lane(store: HandMadeStore, dest: Path) -> None:
    commitlog.backup(store.path, dest)
    shutil.rmtree(store.directory.lane_directory(1).path)


def _things(store: HandMadeStore, dest: Path) -> None:
    dest.mkdir(parents=True)
    (dest / "letter.txt").touch()


def _store_itself(store: HandMadeStore, dest: Path) -> None:
    shutil.copytree(store.path, dest)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (_other_store, "another store"),
        (_newer, "restored from an older copy"),
        (_other_history, "restored from an older copy"),
        (_other_schema, "the topic has another schema since"),
        (_lost_lane, "lost them"),
        (_things, "letter.txt"),
        (_store_itself, "order of the arguments"),
    ],
)
def test_a_destination_is_refused_and_left_as_it_is(
    prepare: Callable[[HandMadeStore, Path], None], says: str, store: HandMadeStore, dest: Path
) -> None:
    prepare(store, dest)
    before = _content(dest)
    with pytest.raises(BackupRefused, match=says):
        commitlog.backup(store.path, dest)
    assert _content(dest) == before


def _content(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file() and file.name != "lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def test_paths_that_are_refused(store: HandMadeStore, dest: Path, tmp_path: Path) -> None:
    for place in (store.path, store.path / "backup", tmp_path):
        with pytest.raises(BackupRefused, match="inside"):
            commitlog.backup(store.path, place)
    (tmp_path / "link").symlink_to(store.path)
    with pytest.raises(BackupRefused, match="inside"):
        commitlog.backup(store.path, tmp_path / "link" / "backup")
    (tmp_path / "file").touch()
    with pytest.raises(StoreRefused, match="is a file"):
        commitlog.backup(store.path, tmp_path / "file")
    with pytest.raises(StoreRefused, match="Not a directory"):
        commitlog.backup(store.path, tmp_path / "file" / "backup")
    with pytest.raises(commitlog.errors.StoreNotFound):
        commitlog.backup(tmp_path / "nothing", dest)
    assert not dest.exists()


def test_a_backup_that_runs_is_refused(store: HandMadeStore, dest: Path) -> None:
    commitlog.backup(store.path, dest)
    with commitlog.Store.open(dest), pytest.raises(StoreRunning, match="in use by process"):
        commitlog.backup(store.path, dest)
