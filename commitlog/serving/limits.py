"""Limits, so that a slow or hostile client costs no other one anything.

A connection is known once a call on it has said who asks. gRPC reads a whole message into memory
before anybody is asked that, and waits long for a handshake. So this module looks at the
connections. It ends a connection that is unknown for too long, or sends too much before it is
known.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, is_dataclass

import pyarrow as pa

from commitlog.errors import IllegalArgument, ServerBusy
from commitlog.serving.connections import end_connections, received
from commitlog.system.clock import SYSTEM_CLOCK, Clock

ACTIONS_MAX = 128
"""Actions and questions about flights at the same time. Each has a thread."""
WAITS_MAX = 1_024
"""Clients that wait for new rows at the same time. Each has a thread, which sleeps."""
STREAMS_MAX = 256
"""Open streams of a process. Each has a thread, and one batch in memory."""
CONNECTIONS_MAX = 1_000
"""Connections of a process. A descriptor each, of which the segments need some too."""
UNKNOWN_SECONDS = 10.0
"""How long a connection may be without a call that is let in. A handshake takes a few ms."""
UNKNOWN_BYTES_MAX = 1 << 20
"""What may come over a connection that is not known yet. A handshake has a few KiB."""
STALLED_SECONDS = 600.0
"""A stream that has not moved for this long gives its place to another one that needs it."""
SILENT_SECONDS = 3600.0
"""A stream that has not moved for this long, and holds a lane, gives it back."""
REQUEST_BYTES_MAX = 8 << 20
"""A ticket, or the body of an action. The ranges of 100,000 queues take less."""
LARGE_BYTES = 64 << 10
"""A larger request than this takes some ms to read, and one of 8 MiB up to 0.3 s."""
NAMED_MAX = 100_000
"""Topics, queues or slices of a request: each costs a look at the index, for which others wait."""
COLUMNS_MAX = 4_096
"""Columns of a read, with those inside of others. Each takes some KiB of each batch."""


@dataclass
class _Stream:
    client: str
    peer: str
    moved_ns: int
    holds_lane: bool


class Places:
    """Places for what clients do at the same time: at most half of them for one client."""

    def __init__(self, what: str, most: int) -> None:
        self._what, self._most = what, most
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, client: str) -> Iterator[None]:
        """Takes a place. Raises ServerBusy where there is none for this client."""
        with self._lock:
            own, every = self._taken[client], self._taken.total()
            if own >= self._most // 2 or every >= self._most:
                count, whose = (own, f"of {client}") if own >= self._most // 2 else (every, "of all clients")
                raise ServerBusy(f"the server has {count} {self._what} {whose}, which is its limit; try again")
            self._taken[client] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[client] -= 1
                self._taken += Counter()  # drops those without any


class Limits:
    """What is open in this process, by client and by connection. Threads may share it.

    A `peer` is `host:port` of a client's end of its connection.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.port = 0
        """Where clients connect to this process."""
        self.has_unknown = False
        """Whether the last look has left connections that are not known yet."""
        self._reads_max = STREAMS_MAX
        self.actions, self.waits = Places("open calls", ACTIONS_MAX), Places("waiting calls", WAITS_MAX)
        self._clock = clock
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._numbers = 0
        self._known: set[str] = set()
        self._since_ns: dict[str, int] = {}
        """Peer → when the connection was seen first."""

    def lower(self, streams: int, waits: int) -> None:
        """Sets lower limits, where there is less memory. One client has half of these, too.

        `streams` are those that read. One that appends may be open for days, and holds little.
        """
        self._reads_max = max(min(streams, STREAMS_MAX), 2)
        self.waits = Places("waiting calls", max(min(waits, WAITS_MAX), 2))

    def let_in(self, peer: str) -> None:
        """Says that a call on a connection has said who asks."""
        with self._lock:
            self._known.add(peer)

    @contextmanager
    def stream(self, client: str, peer: str, *, holds_lane: bool = False) -> Iterator[Callable[[], None]]:
        """A place for an open stream. The function that it gives says that the stream has moved.

        Raises ServerBusy where there is none for this client.
        """
        stream = _Stream(client, peer, self._clock.monotonic_ns(), holds_lane)
        with self._lock:
            crowd, whose = self._crowd(client, holds_lane=holds_lane)
            if not crowd:
                self._numbers += 1
                number = self._numbers
                self._streams[number] = stream
        if crowd:
            self._end_stalled(crowd, STALLED_SECONDS)
            raise ServerBusy(f"the server has {len(crowd)} open streams {whose}, which is its limit; try again")
        try:
            yield lambda: setattr(stream, "moved_ns", self._clock.monotonic_ns())
        finally:
            with self._lock:
                del self._streams[number]

    def _crowd(self, client: str, *, holds_lane: bool) -> tuple[list[_Stream], str]:
        """The streams that leave no place for another one, and whose they are; none if one is free.

        One client has half of the places: its token, or its host where there are no tokens.
        """
        every = list(self._streams.values())
        limits = [(every, STREAMS_MAX)]
        if not holds_lane:
            limits.append(([stream for stream in every if not stream.holds_lane], self._reads_max))
        for streams, most in limits:
            own = [stream for stream in streams if stream.client == client]
            if len(own) >= most // 2:
                return own, f"of {client}"
            if len(streams) >= most:
                return streams, "of all clients"
        return [], ""

    def _end_stalled(self, crowd: list[_Stream], seconds: float) -> None:
        """Ends the connections of which no stream moves. gRPC can't end a single stream."""
        before = self._clock.monotonic_ns() - int(seconds * 1e9)
        with self._lock:
            moving = {stream.peer for stream in self._streams.values() if stream.moved_ns > before}
        ended = {stream.peer for stream in crowd} - moving
        if ended:
            end_connections(self.port, ended)

    def look(self) -> set[str]:
        """Ends the connections that may not stay, and returns the peers of all."""
        with self._lock:
            holding = [stream for stream in self._streams.values() if stream.holds_lane]
            known_before = set(self._known)  # one that comes meanwhile is not in what is received
        self._end_stalled(holding, SILENT_SECONDS)
        connected, now = received(self.port), self._clock.monotonic_ns()
        self._since_ns = {peer: self._since_ns.get(peer, now) for peer in connected}
        with self._lock:
            self._known -= known_before - connected.keys()
            unknown = [peer for peer in connected if peer not in self._known]
        ended = {
            peer
            for peer in unknown
            if connected[peer] > UNKNOWN_BYTES_MAX or now - self._since_ns[peer] > UNKNOWN_SECONDS * 1e9
        }
        too_many = len(connected) - CONNECTIONS_MAX
        if too_many > 0:
            ended.update(self._least_needed(unknown, connected.keys() - set(unknown))[:too_many])
        if ended:
            end_connections(self.port, ended)
        self.has_unknown = not ended.issuperset(unknown)
        return set(connected) - ended

    def _least_needed(self, unknown: list[str], known: set[str]) -> list[str]:
        """Unknown connections, the oldest first; then those without streams, the newest first."""
        with self._lock:
            used = {stream.peer for stream in self._streams.values()}
        idle = sorted(known - used, key=self._since_ns.__getitem__, reverse=True)
        return [*sorted(unknown, key=self._since_ns.__getitem__), *idle]


def check_named(what: str, request: object) -> None:
    """Raises IllegalArgument for a request that names too much."""
    for field, value in vars(request).items():
        named = _named(value)
        if named > NAMED_MAX:
            raise IllegalArgument(f"{what}: {named:,} in {field}; allowed are {NAMED_MAX:,}")


def _named(value: object) -> int:
    if isinstance(value, dict):
        return sum(max(_named(one), 1) for one in value.values())
    if is_dataclass(value):
        return max(map(_named, vars(value).values()), default=0)
    return len(value) if isinstance(value, tuple) else 1


def check_columns(schema: pa.Schema) -> None:
    """Raises IllegalArgument for a schema with too many columns."""
    left, count = [field.type for field in schema], 0
    while left:
        kind = left.pop()
        count += 1
        if count + len(left) > COLUMNS_MAX:
            raise IllegalArgument(
                f"{len(schema):,} columns, with those inside of them; allowed are {COLUMNS_MAX:,}: read fewer at a time"
            )
        left += [kind.field(number).type for number in range(kind.num_fields)]


_reads_large = threading.Lock()


@contextmanager
def reading(what: str, data: bytes) -> Iterator[None]:
    """Held while a request is read, which stops all other threads. Large ones go one by one.

    So whoever sends many of them keeps others waiting for one only. Raises IllegalArgument for a
    request that is larger than any of ours.
    """
    if len(data) > REQUEST_BYTES_MAX:
        raise IllegalArgument(f"{what}: {len(data):,} bytes; allowed are {REQUEST_BYTES_MAX:,}")
    with _reads_large if len(data) > LARGE_BYTES else nullcontext():
        yield
