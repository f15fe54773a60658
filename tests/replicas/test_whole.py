"""A copy that has lost a part of its log: it heals before it counts, and a promotion says it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.inspecting.verify import verify_store
from commitlog.replicas.promotion import promote
from tests.nightly import with_nightly
from tests.replicas.scene import SEGMENT_BYTES, Scene, await_copy, await_replicated, check_equal
from tests.waiting import wait_until

MESSAGES = 300


def fill(store: commitlog.Store) -> None:
    with store.producer() as producer:
        for number in range(MESSAGES):
            producer.send("orders", b"%d " % number * 256)
        producer.flush()


def segment(copy: Path, number: int) -> Path:
    return sorted((copy / "lanes/0/commitlog").glob("[0-9]*"))[number]


def lose(number: int) -> Callable[[Path], None]:
    return lambda copy: segment(copy, number).unlink()


def shorten(copy: Path) -> None:
    with segment(copy, 1).open("r+b") as file:
        file.truncate(100)


def zero_begin(copy: Path) -> None:
    with segment(copy, 1).open("r+b") as file:
        file.write(bytes(4096))


def lose_lane(copy: Path) -> None:
    shutil.rmtree(copy / "lanes/0")


def lose_positions(copy: Path) -> None:
    lose(1)(copy)
    (copy / "lanes/0/positions").unlink()


LOSSES = {
    "middle": lose(1), "first": lose(0), "last": lose(-1), "lane": lose_lane,
    "shortened": shorten, "zeroed": zero_begin, "positions": lose_positions,
}  # fmt: skip


def readable(path: Path) -> int:
    with commitlog.Reader(path, topic="orders") as reader:
        return sum(1 for _ in reader)


@pytest.mark.parametrize("loss", with_nightly(["middle", "last", "lane"], list(LOSSES)))
def test_a_copy_gets_back_what_it_has_lost(scene: Scene, loss: str) -> None:
    """It is the primary's log again, byte for byte, and a sound store when it is promoted."""
    scene.copied(fill)
    LOSSES[loss](scene.copy)
    with scene.open() as store, scene.follower():
        with store.producer() as producer:
            await_replicated(producer.send("orders", b"more"))
        await_copy(scene)
        check_equal(scene)
    made = promote(scene.copy)
    assert not made.lacks
    assert readable(scene.copy) == MESSAGES + 1
    assert verify_store(scene.copy).good


@pytest.mark.parametrize("loss", with_nightly(["middle", "lane"], list(LOSSES)))
def test_a_promotion_says_what_the_copy_has_lost(scene: Scene, loss: str) -> None:
    """What is lost is damage in the new store, also a whole lane, so it is never just not there."""
    scene.copied(fill)
    LOSSES[loss](scene.copy)
    made = promote(scene.copy)
    assert made.lacks[0] >= SEGMENT_BYTES // 8
    assert not verify_store(scene.copy).good


def test_damage_within_a_segment_is_found_where_all_is_read(scene: Scene) -> None:
    scene.copied(fill)
    with segment(scene.copy, 1).open("r+b") as file:
        file.seek(SEGMENT_BYTES // 2)
        file.write(b"\xff" * 64)
    shutil.copytree(scene.copy, scene.path / "promoted")
    assert promote(scene.path / "promoted", verify_all=True).lacks == {0: SEGMENT_BYTES}
    with scene.open(), scene.replica(None, "--verify-all") as command:
        wait_until(lambda: "following" in command.said(), "it follows")
        await_copy(scene)
        check_equal(scene)
