"""Lanes that a start with a higher limit has made."""

from __future__ import annotations

import shutil
from pathlib import Path

import commitlog

SMALL = {"segment_bytes": 1 << 16}


def test_a_lane_from_the_time_of_a_higher_limit_is_served(tmp_path: Path) -> None:
    """It is the only lane that is left, so the next producer gets it."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, {"store": {**SMALL, "max_lanes": 3}}) as store:
        producers = [store.producer() for _ in range(3)]
        producers[2].send("t", b"before").wait("flushed")  # a lane that had a message would be missed
        for producer in producers:
            producer.close()
    for lane in range(2):
        shutil.rmtree(path / "lanes" / str(lane))
    with commitlog.Store.open(path, {"store": {**SMALL, "max_lanes": 1}}) as store, store.producer() as producer:
        assert producer.lane == 2
        producer.send("t", b"after")
        producer.flush(timeout=60)
    with commitlog.Reader(path, topic="t") as reader:
        assert [message.value for message in reader] == [b"before", b"after"]
