"""A real server, and clients that are slow or hostile: they cost no other client anything."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import orjson
import psutil
import pyarrow as pa
import pytest
from pyarrow import flight

from commitlog.errors import AccessDenied, IllegalArgument, ServerUnavailable
from commitlog.planning.address import parse_address
from commitlog.remote import flight_connection
from commitlog.serving import limits, server_processes
from commitlog.serving.access import Access, add_token
from commitlog.serving.flight_server import FlightServer
from commitlog.serving.served_store import ServedStore
from commitlog.serving.server_processes import Server
from tests.builders.hand_made import HandMadeStore, small_store
from tests.serving.asking import Certificates, address_of, ask, client_of, server_of
from tests.waiting import wait_until

SLOW_STREAMS = 8
MIB = 1 << 20
STREAM_BYTES_MAX = 64 * MIB
"""A batch of 16 MiB, its message for gRPC, and what gRPC and its allocator keep besides."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    """24 MiB of `large`, and a message of `orders`."""
    store = HandMadeStore(tmp_path_factory.mktemp("large") / "store", segment_bytes=1 << 24)
    store.lane(0).append("orders", b"first")
    for number in range(24):
        store.lane(0).append("large", bytes([number]) * (MIB - 1024))
    store.publish()
    return store


@pytest.fixture(scope="module")
def server(large: HandMadeStore) -> Iterator[Server]:
    with server_of([large.path]) as running:
        yield running


def process_of(server: Server) -> psutil.Process:
    """The one process of a server."""
    (found,) = (
        child
        for child in psutil.Process().children(recursive=True)
        if any(at.laddr.port == server.ports[0] for at in child.net_connections("tcp") if at.status == "LISTEN")
    )
    return found


def private_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def endless(ticket: bytes, rows: int) -> bytes:
    """A ticket of more than gRPC keeps for a slow client: rows of `large`, again and again."""
    asked = orjson.loads(ticket)
    asked["slices"] = [["large", 0, 0, rows]] * 60
    return orjson.dumps(asked)


@pytest.mark.nightly
def test_slow_readers_keep_nobody_waiting_and_take_little_memory(server: Server) -> None:
    process = process_of(server)
    with ExitStack() as slow, client_of(address_of(server)) as quick:
        ticket = quick.ticket("large")
        assert len(quick.rows(ticket)) == 24
        base = private_bytes(process)
        for _ in range(SLOW_STREAMS):
            client = slow.enter_context(client_of(address_of(server)))
            stream = client.connection.read(endless(ticket, rows=24))
            slow.enter_context(closing(stream))  # type: ignore[type-var]
            assert next(stream)[0].num_rows > 0
        assert len(quick.rows(ticket)) == 24
        assert quick.rows(quick.ticket("orders")) == [(0, 0, b"first")]
        assert private_bytes(process) - base < (SLOW_STREAMS + 1) * STREAM_BYTES_MAX


@pytest.mark.usefixtures("no_segments_mapped")
def test_a_client_waits_for_its_turn(large: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has all its streams open gets no more; the next one comes when they end.

    The limit is a small one here: what nobody takes stays in the client's memory.
    """
    monkeypatch.setattr(limits, "STREAMS_MAX", 8)
    served = ServedStore("store", large.path)
    with FlightServer("grpc://127.0.0.1:0", {"store": served}) as server, closing(served):
        address = parse_address(f"commitlog://127.0.0.1:{server.port}/store")
        with client_of(address) as client, ExitStack() as streams:
            ticket = flight.Ticket(endless(client.ticket("large"), rows=8))
            greedy = streams.enter_context(flight.connect(f"grpc://127.0.0.1:{server.port}"))
            for _ in range(4):
                stream = greedy.do_get(ticket)
                streams.callback(stream.cancel)
                stream.read_chunk()
            with pytest.raises(pa.ArrowException, match="4 open streams of 127\\.0\\.0\\.1, which is its limit"):
                greedy.do_get(ticket).read_chunk()
            waiting = client.connection.read(client.ticket("orders"))
            threading.Timer(0.1, streams.close).start()
            assert next(waiting)[0].num_rows == 1
            assert next(waiting, None) is None


@pytest.mark.usefixtures("no_segments_mapped")
def test_streams_that_do_not_fit_into_memory_are_refused(large: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the smallest machine slow readers leave the process alive, and who waits gets its turn."""
    monkeypatch.setattr(server_processes, "memory_limit", lambda: 0)
    with server_of([large.path]) as server, client_of(address_of(server)) as client, ExitStack() as streams:
        pids, ticket = server.pids, flight.Ticket(endless(client.ticket("large"), rows=24))
        refused = []
        for _ in range(2 * SLOW_STREAMS):
            slow = streams.enter_context(flight.connect(f"grpc://127.0.0.1:{server.ports[0]}"))
            stream = slow.do_get(ticket)
            streams.callback(stream.cancel)
            try:
                stream.read_chunk()
            except pa.ArrowException as error:
                refused.append(str(error))
        assert 0 < len(refused) < 2 * SLOW_STREAMS
        assert all("open streams of 127.0.0.1, which is its limit; try again" in text for text in refused)
        streams.close()
        assert len(client.rows(client.ticket("large"))) == 24
        assert server.pids == pids


@pytest.mark.nightly
def test_connections_that_say_nothing_or_nonsense_are_ended(tmp_path: Path, certificates: Certificates) -> None:
    """And others get in meanwhile: 100 idle ones, garbage, half of a handshake."""
    store = small_store(tmp_path / "store")
    certificate, key = certificates.make("limits")
    hello = bytes.fromhex("1603010200010001fc0303") + os.urandom(32)  # the beginning of a ClientHello
    with server_of([store.path], certificate=certificate, key=key) as server, ExitStack() as open_sockets:
        address = address_of(server, ca_file=str(certificates.authority))
        connected = [
            open_sockets.enter_context(socket.create_connection(("127.0.0.1", server.ports[0]))) for _ in range(103)
        ]
        connected[0].sendall(hello)
        connected[1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(ConnectionError):  # the server may have ended it at the first bytes
            connected[2].sendall(os.urandom(1 << 16))
        assert ask(address) == ["store"]
        left = set(connected)

        def all_ended() -> bool:
            for client in list(left):
                client.settimeout(0.001)
                try:
                    is_ended = client.recv(1 << 16) == b""
                except TimeoutError:
                    continue
                except ConnectionError:
                    is_ended = True
                if is_ended:
                    left.discard(client)
            return not left

        wait_until(all_ended, "the server ends connections that are none of clients")
        with client_of(address) as client:
            assert sorted(client.rows(client.ticket())) == store.rows("orders")


@pytest.mark.nightly
def test_a_large_message_of_a_client_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is ended while it comes. A quick client is refused before the server looks."""
    store, tokens = small_store(tmp_path / "store"), tmp_path / "tokens.json"
    token = add_token(tokens, Access("known"))
    with server_of([store.path], tokens=tokens) as server:
        with monkeypatch.context() as impatient:
            impatient.setattr(flight_connection, "ANSWER_SECONDS", 1.0)  # gRPC tries again and again until then
            with pytest.raises((ServerUnavailable, AccessDenied)):
                ask(address_of(server), "look", "x" * (128 * MIB))
        assert ask(address_of(server, token=token)) == ["store"]


def test_a_large_message_of_a_client_that_is_known(server: Server) -> None:
    with client_of(address_of(server)) as client:
        client.look()
        with pytest.raises(IllegalArgument, match="Look: 9,437,186 bytes; allowed are 8,388,608"):
            client.connection.ask("look", "x" * (9 * MIB))


@pytest.mark.usefixtures("no_segments_mapped")
def test_a_question_that_reads_much_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Others look, and have their reads planned, meanwhile."""
    served = ServedStore("store", small_store(tmp_path / "store").path)
    with closing(served), served.index(reads=True), served.index() as (index, _):
        assert "orders" in index.topics()


def test_the_kernel_ends_a_server_first_where_memory_runs_out(server: Server) -> None:
    (pid,) = server.pids
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "800\n"
