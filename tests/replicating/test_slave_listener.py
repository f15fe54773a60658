"""The ports for RocketMQ's slaves, where a slave can't be taken for a moment."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commitlog.config import ReplicationConfig
from commitlog.disk.file_channel import DISK
from commitlog.stages.replicating.in_sync import InSync
from commitlog.stages.replicating.lane_log import LaneLog
from commitlog.stages.replicating.peer_connection import Throttle
from commitlog.stages.replicating.peers import Peers
from commitlog.stages.replicating.slave_listener import SlaveListener
from commitlog.system.clock import SYSTEM_CLOCK
from tests.builders.idle_store import idle_store
from tests.waiting import wait_until


@contextmanager
def slave_listener(
    path: Path, shm_root: Path, address: str
) -> Iterator[tuple[SlaveListener, Peers, dict[int, LaneLog]]]:
    """The listener of a store with one lane. Slaves come to `address`."""
    config = ReplicationConfig(slave_listen=address)
    with idle_store(path / "store", shm_root / "pool") as store:
        in_sync = InSync(store.control, 1, config, SYSTEM_CLOCK, lambda *_: None)
        peers = Peers(store.directory, store.facts, store.control, config, SYSTEM_CLOCK, in_sync, lambda _: None)
        listener = SlaveListener(peers, config, SYSTEM_CLOCK, Throttle(0, SYSTEM_CLOCK))
        lane_logs = {0: LaneLog(store.directory.lane_directory(0), store.control.row(0), 1 << 20, DISK)}
        try:
            yield listener, peers, lane_logs
        finally:
            listener.close()
            peers.end(lane_logs)


def test_a_slave_that_no_descriptor_is_left_for(
    tmp_path: Path, shm_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is closed, and the next one is served."""
    refusals, original = [OSError(errno.EMFILE, "Too many open files")], os.eventfd

    def eventfd(initial: int, flags: int = 0) -> int:
        if refusals:
            raise refusals.pop()
        return original(initial, flags)

    monkeypatch.setattr(os, "eventfd", eventfd)
    with slave_listener(tmp_path, shm_root, "127.0.0.1:0") as (listener, peers, lane_logs):
        listener.serve(lane_logs)
        with socket.create_connection(("127.0.0.1", listener.port(0))) as first:
            assert first.recv(1) == b""
        with socket.create_connection(("127.0.0.1", listener.port(0))):
            wait_until(lambda: peers.named("slave-127.0.0.1-0"), "the second one is there")


def test_a_port_that_is_taken_is_tried_again(tmp_path: Path, shm_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log says it once, and `shut` has it for as long as it lasts."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with slave_listener(tmp_path, shm_root, address) as (listener, _, lane_logs):
            listener.serve(lane_logs)
            listener.serve(lane_logs)
            assert list(listener.shut) == [address]
            (said,) = caplog.messages
            assert said.startswith(f"lane 0: no slave can come to {address}: ")
            taken.close()
            listener.serve(lane_logs)
            assert not listener.shut
            socket.create_connection(("127.0.0.1", listener.port(0))).close()
