"""Fixtures of the tests that append to a served store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import commitlog
from tests.served import by_url, place_of
from tests.serving.appending import shared_store


@pytest.fixture(scope="module")
def max_lanes() -> int:
    """The lanes of `store`. A file of tests may have another number."""
    return 2


@pytest.fixture(scope="module")
def store_config(max_lanes: int) -> dict[str, Any]:
    """The configuration of `store`: small, and who finds no lane hears of it soon."""
    return {"store": {"segment_bytes": 1 << 20, "max_lanes": max_lanes}, "producer": {"lane_wait_ms": 20}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, store_config: dict[str, Any]) -> Iterator[commitlog.Store]:
    """A store that runs, for all tests of a file: a start takes a quarter of a second of a core."""
    with commitlog.Store.open(tmp_path_factory.mktemp("running") / "store", store_config) as opened:
        yield opened


@pytest.fixture
def store(running: commitlog.Store) -> commitlog.Store:
    """That store. No test gives it a schema for a topic of another one."""
    shared_store.begin(running)
    return running


@pytest.fixture
def url(store: commitlog.Store, served_base: str) -> str:
    """Where the store is served."""
    with by_url(served_base):
        return place_of(store.path)
