"""Docker's 64 MiB of shared memory, and less."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog import errors

MIB = 1 << 20


@contextlib.contextmanager
def memory_of(path: Path, size: int) -> Iterator[None]:
    """A shared-memory file system of its own, `size` bytes large."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", path], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no permission to mount a small tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)
        path.rmdir()


@pytest.fixture
def small_memory(shm_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    base = shm_root / "small"
    with memory_of(base, 64 * MIB):
        monkeypatch.setenv("COMMITLOG_SHM_DIR", str(base))
        yield base


def test_dockers_64_mib_give_smaller_segments_and_four_lanes(small_memory: Path, tmp_path: Path) -> None:
    """4 MiB segments, three buffers a lane; what does not fit any more is NoFreeLane, and the others go on."""
    with commitlog.Store.open(tmp_path / "store") as store:
        assert store.segment_bytes == 4 * MIB
        producers: list[commitlog.Producer] = []
        with pytest.raises(errors.NoFreeLane, match="shared memory"):
            producers.extend(commitlog.Producer(store.path) for _ in range(16))
        assert len(producers) >= 4
        for producer in producers:
            for _ in range(20):
                producer.send_batch("t", [os.urandom(1000)] * 1000)
            producer.close()
    with commitlog.Reader(tmp_path / "store") as reader:
        assert sum(1 for _ in reader) == 20_000 * len(producers)
    assert not list(small_memory.iterdir())


def test_too_little_is_an_error_before_anything_is_made(
    shm_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 KiB hold no lane of the smallest segments; the error says how to get more."""
    base = shm_root / "tiny"
    with memory_of(base, 100 << 10):
        monkeypatch.setenv("COMMITLOG_SHM_DIR", str(base))
        with pytest.raises(errors.NotEnoughSharedMemory, match="--shm-size"):
            commitlog.Store.open(tmp_path / "store")
        assert not (tmp_path / "store").exists()
        assert not list(base.iterdir())


def test_a_store_from_a_larger_machine_is_refused_by_name(small_memory: Path, tmp_path: Path) -> None:
    """Its lanes do not fit here; it is left as it was."""
    with pytest.raises(errors.NotEnoughSharedMemory):
        commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 64 * MIB}})
    assert not (tmp_path / "store").exists()
