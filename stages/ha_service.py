"""Sends what is flushed to other machines: RocketMQ's HAService, its last step of a write.

It is a stage like the others, of stores that have an address in `[replication]`. The flusher wakes
it. Its main thread finds how far each lane may be sent (`replicating/lane_log.py`), and wakes a
thread for each peer (HAConnection). Peers say how far they have a lane. `REPLICATED` is the
position up to which all in-sync replicas have it (`replicating/in_sync.py`).

Two kinds of peers come to two addresses. A *replica* is a copy of the whole store, made by this
package, over TLS. A *slave* is a RocketMQ slave broker, which follows one lane: each lane has a
port.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from commitlog.appending.wakeups import REPLICATED_NOTICES, NoticePublisher
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.replication_troubles import ReplicationTroubles, save_troubles
from commitlog.errors import CommitLogError
from commitlog.shm.layout import HA_SERVICE, Lane
from commitlog.shm.memory_order import observe
from commitlog.stages.base_stage import BaseStage
from commitlog.stages.replicating.in_sync import InSync
from commitlog.stages.replicating.lane_log import LaneLog
from commitlog.stages.replicating.peer_connection import Throttle
from commitlog.stages.replicating.peer_watch import PeerWatch
from commitlog.stages.replicating.peers import Peers
from commitlog.stages.replicating.replica_listener import ReplicaListener
from commitlog.stages.replicating.slave_listener import SlaveListener
from commitlog.stages.stage_process import main
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock

_LOOK_NS = 1_000_000_000
"""How often the files of the replicas are written, and new lanes get their ports."""

log = logging.getLogger(__name__)


class HAService(BaseStage):
    """The HAService stage. `lane_logs` has the log of each lane."""

    name = HA_SERVICE
    fault_word = Lane.HA_SERVICE_FAULT
    watched = (Lane.FLUSHED, Lane.DISPATCHED)

    def __init__(self, path: Path, channel: FileChannel | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(path, channel, clock)
        self.interval_ms, self.linger_ms = 1_000, 0
        config = self.config.replication
        self._flushed = self.lanes[:, Lane.FLUSHED]
        self._notices = NoticePublisher(self.context, self.pool, REPLICATED_NOTICES)
        self.lane_logs: dict[int, LaneLog] = {}
        in_sync = InSync(self.control, len(self.lanes), config, self.clock, self._notices.publish)
        self.peers = Peers(self.directory, self.facts, self.control, config, self.clock, in_sync, self.count_action)
        throttle = Throttle(config.transfer_second_bytes, self.clock)
        self._slaves = SlaveListener(self.peers, config, self.clock, throttle) if config.slave_listen else None
        lanes = len(self.lanes)
        self._replicas = (
            ReplicaListener(self.peers, self.lane_logs, lanes, config, self.clock, throttle) if config.listen else None
        )
        self._peer_watch: PeerWatch | None = None
        self._troubles: ReplicationTroubles | None = None
        """The content of `replication.json`; None if it is not known."""
        self._looked_ns = LONG_AGO_NS

    def on_start(self) -> None:
        self._look()
        if self.config.replication.peers:
            self._peer_watch = PeerWatch(self.directory, self.facts, self.config.replication)

    def work(self) -> int:
        """Finds how much more of each lane may be sent, and wakes the peers' threads."""
        moved = 0
        for lane in np.flatnonzero(self._flushed).tolist():
            moved += self._advance(lane)
        if moved:
            self.peers.wake()
        return moved

    def _advance(self, lane: int) -> int:
        if lane not in self.lane_logs:
            self._add(lane)
            self._open_ports()
            return 1
        return self._find_limit(lane, self.lane_logs[lane])

    def _find_limit(self, lane: int, lane_log: LaneLog) -> int:
        if lane_log.limit >= observe(self.control.row(lane), Lane.FLUSHED) or not self.sound.has(lane):
            return 0
        before = lane_log.limit
        try:
            lane_log.advance()
        except (OSError, CommitLogError) as error:
            if self.set_fault(lane, getattr(error, "errno", 0) or 5):
                log.warning("lane %d can't be read: %s", lane, error)
            return 0
        self.set_fault(lane, 0)
        return lane_log.limit - before

    def _add(self, lane: int) -> None:
        """Adds a lane. Its limit is known before the first peer can ask for it."""
        size = self.facts.segment_bytes
        lane_log = LaneLog(self.directory.lane_directory(lane), self.control.row(lane), size, self.channel)
        self._find_limit(lane, lane_log)
        self.lane_logs[lane] = lane_log

    def _open_ports(self) -> None:
        if self._slaves is not None:
            self._slaves.serve(self.lane_logs)
        if self._replicas is not None:
            self._replicas.serve()

    def left(self) -> int:
        """Returns how many bytes the connected replicas lack."""
        return self.peers.left(self.lane_logs)

    def on_wait_end(self) -> None:
        if self.clock.monotonic_ns() - self._looked_ns >= _LOOK_NS:
            self._look()

    def _look(self) -> None:
        """Looks for new lanes and for peers that are too far behind, and writes what is known."""
        self._looked_ns = self.clock.monotonic_ns()
        for lane in self.directory.lane_numbers():
            if lane < len(self.lanes) and lane not in self.lane_logs:
                self._add(lane)
        self._open_ports()
        self.peers.look(self.lane_logs)
        self._note_troubles()

    def _note_troubles(self) -> None:
        """Writes `replication.json`: the troubles that `health` reports."""
        listeners = [one for one in (self._replicas, self._slaves) if one is not None]
        shut = {address: why for one in listeners for address, why in one.shut.items()}
        found = ReplicationTroubles(shut, self.peers.damaged())
        if found == self._troubles:
            return
        try:
            save_troubles(self.directory, found)
        except OSError as error:
            log.warning("%s can't be written: %s", self.directory.replication_file, error)
            return
        self._troubles = found

    def on_stop(self) -> None:
        if self._peer_watch is not None:
            self._peer_watch.close()
        if self._slaves is not None:
            self._slaves.close()
        if self._replicas is not None:
            self._replicas.close()
        self.peers.end(self.lane_logs)
        for lane_log in self.lane_logs.values():
            lane_log.close()
        del self._flushed
        self._notices.close()


if __name__ == "__main__":
    main(HAService)
