"""Everything was killed, and the next start has another configuration.

The pool is adopted as it is. New settings hold from a lane's next buffers on.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import commitlog
from tests.builders.killed import kill_store
from tests.crash.scene import pid_of
from tests.nightly import with_nightly
from tests.waiting import wait_until

DIRECT = {"write_path": "direct"}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], int | None]] = {
    "more buffers": ({}, {"buffers_per_lane": 5}, 5),
    "fewer buffers": ({"buffers_per_lane": 6}, {"buffers_per_lane": 3}, 3),
    "direct from now on": ({}, DIRECT, None),
    "direct until now": (DIRECT, {}, 3),
    "fewer lanes, larger segments": ({}, {"max_lanes": 1, "segment_bytes": 1 << 20}, 3),
}
"""`[store]` before and after, and how many buffers a lane has afterwards."""


def settings(store: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        "store": {"segment_bytes": 1 << 16, "max_lanes": 2, **store},
        "allocator": {"interval_ms": 20, "lane_idle_ms": 0},
    }


DAILY = "direct until now"


@pytest.mark.parametrize("change", with_nightly([DAILY], [change for change in CHANGES if change != DAILY]))
def test_nothing_is_dropped(change: str, tmp_path: Path) -> None:
    before, after, buffers = CHANGES[change]
    path = tmp_path / "store"
    store = commitlog.Store.open(path, settings(before))
    producers = [store.producer(), store.producer()]
    for producer in producers:
        producer.send("t", b"first").wait("flushed", 60)
    os.kill(pid_of(path, "committer"), signal.SIGSTOP)
    bodies = [b"%d" % number * 500 for number in range(30)]
    for producer in producers:
        for body in bodies:
            producer.send("t", body)
    kill_store(store)
    with commitlog.Store.open(path, settings(after)) as store:
        wait_until(lambda: _free_buffers(path) == [buffers and buffers - 1], "the buffers of the new configuration")
        assert store.close().drained
    with commitlog.Reader(path) as reader:
        found: dict[int, list[bytes]] = {}
        for message in reader:
            found.setdefault(message.partition, []).append(message.value)
    assert found == {0: [b"first", *bodies], 1: [b"first", *bodies]}


def _free_buffers(path: Path) -> list[int | None]:
    """Free buffers of the first lane, by a new lease.

    Nothing while the allocator has the lane, to give its buffers back.
    """
    with commitlog.Producer(path) as producer:
        return [] if producer.lane else [producer.statistics().available_buffers]
