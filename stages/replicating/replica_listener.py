"""Where replicas come: one address for the whole store, over TLS with certificates on both sides.

Each that comes is greeted in a short thread of its own, so that one that says nothing keeps nobody
waiting. Then it gets a ReplicaConnection.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from commitlog.backups.small_files import SmallFiles
from commitlog.config import ReplicationConfig
from commitlog.errors import CommitLogError, ReplicationRefused
from commitlog.replicas.tls import GREETING_SECONDS, Credentials
from commitlog.replicas.wire import LENGTH, Hello, read_greeting, refusal
from commitlog.stages.replicating.lane_log import LaneLog
from commitlog.stages.replicating.peer_connection import HAConnection, Throttle
from commitlog.stages.replicating.peers import Peers
from commitlog.stages.replicating.replica_connection import ReplicaConnection
from commitlog.stages.replicating.replica_greeting import Greeting
from commitlog.system.clock import Clock
from commitlog.text.quantities import address_of

_LOOK_MS = 1_000
"""How often to look who takes too long for a greeting."""
_GREETED_MOST = 16
"""How many may be in their greetings at a time. For another one a stranger has to go."""
_STRANGER_SECONDS = 2.0
"""How long somebody may take to show a certificate."""
_WAY_SECONDS = 1.0
"""How long a stranger may take to go."""

_FOR_EVER_NS = 1 << 62

log = logging.getLogger(__name__)


@dataclass
class _Greeted:
    """Somebody in a greeting: `twin` is another descriptor of the connection."""

    twin: socket.socket
    host: str
    until_ns: int
    is_stranger: bool = True
    """Whether no certificate was shown yet."""


class ReplicaListener:
    """Listens for replicas, in a thread of its own, until `close`."""

    def __init__(
        self,
        peers: Peers,
        lane_logs: dict[int, LaneLog],
        lanes: int,
        config: ReplicationConfig,
        clock: Clock,
        throttle: Throttle,
    ) -> None:
        self._peers, self._lane_logs, self._lanes = peers, lane_logs, lanes
        self._config, self._clock, self._throttle = config, clock, throttle
        self._credentials = Credentials(Path(config.certificate), Path(config.key), Path(config.authority))
        self._greeting = Greeting(peers.directory, peers.facts, lane_logs, config)
        self._free = threading.BoundedSemaphore(_GREETED_MOST)
        self._greeted: dict[threading.Thread, _Greeted] = {}
        self._coming = threading.Lock()
        """Is held while a replica's connection takes the place of its last one."""
        self._wake, self._waker = socket.socketpair()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self.shut: dict[str, str] = {}
        """The address, and why no replica can come there; empty where one can."""

    def serve(self) -> None:
        """Opens the port, unless it is open, and looks at the certificates.

        A port that is in use is tried again later. Files of certificates may change at any time.
        """
        address = self._config.listen
        try:
            self._credentials.context(server_side=True)
            if self._listener is None:
                self._open()
            if why := self._credentials.untimely(self._clock.wall_ms()):
                raise ReplicationRefused(why)
        except (OSError, CommitLogError) as error:
            if self.shut != {address: str(error)}:
                log.error("no replica can come to %s: %s", address, error)
            self.shut = {address: str(error)}
        else:
            if self.shut:
                log.info("replicas can come to %s again", address)
            self.shut = {}

    def _open(self) -> None:
        host, port = address_of(self._config.listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=16)
        self._listener.setblocking(False)
        log.info("replicas come to %s, port %d", host, self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, args=(self._listener,), name="replicas", daemon=True)
        self._thread.start()

    def _accept(self, listener: socket.socket) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        poller.register(listener, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll(_LOOK_MS if self._greeted else None)}
            if self._wake.fileno() in ready:
                return
            self._break_off(self._clock.monotonic_ns())
            if not ready:
                continue
            try:
                peer, address = listener.accept()
                twin = peer.dup()
            except OSError as error:  # it has gone again, or there is no descriptor
                log.warning("a replica could not come: %s", error)
                self._clock.sleep(0.1)
                continue
            if not (self._free.acquire(blocking=False) or self._make_way()):
                peer.close()
                twin.close()
                continue
            where = f"{address[0]}:{address[1]}"
            thread = threading.Thread(target=self._greet, args=(peer, where), name=f"greeting {where}", daemon=True)
            self._greeted[thread] = _Greeted(
                twin, address[0], self._clock.monotonic_ns() + int(_STRANGER_SECONDS * 1e9)
            )
            thread.start()

    def _make_way(self) -> bool:
        """Ends the oldest stranger of the address that has most of them. True where one has gone.

        So those who only hold a place never keep a replica out.
        """
        strangers = [one for one in list(self._greeted.values()) if one.is_stranger]
        if not strangers:
            return False
        held = Counter(one.host for one in strangers)
        oldest = min(strangers, key=lambda one: (-held[one.host], one.until_ns))
        with suppress(OSError):  # it has just ended
            oldest.twin.shutdown(socket.SHUT_RDWR)
        return self._free.acquire(timeout=_WAY_SECONDS)

    def _break_off(self, now: int) -> None:
        """Ends the greetings that had to be over: each byte may come late, and so all too late."""
        for one in list(self._greeted.values()):
            if one.until_ns <= now:
                with suppress(OSError):  # it has just ended
                    one.twin.shutdown(socket.SHUT_RDWR)

    def _greet(self, peer: socket.socket, address: str) -> None:
        try:
            peer.settimeout(GREETING_SECONDS)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with peer:
                tls = self._credentials.context(server_side=True).wrap_socket(peer, server_side=True)
            greeted = self._greeted[threading.current_thread()]
            greeted.until_ns = self._clock.monotonic_ns() + int(GREETING_SECONDS * 1e9)
            greeted.is_stranger = False
            self._answer(tls, address)
        except (OSError, EOFError, CommitLogError) as error:
            log.warning("%s: %s", address, error)
        finally:
            self._greeted.pop(threading.current_thread()).twin.close()
            self._free.release()

    def _answer(self, tls: ssl.SSLSocket, address: str) -> None:
        """Lets it follow, or says why not. Takes over the socket."""
        with ExitStack() as stack:
            stack.enter_context(tls)
            name = ""
            try:
                hello = Hello.from_bytes(read_greeting(tls.recv_into))
                name = hello.name if hello.follows else ""
                self._greeting.check(hello, address)
                if hello.follows:
                    self._follow(tls, hello, address)
                    stack.pop_all()  # the connection closes it
                    return
                tls.sendall(self._greeting.welcome().to_bytes())
            except CommitLogError as error:
                if name:
                    self._peers.note_refusal(name, "replica", address, str(error))
                else:
                    log.warning("%s: %s", address, error)
                data = refusal(error)
                tls.sendall(LENGTH.pack(len(data)) + data)
            with suppress(OSError):  # it reads our answer before the connection is gone
                tls.unwrap()

    def _follow(self, tls: ssl.SSLSocket, hello: Hello, address: str) -> None:
        connection = ReplicaConnection(
            tls,
            hello,
            self._greeting.welcome(self._peers.acknowledged_by(hello.name)),
            self._lane_logs,
            SmallFiles(self._peers.directory),
            self._config,
            self._clock,
            self._throttle,
            self._acknowledged,
            self._completed,
            self._peers.note_end,
        )
        with self._coming:
            for other in self._peers.named(hello.name):  # its last one may be half open, and must not count twice
                other.give_way(address)
            self._peers.add(connection, "replica", address)

    def _acknowledged(self, connection: HAConnection, lane: int, where: int) -> None:
        counts = isinstance(connection, ReplicaConnection) and connection.counts
        self._peers.acknowledged(connection, lane, where, counts)

    def _completed(self, connection: ReplicaConnection, said: Mapping[int, int]) -> None:
        """Counts a replica that could be promoted from now on. It has all of an empty lane."""
        for lane in range(self._lanes):
            self._peers.in_sync.acknowledge(connection, lane, said.get(lane, 0))

    def close(self) -> None:
        """Ends the thread, and closes the port."""
        self._waker.send(b"w")
        if self._thread is not None:
            self._thread.join()
        if self._listener is not None:
            self._listener.close()
        self._break_off(_FOR_EVER_NS)
        for thread in list(self._greeted):
            thread.join()
        self._wake.close()
        self._waker.close()
