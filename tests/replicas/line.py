"""A line between a replica and its store that a test can slow down, hold up and cut."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator

from tests.waiting import wait_until

_STEP_BYTES = 4_096


class Line:
    """Forwards TCP connections from `port` to another one, until `close`.

    `held` has the directions in which nothing passes, while both ends stay open: "to store",
    "to replica". Bytes wait then, as behind a cable that is pulled out.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.held: set[str] = set()
        self.passed = 0
        """Bytes that have passed to the replica."""
        self.flips: set[str] = set()
        """Directions in which one bit of the next bytes is turned over, past TCP's checksum."""
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._turns = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def hold(self, *ways: str) -> None:
        """Lets nothing pass in these directions from now on."""
        self.held |= set(ways)
        turns = self._turns
        wait_until(lambda: self._turns > turns + 1, "what was just passing has passed")

    def cut(self) -> None:
        """Ends all connections, wherever in a frame they are."""
        for pair in list(self._pairs):
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._listener.close()
        for pair in self._pairs:
            for end in pair:
                end.close()

    def _work(self) -> None:
        while not self._is_over.is_set():
            self._turns += 1
            ends: dict[socket.socket, tuple[socket.socket, str]] = {}
            for replica, store in self._pairs:
                ends |= {replica: (store, "to store"), store: (replica, "to replica")}
            open_ways = [end for end, (_, way) in ends.items() if way not in self.held]
            ready, _, _ = select.select([self._listener, *open_ways], [], [], 0.02)
            for end in ready:
                if end is self._listener:
                    self._connect()
                elif not self._pass(end, *ends[end]):
                    self._drop(end)

    def _connect(self) -> None:
        replica, _ = self._listener.accept()
        try:
            self._pairs.append((replica, socket.create_connection(("127.0.0.1", self._target), timeout=10)))
        except OSError:
            replica.close()

    def _pass(self, end: socket.socket, other: socket.socket, way: str) -> bool:
        try:
            data = bytearray(end.recv(_STEP_BYTES))
            if data and way in self.flips:
                self.flips.discard(way)
                data[-1] ^= 16
            other.sendall(data)
        except OSError:
            return False
        self.passed += len(data) if way == "to replica" else 0
        return bool(data)

    def _drop(self, end: socket.socket) -> None:
        for pair in [pair for pair in self._pairs if end in pair]:
            self._pairs.remove(pair)
            for each in pair:
                each.close()


@contextlib.contextmanager
def line(target: int) -> Iterator[Line]:
    made = Line(target)
    try:
        yield made
    finally:
        made.close()
