"""The directory of a copy: who may use it, and how another one takes its place."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commitlog.disk.locks import present_holder_of, try_file, write_holder
from commitlog.disk.replica_mark import load_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import RecoveryError, ReplicaRefused, StoreMoved, StoreRunning, named_faults
from commitlog.text.lines import for_shell


def take_lock(directory: StoreDirectory) -> int:
    """Takes the lock that the store's supervisor would hold. Raises StoreRunning, OSError."""
    lock = try_file(directory.lock_file, directory.channel)
    if lock is None:
        holder = present_holder_of(directory.lock_file, directory.channel)
        raise StoreRunning(
            f"{directory.path} is in use by process {holder}: a store's supervisor, a `commitlog replica`, or a backup; end "
            f"that one first"
        )
    write_holder(lock, directory.channel)
    return lock


@contextmanager
def faults_of_copy(directory: StoreDirectory, doing: str) -> Iterator[None]:
    """Names an OSError within a with-block, so that one outside is always of the connection.

    Raises DiskError, RecoveryError, and StoreMoved where files of the copy are gone.
    """
    try:
        with named_faults(f"{directory.path}: {doing}", "the next run goes on from there"):
            yield
    except RecoveryError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise StoreMoved(
            f"{error.__cause__.filename} was renamed, removed or replaced while the copy followed: move it back, or start "
            f"`commitlog replica` at its new place; it asks the store for what is lost"
        ) from error


def refuse_other_things(directory: StoreDirectory, source: str) -> None:
    """Raises ReplicaRefused for a directory that is neither a replica nor empty."""
    if not directory.path.exists() or load_mark(directory) is not None:
        return
    directory.check_owner()
    if directory.file.exists():
        raise ReplicaRefused(
            f"{directory.path} is a store and no replica: give a new directory, or, if it was the primary once, bring it "
            f"back with `commitlog rejoin {for_shell(directory.path)} --from {source}`"
        )
    names = [name for name in directory.channel.list(directory.path) if name != "lock" and not name.startswith(".")]
    if names:
        raise ReplicaRefused(
            f"{directory.path} is no replica, and there are other things in it ({', '.join(names[:3])}); give a new or "
            f"an empty directory"
        )


def set_aside(directory: StoreDirectory) -> Path:
    """Renames the directory. Returns its new path. Raises ReplicaRefused, OSError."""
    path = directory.path
    number = 1
    while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
        number += 1
    try:
        directory.channel.rename(path, aside)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        raise ReplicaRefused(
            f"{path} is a mount point, which can't be renamed: move what is in it to another directory, and give the "
            f"same command again"
        ) from error
    directory.channel.sync_directory(path.parent)
    return aside
