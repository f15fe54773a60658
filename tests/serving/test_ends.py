"""Servers that are killed: nothing is lost or comes twice, and nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from commitlog.errors import ServerUnavailable
from commitlog.planning.address import parse_address
from commitlog.serving.server_processes import Server
from commitlog.serving.server_settings import ServerSettings
from tests.another_user import as_root
from tests.builders.hand_made import HandMadeStore, small_store
from tests.children import in_child, may_have
from tests.serving.asking import address_of, ask, client_of, server_of
from tests.serving.test_limits import endless, large  # noqa: F401  # a fixture
from tests.waiting import wait_until


def processes_of(parent: int) -> list[psutil.Process]:
    return psutil.Process(parent).children()


def is_server(process: psutil.Process) -> bool:
    return " ".join(process.cmdline()).startswith("commitlog: server ")


@contextmanager
def command(*words: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`commitlog serve`, and the URLs that it has printed."""
    with subprocess.Popen(
        [sys.executable, "-m", "commitlog.cli", "serve", *words, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            urls = []
            while not (line := process.stdout.readline()).startswith("Ctrl-C"):
                assert line, "it has ended"
                urls.append(line.strip())
            yield process, urls
        finally:
            process.terminate()
            process.wait(60)


HANGS = """
import sys, time
if "commitlog.serving.process_start" in sys.orig_argv:
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_hangs_is_ended_by_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """The process that does not come to listen is gone, too."""
    store = small_store(tmp_path / "store", rows=1).path
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with subprocess.Popen(
        [sys.executable, "-m", "commitlog.cli", "serve", str(store), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    ) as serve:
        (hanging,) = wait_until(lambda: processes_of(serve.pid), "its process")
        serve.send_signal(number)
        said, _ = serve.communicate(timeout=60)
    assert (serve.returncode, said) == (0, b"")
    wait_until(lambda: not hanging.is_running(), "no process is left")


@as_root
def test_a_server_that_gets_no_threads_says_so(tmp_path: Path) -> None:
    """With a few threads gRPC waits for ever for others, or ends the process."""
    settings = ServerSettings({"store": str(small_store(tmp_path / "store", rows=1).path)}, "127.0.0.1", 0)

    def serve() -> None:
        may_have(threads=8)
        with Server(settings):
            pass

    said = in_child(serve)
    assert said.startswith(
        "ServingRefused: a server takes up to 16 threads, and the system gives fewer: raise the limit"
    )


def test_a_server_that_is_killed_in_the_middle_of_a_stream(large: HandMadeStore) -> None:  # noqa: F811
    """The task hears of it, and is retried: the process is back on its port, with the same rows."""
    with server_of([large.path]) as server, client_of(address_of(server)) as client:
        ticket = client.ticket("large")
        rows = client.rows(ticket)
        stream = client.batches(endless(ticket, rows=24))
        assert next(stream).num_rows > 0
        (process,) = [child for child in processes_of(os.getpid()) if is_server(child)]
        process.kill()
        with pytest.raises(ServerUnavailable, match="no server answers"):
            list(stream)
        port = server.ports[0]
        assert client.rows(ticket) == rows
        assert server.ports[0] == port
    assert process.pid not in {child.pid for child in processes_of(os.getpid()) if child.is_running()}


@pytest.mark.nightly
def test_each_process_has_a_port_that_clients_are_told(tmp_path: Path) -> None:
    """Also after one of them was killed. What clients have used stays counted."""
    store = small_store(tmp_path / "store")
    with server_of([store.path], processes=2) as server, client_of(address_of(server)) as client:
        ports = server.ports
        assert len(set(ports)) == 2
        titles = [" ".join(child.cmdline()) for child in processes_of(os.getpid()) if is_server(child)]
        assert titles == [f"commitlog: server {store.path}"] * 2
        wait_until(lambda: tuple(client.look().ports) == ports)
        ticket = client.ticket()
        for port in ports:
            read = client.connection.read(ticket, port)
            assert sum(batch.num_rows for batch, _ in read) == 200
        wait_until(lambda: server.traffic().get("store", {}).get("everybody", {}).get("rows_read") == 400)
        for child in processes_of(os.getpid()):
            if is_server(child):
                child.kill()
        wait_until(lambda: tuple(client.look().ports) == ports)
        assert sum(batch.num_rows for batch, _ in client.connection.read(ticket, ports[1])) == 200
        wait_until(lambda: server.traffic()["store"]["everybody"]["rows_read"] == 600)


def test_the_command_ends_with_sigterm(tmp_path: Path) -> None:
    """Its processes end with it, and clients hear of it at once."""
    store = small_store(tmp_path / "store")
    with command(f"a={store.path}", f"b={store.path}", "--processes", "2") as (process, urls):
        first, second = map(parse_address, urls)
        assert (first.store, second.store) == ("a", "b")
        assert ask(first) == ["a", "b"]
        children = processes_of(process.pid)
        assert len(children) == 2
        process.terminate()
        assert process.wait(60) == 0
        assert not [child for child in children if child.is_running()]
        with pytest.raises(ServerUnavailable):
            ask(first)


@pytest.mark.nightly
def test_the_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """The parent can't end them then: they see that it is gone."""
    store = small_store(tmp_path / "store")
    with command(str(store.path)) as (process, urls), client_of(parse_address(urls[0])) as client:
        children = processes_of(process.pid)
        client.look()
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        wait_until(lambda: not [child for child in children if child.is_running()], "its processes end")


@pytest.mark.nightly
def test_a_service_manager_hears_when_it_listens_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, address = small_store(tmp_path / "store"), tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(address))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        with command(str(store.path)) as (_, urls):
            port = parse_address(urls[0]).hosts[0][1]
            assert manager.recv(4096).decode().split("\n") == ["READY=1", f"STATUS=serving on port {port}"]
        assert manager.recv(4096) == b"STOPPING=1"
