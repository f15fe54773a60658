"""A segment file of another store is in the place of one: whoever looks misses messages."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import CorruptRecord
from tests.command_line import run
from tests.nightly import with_nightly

CONFIG = {"store": {"segment_bytes": 1 << 16, "max_lanes": 2}}
_SEGMENTS = (0, 1 << 16)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two stores that were stopped, with three segments each, which have one topic in common."""
    paths = tmp_path_factory.mktemp("made") / "store", tmp_path_factory.mktemp("made") / "other"
    for path, topic, size in zip(paths, ("orders", "logs"), (800, 700), strict=True):
        with commitlog.Store.open(path, CONFIG) as store, store.producer() as producer:
            for number in range(200):
                producer.send("common" if number % 10 == 0 else topic, bytes([number]) * size)
    return paths


def misses_messages(path: Path) -> None:
    """All say that something is missing: readers of all and of a topic, `verify`, `backup`."""
    for topic in (None, "orders"):
        with pytest.raises(CorruptRecord), commitlog.Reader(path, topic=topic) as reader:
            list(reader)
    verified = run("verify", path)
    assert verified.returncode == 1, verified.stdout
    target = path.with_name("backup")
    copied = run("backup", path, target)
    assert copied.returncode == 1, copied.stdout
    shutil.rmtree(target)


@pytest.mark.parametrize("segment", with_nightly(list(_SEGMENTS)[:1], list(_SEGMENTS)[1:]))
def test_a_start_does_not_make_the_loss_silent(segment: int, made: tuple[Path, Path], tmp_path: Path) -> None:
    """Before it and after it the same is missing, though the log has only good records now."""
    path, name = tmp_path / "store", f"lanes/0/commitlog/{segment:020d}"
    shutil.copytree(made[0], path)
    shutil.copy(made[1] / name, path / name)
    with warnings.catch_warnings(action="ignore"):  # of consume queues that name other records
        misses_messages(path)
    commitlog.Store.open(path, CONFIG).close()
    misses_messages(path)
    verified = run("verify", path).stdout
    assert b"of topic orders, which was stored" in verified
