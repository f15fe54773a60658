"""Names of readers that a server holds for its clients: option `readerName` by URL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from socket import create_connection, create_server
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from commitlog.errors import ReaderInUse, ServerBusy
from commitlog.planning.address import Credentials, parse_address
from commitlog.reading.named_readers import NamedReaders
from commitlog.remote import requests
from commitlog.serving import served_store
from commitlog.serving.access import Access, add_token
from commitlog.serving.connections import peers
from commitlog.serving.server_processes import Server
from commitlog.serving.server_settings import ServerSettings
from commitlog.spark.source import CommitLogDataSource, StreamReader
from tests.builders.hand_made import HandMadeStore
from tests.served import forget_connection
from tests.waiting import wait_until

HOLDER = """
import sys
from commitlog.spark.source import CommitLogDataSource
source = CommitLogDataSource({"path": sys.argv[1], "subscribe": "orders", "readername": "billing"})
reader = source.streamReader(source.schema())
reader.initialOffset()
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """Tokens by name: one is for all topics, one for `orders` only."""
    file = tmp_path / "tokens.json"
    return {name: add_token(file, Access(name, topics)) for name, topics in (("all", ("*",)), ("orders", ("orders",)))}


@pytest.fixture
def server(store: HandMadeStore, tokens: dict[str, str], tmp_path: Path) -> Iterator[Server]:
    file = str(tmp_path / "tokens.json") if tokens else None
    settings = ServerSettings({"store": str(store.path)}, "127.0.0.1", 0, tokens=file, advertise="127.0.0.1")
    with Server(settings) as running:
        yield running
        for token in (None, *tokens.values()):
            forget_connection(parse_address(str(running.address("store"))).with_credentials(Credentials(token)))


def reader(server: Server, token: str, **options: str) -> StreamReader:
    given = {"path": str(server.address("store")), "subscribe": "orders", "readerName": "billing", "token": token}
    given |= {"startingOffsets": "earliest"} | options
    source = CommitLogDataSource({name.lower(): value for name, value in given.items() if value})
    return source.streamReader(source.schema())


def read_all(of: StreamReader) -> dict[str, Any]:
    """Reads everything, and tells the source that it is done."""
    start = of.initialOffset()
    end = of.latestOffset(start, ReadAllAvailable())
    assert of.latestOffset(end, ReadAllAvailable()) == end
    return end


def position(store: HandMadeStore) -> dict[str, dict[int, int]]:
    return {topic: dict(lanes) for topic, lanes in NamedReaders(store.directory).load("billing").offsets.items()}


def test_the_position_is_in_the_store(store: HandMadeStore, server: Server, tokens: dict[str, str]) -> None:
    """A stop writes it and gives the name back, so the next query has it at once."""
    for _ in range(2):
        of = reader(server, tokens["all"])
        read_all(of)
        of.stop()
        assert position(store) == {"orders": {0: 100, 1: 100}}
        assert not NamedReaders(store.directory).is_held("billing")


def test_one_client_at_a_time(store: HandMadeStore, server: Server, tokens: dict[str, str]) -> None:
    """A token for every topic is told who the other one is."""
    of = reader(server, tokens["orders"])
    of.initialOffset()
    with pytest.raises(ReaderInUse, match=r"reader billing is in use by client orders at 127\.0\.0\.1:"):
        reader(server, tokens["all"]).initialOffset()
    of.stop()
    other = reader(server, tokens["all"])
    other.initialOffset()
    other.stop()


@pytest.mark.parametrize("tokens", [{}])
def test_the_name_of_a_client_that_is_killed_is_free_at_once(
    store: HandMadeStore, server: Server, tokens: dict[str, str]
) -> None:
    """Nobody waits until the lease has run out."""
    command = [sys.executable, "-c", HOLDER, str(server.address("store"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        with pytest.raises(ReaderInUse):
            reader(server, "").initialOffset()
        process.kill()
    of = reader(server, "")
    read_all(of)
    of.stop()
    assert position(store) == {"orders": {0: 100, 1: 100}}


@pytest.mark.nightly
def test_a_server_that_was_killed_gives_the_name_again(
    store: HandMadeStore, server: Server, tokens: dict[str, str]
) -> None:
    """The query goes on: its client asks for the name anew, and keeps it."""
    of = reader(server, tokens["all"])
    start = of.initialOffset()
    (before,) = server.pids
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: server.pids != (before,), "the process is started again")
    end = of.latestOffset(start, ReadAllAvailable())
    assert of.latestOffset(end, ReadAllAvailable()) == end
    with pytest.raises(ReaderInUse):
        reader(server, tokens["orders"]).initialOffset()
    of.stop()
    assert position(store) == {"orders": {0: 100, 1: 100}}


@pytest.mark.nightly
def test_topics_that_a_client_may_not_see_are_not_kept_for_it(
    store: HandMadeStore, server: Server, tokens: dict[str, str]
) -> None:
    """A pattern may match them, as far as retention knows, so they are written as passed over."""
    of = reader(server, tokens["orders"], subscribe="", subscribePattern=".*")
    end = read_all(of)
    of.stop()
    assert set(end) == {"@store", "@from", "orders"}
    assert NamedReaders(store.directory).load("billing").passed_over == {"other"}


def test_a_client_holds_some_names_and_not_all(
    store: HandMadeStore, server: Server, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a file, and retention waits for it. The limit is a small one here."""
    monkeypatch.setattr(served_store, "NAMES_PER_CLIENT_MAX", 2)
    served = served_store.ServedStore("store", store.path)
    greedy, other = Access("greedy"), Access("other")
    with closing(served):
        leases = [served.hold_name(name, greedy, "127.0.0.1:1") for name in ("a", "b")]
        with pytest.raises(ServerBusy, match="client greedy has 2 names of readers, which is the limit"):
            served.hold_name("c", greedy, "127.0.0.1:1")
        served.hold_name("c", other, "127.0.0.1:2")
        served.move_name(requests.MoveName("store", leases[0], release=True), greedy, "127.0.0.1:1")
        served.hold_name("d", greedy, "127.0.0.1:1")


def test_a_client_that_has_closed_its_end_is_gone() -> None:
    """Its socket stays here until gRPC reads that."""
    with create_server(("127.0.0.1", 0)) as listener:
        with create_connection(listener.getsockname()) as client:
            served, _ = listener.accept()
            host, port = client.getsockname()
            assert f"{host}:{port}" in peers()
        with served:
            wait_until(lambda: f"{host}:{port}" not in peers(), "the end of the connection")
