"""The limits of one process of a server: places for streams, and connections that may not stay."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from commitlog.errors import IllegalArgument, ServerBusy
from commitlog.serving import limits
from commitlog.serving.connections import peer_of
from commitlog.serving.limits import Limits
from tests.fake_clock import SetClock


@dataclass
class Door:
    """A port of this process with its limits, and what is connected to it."""

    listening: socket.socket
    open: ExitStack
    clock: SetClock = field(default_factory=SetClock)

    def __post_init__(self) -> None:
        self.limits = Limits(self.clock)
        self.limits.port = self.listening.getsockname()[1]

    def connect(self) -> Client:
        client = self.open.enter_context(socket.create_connection(self.listening.getsockname()))
        here = self.open.enter_context(self.listening.accept()[0])
        return Client(client, here, "{}:{}".format(*client.getsockname()))


@dataclass
class Client:
    """A client's end of a connection, and the server's."""

    there: socket.socket
    here: socket.socket
    peer: str

    def is_ended(self) -> bool:
        self.there.settimeout(0.05)
        try:
            return self.there.recv(1) == b""
        except TimeoutError:
            return False


@pytest.fixture
def door() -> Iterator[Door]:
    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as stack:
        yield Door(listening, stack)


@pytest.mark.parametrize(
    ("flights", "peer"),
    [
        ("ipv4:127.0.0.1:4000", "127.0.0.1:4000"),
        ("ipv6:%5B::1%5D:4000", "::1:4000"),
        ("ipv6:[::ffff:10.0.0.1]:1", "10.0.0.1:1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:2", "fe80::1:2"),
    ],
)
def test_a_peer_has_one_name(flights: str, peer: str) -> None:
    assert peer_of(flights) == peer


def test_large_requests_are_read_one_at_a_time() -> None:
    """While one is read, a small one is too."""
    large, began, others = b"x" * (limits.LARGE_BYTES + 1), threading.Event(), list[str]()

    def read_another() -> None:
        began.set()
        with limits.reading("Look", large):
            others.append("large")

    with limits.reading("Look", large):
        other = threading.Thread(target=read_another)
        other.start()
        began.wait()
        with limits.reading("Look", b"{}"):
            others.append("small")
    other.join()
    assert others == ["small", "large"]


def test_a_client_has_half_of_the_streams_at_most(door: Door) -> None:
    calls = door.limits
    with ExitStack() as streams:
        for _ in range(limits.STREAMS_MAX // 2):
            streams.enter_context(calls.stream("greedy", "127.0.0.1:1"))
        with (
            pytest.raises(ServerBusy, match="128 open streams of greedy, which is its limit"),
            calls.stream("greedy", ""),
        ):
            pass
        for number in range(limits.STREAMS_MAX - limits.STREAMS_MAX // 2):
            streams.enter_context(calls.stream(f"other {number % 4}", "127.0.0.1:2"))
        with pytest.raises(ServerBusy, match="256 open streams of all clients"), calls.stream("late", ""):
            pass
    with calls.stream("greedy", ""), calls.stream("late", ""):
        pass


def test_a_stream_that_has_not_moved_gives_its_place_to_others(door: Door) -> None:
    """But only where one is wanted, and no connection is ended on which a stream moves."""
    calls, stalled, moving = door.limits, door.connect(), door.connect()
    for client in (stalled, moving):
        calls.let_in(client.peer)
    with ExitStack() as streams:
        for _ in range(limits.STREAMS_MAX // 2 - 2):
            streams.enter_context(calls.stream("client", stalled.peer))
        streams.enter_context(calls.stream("client", moving.peer))
        moved = streams.enter_context(calls.stream("client", moving.peer))
        door.clock.pass_seconds(limits.STALLED_SECONDS + 1)
        moved()
        calls.look()
        with calls.stream("another", ""):
            assert not stalled.is_ended()
        with pytest.raises(ServerBusy), calls.stream("client", ""):
            pass
        assert stalled.is_ended()
        assert not moving.is_ended()


def test_an_unknown_connection_is_ended_after_a_while(door: Door) -> None:
    unknown, known = door.connect(), door.connect()
    assert door.limits.look() == {unknown.peer, known.peer}
    door.limits.let_in(known.peer)
    door.clock.pass_seconds(limits.UNKNOWN_SECONDS + 1)
    assert door.limits.look() == {known.peer}
    assert unknown.is_ended()
    assert not known.is_ended()


def test_an_unknown_connection_that_sends_much_is_ended_at_once(door: Door) -> None:
    unknown, known = door.connect(), door.connect()
    door.limits.let_in(known.peer)
    for client in (unknown, known):
        for _ in range(limits.UNKNOWN_BYTES_MAX // 4096 + 1):
            client.there.sendall(bytes(4096))
            client.here.recv(4096, socket.MSG_WAITALL)
    assert door.limits.look() == {known.peer}
    assert not known.is_ended()


def test_too_many_connections(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown ones are ended first, then those without a stream."""
    idle, reading, unknown = door.connect(), door.connect(), door.connect()
    for client in (idle, reading):
        door.limits.let_in(client.peer)
    with door.limits.stream("client", reading.peer):
        monkeypatch.setattr(limits, "CONNECTIONS_MAX", 2)
        assert door.limits.look() == {idle.peer, reading.peer}
        assert unknown.is_ended()
        unknown.here.close()
        monkeypatch.setattr(limits, "CONNECTIONS_MAX", 0)
        assert door.limits.look() == {reading.peer}
        assert idle.is_ended()
        assert not reading.is_ended()


def test_other_connections_of_the_process_are_none_of_its_business(door: Door) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_connection(other.getsockname()):
        door.connect()
        assert len(door.limits.look()) == 1


def test_a_request_that_is_too_large() -> None:
    with limits.reading("Look", bytes(limits.REQUEST_BYTES_MAX)):
        pass
    too_large = limits.reading("Look", bytes(limits.REQUEST_BYTES_MAX + 1))
    with pytest.raises(IllegalArgument, match="Look: 8,388,609 bytes; allowed are 8,388,608"), too_large:
        pass


def test_a_client_has_half_of_the_calls_at_most() -> None:
    places = limits.Places("open calls", 4)
    with ExitStack() as calls:
        for _ in range(2):
            calls.enter_context(places.taken("greedy"))
        with pytest.raises(ServerBusy, match="the server has 2 open calls of greedy"), places.taken("greedy"):
            pass
        for client in ("a", "b"):
            calls.enter_context(places.taken(client))
        with pytest.raises(ServerBusy, match="the server has 4 open calls of all clients"), places.taken("c"):
            pass
    with places.taken("greedy"), places.taken("c"):
        pass


def test_a_silent_stream_gives_its_lane_back(door: Door) -> None:
    """One that only reads may be silent, and so may one beside which another stream moves."""
    calls = door.limits
    silent, reading, moving = door.connect(), door.connect(), door.connect()
    for client in (silent, reading, moving):
        calls.let_in(client.peer)
    with (
        calls.stream("a", silent.peer, holds_lane=True),
        calls.stream("a", reading.peer),
        calls.stream("a", moving.peer, holds_lane=True),
        calls.stream("a", moving.peer) as moved,
    ):
        door.clock.pass_seconds(limits.SILENT_SECONDS + 1)
        moved()
        calls.look()
        assert silent.is_ended()
        assert not reading.is_ended()
        assert not moving.is_ended()


def test_connections_are_looked_at_more_often_while_one_is_unknown(door: Door) -> None:
    """Its bytes and its time count: `has_unknown` says so. A known one costs nothing."""
    client = door.connect()
    door.limits.look()
    assert door.limits.has_unknown
    door.limits.let_in(client.peer)
    door.limits.look()
    assert not door.limits.has_unknown
