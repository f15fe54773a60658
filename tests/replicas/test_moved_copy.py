"""A copy whose files go away while it follows: what is not there is not acknowledged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.replica_mark import load_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import ReplicaNotAvailable, StoreMoved
from tests.nightly import with_nightly
from tests.replicas.scene import SEGMENT_BYTES, Scene, await_copy, await_equal, await_replicated, check_equal
from tests.replicas.test_whole import fill
from tests.waiting import wait_until


def remove_segment(copy: Path) -> None:
    (copy / "lanes/0/commitlog" / f"{0:020}").unlink()


def remove_whole_segment(copy: Path) -> None:
    (copy / "lanes/0/commitlog" / f"{SEGMENT_BYTES:020}").unlink()


def remove(copy: Path) -> None:
    shutil.rmtree(copy)


def rename(copy: Path) -> None:
    copy.rename(copy.with_name("moved"))


def rename_lane(copy: Path) -> None:
    (copy / "lanes/0").rename(copy / "lanes/moved")


def put_an_older_one_back(copy: Path) -> None:
    rename(copy)
    shutil.copytree(copy.with_name("moved"), copy)


def follow_until(change: Callable[[Path], object], scene: Scene, producer: commitlog.Producer) -> None:
    """What is sent before the change is acknowledged, and what comes after it is not."""
    with scene.follower():
        await_replicated(producer.send("orders", b"first"))
        await_copy(scene)
        change(scene.copy)
        with pytest.raises(ReplicaNotAvailable):
            producer.send("orders", b"second").wait("replicated", 60)


@pytest.mark.parametrize("change", with_nightly([put_an_older_one_back], [remove_segment, remove, rename, rename_lane]))
def test_nothing_is_acknowledged_that_is_not_at_its_place(scene: Scene, change: Callable[[Path], object]) -> None:
    """The segment is open, so to write it and to sync it goes on to succeed. The next run heals."""
    with scene.open() as store, store.producer() as producer:
        with pytest.raises(StoreMoved, match="while the copy followed"):
            follow_until(change, scene, producer)
        with scene.follower():
            await_replicated(producer.send("orders", b"third"))
            await_copy(scene)
            check_equal(scene)


@pytest.mark.nightly
@pytest.mark.parametrize("change", with_nightly([remove_whole_segment], [rename_lane]))
def test_whole_segments_that_are_removed_come_again(scene: Scene, change: Callable[[Path], object]) -> None:
    """Nothing is written to them any more, so no sync notices. Before, only the next start did."""
    with scene.open() as store, scene.follower():
        fill(store)
        await_copy(scene)
        sums = scene.copy / "lanes/0/segments.json"
        wait_until(lambda: b'"0"' in sums.read_bytes(), "they were read")
        change(scene.copy)
        wait_until((scene.copy / "lanes/0/commitlog" / f"{SEGMENT_BYTES:020}").exists, "it is there again")
        await_equal(scene)


@pytest.mark.nightly
def test_a_copy_that_is_renamed_while_it_rests_ends(scene: Scene) -> None:
    """Nothing comes that would have to be synced. No new copy begins at the old place."""
    scene.copied(fill)
    with scene.open(), scene.replica() as command:
        directory = StoreDirectory(scene.copy)
        wait_until(lambda: load_mark(directory).connected, "it has recorded that it follows")  # type: ignore[union-attr]
        rename(scene.copy)
        assert "was renamed, removed or replaced" in " ".join(command.ended().split())
        assert not scene.copy.exists()
