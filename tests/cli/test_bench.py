"""`commitlog bench`: measures in a store of its own, which it removes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.cli.bench import _await_index
from tests.builders.hand_made import HandMadeStore
from tests.crash.scene import pid_of


@pytest.mark.nightly
def test_nothing_of_it_stays(tmp_path: Path) -> None:
    """Neither in the store that it was asked about, nor beside it."""
    store = HandMadeStore(tmp_path / "store")
    store.lane(0).append("t", b"x")
    store.publish()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = CliRunner().invoke(app, ["bench", str(store.path), "--seconds", "200ms", "--size", "1KiB", "--json"])
    assert done.exit_code == 0, done.output
    found = orjson.loads(done.stdout)
    assert found["value_bytes"] == 1024
    assert all(found[name] > 0 for name in found if name.endswith("per_second"))
    assert 0 < found["flush_p50_ms"] <= found["flush_p99_ms"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_place_without_a_store(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", str(tmp_path / "a" / "store"), "--seconds", "200ms"])
    assert done.exit_code == 0, done.output
    assert "messages/s" in done.stdout
    assert "which is then removed" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_time_that_is_too_long_is_refused(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["bench", str(tmp_path / "store"), "--seconds", "1h"]).exit_code == 2


def test_reading_begins_when_all_is_in_the_index(tmp_path: Path) -> None:
    """Otherwise the reader is at its end after a few messages, and its rate says nothing."""
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}}) as store:
        os.kill(pid_of(store.path, "dispatcher"), signal.SIGSTOP)
        with store.producer() as producer:
            producer.send("bench", b"x").wait("flushed")
        waiting = threading.Thread(target=_await_index, args=(store,))
        waiting.start()
        os.kill(pid_of(store.path, "dispatcher"), signal.SIGCONT)
        waiting.join()
        (lane,) = store.statistics().lanes
        assert lane.dispatched == lane.flushed > 0
