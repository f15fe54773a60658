"""ZeroMQ between the processes: wakeups to the stages, offset notices back. Hints only: shared
memory holds the truth.

A lost, late or doubled frame changes nothing but latency, so nothing here ever blocks or raises for
a peer that is not there. All sockets are Unix-domain ones in the pool's private directory; every
one has a small high-water mark, no linger and a limit on what it receives.

| socket | bound by | frame |
| --- | --- | --- |
| `<stage>.ipc`, PUSH → PULL | each stage | wakeup: `CLW1` |
| `notices.ipc`, PUB → SUB | flusher | notice: `CLN1`, lane, committed, flushed (u64, little-endian) |
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from pathlib import Path

import zmq

from commitlog.errors import UnsafePath
from commitlog.shm.layout import Stage

WAKEUP = b"CLW1"
_NOTICE = struct.Struct("<4sQQQ")
_NOTICE_PREFIX = struct.Struct("<4sQ")
_NOTICE_MAGIC = b"CLN1"
_HIGH_WATER_MARK = 64
_MAX_FRAME_BYTES = 64
_FRAMES_AT_ONCE = 1000


def _address(directory: Path, name: str) -> str:
    path = directory / f"{name}.ipc"
    if len(str(path)) > 100:
        raise UnsafePath(
            f"{path}: too long for a socket (100 characters); set COMMITLOG_SHM_DIR to a shorter directory"
        )
    return f"ipc://{path}"


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.linger = 0
    socket.set_hwm(_HIGH_WATER_MARK)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
    return socket


def _connected(socket: zmq.Socket[bytes], directory: Path, name: str) -> zmq.Socket[bytes]:
    """The socket; closed where it can't be connected."""
    try:
        socket.connect(_address(directory, name))
    except BaseException:
        socket.close()
        raise
    return socket


def _bind(socket: zmq.Socket[bytes], directory: Path, name: str) -> None:
    """Binds in the pool's directory; a leftover socket of a killed stage is replaced, anything else
    refused.
    """
    path = directory / f"{name}.ipc"
    with contextlib.suppress(FileNotFoundError):
        facts = os.lstat(path)
        if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.geteuid():
            raise UnsafePath(f"{path} is there and is no socket of this user; remove it")
        os.unlink(path)
    socket.bind(_address(directory, name))
    os.chmod(path, 0o600)  # made with whatever the umask leaves; the directory lets nobody else in meanwhile


class WakeupReceiver:
    """A stage's bell. The stage holds its lock before it makes one."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, stage: str) -> None:
        self.socket = _socket(context, zmq.PULL)
        try:
            _bind(self.socket, directory, stage)
        except BaseException:
            self.socket.close()
            raise

    def drain(self) -> tuple[int, int]:
        """Takes the frames that wait (at most 1,000). Returns (wakeups, frames that were none of
        ours).
        """
        wakeups = bad = 0
        with contextlib.suppress(zmq.Again):
            for _ in range(_FRAMES_AT_ONCE):
                if self.socket.recv(zmq.NOBLOCK) == WAKEUP:
                    wakeups += 1
                else:
                    bad += 1
        return wakeups, bad

    def close(self) -> None:
        self.socket.close()


class WakeupSender:
    """Rings a stage's bell, once per sleep (RocketMQ's hasNotified, with the sleep sequence as the
    flag).

    `words[base + Stage.SLEEP]` is the stage's sleep sequence: odd while it sleeps.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, stage: str, words: memoryview, base: int
    ) -> None:
        self._words = words
        self._sleep_at, self._lingering_at = base + Stage.SLEEP, base + Stage.LINGERING
        self._rung = 0
        self._socket = _connected(_socket(context, zmq.PUSH), directory, stage)

    def wake(self) -> None:
        """Wakes the stage if it sleeps and was not woken from this sleep before."""
        sequence = self._words[self._sleep_at]
        if sequence & 1 and sequence != self._rung:
            self._rung = sequence
            self.ring()

    def hurry(self) -> None:
        """Wakes the stage also from its linger: for who waits for a synchronous flush. A stage that
        begins to linger at this very moment is missed, and comes round when the linger is over."""
        self.wake()
        if self._words[self._lingering_at]:
            self.ring()

    def ring(self) -> None:
        """Rings, whatever the stage does."""
        with contextlib.suppress(zmq.ZMQError):  # full, or whatever the system refuses: it is a hint
            self._socket.send(WAKEUP, zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()


class NoticePublisher:
    """The flusher's side of offset notices."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path) -> None:
        self._socket = _socket(context, zmq.PUB)
        try:
            _bind(self._socket, directory, "notices")
        except BaseException:
            self._socket.close()
            raise

    def publish(self, lane: int, committed: int, flushed: int) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(_NOTICE.pack(_NOTICE_MAGIC, lane, committed, flushed), zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()


class NoticeSubscriber:
    """Sleeps until the flusher says something about one lane, or a limit has passed."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, lane: int) -> None:
        self._socket = _socket(context, zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, _NOTICE_PREFIX.pack(_NOTICE_MAGIC, lane))
        _connected(self._socket, directory, "notices")

    def wait(self, milliseconds: int) -> None:
        """Returns at the next notice or after the limit; what was said is read from shared memory."""
        if self._socket.poll(milliseconds):
            with contextlib.suppress(zmq.Again):
                for _ in range(_FRAMES_AT_ONCE):
                    self._socket.recv(zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()
