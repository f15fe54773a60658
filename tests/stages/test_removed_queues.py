"""Consume queues that somebody removes under the running store are built anew."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import DataLoss
from commitlog.inspecting.verify import verify_store
from tests.command_line import run
from tests.crash.scene import halted_process, kill, pid_of
from tests.nightly import with_nightly
from tests.waiting import wait_until

CONFIG = {"store": {"segment_bytes": 1 << 16, "max_lanes": 1}, "flusher": {"positions_interval_ms": 100}}
SENT = 1000


def _send(store: commitlog.Store, topic: str, count: int) -> list[int]:
    with store.producer() as producer:
        offsets = [producer.send(topic, b"%d" % number).offset for number in range(count)]
        producer.flush()
    return offsets


def _read(path: Path, topic: str) -> list[int]:
    """The offsets of what is kept. Where retention is quicker than a reader, another one reads."""

    def read() -> list[int] | None:
        try:
            with commitlog.Reader(path, topic=topic, start="earliest") as reader:
                return [message.offset for message in reader]
        except DataLoss:
            return None

    found: list[list[int]] = []

    def is_read() -> bool:
        offsets = read()
        found.extend([] if offsets is None else [offsets])
        return bool(found)

    wait_until(is_read, "a reader that is quicker than retention")
    return found[0]


def remove(store: Path, directory: Path, *, leaves_directory: bool = False) -> None:
    """Removes a directory of a running store, whose dispatcher would make it again meanwhile."""
    with halted_process(pid_of(store, "dispatcher")):
        shutil.rmtree(directory)
        if leaves_directory:
            directory.mkdir()


def _is_dispatched(store: commitlog.Store) -> bool:
    (lane,) = store.statistics().lanes
    return lane.dispatched == lane.wrote


@pytest.mark.filterwarnings("error::commitlog.errors.ReadingWarning")
def test_queues_removed_after_retention_come_back(tmp_path: Path) -> None:
    """The queues begin behind offset 0 then. Nothing is hidden, no offset is given out twice."""
    config = {**CONFIG, "retention": {"interval_ms": 50, "max_bytes": 1 << 18}}
    path = tmp_path / "store"
    with commitlog.Store.open(path, config) as store:
        with store.producer() as producer:
            for _ in range(SENT):
                producer.send("orders", bytes(1000))
            producer.flush()
        wait_until(lambda: _is_dispatched(store) and len(_read(path, "orders")) < 300, "retention")
        queues = path / "lanes/0/consumequeue"
        remove(path, queues)
        wait_until(lambda: (queues / "orders").exists() and _is_dispatched(store), "the queue of orders")
        found = _read(path, "orders")
        assert found
        assert found == list(range(found[0], SENT))
        assert _send(store, "orders", 10) == list(range(SENT, SENT + 10))
        assert _read(path, "orders")[-10:] == list(range(SENT, SENT + 10))
    assert _read(path, "orders")[-10:] == list(range(SENT, SENT + 10))
    assert verify_store(path).good


@pytest.mark.parametrize("max_bytes", with_nightly([0], [1 << 18]), ids=["nothing deleted", "after retention"])
def test_a_queue_removed_from_a_killed_dispatcher_comes_back(max_bytes: int, tmp_path: Path) -> None:
    """The next dispatcher does not know the queue: it has no entry before the next one."""
    config = {**CONFIG, "retention": {"interval_ms": 50, "max_bytes": max_bytes}}
    path = tmp_path / "store"
    with commitlog.Store.open(path, config) as store, store.producer() as producer:
        for _ in range(SENT):
            producer.send("orders", bytes(1000))
        producer.flush()
        wait_until(lambda: _is_dispatched(store) and (not max_bytes or len(_read(path, "orders")) < 300), "retention")
        before = pid_of(path, "dispatcher")
        os.kill(before, signal.SIGSTOP)
        shutil.rmtree(path / "lanes/0/consumequeue/orders")
        kill(before)
        assert producer.send("orders", b"last").offset == SENT
        producer.flush()
        wait_until(lambda: pid_of(path, "dispatcher") != before and _is_dispatched(store), "the queue of orders")
        found = _read(path, "orders")
        assert found == list(range(found[0], SENT + 1))
        assert (found[0] > 0) is bool(max_bytes)
        assert len(found) > 20
    assert _read(path, "orders")[-20:] == found[-20:]
    assert verify_store(path).good


@pytest.mark.parametrize("removed", with_nightly(["consumequeue"], ["consumequeue/orders"]))
def test_queues_removed_under_the_store_come_back(removed: str, tmp_path: Path) -> None:
    """The next producer goes on where the last one was.

    It walks the log if there is no queue at all, and finds the queue of a topic that was rebuilt.
    """
    with commitlog.Store.open(tmp_path / "store", CONFIG) as store:
        assert _send(store, "orders", SENT) == list(range(SENT))
        assert _send(store, "others", 10) == list(range(10))
        wait_until(lambda: _is_dispatched(store), "all is in the queues")
        queues = store.path / "lanes/0/consumequeue"
        remove(store.path, store.path / "lanes/0" / removed)
        if removed != "consumequeue":
            wait_until(lambda: (queues / "orders").exists() and _is_dispatched(store), "the queue of orders")
        assert _send(store, "orders", 10) == list(range(SENT, SENT + 10))
        wait_until(lambda: (queues / "others").exists() and _is_dispatched(store), "the queues")
        assert _read(store.path, "orders") == list(range(SENT + 10))
        assert _read(store.path, "others") == list(range(10))
    assert _read(store.path, "orders") == list(range(SENT + 10))
    said = run("verify", tmp_path / "store")
    assert said.returncode == 0, said.stdout


@pytest.mark.parametrize("leaves_directory", with_nightly([False], [True]))
def test_a_producer_that_knows_queues_meets_one_that_is_gone(tmp_path: Path, leaves_directory: bool) -> None:
    """It has looked at all queues for another topic before. No offset is given out twice."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, CONFIG) as store:
        _send(store, "orders", 5)
        _send(store, "invoices", 5)
        wait_until(lambda: _is_dispatched(store), "the queues")
        with store.producer() as producer:
            producer.send("letters", b"first")
            queue = path / "lanes/0/consumequeue/orders"
            remove(path, queue, leaves_directory=leaves_directory)
            assert producer.send("orders", b"next").offset == 5
            assert producer.send("stamps", b"first").offset == 0
            producer.flush()
        wait_until(lambda: any(queue.rglob(f"{0:020d}")) and _is_dispatched(store), "the queue is built anew")
    assert _read(path, "orders") == list(range(6))
    assert verify_store(path).good
