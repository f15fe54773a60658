"""One peer's connection, as a thread: RocketMQ's HAConnection.

RocketMQ has a thread that reads and one that writes. Here one thread waits for both: for bytes of
the peer, and for the main thread, which says that there is more to send. A frame is sent as a
whole. Meanwhile the acknowledgements of the peer wait in the socket's buffer; they are small.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress

from commitlog.config import ReplicationConfig
from commitlog.errors import CommitLogError
from commitlog.system.clock import Clock

_RECEIVE_BYTES = 1 << 16
_FRAME_BYTES = 2 << 20
"""How much a connection reads and sends at a time. Less costs both sides more CPU a byte."""
_SECOND_NS = 1_000_000_000

log = logging.getLogger(__name__)


class Throttle:
    """Limits what is sent in a second: RocketMQ's FlowMonitor. One of them serves all peers.

    `limit` is in bytes; 0: there is none.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit, self._clock, self._lock = limit, clock, threading.Lock()
        self._second = self._sent = 0

    def take(self, count: int) -> bool:
        """Whether a frame of this size may be sent now. Then it counts."""
        if not self._limit:
            return True
        with self._lock:
            second = self._clock.monotonic_ns() // _SECOND_NS
            if second != self._second:
                self._second, self._sent = second, max(self._sent - self._limit, 0) if second > self._second else 0
            if self._sent >= self._limit:
                return False
            self._sent += count
            return True


class HAConnection(threading.Thread, ABC):
    """A thread that serves one peer until either side ends it.

    A subclass says what it sends, and what the peer's bytes mean. `name` is the peer's. `ended` is
    called from the thread when it is over, with why the peer was refused, if it was.
    """

    def __init__(
        self,
        peer: socket.socket,
        name: str,
        config: ReplicationConfig,
        clock: Clock,
        ended: Callable[[HAConnection, str], None],
    ) -> None:
        super().__init__(name=f"replication to {name}", daemon=True)
        self.peer_name, self.config, self.clock = name, config, clock
        self.peer, self._ended = peer, ended
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_lock = threading.Lock()
        """Is held to write to `_wake` and to close it: then its number may be another file's."""
        self._is_ending = False
        self.room = memoryview(bytearray(_FRAME_BYTES))
        """Where the subclass makes its frames of the log."""
        self.sent_bytes = 0
        self.damaged: Mapping[str, str] = {}
        """Small files that were found to be damaged, and why. Who changes it gives another one."""
        self.heard_ns = self.said_ns = clock.monotonic_ns()

    # ---- what a peer is -------------------------------------------------------------------------

    @abstractmethod
    def greet(self) -> None:
        """Is called once, before anything else. Raises CommitLogError, OSError."""

    @abstractmethod
    def take(self, data: bytes) -> None:
        """Takes bytes of the peer. Raises CommitLogError for what it may not say."""

    @abstractmethod
    def send_next(self) -> bool:
        """Sends one frame, if there is something to send. Returns whether it did."""

    @abstractmethod
    def send_heartbeat(self) -> None:
        """Says that nothing is new."""

    @abstractmethod
    def finish(self) -> None:
        """Gives back what it has open."""

    # ---- its life -------------------------------------------------------------------------------

    def wake(self) -> None:
        """Tells the thread that there may be more to send."""
        with self._wake_lock, suppress(BlockingIOError):  # it was told so often, and has not looked yet
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def end(self) -> None:
        """Ends the connection soon; `join` waits for it."""
        self._is_ending = True
        self.wake()

    def break_off(self) -> None:
        """Ends the connection at once, even if the peer takes nothing, and waits for the thread."""
        self._is_ending = True
        with suppress(OSError):  # it has just ended; SSLSocket's own shutdown is for the thread that sends
            socket.socket.shutdown(self.peer, socket.SHUT_RDWR)
        self.wake()
        self.join()

    def give_way(self, address: str) -> None:
        """Ends for another connection of this name, which has come from `address`."""
        self.break_off()

    def run(self) -> None:
        refusal = ""
        try:
            self.peer.settimeout(self.config.housekeeping_ms / 1000)
            self.greet()
            self._serve()
        except OSError as error:
            log.warning("%s: %s", self.peer_name, error)
        except CommitLogError as error:
            refusal = str(error)
            log.warning("%s is refused: %s", self.peer_name, refusal)
        finally:
            self.finish()
            self.peer.close()
            self._ended(self, refusal)
            with self._wake_lock:
                os.close(self._wake)
                self._wake = -1

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self.peer, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        housekeeping_ns = self.config.housekeeping_ms * 1_000_000
        while not self._is_ending:
            sent = self.send_next()
            ready = {fd for fd, _ in poller.poll(0 if sent else self._wait_ms())}
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self.peer.fileno() in ready and not self._receive():
                log.info("%s: it has ended the connection", self.peer_name)
                return
            now = self.clock.monotonic_ns()
            if now - self.heard_ns > housekeeping_ns:
                raise TimeoutError(f"it has said nothing for {self.config.housekeeping_ms / 1000:g} s")
            if now - self.said_ns >= self.config.heartbeat_ms * 1_000_000:
                self.said_ns = now
                self.send_heartbeat()

    def _wait_ms(self) -> int:
        """Until the next heartbeat; a moment only where the throttle may hold a frame back."""
        if self.config.transfer_second_bytes:
            return 20
        return max(self.config.heartbeat_ms - (self.clock.monotonic_ns() - self.said_ns) // 1_000_000, 1)

    def _receive(self) -> bool:
        """Takes all bytes that are there. False at the end of the stream."""
        while True:
            try:
                data = self.peer.recv(_RECEIVE_BYTES)
            except (ssl.SSLWantReadError, TimeoutError):
                return True
            if not data:
                return False
            self.heard_ns = self.clock.monotonic_ns()
            self.take(data)
            if not (isinstance(self.peer, ssl.SSLSocket) and self.peer.pending()):
                return True

    def send(self, data: bytes | memoryview) -> None:
        """Sends a frame. Raises OSError, also where the peer takes nothing for too long."""
        self.peer.sendall(data)
        self.sent_bytes += len(data)
        self.said_ns = self.clock.monotonic_ns()


Acknowledged = Callable[[HAConnection, int, int], None]
"""Is called with the connection, a lane, and how far the peer has it."""
