"""A peer that speaks RocketMQ's HA protocol as a slave does, and does with it what a test wants."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from pathlib import Path
from types import TracebackType

from tests.waiting import PATIENCE_SECONDS, wait_until

HEAD = struct.Struct(">qi")
FRAME_BYTES_MAX = 4 << 20


def slave_port(store: Path, lane: int = 0) -> int:
    """The port for the slaves of a lane, once the store's HAService has opened it."""
    log = store / "logs" / "ha_service.log"
    pattern = re.compile(rf"lane {lane}: slaves come to \S+:(\d+)$", re.MULTILINE)
    return int(wait_until(lambda: pattern.findall(log.read_text()) if log.exists() else [], "a port for slaves")[-1])


class Slave:
    """A slave with `log` as its bytes from `begin` on. It acknowledges only when it is told to."""

    def __init__(self, port: int, request: int = 0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self.begin = request
        self.log = bytearray()
        self.frames: list[tuple[int, int]] = []
        """Offset and size of each frame; the size of a heartbeat is 0."""
        self.acknowledge(request)

    @property
    def end(self) -> int:
        return self.begin + len(self.log)

    def acknowledge(self, where: int | None = None) -> None:
        self._socket.sendall(struct.pack(">q", self.end if where is None else where))

    def receive(self) -> bool:
        """Takes one frame. False where the master has ended the connection."""
        head = self._exactly(HEAD.size)
        if not head:
            return False
        offset, size = HEAD.unpack(head)
        body = self._exactly(size)
        assert len(body) == size
        assert HEAD.size + size <= FRAME_BYTES_MAX
        if not self.log:
            self.begin = offset
        assert offset == self.end
        self.frames.append((offset, size))
        self.log += body
        return True

    def follow(self, end: int, *, acknowledge: bool = True) -> None:
        """Takes frames until it has the log up to `end`."""
        while self.end < end:
            assert self.receive(), "the master has ended the connection"
            if acknowledge:
                self.acknowledge()

    def is_turned_out(self) -> bool:
        """Takes what comes until the master ends the connection."""
        with contextlib.suppress(ConnectionResetError):
            while self.receive():
                pass
        return True

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                break
            data += piece
        return data

    def shut(self) -> None:
        """Ends the connection also for a thread that waits for a frame."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Slave:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
