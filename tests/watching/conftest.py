"""A good store's snapshot, for tests that put other values into it."""

from __future__ import annotations

import pytest

import commitlog
from commitlog.watching.snapshot import StoreSnapshot
from tests.watching.health_scene import (
    QUICK,
    expect_good,
    snapshot_of,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> StoreSnapshot:
    """The snapshot of a good store, for tests that put other values into it."""
    with commitlog.Store.open(tmp_path_factory.mktemp("good") / "store", QUICK) as store:
        with store.producer() as producer:
            producer.send("t", b"x").wait("flushed", 60)
        expect_good(store.path)
        return snapshot_of(store)
