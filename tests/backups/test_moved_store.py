"""A store that is moved, or replaced by a restored one, while it is copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import BackupRefused, CommitLogError, StoreNotFound
from commitlog.inspecting.verify import verify_store
from tests.nightly import with_nightly

SMALL = {"store": {"segment_bytes": 1 << 16, "max_lanes": 4}}


def send(path: Path, *numbers: int) -> None:
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:
        store.create_topic("sales", schema="id BIGINT")
        for number in numbers:
            producer.send_rows("sales", [{"id": number}])
        producer.flush()


def ids(path: Path) -> list[int]:
    found: list[int] = commitlog.read(path, "sales").to_arrow()["id"].to_pylist()
    return found


class Scene:
    """A store with an older backup, and a destination with a backup from before (or none)."""

    def __init__(self, path: Path, *, is_first: bool) -> None:
        self.store, self.older, self.dest = path / "store", path / "older", path / "dest"
        send(self.store, 1)
        commitlog.backup(self.store, self.older)
        if not is_first:
            commitlog.backup(self.store, self.dest)
        send(self.store, 2, 3)

    def move(self) -> None:
        if self.store.exists():
            self.store.rename(self.store.with_name("moved"))

    def restore(self) -> None:
        if not self.store.with_name("moved").exists():
            self.move()
            commitlog.backup(self.older, self.store)
            send(self.store, 4)


@pytest.mark.parametrize(
    ("happens", "error"), with_nightly([(Scene.restore, BackupRefused)], [(Scene.move, StoreNotFound)])
)
@pytest.mark.parametrize("is_first", with_nightly([False], [True]), ids=["second", "first"])
def test_what_was_copied_meanwhile_does_not_count(
    tmp_path: Path, happens: Callable[[Scene], None], error: type[CommitLogError], is_first: bool
) -> None:
    """Without the error, this backup was good and lacked its schema, or was of two stores."""
    scene = Scene(tmp_path, is_first=is_first)
    with pytest.raises(error):
        commitlog.backup(scene.store, scene.dest, progress=lambda _: happens(scene))
    assert (scene.dest / "store.json").exists() is not is_first
    if not is_first:
        assert verify_store(scene.dest).good
        assert ids(scene.dest) == [1]
    assert commitlog.backup(tmp_path / "moved", scene.dest).good
    assert ids(scene.dest) == [1, 2, 3]
