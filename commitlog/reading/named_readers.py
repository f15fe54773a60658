"""The readers of a store that have names: their files in `STORE/readers/`, and who has which name.

Beside `<name>.json` (see named_reader.py) is `<name>.lock`, which the process that reads under the
name holds locked until it dies.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace
from pathlib import Path

from commitlog.disk.locks import Lock, poll, present_holder_of, write_holder
from commitlog.disk.replica_mark import check_original
from commitlog.disk.store_directory import StoreDirectory, boot_id
from commitlog.errors import FAULT_BY_ERRNO, CommitLogError, ReaderError, ReaderInUse, refusal
from commitlog.reading.named_reader import (
    FILE_BYTES_MAX,
    UNBELIEVABLE,
    NamedReader,
    check_name,
    decode,
    encode,
    is_name,
)
from commitlog.system.clock import SYSTEM_CLOCK, Clock

PATIENCE_SECONDS = 5.0
"""How long to wait for a name in use: a reader that was just stopped may still be ending."""


class NamedReaders:
    """The readers of one store."""

    def __init__(self, directory: StoreDirectory, clock: Clock = SYSTEM_CLOCK) -> None:
        self.directory, self.channel, self.clock = directory, directory.channel, clock
        self._place = str(directory.readers_directory)

    def names(self) -> list[str]:
        """Names of all named readers, sorted."""
        files = self.channel.list(self.directory.readers_directory)
        return sorted(name for file in files if (name := file.removesuffix(".json")) != file and is_name(name))

    def load(self, name: str) -> NamedReader:
        """The reader of a name. Raises FileNotFoundError, OSError, ReaderError (not a position)."""
        return self.parsed(name, self.channel.read_file(self._path(name, "json"), FILE_BYTES_MAX + 1))

    def parsed(self, name: str, data: bytes) -> NamedReader:
        """Makes the reader from the content of its file. Raises ReaderError."""
        try:
            if len(data) > FILE_BYTES_MAX:
                raise ValueError(f"more than {FILE_BYTES_MAX:,} bytes")
            return decode(name, data)
        except UNBELIEVABLE as error:
            raise ReaderError(
                f"{self._path(name, 'json')}: not the position of a reader ({repr(error)[:200]}); put it back; or remove "
                "the file if the reader is gone: one of that name then begins as a new one"
            ) from error

    @staticmethod
    def check(reader: NamedReader) -> None:
        """Raises ReaderError for a position that `load` would not accept from the file."""
        try:
            decode(reader.name, encode(reader))
        except UNBELIEVABLE as error:
            raise ReaderError(f"reader {reader.name}: this is no position of a reader ({error!r:.200})") from None

    def stamp(self, name: str) -> tuple[int, int, int]:
        """A value that changes whenever the reader's file does. Raises OSError."""
        facts = os.lstat(f"{self._place}/{name}.json")  # a Path takes as long as the call
        return facts.st_ino, facts.st_mtime_ns, facts.st_size

    def moved(self, reader: NamedReader) -> NamedReader:
        """The reader with progress that it makes now."""
        now_ms, boot_ms = self.clock.wall_ms(), self.clock.boot_ns() // 1_000_000
        return replace(reader, moved_ms=now_ms, boot=boot_id(), moved_boot_ms=boot_ms)

    def save(self, reader: NamedReader) -> None:
        """Registers a reader or moves it, durably. Others see the old position or the new.

        Raises OSError, and ReaderError for a reader of too many queues.
        """
        data = encode(reader)
        if len(data) > FILE_BYTES_MAX:
            raise ReaderError(
                f"reader {reader.name}: {len(data):,} bytes of offsets, and its file may have {FILE_BYTES_MAX:,}: read "
                "fewer topics under one name"
            )
        self.channel.create_directory(self.directory.readers_directory, below=self.directory.path)
        self.channel.replace_file(self._path(reader.name, "json"), data)

    def remove(self, name: str) -> None:
        """Forgets a reader. Retention keeps nothing for it any more.

        Raises ReaderInUse, and ReaderError if there is no reader of this name.
        """
        path = self._path(name, "json")
        self.check_is_registered(name)
        held = self.hold(name)
        try:
            self.channel.unlink(path)
            self.channel.unlink(self._path(name, "lock"))
            self.channel.sync_directory(self.directory.readers_directory)
        except OSError as error:
            raise ReaderError(f"{path}: can't be removed ({error.strerror}): remove it by hand") from error
        finally:
            self.let_go(held)

    def check_is_registered(self, name: str) -> None:
        """Raises a ReaderError that lists the readers, if there is none of this name."""
        names = self.names()
        if name not in names:
            raise ReaderError(f"{self.directory.path}: no reader {name!r}; there are {', '.join(names) or 'none'}")

    # ---- holding a name -------------------------------------------------------------------------

    def hold(self, name: str) -> Lock:
        """Takes the name for this process, until the process closes the lock or dies.

        A forked child does not hold the name. Raises ReaderInUse if another process holds it, and
        ReaderError if this process may not write to the store. Raises StoreRefused for a store of
        another user, and for a replica or a backup: its readers are where those of its store are.
        """
        check_original(self.directory)
        path = self._path(name, "lock")
        until = self.clock.monotonic_ns() + int(PATIENCE_SECONDS * 1e9)
        lock = poll(lambda: self._try(name, path), until, self.clock)
        if lock is None:
            holder = present_holder_of(path, self.channel)
            raise ReaderInUse(
                f"reader {name} is in use by process {holder}: stop that reader first, or give this one a name of its own"
            )
        return lock

    def _remove_leftovers(self, name: str) -> None:
        """Removes files of the position whose writers were killed before the rename."""
        left = re.compile(rf"\.{re.escape(name)}\.json\.[0-9]+\.tmp")
        for file in self.channel.list(self.directory.readers_directory):
            if left.fullmatch(file):
                self.channel.unlink(self.directory.readers_directory / file)

    def hold_on(self, held: Lock, name: str) -> None:
        """Takes the name again if the lock file was removed. Raises OSError.

        Raises ReaderInUse if another process has the name since.
        """
        path = self._path(name, "lock")
        if not held.hold_on(path):
            holder = present_holder_of(path, self.channel)
            raise ReaderInUse(
                f"reader {name}: somebody has removed {path}, and process {holder} has the name since: stop one of both, or "
                "give it a name of its own"
            )

    def let_go(self, held: Lock) -> None:
        """Gives back the name that `hold` took.

        It does nothing in a forked child, which holds no name.
        """
        held.close()

    def is_held(self, name: str) -> bool:
        """Whether a process reads under the name now."""
        return self.channel.is_locked(self._path(name, "lock"))

    def _try(self, name: str, path: Path) -> Lock | None:
        lock = Lock(self.channel)
        try:
            if self._take(lock, name, path):
                return lock
        except BaseException:  # a caller that keeps the error would keep the lock
            lock.close()
            raise
        lock.close()
        return None

    def _take(self, lock: Lock, name: str, path: Path) -> bool:
        try:
            self.channel.create_directory(path.parent, below=self.directory.path)
            if not lock.try_take(path):
                return False
            write_holder(lock.fd, self.channel)
            self._remove_leftovers(name)
            return True
        except OSError as error:
            raise self._refused(path, error) from error

    @staticmethod
    def _refused(path: Path, error: OSError) -> CommitLogError:
        if error.errno in FAULT_BY_ERRNO and error.errno != errno.ENOENT:
            return refusal(error, path, "taking the reader's name")
        return ReaderError(
            f"{path.parent}: {error.strerror}; the position of a named reader is kept in the store: run as a user "
            "who may write there, or read without a name (readerName)"
        )

    def _path(self, name: str, kind: str) -> Path:
        check_name(name)
        return self.directory.readers_directory / f"{name}.{kind}"
