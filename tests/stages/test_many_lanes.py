"""A hundred producers at once, each with a lane of its own."""

from __future__ import annotations

import contextlib
import os
import resource
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog import errors
from tests.crash.accounts import check, read_notes, read_store
from tests.waiting import wait_until

PROCESSES, EACH, MESSAGES = 4, 25, 90
CONFIG = {
    "store": {"segment_bytes": 1 << 16, "max_lanes": PROCESSES * EACH},
    "producer": {"lane_wait_ms": 100, "buffer_wait_ms": 60_000},
    "dispatcher": {"queue_file_entries": 1000},
}


@contextlib.contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """What is started within it may have only so many, unless it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _send_from_many(path: Path, notes: Path, ready: int, go: int) -> None:
    """In a forked child: leases its lanes, reports that, waits, then sends from all in turn.

    It sends beyond the end of a segment.
    """
    producers = [commitlog.Producer(path) for _ in range(EACH)]
    os.write(ready, b"r")
    os.read(go, 1)
    with notes.open("w") as file:
        for number in range(MESSAGES):
            for producer in producers:
                body = b"%d %d " % (producer.lane, number) * 120
                receipt = producer.send(f"t{number % 2}", body)
                place = f"{producer.lane} t{number % 2} {receipt.offset} {receipt.physical_offset}"
                file.write(f"{place} {zlib.crc32(body)}\n")
    for producer in producers:
        producer.flush(timeout=60)
        producer.close()


@pytest.mark.nightly
def test_a_hundred_lanes(tmp_path: Path) -> None:
    """Everything is there, in order, from every lane, and the last producer is refused.

    The flusher has more files open than a process is commonly allowed to.
    """
    path = tmp_path / "store"
    with few_descriptors(256):
        store = commitlog.Store.open(path, CONFIG)
    with store:
        ready, tell_ready = os.pipe()
        wait_for_go, go = os.pipe()
        children = []
        for number in range(PROCESSES):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    os.close(go)
                    _send_from_many(path, tmp_path / f"notes-{number}", tell_ready, wait_for_go)
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        for fd in (tell_ready, wait_for_go):
            os.close(fd)
        assert all(os.read(ready, 1) for _ in children), "a child died"
        with pytest.raises(errors.NoFreeLane):
            store.producer()
        os.close(go)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * PROCESSES
        os.close(ready)
        lanes = store.statistics().lanes
        assert len(lanes) == PROCESSES * EACH
        assert {lane.messages for lane in lanes} == {MESSAGES}
        wait_until(lambda: all(lane.dispatched == lane.wrote for lane in store.statistics().lanes), "the dispatcher")
        with commitlog.Reader(path) as reader:
            assert sum(1 for _ in reader) == PROCESSES * EACH * MESSAGES
    check(read_notes([tmp_path / f"notes-{n}" for n in range(PROCESSES)]), read_store(path), deaths=0)
