"""An old primary was killed with kill -9, and rejoins: what only its pool has is set aside, too."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.file_channel import DISK
from commitlog.disk.replica_mark import mark_superseded
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, PoolNotAdopted, ReplicaRefused, StoreRefused, StoreSuperseded
from tests.crash.scene import pid_of
from tests.nightly import with_nightly
from tests.replicas import dying
from tests.replicas.rejoining import check_rejoined, command, promoted, rejoined, send, values_of
from tests.replicas.scene import Scene, kill_all
from tests.waiting import wait_until

pytestmark = pytest.mark.leaves_pools


def leave_pool(scene: Scene, path: Path) -> list[bytes]:
    """Kills an old primary: some of its messages are only committed, and some only accepted."""
    store = scene.open(path, listen="")
    values = send(store, "flushed", 10)
    producers = [store.producer(), store.producer()]
    for stage in ("flusher", "committer"):
        os.kill(pid_of(path, stage), signal.SIGSTOP)
        for number in range(60):
            values.append(b"before the %s %d" % (stage.encode(), number) * 30)
            producers[number % 2].send(f"t{number % 3}", values[-1])
        if stage == "flusher":
            wait_until(
                lambda: all(lane.committed == lane.wrote for lane in store.statistics().lanes), "all is committed"
            )
    assert all(lane.flushed < lane.committed < lane.wrote for lane in store.statistics().lanes)
    for producer in producers:
        with contextlib.suppress(CommitLogError):
            producer.close()
    kill_all(store)
    return values


def test_what_the_pool_has_is_set_aside_and_counted(scene: Scene) -> None:
    """Also where the old primary had met the promoted store before it was killed."""
    with promoted(scene) as new:
        common = values_of(scene.primary)
        surplus = leave_pool(scene, scene.primary)
        mark_superseded(StoreDirectory(scene.primary), 1, "copy")
        assert rejoined(new, scene.primary) == len(surplus)
        check_rejoined(scene.primary, common, surplus)


@pytest.mark.nightly
def test_an_older_store_json_hides_no_pool(scene: Scene) -> None:
    """It names no pool, and what is in it is not given up by the way."""
    with promoted(scene) as new:
        common = values_of(scene.primary)
        file = StoreDirectory(scene.primary).file
        older = file.read_bytes()
        surplus = leave_pool(scene, scene.primary)
        newer = file.read_bytes()
        file.write_bytes(older)
        with pytest.raises(PoolNotAdopted, match="accepted and never flushed"):
            rejoined(new, scene.primary)
        file.write_bytes(newer)
        assert rejoined(new, scene.primary) == len(surplus)
        check_rejoined(scene.primary, common, surplus)


@pytest.mark.nightly
def test_a_pool_that_is_gone_is_named(scene: Scene) -> None:
    """Then only what is in the files is set aside."""
    with promoted(scene) as new:
        common = values_of(scene.primary)
        surplus = leave_pool(scene, scene.primary)
        place = StoreDirectory(scene.primary).load().pool
        assert place is not None
        shutil.rmtree(place.directory)
        done = dying.run(0, *command(new, scene.primary))
        assert done.returncode == 0, done.stdout
        assert "what was accepted and not committed is gone with it" in done.stdout
        check_rejoined(scene.primary, common, [value for value in surplus if b"committer" not in value])


@pytest.mark.nightly
def test_a_producer_that_still_has_its_lane_is_waited_for(scene: Scene) -> None:
    with promoted(scene) as new:
        common = values_of(scene.primary)
        store = scene.open(listen="")
        with commitlog.Producer(scene.primary) as producer:
            producer.send("t0", b"only here")
            kill_all(store)
            with pytest.raises(ReplicaRefused, match=r"still holds it.*then rejoin again"):
                rejoined(new, scene.primary)
            with pytest.raises(StoreSuperseded):
                commitlog.Producer(scene.primary)
            with contextlib.suppress(CommitLogError):
                producer.close()
        assert rejoined(new, scene.primary) == 1
        check_rejoined(scene.primary, common, [b"only here"])


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("most", with_nightly([1], [10_000]))
def test_a_rejoin_that_was_killed_while_it_drains_the_pool(scene: Scene, most: int) -> None:
    """The old primary never starts in between, and no producer comes to it."""
    with promoted(scene) as new:
        common = values_of(scene.primary)
        points = list(draining_points(scene, new, most))
        assert points
        for point in points:
            path = shutil.copytree(scene.primary, scene.path / f"killed-{point}")
            surplus = leave_pool(scene, path)
            mark_superseded(StoreDirectory(path), 1, "copy")
            assert dying.run(point, *command(new, path)).returncode == -signal.SIGKILL
            with pytest.raises((StoreRefused, StoreSuperseded), match="commitlog"):
                scene.open(path)
            with pytest.raises((StoreRefused, StoreSuperseded), match="commitlog"):
                commitlog.Producer(path)
            wait_until(lambda path=path: not DISK.is_locked(path / "lock"), "the supervisor to be gone")  # type: ignore[misc]
            assert rejoined(new, path) == len(surplus), point
            check_rejoined(path, common, surplus)
            shutil.rmtree(path)


def draining_points(scene: Scene, new: Scene, most: int) -> Iterator[int]:
    """At which changes a rejoin dies that finds a pool: those that it has more than one without."""
    without, with_pool = (shutil.copytree(scene.primary, scene.path / name) for name in ("without", "with"))
    leave_pool(scene, with_pool)
    fewer, more = (dying.changes_of(dying.run(0, *command(new, path))) for path in (without, with_pool))
    return dying.points(more - fewer, most)
