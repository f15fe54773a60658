"""RocketMQ's HA protocol, from the master's side: a slave broker follows one lane.

    master → slave    i64 offset │ i32 size │ body     a frame; size 0: a heartbeat
    slave → master    i64 offset                       first its request, then acknowledgements

The protocol has no greeting, no names and no encryption. A slave that has nothing asks for 0, and
gets the log from its first kept offset on. Others get it from where they are. RocketMQ's slaves
take frames of 4 MiB at most, with their head. A frame must not cross the end of a segment.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from commitlog.config import ReplicationConfig
from commitlog.errors import ReplicaRefused
from commitlog.stages.replicating.lane_log import LaneLog, LaneReader
from commitlog.stages.replicating.peer_connection import Acknowledged, HAConnection, Throttle
from commitlog.system.clock import Clock

HEAD = struct.Struct(">qi")
_OFFSET = struct.Struct(">q")


class SlaveConnection(HAConnection):
    """One RocketMQ slave, which follows one lane.

    `where` is the offset that is sent next; −1 before the slave has asked.
    """

    def __init__(
        self,
        peer: socket.socket,
        name: str,
        log: LaneLog,
        config: ReplicationConfig,
        clock: Clock,
        throttle: Throttle,
        acknowledged: Acknowledged,
        ended: Callable[[HAConnection, str], None],
    ) -> None:
        super().__init__(peer, name, config, clock, ended)
        self.lane_log, self.lane = log, log.directory.number
        self._reader, self._throttle, self._acknowledged = LaneReader(log), throttle, acknowledged
        self.where = -1
        self._heard = b""

    def greet(self) -> None:
        """Neither side does."""

    def take(self, data: bytes) -> None:
        data = self._heard + data
        whole = len(data) - len(data) % _OFFSET.size
        self._heard = data[whole:]
        if not whole:
            return
        (offset,) = _OFFSET.unpack_from(data, whole - _OFFSET.size)
        if self.where < 0:
            (request,) = _OFFSET.unpack_from(data)
            self.where = self._begin(request)
            if not request:
                return
        if not 0 <= offset <= self.where:
            raise ReplicaRefused(
                f"it acknowledges offset {offset:,} of lane {self.lane}, and only {self.where:,} was sent: it follows "
                f"another log; empty that slave's store, and start it again"
            )
        self._acknowledged(self, self.lane, offset)

    def _begin(self, request: int) -> int:
        """Where to begin for a slave that asks for an offset. Raises ReplicaRefused."""
        first, limit = self.lane_log.first, self.lane_log.limit
        if request == 0:
            return first
        if request < first:
            raise ReplicaRefused(
                f"it asks for offset {request:,} of lane {self.lane}, and retention keeps the log from {first:,} on: it is "
                f"too far behind; empty that slave's store, and start it again"
            )
        if request > limit:
            raise ReplicaRefused(
                f"it asks for offset {request:,} of lane {self.lane}, whose log ends at {limit:,}: it has another log, or "
                f"more than this store; empty that slave's store, and start it again"
            )
        return request

    def send_next(self) -> bool:
        if self.where < 0 or self.where >= self.lane_log.limit or not self._throttle.take(0):
            return False
        count = self._reader.read_into(self.room[HEAD.size :], self.where)
        HEAD.pack_into(self.room, 0, self.where, count)
        self._throttle.take(count)
        self.send(self.room[: HEAD.size + count])
        self.where += count
        return True

    def send_heartbeat(self) -> None:
        if self.where >= 0:
            self.send(HEAD.pack(self.where, 0))

    def finish(self) -> None:
        self._reader.close()
