"""Docker's 64 MiB of shared memory, and less."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog import errors
from commitlog.watching.health import health
from commitlog.watching.snapshot import StoreWatch
from tests.builders.made_lane import image
from tests.namespaces import with_tmpfs

MIB = 1 << 20


def codes(path: Path) -> list[str]:
    """The reasons why the store is not good."""
    with StoreWatch(path, only_health=True) as watch:
        return [reason.code for reason in health(watch.snapshot()).reasons]


@pytest.fixture
def place(shm_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for the small shared memory of a child.

    Its path is short enough for sockets. Here it stays empty.
    """
    place = shm_root / "small"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("COMMITLOG_SHM_DIR", str(place))
    yield place
    place.rmdir()


@pytest.mark.nightly
def test_dockers_64_mib_give_smaller_segments_and_four_lanes(place: Path, tmp_path: Path) -> None:
    """Segments have 4 MiB, and a lane has three buffers.

    A producer for which there is no room gets NoFreeLane, and the others go on.
    """

    def fill() -> None:
        with commitlog.Store.open(tmp_path / "store") as store:
            assert store.segment_bytes == 4 * MIB
            producers: list[commitlog.Producer] = []
            with pytest.raises(errors.NoFreeLane, match=f"as root: mount -o remount,size=128m {place}$"):
                producers.extend(commitlog.Producer(store.path) for _ in range(16))
            assert "shared-memory-nearly-full" in codes(store.path)
            producers.pop().close()
            producers.append(commitlog.Producer(store.path))
            assert len(producers) >= 4
            for producer in producers:
                for _ in range(20):
                    producer.send_batch("t", [os.urandom(1000)] * 1000)
                producer.close()
        with commitlog.Reader(tmp_path / "store") as reader:
            assert sum(1 for _ in reader) == 20_000 * len(producers)
        assert not list(place.iterdir())

    with_tmpfs(place, 64 * MIB, fill)


def test_too_little_is_an_error_before_anything_is_made(place: Path, tmp_path: Path) -> None:
    """100 KiB hold no lane of the smallest segments; the error says how to get more."""

    def fail() -> None:
        with pytest.raises(errors.NotEnoughSharedMemory, match=f"as root: mount -o remount,size=1m {place}$"):
            commitlog.Store.open(tmp_path / "store")
        assert not (tmp_path / "store").exists()
        assert not list(place.iterdir())

    with_tmpfs(place, 100 << 10, fail)


def test_the_largest_segments_are_refused_before_anything_is_made(place: Path, tmp_path: Path) -> None:
    """Those that were asked for do not fit three times."""

    def fail() -> None:
        with pytest.raises(errors.NotEnoughSharedMemory, match=f"as root: mount -o remount,size=6144m {place}$"):
            commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 30}})
        assert not (tmp_path / "store").exists()

    with_tmpfs(place, 64 * MIB, fail)


@pytest.mark.nightly
def test_a_store_from_a_larger_machine_is_refused_by_name(
    shm_root: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lanes do not fit here; it is left as it was."""
    with monkeypatch.context() as larger:
        larger.setenv("COMMITLOG_SHM_DIR", str(shm_root))
        commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 8 * MIB}}).close()
    before = image(tmp_path / "store")

    def fail() -> None:
        with pytest.raises(errors.NotEnoughSharedMemory):
            commitlog.Store.open(tmp_path / "store")
        assert image(tmp_path / "store") == before

    with_tmpfs(place, 16 * MIB, fail)
