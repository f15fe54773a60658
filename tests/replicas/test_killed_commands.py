"""kill -9 of `commitlog promote` and of `commitlog rejoin`, before any change of a disk.

The same command completes then, or says by name why it need not. Nothing that was acknowledged is
lost, nothing is doubled, and what is set aside is counted, all of it.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commitlog.disk import file_channel
from commitlog.disk.replica_mark import load_mark, mark_superseded
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import RecoveryError, ReplicaRefused, StoreRefused, StoreSuperseded
from commitlog.inspecting.verify import verify_store
from commitlog.opening import parallel_recovery
from commitlog.replicas.promotion import promote
from commitlog.replicas.replica import Replica
from commitlog.replicas.tls import Credentials
from tests.nightly import with_nightly
from tests.replicas import dying
from tests.replicas.rejoining import check_rejoined, command, copied, promoted, rejoined, send, values_of
from tests.replicas.scene import Scene, flushed_of

POINTS = with_nightly([3], [10_000])
"""At how many points a command is killed: some, or all."""


def leave_torn_record(path: Path) -> None:
    """Leaves half a record behind the end of a copy's log, as a kill in a write does."""
    for lane, end in flushed_of(path).items():
        segment = max((path / "lanes" / str(lane) / "commitlog").glob("[0-9]*"))
        with segment.open("r+b") as file:
            head = file.read(60)
            file.seek(end - int(segment.name))
            file.write(head)


@contextmanager
def children_die(last: int, armed: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Recovery takes a child for each lane, and kill -9 meets them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel_recovery, "WORTH_BYTES", 0)
        patch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        patch.setattr(file_channel, "os", dying.DyingChildren(last, armed))
        yield


KILLED_CHILD = "process that recovered it ended with -9; do the same again"

# ---- promote ------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("most", POINTS)
def test_a_promotion_that_was_killed_is_repeated(scene: Scene, most: int) -> None:
    with copied(scene) as values:
        ends = flushed_of(scene.copy)
    leave_torn_record(scene.copy)
    whole = shutil.copytree(scene.copy, scene.path / "whole")
    count = dying.changes_of(dying.run(0, "promote", str(whole)))
    assert count > 20
    for point in dying.points(count, most):
        path = shutil.copytree(scene.copy, scene.path / f"killed-{point}")
        assert dying.run(point, "promote", str(path)).returncode == -signal.SIGKILL
        if load_mark(StoreDirectory(path)) is not None:
            with pytest.raises(StoreRefused, match="commitlog promote"):
                scene.open(path)
            assert promote(path).ends == ends
        else:
            assert "is no replica" in dying.run(0, "promote", str(path)).stdout
        check_promoted(scene, path, ends, values)
        shutil.rmtree(path)


@pytest.mark.nightly
def test_a_promotion_that_was_killed_at_its_last_step_is_a_store(scene: Scene) -> None:
    """No replica goes on with it: it would end the primary, and nobody would have taken over."""
    with copied(scene) as values:
        ends = flushed_of(scene.copy)
    path = shutil.copytree(scene.copy, scene.path / "killed")
    last = dying.changes_of(dying.run(0, "promote", str(scene.copy)))
    assert dying.run(last, "promote", str(path)).returncode == -signal.SIGKILL
    assert StoreDirectory(path).replica_file.exists()
    certificate, key = scene.certificates.make("of-copy")
    credentials = Credentials(certificate, key, scene.certificates.authority)
    with pytest.raises(ReplicaRefused, match="is a store and no replica"):
        Replica(path, f"localhost:{scene.port}", credentials, "copy").run()
    check_promoted(scene, path, ends, values)
    assert not StoreDirectory(path).replica_file.exists()


def check_promoted(scene: Scene, path: Path, ends: dict[int, int], values: list[bytes]) -> None:
    assert values_of(path) == Counter(values)
    assert verify_store(path).good
    facts = StoreDirectory(path).load()
    assert facts.epochs[-1] == {"epoch": facts.epoch, "ends": {str(lane): end for lane, end in ends.items()}}
    with scene.open(path, listen="") as store:
        more = send(store, "more", 3)
        assert store.close().drained
    assert values_of(path) == Counter(values + more)


@pytest.mark.nightly
@pytest.mark.parametrize("last", with_nightly([3], [1]))
def test_a_promotion_whose_recovery_is_killed_is_repeated(scene: Scene, last: int) -> None:
    with copied(scene) as values:
        ends = flushed_of(scene.copy)
    leave_torn_record(scene.copy)
    with children_die(last), pytest.raises(RecoveryError, match=KILLED_CHILD):
        promote(scene.copy)
    with pytest.raises(StoreRefused, match="commitlog promote"):
        scene.open(scene.copy)
    assert promote(scene.copy).ends == ends
    check_promoted(scene, scene.copy, ends, values)


# ---- rejoin -------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("most", POINTS)
def test_a_rejoin_that_was_killed_is_repeated(scene: Scene, most: int) -> None:
    """The old primary had met the promoted store before: it never starts in between."""
    with promoted(scene) as new:
        common = values_of(scene.primary)
        with scene.open(listen="") as store:
            surplus = send(store, "old", 500)
        mark_superseded(StoreDirectory(scene.primary), 1, "copy")
        whole = shutil.copytree(scene.primary, scene.path / "whole")
        count = dying.changes_of(dying.run(0, *command(new, whole)))
        assert count > 20
        for point in dying.points(count, most):
            path = shutil.copytree(scene.primary, scene.path / f"killed-{point}")
            assert dying.run(point, *command(new, path)).returncode == -signal.SIGKILL
            with pytest.raises((StoreRefused, StoreSuperseded), match="commitlog"):
                scene.open(path)
            assert rejoined(new, path) == len(surplus), point
            check_rejoined(path, common, surplus)
            shutil.rmtree(path)


@pytest.mark.parametrize("behind_the_cut", with_nightly([True], [False]), ids=["behind the cut", "at first"])
def test_a_rejoin_whose_recovery_is_killed_is_repeated(scene: Scene, behind_the_cut: bool) -> None:
    with promoted(scene) as new:
        common = values_of(scene.primary)
        with scene.open(listen="") as store:
            surplus = send(store, "old", 50)
        mark = StoreDirectory(scene.primary).replica_file
        with (
            children_die(2, lambda: mark.exists() or not behind_the_cut),
            pytest.raises(RecoveryError, match=KILLED_CHILD),
        ):
            rejoined(new, scene.primary)
        assert mark.exists() == behind_the_cut
        with pytest.raises((StoreRefused, StoreSuperseded), match="commitlog"):
            scene.open(scene.primary)
        assert rejoined(new, scene.primary) == len(surplus)
        check_rejoined(scene.primary, common, surplus)
