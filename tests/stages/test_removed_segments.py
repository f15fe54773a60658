"""Somebody removes the segment that a lane is writing.

That is reported at once, and nothing more of it counts as flushed.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import commitlog
from commitlog import errors
from commitlog.shm.layout import Lane
from tests.nightly import with_nightly
from tests.waiting import wait_until

CONFIG = {
    "store": {"segment_bytes": 1 << 16, "max_lanes": 2},
    "producer": {"buffer_wait_ms": 60_000, "lane_wait_ms": 100},
}


def segment_of(store: commitlog.Store, lane: int) -> Path:
    """The one that is being written."""
    return store.path / f"lanes/{lane}/commitlog" / f"{0:020d}"


def fault_of(producer: commitlog.Producer) -> int:
    return producer._lease.row[Lane.FLUSHER_FAULT]


@pytest.mark.leaves_pools
@pytest.mark.parametrize("level", with_nightly(["SYNC_FLUSH"], ["wait", "flush"]))
def test_who_waits_is_told(level: str, tmp_path: Path) -> None:
    """By name, with the way out; the other lanes go on, and a new producer gets one of them."""
    config = CONFIG | {"store": CONFIG["store"] | ({"flush_disk_type": level} if level == "SYNC_FLUSH" else {})}
    store = commitlog.Store.open(tmp_path / "store", config)
    with store.producer() as producer, store.producer() as other:
        producer.send("t", b"before").wait("flushed", 60)
        flushed = producer._lease.row[Lane.FLUSHED]
        segment_of(store, producer.lane).unlink()

        def send() -> None:
            receipt = producer.send("t", b"after")  # with SYNC_FLUSH it is this that waits
            producer.flush(timeout=60) if level == "flush" else receipt.wait("flushed", 60)

        with pytest.raises(errors.PoolUnlinked, match=r"files of the store were removed.*put them back"):
            send()
        assert producer._lease.row[Lane.FLUSHED] == flushed
        assert other.send("t", b"x").wait("flushed", 60).name == "PUT_OK"
    assert segment_of(store, producer.lane).name in (store.path / "logs/flusher.log").read_text()
    with store.producer() as third:
        assert third.lane == other.lane
        with pytest.raises(
            errors.NoFreeLane, match=rf"of lanes \[{producer.lane}\] segments were removed: put them back"
        ):
            store.producer()
    report = store.close()
    assert not report.drained
    assert [line for line in report.kept if "put the files back" in line]


@pytest.mark.leaves_pools
@pytest.mark.parametrize("ahead", with_nightly([0], [1]), ids=["current", "made ahead"])
def test_an_idle_lane_is_told_too(ahead: int, tmp_path: Path) -> None:
    """Nothing is written or synced when it happens."""
    store = commitlog.Store.open(tmp_path / "store", CONFIG)
    with store.producer() as producer:
        producer.send("t", b"before").wait("flushed", 60)
        removed = segment_of(store, producer.lane).with_name(f"{ahead << 16:020d}")
        wait_until(removed.exists, "the segment")
        wait_until(lambda: producer._lease.row[Lane.OPENED] > ahead << 16, "the flusher to open it")
        removed.unlink()
        wait_until(lambda: fault_of(producer) == errno.ENOENT, "the lane to stop")
        with pytest.raises(errors.PoolUnlinked):
            producer.send("t", b"after").wait("flushed", 60)
    assert not store.close().drained


def test_the_next_start_goes_on_with_the_file_put_back(tmp_path: Path) -> None:
    """With what was accepted after it was removed, too: that has stayed in the buffers."""
    store = commitlog.Store.open(tmp_path / "store", CONFIG)
    with store.producer() as producer:
        producer.send("t", b"before").wait("flushed", 60)
        segment = segment_of(store, producer.lane)
        data = segment.read_bytes()
        segment.unlink()
        receipt = producer.send("t", b"after")
        with pytest.raises(errors.PoolUnlinked):
            receipt.wait("flushed", 60)
    assert not store.close().drained
    segment.write_bytes(data)
    with commitlog.Store.open(tmp_path / "store", CONFIG) as store, store.producer() as producer:
        assert producer.send("t", b"later").wait("flushed", 60).name == "PUT_OK"
    assert store.close().drained
    with commitlog.Reader(tmp_path / "store") as reader:
        assert [message.value for message in reader] == [b"before", b"after", b"later"]
