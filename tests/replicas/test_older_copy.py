"""A copy that was put back as it was before: what it lacks is known outside of its directory."""

from __future__ import annotations

import pwd
import re
import shutil
from pathlib import Path

import pytest

from commitlog.disk.copy_witness import witness_file
from commitlog.disk.replica_mark import load_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.inspecting.verify import verify_store
from commitlog.replicas.promotion import promote
from tests.command_line import run
from tests.nightly import with_nightly
from tests.replicas.scene import Scene, await_copy, flushed_of
from tests.replicas.test_whole import fill
from tests.waiting import wait_until


def with_older(scene: Scene) -> int:
    """Puts an older copy in the place of a newer one, which knew how far it had acknowledged.

    Returns by how many bytes it is older. The store is gone then.
    """
    scene.copied(fill)
    shutil.copytree(scene.copy, older := scene.path / "older")
    before = flushed_of(older)[0]
    with scene.open() as store, scene.follower():
        fill(store)
        await_copy(scene)
        had = flushed_of(scene.copy)[0]
        wait_until(lambda: noted(scene) == {0: had}, "it is noted")
    shutil.rmtree(scene.copy)
    older.rename(scene.copy)
    return had - before


def said_by(*words: object) -> str:
    """What a command says beside its results, as one line."""
    return " ".join(run(*words).stderr.decode().split())


def noted(scene: Scene) -> dict[int, int]:
    mark = load_mark(StoreDirectory(scene.copy))
    return mark.acknowledged if mark else {}


def witness_of(scene: Scene) -> Path:
    return witness_file(StoreDirectory(scene.copy).load().id, "copy")


def test_a_promotion_says_what_an_older_copy_lacks(scene: Scene) -> None:
    """The copy has not met its store again, and nothing in its directory can know."""
    lacks = with_older(scene)
    assert not verify_store(scene.copy).good
    said = said_by("promote", scene.copy)
    assert f"{witness_of(scene)} says how far copy had acknowledged until 20" in said
    assert f"lane 0 lacks {lacks:,} bytes that this copy had acknowledged" in said


@pytest.mark.nightly
def test_a_promotion_says_that_nobody_could_be_asked(scene: Scene) -> None:
    """On another machine, say: then it is the time that tells how old the copy is."""
    with_older(scene)
    file = witness_of(scene)
    file.unlink()
    said: list[str] = []
    assert not promote(scene.copy, said.append).lacks
    assert said[0].startswith(f"nobody could be asked how far copy had acknowledged ({file} is not there)")
    assert re.search(r"this directory has heard of localhost:\d+ until 20\d\d-", said[0])


@pytest.mark.nightly
@pytest.mark.parametrize("change", with_nightly([b'"lane"'], [b"", b"[]", b"null"]))
def test_a_damaged_witness_is_named(scene: Scene, change: bytes) -> None:
    """A start of the copy names it too, and writes it anew."""
    scene.copied(fill)
    file = witness_of(scene)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(change)
    shutil.copytree(scene.copy, other := scene.path / "other")
    said: list[str] = []
    promote(other, said.append)
    assert f"({file}: does not say what a copy has acknowledged" in said[0]
    with scene.open(), scene.replica() as command:
        wait_until(lambda: file.read_bytes() != change, "it is written")
    assert command.said().count("does not say what a copy has acknowledged") == 1


@pytest.mark.nightly
def test_a_copy_without_a_place_for_its_witness_follows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so once. A service's user may have no home."""
    (scene.path / "a file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(scene.path / "a file"))
    with scene.open() as store, scene.replica() as command:
        fill(store)
        await_copy(scene)
        wait_until(
            lambda: "`commitlog promote` can't say what it lacks" in " ".join(command.said().split()), "it says so"
        )


def test_a_user_without_a_home_promotes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said that there is no witness, and what to set for the next time."""
    scene.copied(fill)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    said: list[str] = []
    assert not promote(scene.copy, said.append).lacks
    assert "this user has no home; set XDG_STATE_HOME" in said[0]
    assert not Path("~").exists()


def test_what_was_acknowledged_is_told_where_the_old_primary_comes_back(scene: Scene) -> None:
    """The primary's own files know how far its replicas were, if nobody else does."""
    lacks = with_older(scene)
    end = flushed_of(scene.copy)[0]
    witness_of(scene).unlink()
    promote(scene.copy)
    with scene.open(scene.copy):
        said = said_by("rejoin", *scene.arguments(scene.primary), "--name", "old")
    assert f"lane 0: replica copy had acknowledged it up to {end + lacks:,}, and localhost:{scene.port} has it" in said
    assert f"up to {end:,}: if that is the one that was promoted, it has lost {lacks:,} bytes" in said


@pytest.mark.nightly
def test_a_witness_of_an_earlier_epoch_tells_what_both_share(scene: Scene) -> None:
    """The old primary comes back under the name of the copy that was promoted."""
    lacks = with_older(scene)
    assert promote(scene.copy).lacks == {0: lacks}
    with scene.open(scene.copy):
        run("rejoin", *scene.arguments(scene.primary), "--name", "copy")
        with scene.follower(scene.primary):
            wait_until(lambda: flushed_of(scene.primary) == flushed_of(scene.copy), "it follows")
            wait_until(lambda: load_mark(StoreDirectory(scene.primary)).complete, "it is complete")  # type: ignore[union-attr]
    assert not promote(scene.primary).lacks
