"""Which replicas are in sync, and what all of them have.

These are Kafka's in-sync replicas and its high watermark.

RocketMQ's GroupTransferService waits until enough slaves have a message, whichever they are. So a
slave that is near enough may lack a message that another one has acknowledged. Here `REPLICATED`
counts what *every* in-sync replica has: whichever of them is promoted, it has all of that. A
replica comes in when it has everything that counts as replicated, and goes out when it is too far
behind or gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from commitlog.config import ReplicationConfig
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane
from commitlog.shm.memory_order import observe, publish
from commitlog.system.clock import Clock

Published = Callable[[int, int, int], None]
"""Is called with lane, flushed and replicated when somebody listens."""


class InSync:
    """The acknowledgements of all connected replicas that count. Any thread may use it.

    `peer` names a connection: a replica that comes again is another peer. `name` is the replica's.
    RocketMQ's slaves have the name of their address, which others may share, as through a tunnel.
    So two of one name may be two replicas, or one whose last connection is half open. They count as
    two only where each has acknowledged what was flushed after both had come: nobody gets that by a
    connection that he has left.
    """

    def __init__(
        self, control: ControlRegion, lanes: int, config: ReplicationConfig, clock: Clock, publish: Published
    ) -> None:
        self._control, self._config, self._clock, self._publish = control, config, clock, publish
        self._lock = threading.Lock()
        self._acknowledged: dict[int, dict[object, int]] = {lane: {} for lane in range(lanes)}
        self._members: dict[int, set[object]] = {lane: set() for lane in range(lanes)}
        self._names: dict[object, str] = {}
        """Peer → the name of its replica."""
        self._came: dict[object, list[int]] = {}
        """Peer → how far each lane was flushed when it came."""
        self._came_in_at: dict[int, int] = {}
        """How far a replica has to be to come in: what an earlier pool counted is unknown here."""
        for lane in range(lanes):
            row = control.row(lane)
            row[Lane.IN_SYNC] = 0
            self._came_in_at[lane] = observe(row, Lane.REPLICATED) or observe(row, Lane.FLUSHED)

    def come(self, peer: object, name: str) -> None:
        """Notes a new peer. It has to be called before the peer can be heard."""
        with self._lock:
            self._names[peer] = name
            self._came[peer] = [observe(self._control.row(lane), Lane.FLUSHED) for lane in self._acknowledged]

    def acknowledge(self, peer: object, lane: int, where: int) -> int:
        """Notes that a peer has a lane up to `where`. Returns by how far REPLICATED moved."""
        with self._lock:
            self._acknowledged[lane][peer] = where
            return self._count(lane)

    def leave(self, peer: object) -> None:
        """Forgets a peer whose connection has ended: what it has acknowledged counts no more."""
        with self._lock:
            for lane, acknowledged in self._acknowledged.items():
                if acknowledged.pop(peer, None) is not None:
                    self._members[lane].discard(peer)
                    self._count(lane)
            self._names.pop(peer, None)
            self._came.pop(peer, None)

    def look(self) -> None:
        """Counts no replica as in sync that is too far behind, also where it says nothing."""
        with self._lock:
            for lane, members in self._members.items():
                if members:
                    self._count(lane)

    def is_member(self, peer: object, lane: int) -> bool:
        return peer in self._members[lane]

    def _replicas(self, lane: int) -> int:
        """How many replicas the members are, at least."""
        acknowledged, last_came = self._acknowledged[lane], dict[str, int]()
        for peer in acknowledged:
            name = self._names[peer]
            last_came[name] = max(last_came.get(name, 0), self._came[peer][lane])
        names = [self._names[peer] for peer in self._members[lane]]
        proven = [
            self._names[peer] for peer in self._members[lane] if acknowledged[peer] > last_came[self._names[peer]]
        ]
        return sum(max(proven.count(name), 1) for name in set(names))

    def _count(self, lane: int) -> int:
        row, members = self._control.row(lane), self._members[lane]
        flushed, replicated = observe(row, Lane.FLUSHED), observe(row, Lane.REPLICATED)
        for peer, where in self._acknowledged[lane].items():
            if flushed - where >= self._config.fall_behind_max_bytes:
                members.discard(peer)
            elif where >= max(replicated, self._came_in_at[lane]):
                members.add(peer)
        count = row[Lane.IN_SYNC] = self._replicas(lane)
        if count < self._config.min_in_sync:
            return 0
        everywhere = min(self._acknowledged[lane][peer] for peer in members)
        if everywhere <= replicated:
            return 0
        row[Lane.REPLICATED_NS] = self._clock.monotonic_ns()
        publish(row, Lane.REPLICATED, everywhere)
        if row[Lane.LISTENING]:
            self._publish(lane, flushed, everywhere)
        return everywhere - replicated
