"""Connections of one client: forks, threads, and several hosts."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.file_channel import FileChannel
from commitlog.errors import CommitLogError, ServerUnavailable
from commitlog.planning.address import parse_address
from commitlog.remote import flight_connection
from commitlog.serving import connections
from commitlog.serving import server_processes as serving_processes
from commitlog.serving.server_processes import Server
from commitlog.serving.server_settings import ServerSettings
from commitlog.spark.source import CommitLogDataSource
from tests.builders.hand_made import HandMadeStore
from tests.served import by_url, forget_connection, place_of


@pytest.fixture
def server(store: HandMadeStore) -> Iterator[Server]:
    """A server of two processes."""
    settings = ServerSettings({"store": str(store.path)}, "127.0.0.1", 0, advertise="127.0.0.1")
    with Server(settings, processes=2) as running:
        yield running


def rows(url: str) -> list[tuple[int, int, bytes]]:
    source = CommitLogDataSource({"path": url, "subscribe": "orders", "minpartitions": "8"})
    reader = source.reader(source.schema())
    found: list[dict[str, Any]] = []
    for task in reader.partitions():
        for batch in reader.read(task):
            found += batch.to_pylist()
    return sorted((row["partition"], row["offset"], row["value"]) for row in found)


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.nightly
def test_threads_share_a_connection(store: HandMadeStore, server: Server) -> None:
    """Each of them gets all rows, whichever of the server's processes it asks."""
    url = str(server.address("store"))
    found: list[list[tuple[int, int, bytes]]] = []
    threads = [threading.Thread(target=lambda: found.append(rows(url))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    forget_connection(parse_address(url))
    assert found == [store.rows("orders")] * 8


@pytest.mark.nightly
def test_a_forked_child_is_told_what_to_do(server: Server) -> None:
    """gRPC would hang there."""
    url = str(server.address("store"))
    rows(url)
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        said = "no error"
        try:
            rows(url)
        except CommitLogError as error:
            said = str(error)
        except BaseException:
            said = traceback.format_exc()
        os.write(writable, said.encode())
        os._exit(0)
    os.close(writable)
    with open(readable) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    forget_connection(parse_address(url))
    assert said.startswith("this process was forked from one that had asked a server")
    assert "spawn" in said


def test_hosts_are_tried_in_turn(store: HandMadeStore, served_base: str) -> None:
    with by_url(served_base):
        url = place_of(store.path).replace("://", f"://127.0.0.1:{closed_port()},")
    assert rows(url) == store.rows("orders")
    forget_connection(parse_address(url))


def test_no_host_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question is not asked for long. A server that was there before is waited for."""
    monkeypatch.setattr(flight_connection, "PATIENCE_SECONDS", 3600.0)
    url = f"commitlog://127.0.0.1:{closed_port()},127.0.0.1:{closed_port()}/store"
    with pytest.raises(ServerUnavailable, match=r"no server answers .*is it running"):
        rows(url)
    forget_connection(parse_address(url))


def test_a_server_that_is_started_again_is_waited_for(store: HandMadeStore) -> None:
    settings = ServerSettings({"store": str(store.path)}, "127.0.0.1", 0, advertise="127.0.0.1")
    with Server(settings) as first:
        port, url = first.ports[0], str(first.address("store"))
        assert rows(url) == store.rows("orders")
    again = threading.Event()

    def read() -> None:
        found.append(rows(url))
        again.set()

    found: list[list[tuple[int, int, bytes]]] = []
    reading = threading.Thread(target=read)
    reading.start()
    assert not again.wait(0.2)
    with Server(ServerSettings({"store": str(store.path)}, "127.0.0.1", port, advertise="127.0.0.1")):
        reading.join()
    forget_connection(parse_address(url))
    assert found == [store.rows("orders")]


@pytest.mark.nightly
def test_a_process_that_can_not_be_started_again_at_once(
    store: HandMadeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where there is no memory or no descriptor for it, it is tried again."""
    settings = ServerSettings({"store": str(store.path)}, "127.0.0.1", 0, advertise="127.0.0.1")
    refusals = [OSError(errno.EAGAIN, "Resource temporarily unavailable")] * 2
    original = subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if refusals:
            raise refusals.pop()
        return original(*arguments, **options)

    monkeypatch.setattr(serving_processes, "RESTART_SECONDS", 0.01)
    with Server(settings) as server:
        url, (pid,) = str(server.address("store")), server.pids
        assert rows(url) == store.rows("orders")
        monkeypatch.setattr(subprocess, "Popen", popen)
        os.kill(pid, signal.SIGKILL)
        assert rows(url) == store.rows("orders")
        assert server.pids != (pid,)
    forget_connection(parse_address(url))
    assert sum("temporarily unavailable" in record.message for record in caplog.records) == 2


def test_connections_are_seen_without_a_spare_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers may hold all descriptors: just then their connections have to be ended."""

    class Full(FileChannel):
        def list(self, path: str | Path) -> list[str]:
            raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(connections, "DISK", Full())
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, (host, port) = listener.accept()
        with accepted:
            assert f"{host}:{port}" in connections.received(listener.getsockname()[1])
            connections.end_connections(listener.getsockname()[1], {f"{host}:{port}"})
            assert client.recv(1) == b""
