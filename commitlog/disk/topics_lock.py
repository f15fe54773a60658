"""The lock of a store's topics: held while a schema is added, or a topic is trimmed or deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from commitlog.clock import SYSTEM_CLOCK
from commitlog.disk import locks
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import StoreRefused

_LOCK_SECONDS = 10


@contextmanager
def topics_locked(directory: StoreDirectory, channel: FileChannel) -> Iterator[None]:
    """Holds the lock for a with-block. Raises StoreRefused."""
    file = directory.topics_lock_file
    try:
        channel.create_directory(file.parent, below=directory.path)
        until = SYSTEM_CLOCK.monotonic_ns() + _LOCK_SECONDS * 1_000_000_000
        fd = locks.poll(partial(locks.try_file, file, channel), until, SYSTEM_CLOCK)
    except OSError as error:
        raise StoreRefused(f"{file}: {error.strerror}; check its owner and permissions") from error
    if fd is None:
        raise StoreRefused(f"{file}: another process has held it for {_LOCK_SECONDS} s; end that one")
    try:
        yield
    finally:
        channel.close(fd)
