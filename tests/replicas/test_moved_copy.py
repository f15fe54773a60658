"""A copy whose files go away while it follows: what is not there is not acknowledged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import ReplicaNotAvailable, StoreMoved
from tests.nightly import with_nightly
from tests.replicas.scene import Scene, await_copy, await_replicated, check_equal


def remove_segment(copy: Path) -> None:
    (copy / "lanes/0/commitlog" / f"{0:020}").unlink()


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


@pytest.mark.parametrize("change", with_nightly([remove_segment, put_an_older_one_back], [remove, rename, rename_lane]))
def test_nothing_is_acknowledged_that_is_not_at_its_place(scene: Scene, change: Callable[[Path], object]) -> None:
    """The segment is open, so to write it and to sync it goes on to succeed. The next run heals."""
    with scene.open() as store, store.producer() as producer:
        with pytest.raises(StoreMoved, match="while the copy followed"):
            follow_until(change, scene, producer)
        with scene.follower():
            await_replicated(producer.send("orders", b"third"))
            await_copy(scene)
            check_equal(scene)
