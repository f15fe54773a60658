"""ZeroMQ between the processes: wakeups to the stages, and offset notices back.

Frames are hints: shared memory holds the truth. A lost, late or doubled frame changes nothing but
the latency, so nothing here blocks or raises because a peer is not there. All sockets are
Unix-domain sockets in the pool's private directory. Each has a small high-water mark, no linger and
a limit on what it receives.

| socket | bound by | frame |
| --- | --- | --- |
| `<stage>.ipc`, PUSH → PULL | each stage | wakeup: `CLW1` |
| the same | the same | a reader awaits each message for two seconds: `CLF1` |
| `notices.ipc`, PUB → SUB | flusher | to a producer: `CLN1`, lane, committed, flushed |
| the same | flusher | to readers: `CLR1` |
| `replicated.ipc`, PUB → SUB | HAService | to a producer: `CLN1`, lane, flushed, replicated |

The numbers of a notice are u64, little-endian.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple

import zmq

from commitlog.errors import UnsafePath
from commitlog.native import core
from commitlog.shm.layout import Stage
from commitlog.shm.memory_order import observe
from commitlog.system.threads import check_startable

WAKEUP = b"CLW1"
FOLLOWED = b"CLF1"
_NOTICE = struct.Struct("<4sQQQ")
_NOTICE_PREFIX = struct.Struct("<4sQ")
_NOTICE_MAGIC = b"CLN1"
_NEWS = b"CLR1"
_HIGH_WATER_MARK = 64
_MAX_FRAME_BYTES = 64
FLUSHED_NOTICES, REPLICATED_NOTICES = "notices", "replicated"
"""Names of the sockets for notices: of those from the flusher, and of those from the HAService."""
_FRAMES_AT_ONCE = 1000
_CONTEXT_THREADS = 4
"""Twice what a context starts: those that were tried may still be ending then."""


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A context for sockets. libzmq ends the process where it gets no thread for one.

    Raises NotEnoughThreads.
    """
    check_startable(_CONTEXT_THREADS, "ZeroMQ")
    return zmq.Context()


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
    """Connects a socket, and returns it. Closes it where it can't be connected."""
    try:
        socket.connect(_address(directory, name))
    except BaseException:
        socket.close()
        raise
    return socket


def _bind(socket: zmq.Socket[bytes], directory: Path, name: str) -> None:
    """Binds a socket in the pool's directory, in place of one that a killed stage has left.

    Raises UnsafePath where anything else than a socket of this user is there.
    """
    path = directory / f"{name}.ipc"
    with contextlib.suppress(FileNotFoundError):
        facts = os.lstat(path)
        if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.geteuid():
            raise UnsafePath(f"{path} is there and is not a socket of this user; remove it")
        os.unlink(path)
    socket.bind(_address(directory, name))
    os.chmod(path, 0o600)  # its mode depends on the umask; meanwhile the directory lets nobody else in


class Drained(NamedTuple):
    """What a drain has taken out of a bell."""

    bad: int
    """How many frames were none of ours."""
    is_followed: bool
    """Whether somebody follows the log."""
    more: bool
    """Whether more frames may wait."""


class WakeupReceiver:
    """A stage's bell: receives wakeups. The stage holds its lock before it makes one.

    `fd` becomes readable when a frame comes, and stays so until `drain` has taken all frames. If a
    `drain` has left frames, `fd` does not show them. Sometimes `fd` is readable without a frame.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, stage: str) -> None:
        self.socket = _socket(context, zmq.PULL)
        try:
            _bind(self.socket, directory, stage)
        except BaseException:
            self.socket.close()
            raise
        self.fd = self.socket.fileno()

    def drain(self) -> Drained:
        """Takes the waiting frames, at most 1,000."""
        bad, is_followed = 0, False
        with contextlib.suppress(zmq.Again):
            for _ in range(_FRAMES_AT_ONCE):
                frame = self.socket.recv(zmq.NOBLOCK)
                is_followed = is_followed or frame == FOLLOWED
                bad += frame not in (WAKEUP, FOLLOWED)
            return Drained(bad, is_followed, more=True)
        return Drained(bad, is_followed, more=False)

    def close(self) -> None:
        self.socket.close()


class WakeupSender:
    """Rings a stage's bell once in each sleep: RocketMQ's hasNotified.

    The stage's sleep sequence says which sleep it is: it is odd while the stage sleeps.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, stage: str, stage_row: memoryview
    ) -> None:
        self._row = stage_row
        self._rung = 0
        self._socket = _connected(_socket(context, zmq.PUSH), directory, stage)

    def wake(self) -> None:
        """Wakes the stage if it sleeps and was not woken from this sleep before."""
        sequence = observe(self._row, Stage.SLEEP)
        if sequence & 1 and sequence != self._rung:
            self._rung = sequence
            self.ring()

    def hurry(self) -> None:
        """Wakes the stage even from its rest after work, because somebody waits for a flush.

        If the stage begins its rest at this very moment, it is not woken. It looks for work again
        when the rest is over.
        """
        self.wake()
        if self._row[Stage.LINGERING]:
            self.ring()

    def ring(self) -> None:
        """Rings the bell, whatever the stage does."""
        with contextlib.suppress(zmq.ZMQError):  # full, or refused by the system: a frame is a hint
            self._socket.send(WAKEUP, zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()


def wake_readers(stage_row: memoryview) -> None:
    """Wakes readers that sleep in the native core until the stage works, or is woken itself."""
    if core is not None and stage_row[Stage.WAKES_READERS]:
        core.wake(stage_row, Stage.ACTIONS)


class FollowedSender:
    """Tells stages that somebody follows the log: each message is awaited as if by a receipt.

    It holds for two seconds. A process that may not write to the pool tells nobody, and follows at
    the stages' own pace.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, stages: tuple[str, ...]) -> None:
        self._sockets = [_connected(_socket(context, zmq.PUSH), directory, stage) for stage in stages]

    def tell(self) -> None:
        for socket in self._sockets:
            with contextlib.suppress(zmq.ZMQError):
                socket.send(FOLLOWED, zmq.NOBLOCK)

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()


class NoticePublisher:
    """Sends offset notices, in the flusher or in the HAService."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, name: str = FLUSHED_NOTICES) -> None:
        self._socket = _socket(context, zmq.PUB)
        try:
            _bind(self._socket, directory, name)
        except BaseException:
            self._socket.close()
            raise

    def tell_readers(self) -> None:
        """Tells readers that there is more to read. It costs a microsecond if nobody listens."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(_NEWS, zmq.NOBLOCK)

    def publish(self, lane: int, before: int, reached: int) -> None:
        """Says how far a lane has come: `reached` by this stage, `before` by the one before it."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(_NOTICE.pack(_NOTICE_MAGIC, lane, before, reached), zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()


class NoticeSubscriber:
    """Sleeps until a stage publishes a notice, or a limit has passed.

    The notices are those to the producer of a lane, or to readers (None). `names` are the
    publishers.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        directory: Path,
        lane: int | None,
        names: tuple[str, ...] = (FLUSHED_NOTICES,),
    ) -> None:
        self._socket = _socket(context, zmq.SUB)
        wanted = _NEWS if lane is None else _NOTICE_PREFIX.pack(_NOTICE_MAGIC, lane)
        self._socket.setsockopt(zmq.SUBSCRIBE, wanted)
        for name in names:
            _connected(self._socket, directory, name)

    def wait(self, milliseconds: int) -> bool:
        """Returns at the next notice, or after the limit, and says whether a notice came.

        The caller then reads shared memory.
        """
        if not self._socket.poll(milliseconds):
            return False
        with contextlib.suppress(zmq.Again):
            for _ in range(_FRAMES_AT_ONCE):
                self._socket.recv(zmq.NOBLOCK)
        return True

    def close(self) -> None:
        self._socket.close()
