"""The locks of a start: the store's and those of all stages (commitlog/disk/locks.py).

Files that are read before the locks are held can only be a reason to refuse the start.
"""

from __future__ import annotations

import os
from pathlib import Path

from commitlog.config import Config
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import holder_of, poll, present_holder_of, stage_at, try_file, write_holder
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import StoreRefused, StoreRunning
from commitlog.shm.control_region import CONTROL_NAME
from commitlog.shm.layout import ALL_STAGES
from commitlog.system.clock import Clock
from commitlog.text.lines import for_shell

_OWNER_WAIT_NS = 1_000_000_000
_SUPERVISOR = ""


class StoreLocks:
    """The supervisor's locks.

    Children that it forks hold them too, so nobody starts a store while a child recovers a lane. A
    stage that this configuration lacks counts if an earlier run has had it.
    """

    def __init__(self, directory: StoreDirectory, channel: FileChannel, clock: Clock, config: Config) -> None:
        self._directory, self._channel, self._clock = directory, channel, clock
        self._orphans_ns = config.supervisor.start_wait_ms * 1_000_000
        there = (
            name for name in ALL_STAGES if name in config.stages or os.path.lexists(directory.stage_lock_file(name))
        )
        self._stages = tuple(there)
        self._files: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._pool: Path | None = None

    def take(self) -> None:
        """Takes the locks of the files.

        It waits a little for orphans that still drain. Raises StoreRunning, StoreRefused.
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
        self._files[_SUPERVISOR] = self._take(_SUPERVISOR, self._file(_SUPERVISOR), None, began)
        write_holder(self._files[_SUPERVISOR], self._channel)  # at once: others see who it is that waits for the stages
        for name in self._stages:
            self._files[name] = self._take(name, self._file(name), None, began)

    def take_in(self, pool: Path) -> None:
        """Takes the locks in a pool of this store too.

        The files alone are not enough, because somebody may have removed them under a running
        store. Locks in another pool are released. Raises StoreRunning.
        """
        if pool == self._pool:
            return
        self._close(self._bytes)
        began = self._clock.monotonic_ns()
        for name in (_SUPERVISOR, *self._stages):
            self._bytes[name] = self._take(name, pool / CONTROL_NAME, stage_at(name), began)
        self._pool = pool

    def let_stages_go(self) -> None:
        """Releases the stages' locks: each stage takes its own when it starts.

        The files' locks are released last, because a late orphan waits for them.
        """
        for held in (self._bytes, self._files):
            for name in self._stages:
                self._channel.close(held.pop(name))

    def close(self) -> None:
        """Releases all locks."""
        self._close(self._bytes)
        self._close(self._files)

    def _close(self, held: dict[str, int]) -> None:
        while held:
            self._channel.close(held.popitem()[1])

    def _file(self, name: str) -> Path:
        return self._directory.stage_lock_file(name) if name else self._directory.lock_file

    def _take(self, name: str, path: Path, at: int | None, began: int) -> int:
        limit_ns = self._orphans_ns if name else min(self._orphans_ns, _OWNER_WAIT_NS)
        fd = poll(lambda: try_file(path, self._channel, at), began + limit_ns, self._clock)
        if fd is None:
            raise self._is_running(path if at is not None else None)
        return fd

    def _holder(self, name: str) -> str:
        """The pid in a lock file, or "?".

        A supervisor that starts holds its stages' locks, and writes no pid there.
        """
        return (holder_of if name else present_holder_of)(self._file(name), self._channel)

    def _is_running(self, control: Path | None) -> StoreRunning:
        """The error, with the holder of each lock."""
        holders = []
        for name in (_SUPERVISOR, *self._stages):
            in_file = name not in self._files and self._channel.is_locked(self._file(name))
            in_pool = control and name not in self._bytes and self._channel.is_locked(control, stage_at(name))
            if in_file or in_pool:
                pid = self._holder(name) if in_file else "?"
                holders.append(f"{name or 'supervisor'} {pid}")
        return StoreRunning(
            f"{self._directory.path} is running already (pids: {', '.join(holders)}): use commitlog.Producer(path) or "
            f"commitlog.Reader(path), or stop it first: `commitlog stop {for_shell(self._directory.path)}`"
        )
