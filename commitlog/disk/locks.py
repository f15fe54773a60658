"""The locks of a store: who holds what, and descriptors that are closed whatever happens.

Each lock is held at two places. One is a file in the store's directory, where people and RocketMQ
look. The other is a byte of the pool's control file, for a file in a directory may be removed: then
whoever comes next makes a new one and locks that. OFD locks both: the kernel frees them when their
holder dies.

    lane n                     lanes/<n>/lock       byte n of the pool's `control`
    supervisor                 lock                 byte 128
    stage                      locks/<stage>        byte 129 and on
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.errors import ForkedProducer
from commitlog.shm.layout import LANE_ROWS, STAGES
from commitlog.shm.positions import CONTROL_NAME

_SUPERVISOR_AT = LANE_ROWS

_birth = threading.RLock()
"""Held while a lock's descriptor comes into being, and by whoever forks: no child has one that it
does not know of. One that may be taken twice, because a signal handler that forks may have come in
between."""


class Lock:
    """Locks of a user's process, all held until `close`. They are closed in a forked child too,
    which would hold them for as long as it lives, and when the last reference goes: an exception
    may come at any moment."""

    def __init__(self, channel: FileChannel) -> None:
        self._files: list[io.FileIO] = []
        self._channel = channel

    def try_take(self, path: Path, at: int | None = None) -> bool:
        """Locks a file, made if it is missing, or a byte of one that is there. False where somebody
        else holds it, or the file was removed meanwhile. Raises OSError."""
        channel = self._channel
        with _birth:
            _locks.add(self)
            self._files.append(io.FileIO(channel.open(path, write=True, create=at is None), "r+"))
        return channel.try_lock(self.fd, at) and channel.is_at(self.fd, path)

    @property
    def fd(self) -> int:
        """The descriptor of the file that was locked last. Raises ForkedProducer where a fork has
        closed it just now.
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
        """Lets go of all of them."""
        for file in self._files:
            file.close()

    def __del__(self) -> None:
        if hasattr(self, "_files"):  # else the making of it was interrupted
            self.close()


def try_lane(lane: LaneDirectory, pool: Path, channel: FileChannel) -> Lock | None:
    """Locks a lane at both places, that of the file last; None where somebody holds it. Raises
    OSError.
    """
    lock = Lock(channel)
    try:
        if lock.try_take(pool / CONTROL_NAME, lane.number) and lock.try_take(lane.lock_file):
            return lock
    except BaseException:
        lock.close()
        raise
    lock.close()
    return None


@contextmanager
def lane_locked(lane: LaneDirectory, pool: Path, channel: FileChannel) -> Iterator[bool]:
    """The same for a with-block of a stage or the supervisor; whether it has the lock."""
    with (
        channel.opened(pool / CONTROL_NAME, write=True) as control,
        channel.opened(lane.lock_file, write=True, create=True) as file,
    ):
        yield channel.try_lock(control, lane.number) and channel.try_lock(file) and channel.is_at(file, lane.lock_file)


def stage_at(stage: str) -> int:
    """The byte of a stage in the control file; "" is the supervisor's."""
    return _SUPERVISOR_AT + 1 + STAGES.index(stage) if stage else _SUPERVISOR_AT


def is_leased(lane: LaneDirectory, pool: Path | None, channel: FileChannel) -> bool:
    """Whether somebody holds a lane. `pool`: that of the store, where there is one."""
    return channel.is_locked(lane.lock_file) or _is_held_in(pool, lane.number, channel)


def is_running(directory: StoreDirectory, pool: Path | None, stage: str = "") -> bool:
    """Whether the supervisor of a store, or a stage, is there."""
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


os.register_at_fork(before=_birth.acquire, after_in_parent=_birth.release, after_in_child=_let_go_in_child)
