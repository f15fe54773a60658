"""The locks of a start: the store's and those of all stages, taken before anything is looked at
(commitlog/disk/locks.py).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from commitlog.clock import Clock
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import stage_at
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import StoreRefused, StoreRunning
from commitlog.shm.layout import STAGES
from commitlog.shm.positions import CONTROL_NAME

_POLL_SECONDS = 0.02
_OWNER_WAIT_NS = 1_000_000_000
_SUPERVISOR = ""


class StoreLocks:
    """The supervisor's. Children that it forks hold them too: nobody starts a store while one of
    them recovers a lane.
    """

    def __init__(self, directory: StoreDirectory, channel: FileChannel, clock: Clock, start_wait_ms: int) -> None:
        self._directory, self._channel, self._clock = directory, channel, clock
        self._orphans_ns = start_wait_ms * 1_000_000
        self._files: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._pool: Path | None = None

    def take(self) -> None:
        """The files' locks; waits a little for orphans that still drain. Raises StoreRunning,
        StoreRefused.
        """
        directory = self._directory
        try:
            self._channel.create_directory(directory.path)
            for part in (directory.path / "locks", directory.logs_directory):
                self._channel.create_directory(part, below=directory.path)
        except OSError as error:
            raise StoreRefused(
                f"{directory.path}: no directory can be made here ({error.strerror}); choose a path on a file system "
                f"that can be written to"
            ) from error
        began = self._clock.monotonic_ns()
        for name in (_SUPERVISOR, *STAGES):
            self._files[name] = self._take(name, self._file(name), None, began)
        self._channel.truncate(self._files[_SUPERVISOR], 0)
        self._channel.pwrite(self._files[_SUPERVISOR], f"{os.getpid()}\n".encode(), 0)

    def take_in(self, pool: Path) -> None:
        """Those in a pool that is this store's, too: somebody may have removed the files under a
        running store. Lets go of another pool's. Raises StoreRunning."""
        if pool == self._pool:
            return
        self._close(self._bytes)
        began = self._clock.monotonic_ns()
        for name in (_SUPERVISOR, *STAGES):
            self._bytes[name] = self._take(name, pool / CONTROL_NAME, stage_at(name), began)
        self._pool = pool

    def let_stages_go(self) -> None:
        """Each stage takes its own when it starts; those of the files last, which a late orphan
        waits for.
        """
        for held in (self._bytes, self._files):
            for name in STAGES:
                self._channel.close(held.pop(name))

    def close(self) -> None:
        """Lets go of all."""
        self._close(self._bytes)
        self._close(self._files)

    def _close(self, held: dict[str, int]) -> None:
        while held:
            self._channel.close(held.popitem()[1])

    def _file(self, name: str) -> Path:
        return self._directory.stage_lock_file(name) if name else self._directory.lock_file

    def _take(self, name: str, path: Path, at: int | None, began: int) -> int:
        limit_ns = self._orphans_ns if name else min(self._orphans_ns, _OWNER_WAIT_NS)
        while True:
            fd = self._channel.open(path, write=True, create=at is None)
            if self._channel.try_lock(fd, at) and self._channel.is_at(fd, path):
                return fd
            self._channel.close(fd)
            if self._clock.monotonic_ns() - began > limit_ns:
                raise self._is_running(path if at is not None else None)
            self._clock.sleep(_POLL_SECONDS)

    def _is_running(self, control: Path | None) -> StoreRunning:
        """The error, with who holds what."""
        holders = []
        for name in (_SUPERVISOR, *STAGES):
            in_file = name not in self._files and self._channel.is_locked(self._file(name))
            in_pool = control and name not in self._bytes and self._channel.is_locked(control, stage_at(name))
            if in_file or in_pool:
                holders.append(f"{name or 'supervisor'} {self._pid(name) if in_file else '?'}")
        return StoreRunning(
            f"{self._directory.path} is running already (pids: {', '.join(holders)}): use commitlog.Producer(path) or "
            f"commitlog.Reader(path), or stop it first"
        )

    def _pid(self, name: str) -> str:
        said = b""
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            said = self._channel.read_file(self._file(name), 32)
        return said.decode(errors="replace").strip() or "?"
