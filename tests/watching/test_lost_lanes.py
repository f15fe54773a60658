"""The health of a store that has lost a lane."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import commitlog
from commitlog.watching.health import health
from commitlog.watching.snapshot import StoreWatch
from tests.builders.killed import kill_store
from tests.nightly import with_nightly


@pytest.mark.leaves_pools
@pytest.mark.parametrize("state", with_nightly(["killed"], ["stopped"]))
def test_a_lane_that_is_gone_is_named(state: str, tmp_path: Path) -> None:
    """Beside the state of the store, which its missing files do not change."""
    path = tmp_path / "store"
    store = commitlog.Store.open(path)
    with store.producer() as one, store.producer() as other:
        one.send("t", b"x").wait("flushed", 60)
        receipt = other.send("t", b"x")
        receipt.wait("flushed", 60)
        if state == "killed":
            kill_store(store)
    if state == "stopped":
        store.close()
    shutil.rmtree(path / "lanes" / "1")
    if state == "killed":
        (path / "lanes" / "1").mkdir()
        (path / "lanes" / "1" / "commitlog").write_bytes(b"")
    with StoreWatch(path, only_health=True) as watch:
        reasons = {reason.code: reason for reason in health(watch.snapshot()).reasons}
    assert reasons["lane-lost"].lanes == (1,)
    assert reasons["lane-lost"].text == f"lane 1: the files of its log are gone, which had {receipt.end} bytes"
    assert state in reasons
