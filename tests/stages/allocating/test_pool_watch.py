"""Write buffers that run short are reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.shm.layout import Lane
from commitlog.stages.allocating.pool_watch import PoolWatch
from tests.builders.idle_store import SEGMENT, IdleStore, idle_store

SECOND = 1_000_000_000


@pytest.fixture
def store(tmp_path: Path, shm_root: Path) -> Iterator[IdleStore]:
    with idle_store(tmp_path / "store", shm_root / "pool") as made:
        yield made


def test_a_pool_that_stays_empty_is_warned_about_once(store: IdleStore, caplog: pytest.LogCaptureFixture) -> None:
    """Not when it is empty for a moment; again when it was free in between."""
    caplog.set_level("INFO")
    looker = PoolWatch(store.control.lane_table(), SEGMENT, 1000)
    store.set(0, WROTE=2 * SEGMENT + 5)  # three buffers, all in use
    looker.update([0], 0)
    assert store.get(0, Lane.LOW_WATER) == 0
    for seconds in (1, 2, 3):
        looker.update([0], seconds * SECOND)
    assert store.get(0, Lane.LOW_WATER) == 1
    assert caplog.text.count("no write buffer has been free for 1000 ms") == 1
    store.set(0, FLUSHED=2 * SEGMENT)
    looker.update([0], 4 * SECOND)
    assert "free again" in caplog.text
    store.set(0, FLUSHED=2 * SEGMENT, WROTE=4 * SEGMENT + 5)
    looker.update([0], 5 * SECOND)
    looker.update([0], 6 * SECOND)
    assert store.get(0, Lane.LOW_WATER) == 2
    looker.close()
