"""All peers of a store: their threads, and what is known of each replica."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from commitlog.config import ReplicationConfig
from commitlog.disk.replica_files import Lag, ReplicaFiles, ReplicaState, lacking
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import DamagedFile
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane
from commitlog.shm.memory_order import observe
from commitlog.stages.replicating.in_sync import InSync
from commitlog.stages.replicating.lane_log import LaneLog
from commitlog.stages.replicating.peer_connection import HAConnection
from commitlog.system.clock import Clock

_END_NS = 1_000_000_000
"""How long a stop waits until connections have sent their last frames."""

log = logging.getLogger(__name__)


class Peers:
    """The connections that are open, and the state of every replica that ever came.

    Any thread may use it. `count_action` is told how long it took from flushed to replicated.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        facts: StoreFacts,
        control: ControlRegion,
        config: ReplicationConfig,
        clock: Clock,
        in_sync: InSync,
        count_action: Callable[[int], None],
    ) -> None:
        self.directory, self.facts, self.control = directory, facts, control
        self._config, self._clock, self.in_sync, self._count_action = config, clock, in_sync, count_action
        self._lock = threading.RLock()
        self._connections: list[HAConnection] = []
        self._files = ReplicaFiles(directory)
        self._saved: dict[str, bytes] = {}
        """Name of a replica → what its file says. Only the main thread uses it."""
        self._states: dict[str, ReplicaState] = {}
        self._lags: dict[str, Lag] = {}
        """Name of a replica → since when it lacks what it lacks."""
        self._sent_before: dict[str, int] = {}
        """Name of a replica → the bytes that its earlier connections were sent."""
        self._looked_ns = clock.monotonic_ns()
        self._load_states()

    def _load_states(self) -> None:
        try:
            names = self._files.names()
        except OSError as error:
            log.warning("the replicas of earlier runs are not known: %s", error)
            return
        for name in names:
            try:
                state = self._files.load(name)
            except (OSError, DamagedFile) as error:
                log.warning("%s", error)
                continue
            if state.store_id == self.facts.id:
                state.connected, state.in_sync = False, []
                self._states[name], self._sent_before[name] = state, state.sent_bytes

    # ---- coming and going -----------------------------------------------------------------------

    def add(self, connection: HAConnection, kind: str, address: str) -> None:
        """Starts the thread of a new connection."""
        with self._lock:
            name = connection.peer_name
            state = self._states.setdefault(name, ReplicaState(name, kind, self.facts.id))
            state.kind, state.address, state.connected, state.refusal = kind, address, True, ""
            state.connects += 1
            state.seen_ms = self._clock.wall_ms()
            self._connections.append(connection)
            self.in_sync.come(connection, name)
            connection.start()
        log.info("%s: connected from %s", name, address)

    def note_refusal(self, name: str, kind: str, address: str, why: str) -> None:
        """Notes that a replica was refused, for everybody who asks what is wrong with it."""
        with self._lock:
            state = self._states.setdefault(name, ReplicaState(name, kind, self.facts.id))
            state.address, state.refusal, state.seen_ms = address, why, self._clock.wall_ms()
        log.warning("%s: refused: %s", name, why)

    def acknowledged(self, connection: HAConnection, lane: int, where: int, counts: bool) -> None:
        """Notes how far a replica has a lane. `counts` says that it counts for REPLICATED."""
        row = self.control.row(lane)
        moved = self.in_sync.acknowledge(connection, lane, where) if counts else 0
        with self._lock:
            if moved and where >= observe(row, Lane.FLUSHED) and row[Lane.FLUSHED_NS]:
                self._count_action(max(row[Lane.REPLICATED_NS] - row[Lane.FLUSHED_NS], 0))
            state = self._states.get(connection.peer_name)
            if state is not None:
                state.acknowledged[lane] = where
                state.seen_ms = self._clock.wall_ms()

    def note_end(self, connection: HAConnection, refusal: str) -> None:
        """Notes that a connection has ended, and why its replica was refused, if it was."""
        self.in_sync.leave(connection)
        with self._lock:
            if connection in self._connections:
                self._connections.remove(connection)
            state = self._states.get(connection.peer_name)
            if state is not None:
                self._sent_before[state.name] = self._sent_before.get(state.name, 0) + connection.sent_bytes
                state.connected = any(one.peer_name == state.name for one in self._connections)
                state.refusal = refusal or state.refusal  # an older connection may end later

    def named(self, name: str) -> list[HAConnection]:
        """The open connections of one replica."""
        with self._lock:
            return [one for one in self._connections if one.peer_name == name]

    def damaged(self) -> dict[str, str]:
        """The small files that a connection has found to be damaged, and why."""
        with self._lock:
            return {name: why for one in self._connections for name, why in one.damaged.items()}

    def acknowledged_by(self, name: str) -> dict[int, int]:
        """How far a replica had each lane when it was heard of last."""
        with self._lock:
            state = self._states.get(name)
            return dict(state.acknowledged) if state else {}

    # ---- the main thread ------------------------------------------------------------------------

    def wake(self) -> None:
        """Tells all threads that there is more to send."""
        with self._lock:
            for connection in self._connections:
                connection.wake()

    def left(self, lane_logs: Mapping[int, LaneLog]) -> int:
        """How many bytes the connected replica lacks that lacks most."""
        with self._lock:
            connected = [state for state in self._states.values() if state.connected]
            return max((lacking(_ends(state, lane_logs), state.acknowledged) for state in connected), default=0)

    def look(self, lane_logs: Mapping[int, LaneLog]) -> None:
        """Counts who is in sync, and writes the files of replicas that have changed."""
        self.in_sync.look()
        self._drop_forgotten()
        now, looked_ns = self._clock.wall_ms(), self._clock.monotonic_ns()
        seconds = max(looked_ns - self._looked_ns, 1) / 1e9
        self._looked_ns = looked_ns
        with self._lock:
            for state in self._states.values():
                ends = _ends(state, lane_logs)
                state.behind_bytes = lacking(ends, state.acknowledged)
                lag = self._lags.setdefault(state.name, Lag())
                state.behind_since_ms = lag.since(state.behind_since_ms, now, ends, state.acknowledged)
                connections = [one for one in self._connections if one.peer_name == state.name]
                lanes = (lane for lane in lane_logs if any(self.in_sync.is_member(one, lane) for one in connections))
                state.in_sync = sorted(lanes)
                sent = self._sent_before.get(state.name, 0) + sum(one.sent_bytes for one in connections)
                state.sent_bytes_per_second = round((sent - state.sent_bytes) / seconds, 1)
                state.sent_bytes = sent
            states = [replace(state, acknowledged=dict(state.acknowledged)) for state in self._states.values()]
        for state in states:
            self._save(state)

    def _drop_forgotten(self) -> None:
        """Drops what is known of replicas whose file somebody has removed, if they are gone."""
        try:
            there = set(self._files.names())
        except OSError as error:
            log.warning("which replicas were forgotten is not known: %s", error)
            return
        with self._lock:
            for name in self._saved.keys() - there:
                del self._saved[name]
                if not self._states[name].connected:
                    del self._states[name]
                    self._sent_before.pop(name, None)
                    self._lags.pop(name, None)

    def _save(self, state: ReplicaState) -> None:
        known = repr(state).encode()
        if self._saved.get(state.name) == known:
            return
        try:
            self._files.save(state)
        except OSError as error:
            log.warning("replica %s: its file can't be written: %s", state.name, error)
            return
        self._saved[state.name] = known

    def end(self, lane_logs: Mapping[int, LaneLog]) -> None:
        """Ends all connections, and writes the files a last time."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.end()
        until = self._clock.monotonic_ns() + _END_NS
        for connection in connections:
            connection.join(max(until - self._clock.monotonic_ns(), 0) / 1e9)
            if connection.is_alive():  # it sends, and its peer takes little or nothing
                connection.break_off()
        self.look(lane_logs)


def _ends(state: ReplicaState, lane_logs: Mapping[int, LaneLog]) -> dict[int, int]:
    """How far a replica may be sent the lanes. A slave has one lane only."""
    lanes = lane_logs if state.kind == "replica" else lane_logs.keys() & state.acknowledged.keys()
    return {lane: lane_logs[lane].limit for lane in lanes}
