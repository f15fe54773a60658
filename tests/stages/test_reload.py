"""Another configuration for a running store: what holds at once, what does not, what refuses."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

import commitlog
from commitlog import errors
from commitlog.shm.layout import STAGES
from tests.crash.scene import pid_of
from tests.faults.channel import FaultsDirectory, Rule
from tests.faults.supervisor import OWN_DISK, patched_stages
from tests.waiting import wait_until

SEGMENT = 1 << 16
SMALL = {"store": {"segment_bytes": SEGMENT}}
LITTLE = {**SMALL, "retention": {"max_bytes": 4 * SEGMENT, "interval_ms": 50}}
"""Three segments stay: one is written, two are made ahead."""
AT_ONCE = {"retention.max_bytes": "holds at once", "retention.interval_ms": "holds at once"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[commitlog.Store]:
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        yield store


def fill(store: commitlog.Store) -> None:
    """Fills a dozen segments, on the disk and dispatched."""
    with store.producer() as producer:
        for _ in range(12):
            producer.send_batch("t", [bytes(1000)] * 50)
        producer.flush()
        wait_until(lambda: first_segment(store) == 0 and is_dispatched(store), "the dispatcher")


def is_dispatched(store: commitlog.Store) -> bool:
    return all(lane.dispatched == lane.wrote for lane in store.statistics().lanes)


def first_segment(store: commitlog.Store) -> int:
    return min(int(name) for name in os.listdir(store.path / "lanes/0/commitlog"))


def configuration(store: commitlog.Store) -> dict[str, Any]:
    """What a stage or a producer that starts now gets."""
    config: dict[str, Any] = orjson.loads((store.path / "store.json").read_bytes())["config"]
    return config


def test_a_retention_knob_holds_at_once(store: commitlog.Store) -> None:
    """Segments go when less of them may be there."""
    fill(store)
    assert store.reload(LITTLE) == AT_ONCE
    wait_until(lambda: first_segment(store) > 0, "the retention")


def test_every_stage_hears_of_it(store: commitlog.Store) -> None:
    """Each says so in its log, also while it has nothing to do."""
    store.reload({**SMALL, "flusher": {"linger_ms": 5}})
    for stage in STAGES:
        log = store.path / "logs" / f"{stage}.log"
        wait_until(lambda log=log: "the configuration is reloaded" in log.read_text(), stage)  # type: ignore[misc]
    assert "reloaded: flusher.linger_ms holds at once" in (store.path / "logs/supervisor.log").read_text()


def test_each_knob_is_named_with_what_it_needs(store: commitlog.Store) -> None:
    """What needs a restart keeps its value until then."""
    wanted = {
        "store": {"segment_bytes": 2 * SEGMENT, "max_lanes": 5},
        "producer": {"lane_wait_ms": 7},
        "committer": {"linger_ms": 3},
        "dispatcher": {"linger_ms": 3, "queue_file_entries": 2000},
        "supervisor": {"hung_after_ms": 40_000},
    }
    assert store.reload(wanted) == {
        "store.segment_bytes": "needs a new store",
        "store.max_lanes": "needs a restart",
        "producer.lane_wait_ms": "holds for producers that are made from now on",
        "committer.linger_ms": "holds at once",
        "dispatcher.linger_ms": "holds at once",
        "dispatcher.queue_file_entries": "needs a restart",
        "supervisor.hung_after_ms": "holds at once",
    }
    config = configuration(store)
    assert (config["store"]["segment_bytes"], config["store"]["max_lanes"]) == (SEGMENT, 16)
    assert (config["dispatcher"]["linger_ms"], config["dispatcher"]["queue_file_entries"]) == (3, 300_000)
    assert config["producer"]["lane_wait_ms"] == 7
    again = {**wanted, "store": SMALL["store"], "dispatcher": {"linger_ms": 3}}
    assert store.reload(again) == {}
    assert commitlog.Store.open(store.path, again, reuse=True) is store


def test_a_stage_that_starts_later_has_the_newest(store: commitlog.Store) -> None:
    """The allocator stands still, is told of a reload, and dies before it hears of it."""
    fill(store)
    allocator = pid_of(store.path, "allocator")
    os.kill(allocator, signal.SIGSTOP)
    store.reload(LITTLE)
    assert first_segment(store) == 0
    os.kill(allocator, signal.SIGKILL)
    wait_until(lambda: first_segment(store) > 0, "the retention of the next allocator")


def test_a_wrong_configuration_changes_nothing(store: commitlog.Store) -> None:
    """The error is that of `open`."""
    before = configuration(store)
    with pytest.raises(errors.ConfigError, match=r"retention\.max_bytes = -1"):
        store.reload({"retention": {"max_bytes": -1}})
    assert configuration(store) == before
    assert store.reload(SMALL) == {}


def test_no_reload_while_the_store_stops(tmp_path: Path) -> None:
    """The committer stands still, so the stop waits. A reload is refused meanwhile, and later."""
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    committer = pid_of(store.path, "committer")
    os.kill(committer, signal.SIGSTOP)
    closing = threading.Thread(target=store.close)
    closing.start()
    try:
        wait_until(lambda: store._process.stdin is None or store._process.stdin.closed, "the close to begin")
        with pytest.raises(errors.StoreStopped, match="open it with that one"):
            store.reload(LITTLE)
    finally:
        os.kill(committer, signal.SIGCONT)
        closing.join()
    with pytest.raises(errors.StoreStopped):
        store.reload(LITTLE)


@pytest.mark.leaves_pools
def test_no_reload_without_a_supervisor(tmp_path: Path) -> None:
    """It was killed: nobody waits for an answer."""
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    os.kill(store._process.pid, signal.SIGKILL)
    with pytest.raises(errors.StoreStopped):
        store.reload(LITTLE)
    with pytest.raises(errors.StageFailed):
        store.close()


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    """`store.json` can't be written: the error says so, and the store goes on as it was."""
    with patched_stages(OWN_DISK), commitlog.Store.open(tmp_path / "store", SMALL) as store:
        faults = FaultsDirectory(store.path)
        before = configuration(store)
        faults.set(Rule("open", where="store.json", error=errno.ENOSPC, stage="supervisor"))
        with pytest.raises(errors.DiskFull):
            store.reload(LITTLE)
        faults.clear()
        assert configuration(store) == before
        assert store.reload(LITTLE) == AT_ONCE


def test_a_supervisor_that_hangs(store: commitlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends with an error, and its late answer is not taken for the next one's."""
    monkeypatch.setattr("commitlog.client.store.ANSWER_SECONDS", 0.2)
    supervisor = int((store.path / "lock").read_text())
    os.kill(supervisor, signal.SIGSTOP)
    try:
        with pytest.raises(errors.StageFailed, match="does not answer"):
            store.reload({**SMALL, "flusher": {"linger_ms": 3}})
    finally:
        os.kill(supervisor, signal.SIGCONT)
    monkeypatch.undo()
    assert store.reload({**SMALL, "committer": {"linger_ms": 5}}) == {
        "committer.linger_ms": "holds at once",
        "flusher.linger_ms": "holds at once",  # back to its default: the first call was carried out, later
    }


def test_a_level_of_the_logs_needs_a_restart(store: commitlog.Store) -> None:
    assert store.reload({**SMALL, "logs": {"level": "debug"}}) == {"logs.level": "needs a restart"}
    assert store.running
    assert configuration(store)["logs"]["level"] == "info"
