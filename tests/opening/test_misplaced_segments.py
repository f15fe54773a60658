"""Something that is no plain file is in the place of the segment that comes next."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from tests.builders.killed import kill_store
from tests.nightly import with_nightly
from tests.waiting import wait_until

SMALL = {"store": {"segment_bytes": 65536, "max_lanes": 4}}
COUNT = 40


def link(segment: Path) -> None:
    """The file is elsewhere, and a link to it is in its place."""
    aside = segment.with_name(f"{segment.name}.moved")
    segment.rename(aside)
    segment.symlink_to(aside.name)


def directory(segment: Path) -> None:
    segment.unlink()
    segment.mkdir()


def pipe(segment: Path) -> None:
    segment.unlink()
    os.mkfifo(segment)


@pytest.mark.parametrize("harm", with_nightly([directory], [link, pipe]))
@pytest.mark.parametrize("pool", with_nightly(["lost"], ["kept"]))
def test_the_log_goes_on_there(pool: str, harm: Callable[[Path], None], tmp_path: Path) -> None:
    """A start sets it aside, and says so: else no producer would get any further."""
    path = tmp_path / "store"
    store = commitlog.Store.open(path, SMALL)
    segment = StoreDirectory(path).lane_directory(0).segment_path(65536)
    with store.producer() as producer:
        producer.send("orders", b"first").wait()
        wait_until(segment.exists)
    kill_store(store)
    harm(segment)
    if pool == "lost":
        place = StoreDirectory(path).load().pool
        assert place is not None
        shutil.rmtree(place.directory)
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:
        for _ in range(COUNT):
            producer.send("orders", bytes(5000))
        producer.flush()
    assert len(list(commitlog.Reader(path, topic="orders"))) == 1 + COUNT
    assert os.path.lexists(segment.parents[1] / "quarantine" / f"segment-{segment.name}")
