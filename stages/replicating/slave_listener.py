"""Where RocketMQ's slaves come: a port for each lane, because their protocol names no lane.

RocketMQ 4 takes the master's address from its configuration. RocketMQ 5 is told it by its name
server, with a request to the slave's own port. Here the HAService sends this request to the slaves
that the configuration names, whenever one of them does not follow its lane.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import struct
import threading
from collections.abc import Mapping

import orjson

from commitlog.config import ReplicationConfig
from commitlog.stages.replicating.lane_log import LaneLog
from commitlog.stages.replicating.peer_connection import HAConnection, Throttle
from commitlog.stages.replicating.peers import Peers
from commitlog.stages.replicating.slave_connection import SlaveConnection
from commitlog.system.clock import Clock
from commitlog.text.quantities import address_of

_EXCHANGE_BROKER_HA_INFO = 906
_ANSWER_SECONDS = 3
_TELL_MS = 1_000
"""How often to look which of the configured slaves do not follow."""

log = logging.getLogger(__name__)


class SlaveListener:
    """Listens for slaves, in a thread of its own, until `close`.

    Lane n has the port of `slave_listen` plus n; with port 0 each has any free one.
    """

    def __init__(self, peers: Peers, config: ReplicationConfig, clock: Clock, throttle: Throttle) -> None:
        self._peers, self._config, self._clock, self._throttle = peers, config, clock, throttle
        self._host, self._port = address_of(config.slave_listen)
        self._listeners: dict[int, tuple[socket.socket, LaneLog]] = {}
        """Lane → its socket, and its log."""
        self.shut: dict[str, str] = {}
        """The addresses that no slave can come to, and why."""
        self._told_ns: dict[str, int] = {}
        self._silent: set[str] = set()
        """Slave brokers that do not answer: it is said once."""
        self._wake, self._waker = socket.socketpair()
        self._stop = False
        self._thread = threading.Thread(target=self._accept, name="slaves", daemon=True)
        self._thread.start()

    def serve(self, lane_logs: Mapping[int, LaneLog]) -> None:
        """Opens the ports of new lanes."""
        for lane, lane_log in lane_logs.items():
            if lane not in self._listeners:
                self._listen(lane, lane_log)

    def port(self, lane: int) -> int:
        """The port of a lane that has one."""
        return int(self._listeners[lane][0].getsockname()[1])

    def _listen(self, lane: int, lane_log: LaneLog) -> None:
        port = self._port + lane if self._port else 0
        address = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        try:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            listener = socket.create_server((self._host, port), family=family, backlog=16)
        except OSError as error:
            if self.shut.get(address) != str(error):
                log.error("lane %d: no slave can come to %s: %s", lane, address, error)
            self.shut[address] = str(error)
            return
        self.shut.pop(address, None)
        listener.setblocking(False)
        self._listeners[lane] = listener, lane_log
        log.info("lane %d: slaves come to %s:%d", lane, self._host, self.port(lane))
        self._waker.send(b"w")

    def _accept(self) -> None:
        while not self._stop:
            poller, lanes = select.poll(), {}
            poller.register(self._wake, select.POLLIN)
            for lane, (listener, _) in list(self._listeners.items()):
                poller.register(listener, select.POLLIN)
                lanes[listener.fileno()] = lane
            for fd, _ in poller.poll(_TELL_MS if self._config.slaves else None):
                if fd == self._wake.fileno():
                    self._wake.recv(4096)
                else:
                    self._take(lanes[fd])
            self._tell_slaves()

    def _tell_slaves(self) -> None:
        """Tells the configured slaves that do not follow their lanes where their master is.

        A slave that is silent keeps only those waiting that come now, and no message.
        """
        for lane, address in slaves_of(self._config.slaves):
            is_there = self._peers.named(self._name(lane, address.rpartition(":")[0]))
            if lane in self._listeners and not is_there and not self._stop:
                self._tell(lane, address)

    def _take(self, lane: int) -> None:
        listener, lane_log = self._listeners[lane]
        try:
            with contextlib.ExitStack() as undo:
                peer, address = listener.accept()
                undo.callback(peer.close)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = SlaveConnection(
                    peer,
                    self._name(lane, address[0]),
                    lane_log,
                    self._config,
                    self._clock,
                    self._throttle,
                    self._acknowledged,
                    self._peers.note_end,
                )
                undo.pop_all()
        except OSError as error:  # it has gone again, or there is no descriptor
            log.warning("lane %d: a slave could not come: %s", lane, error)
            self._clock.sleep(0.1)
            return
        self._peers.add(connection, "slave", f"{address[0]}:{address[1]}")

    @staticmethod
    def _name(lane: int, host: str) -> str:
        """A slave's name: its protocol has none. All slaves of a host and lane are one."""
        return f"slave-{host.replace('%', '-')}-{lane}"

    def _acknowledged(self, connection: HAConnection, lane: int, where: int) -> None:
        self._peers.acknowledged(connection, lane, where, self._config.slaves_count)

    def _tell(self, lane: int, address: str) -> None:
        """Tells a slave broker of RocketMQ 5 who its master is, again and again until it comes."""
        now = self._clock.monotonic_ns()
        if now - self._told_ns.get(address, -1 << 62) < self._config.heartbeat_ms * 1_000_000:
            return
        self._told_ns[address] = now
        try:
            with socket.create_connection(address_of(address), timeout=_ANSWER_SECONDS) as peer:
                own = peer.getsockname()[0]
                peer.sendall(ha_info(f"{own}:{self.port(lane)}"))
                peer.recv(4)  # its answer says nothing that matters
        except OSError as error:
            if address not in self._silent:
                log.warning("lane %d: slave broker %s does not answer: %s", lane, address, error)
            self._silent.add(address)
        else:
            self._silent.discard(address)

    def close(self) -> None:
        """Ends the thread, and closes all ports."""
        self._stop = True
        self._waker.send(b"w")
        self._thread.join()
        for listener, _ in self._listeners.values():
            listener.close()
        self._wake.close()
        self._waker.close()


def slaves_of(text: str) -> list[tuple[int, str]]:
    """Lane and address of each slave in `replication.slaves`: "0=host:10911 1=host:10921"."""
    pairs = (part.partition("=") for part in text.split())
    return [(int(lane), address) for lane, _, address in pairs]


def ha_info(master: str) -> bytes:
    """RocketMQ's request EXCHANGE_BROKER_HA_INFO: where the master of a slave is."""
    fields = {"masterHaAddress": master, "masterAddress": "", "masterFlushOffset": "0"}
    head = orjson.dumps(
        {
            "code": _EXCHANGE_BROKER_HA_INFO,
            "language": "OTHER",
            "version": 0,
            "opaque": 1,
            "flag": 0,
            "extFields": fields,
        }
    )
    return struct.pack(">ii", 4 + len(head), len(head)) + head
