"""Where the system gives no thread to ZeroMQ, a program goes on without it.

libzmq ends the process if it can't start its threads.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import commitlog
from tests.another_user import as_root
from tests.children import in_child, may_have
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("shm_root")

_CONFIG = {"store": {"segment_bytes": 1 << 16}}


@as_root
def test_a_producer_whose_sockets_get_no_threads(tmp_path: Path) -> None:
    """A thread makes the sockets, by another one. There are these two, and no more."""
    said: list[str] = []
    noted = logging.Handler()
    noted.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]

    def send() -> object:
        logger = logging.getLogger("commitlog.appending.sockets")
        logger.setLevel(logging.INFO)
        logger.addHandler(noted)
        may_have(threads=3)
        producer = commitlog.Producer(store.path)

        def found() -> bool:
            producer.send("t", b"x").wait("flushed", timeout=60)
            return any("a socket can't be had: ZeroMQ takes up to 4 threads" in text for text in said)

        wait_until(found, "a socket that could not be had")
        producer.close()
        return "all are there"

    with commitlog.Store.open(tmp_path / "store", _CONFIG) as store:
        assert in_child(send) == "all are there"


@as_root
def test_a_store_whose_stages_get_no_process(tmp_path: Path) -> None:
    """The error named the file system and its owner."""

    def start() -> None:
        may_have(threads=1)
        commitlog.Store.open(tmp_path / "store", _CONFIG)

    said = in_child(start)
    assert said.startswith(
        f"NotEnoughThreads: {tmp_path}/store: starting the store: the system gives no more processes"
    )
    assert "ulimit -u" in said
