"""The locks of a store: who holds what, and descriptors that are closed whatever happens.

Each lock is held at two places. One is a file in the store's directory, where people and RocketMQ
look; its holder writes its pid into it. The other is a byte of the pool's control file. The file
alone is not enough: if somebody removes it, the next process would make a new file and lock that.
Both are OFD locks: the kernel frees them when their holder dies.

    lane n                     lanes/<n>/lock       byte n of the pool's `control`
    supervisor                 lock                 byte 128
    stage                      locks/<stage>        byte 129 and on
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from commitlog.disk.file_channel import FileChannel
from commitlog.disk.processes import has_open
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.errors import ForkedProducer, StoreRefused, refusal
from commitlog.shm.control_region import CONTROL_NAME
from commitlog.shm.layout import ALL_STAGES, LANE_ROWS
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.system.forks import leave_in_child, settle

_SUPERVISOR_AT = LANE_ROWS

_birth = threading.RLock()
"""Held while a lock's descriptor is made, and during every fork.

So no child has a descriptor that it does not know of. A thread may take it twice, because a signal
handler that forks may run while the thread holds it.
"""
_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 10
_PID_BYTES_MAX = 32
_PID_MAX = (1 << 31) - 1
_PID_WAIT_SECONDS = 1

_Taken = TypeVar("_Taken")


class Lock:
    """Locks of a user's process, all held until `close`.

    They are closed in a forked child too; otherwise the child would hold them for as long as it
    lives. They are also closed when the last reference goes, because an exception may come at any
    moment.
    """

    def __init__(self, channel: FileChannel) -> None:
        self._files: list[io.FileIO] = []
        self._channel = channel

    def try_take(self, path: Path, at: int | None = None) -> bool:
        """Locks a file, or the byte `at` of a file.

        A whole file is made if it is missing; for a byte the file has to be there. Returns False
        where somebody else holds the lock, or where the file was removed meanwhile. Raises OSError.
        """
        channel = self._channel
        settle()  # a child that has not done so has `_birth` still locked
        with _birth:
            _locks.add(self)
            self._files.append(io.FileIO(channel.open(path, write=True, create=at is None), "r+"))
        return channel.try_lock(self.fd, at) and channel.is_at(self.fd, path)

    def hold_on(self, path: Path) -> bool:
        """Whether the file at `path` is locked by this still; one that was removed is locked anew.

        Returns False where somebody else has made it again, and locked it. Raises OSError.
        """
        if self._channel.is_at(self.fd, path):
            return True
        if not self.try_take(path):
            self._files.pop().close()
            return False
        write_holder(self.fd, self._channel)
        return True

    @property
    def fd(self) -> int:
        """The descriptor of the file that was locked last.

        Raises ForkedProducer where a fork has just closed it.
        """
        try:
            return self._files[-1].fileno()
        except ValueError as error:
            raise ForkedProducer("a fork came while a lock was taken: the parent has it; take another here") from error

    @property
    def closed(self) -> bool:
        """Whether it was closed, here or by a fork."""
        return any(file.closed for file in self._files)

    def close(self) -> None:
        """Releases all of them."""
        for file in self._files:
            file.close()

    def __del__(self) -> None:
        if hasattr(self, "_files"):  # False where an interrupt came during __init__
            self.close()


# ---- one try, and more -------------------------------------------------------------------------


def try_file(path: Path, channel: FileChannel, at: int | None = None) -> int | None:
    """Locks a file as `Lock.try_take` does, for a process of ours.

    Its forked children hold the lock too. Returns a descriptor, or None where somebody else holds
    the lock. Raises OSError.
    """
    fd = channel.open(path, write=True, create=at is None)
    try:
        if channel.try_lock(fd, at) and channel.is_at(fd, path):
            return fd
    except BaseException:
        channel.close(fd)
        raise
    channel.close(fd)
    return None


@contextmanager
def file_locked(file: Path, directory: StoreDirectory, channel: FileChannel) -> Iterator[None]:
    """Holds a lock file of a store, which is no lane's or stage's, for a with-block.

    It waits for some seconds. Raises StoreRefused.
    """
    try:
        channel.create_directory(file.parent, below=directory.path)
        until = SYSTEM_CLOCK.monotonic_ns() + _PATIENCE_SECONDS * 1_000_000_000
        fd = poll(lambda: try_file(file, channel), until, SYSTEM_CLOCK)
    except OSError as error:
        raise refusal(error, file, "locking it") from error
    if fd is None:
        raise StoreRefused(f"{file}: another process has held it for {_PATIENCE_SECONDS} s; end that one")
    try:
        yield
    finally:
        channel.close(fd)


def poll(take: Callable[[], _Taken | None], until_ns: int, clock: Clock) -> _Taken | None:
    """Tries to take a lock until it succeeds, or until a time (monotonic ns): then None."""
    while True:
        taken = take()
        if taken is not None or clock.monotonic_ns() >= until_ns:
            return taken
        clock.sleep(_POLL_SECONDS)


def write_holder(fd: int, channel: FileChannel) -> None:
    """Writes this process's pid into a lock file that it holds.

    It is for people, so a full or broken disk stops nobody: the file is empty then, and says
    nothing wrong. The old pid is written over first, because an empty file needs a new block.
    """
    text = b"%d\n" % os.getpid()
    try:
        channel.pwrite(fd, text, 0)
        channel.truncate(fd, len(text))
    except OSError:
        with contextlib.suppress(OSError):
            channel.truncate(fd, 0)


def holder_of(path: Path, channel: FileChannel) -> str:
    """The pid in a lock file, or "?" where none is there, or something that can't be one."""
    try:
        text = channel.read_file(path, _PID_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError:
        return "?"
    return text if text.isdigit() and int(text) <= _PID_MAX else "?"


def present_holder_of(path: Path, channel: FileChannel) -> str:
    """The pid of the process that holds a lock file, or "?".

    A process writes its pid after it has taken the lock. Until then the file is empty, or it names
    an earlier holder. So this waits a little for the pid of a process that has the file open. Where
    that can't be seen (another user's process, or one of another container), the pid is given after
    the wait.
    """

    def present() -> str | None:
        holder = holder_of(path, channel)
        return holder if holder.isdigit() and has_open(int(holder), path) else None

    until = SYSTEM_CLOCK.monotonic_ns() + _PID_WAIT_SECONDS * 1_000_000_000
    return poll(present, until, SYSTEM_CLOCK) or holder_of(path, channel)


# ---- lanes and stages --------------------------------------------------------------------------


def try_lane(lane_directory: LaneDirectory, pool: Path, channel: FileChannel) -> Lock | None:
    """Locks a lane at both places, the file last. None where somebody holds it. Raises OSError."""
    lock = Lock(channel)
    try:
        if lock.try_take(pool / CONTROL_NAME, lane_directory.number) and lock.try_take(lane_directory.lock_file):
            return lock
    except BaseException:
        lock.close()
        raise
    lock.close()
    return None


@contextmanager
def lane_locked(lane_directory: LaneDirectory, pool: Path, channel: FileChannel) -> Iterator[bool]:
    """Locks a lane like `try_lane`, for a with-block of a stage or the supervisor.

    Gives whether that succeeded. Raises OSError.
    """
    file = lane_directory.lock_file
    with (
        channel.opened(pool / CONTROL_NAME, write=True) as control,
        channel.opened(file, write=True, create=True) as fd,
    ):
        yield channel.try_lock(control, lane_directory.number) and channel.try_lock(fd) and channel.is_at(fd, file)


def stage_at(stage: str) -> int:
    """The byte of a stage in the control file; "" is the supervisor's."""
    return _SUPERVISOR_AT + 1 + ALL_STAGES.index(stage) if stage else _SUPERVISOR_AT


def is_leased(lane_directory: LaneDirectory, pool: Path | None, channel: FileChannel) -> bool:
    """Whether somebody holds a lane. `pool` is the store's pool, where there is one."""
    return channel.is_locked(lane_directory.lock_file) or _is_held_in(pool, lane_directory.number, channel)


def is_running(directory: StoreDirectory, pool: Path | None, stage: str = "") -> bool:
    """Whether the supervisor of a store, or one of its stages, is running."""
    file = directory.stage_lock_file(stage) if stage else directory.lock_file
    return directory.channel.is_locked(file) or _is_held_in(pool, stage_at(stage), directory.channel)


def is_pool_held(pool: Path, channel: FileChannel) -> bool:
    """Whether a supervisor holds this very pool, wherever its store's directory is by now."""
    return _is_held_in(pool, stage_at(""), channel)


def _is_held_in(pool: Path | None, at: int, channel: FileChannel) -> bool:
    return pool is not None and channel.is_locked(pool / CONTROL_NAME, at)


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    try:
        for lock in list(_locks):
            lock.close()
        _locks.clear()
    finally:
        _birth.release()


os.register_at_fork(before=_birth.acquire, after_in_parent=_birth.release)
leave_in_child(_let_go_in_child)
