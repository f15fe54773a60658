"""`commitlog destroy STORE`: removes a stopped store and its pool.

It removes the pool of a store that is gone already.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.cli.arguments import StoreArgument, confirm, print_lines
from commitlog.errors import StoreRefused, StoreRunning
from commitlog.shm.layout import ALL_STAGES
from commitlog.text.lines import for_shell

if TYPE_CHECKING:
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.opening.stray_pools import StrayPool


def destroy(
    store: StoreArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove STORE: its messages and its shared memory.

        commitlog destroy data/events

    It asks first, and refuses a store that is in use. Where STORE is gone already, its shared
    memory is removed.
    """
    from commitlog.disk.file_channel import DISK
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.opening.stray_pools import is_in_use, remove_pool, stray_pools
    from commitlog.reading.view import attach_control

    directory = StoreDirectory(store)
    strays = [pool for pool in stray_pools() if pool.store == directory.path]
    if strays and not directory.file.exists():
        for pool in strays:
            _remove_stray(pool, yes)
        return
    if not directory.file.exists() and is_in_use(directory.path):
        raise StoreRunning(
            f"{directory.path} is gone, and its shared memory is still in use. Its stages notice that within a minute, "
            f"a producer notices it when it sends or is closed. Repeat this command then"
        )
    facts = directory.load()
    directory.check_owner()
    place = os.stat(directory.path)
    with contextlib.ExitStack() as locks:
        control = attach_control(directory, facts)
        if control is not None:
            control.close()
        _take_locks(directory, control.region.path if control else None, locks)  # held during the question, to the end
        if not yes:
            confirm(f"Remove {directory.path} and every message in it?")
            if not (directory.path.exists() and os.path.samestat(place, os.stat(directory.path))):
                raise StoreRefused(f"{directory.path} was moved or replaced during the question: nothing is removed")
        if control is not None:
            remove_pool(control.region.path.parent)
        DISK.unlink(directory.file)  # first: an interrupted removal leaves no store
        try:
            shutil.rmtree(directory.path)
        except OSError as error:
            raise StoreRefused(
                f"{directory.path} is no store any more, and not all of it can be removed: {error.filename}: "
                f"{error.strerror}; mend owner, permissions or the disk, then `rm -r {directory.path}` removes the rest"
            ) from error
    typer.echo(f"removed {directory.path}")
    print_lines(f"its shared memory of an earlier start stays: {pool}" for pool in strays)


def _take_locks(directory: StoreDirectory, control: Path | None, locks: contextlib.ExitStack) -> None:
    """Takes the locks of store, stages and lanes.

    Raises StoreRunning if somebody holds one of them, even if only the lock in the pool is held.
    """
    from commitlog.disk.file_channel import DISK
    from commitlog.disk.locks import stage_at

    files = {"its supervisor": (directory.lock_file, stage_at(""))}
    files |= {f"its {stage}": (directory.stage_lock_file(stage), stage_at(stage)) for stage in ALL_STAGES}
    files |= {f"the producer of lane {n}": (directory.lane_directory(n).lock_file, n) for n in directory.lane_numbers()}
    for who, (file, at) in files.items():
        is_held = file.exists() and not DISK.try_lock(locks.enter_context(DISK.opened(file, write=True)))
        if is_held or (control is not None and DISK.is_locked(control, at)):
            raise StoreRunning(
                f"{directory.path} is in use by {who}: stop it first (`commitlog stop {for_shell(directory.path)}`, "
                f"Store.close(), or Producer.close())"
            )


def _remove_stray(pool: StrayPool, yes: bool) -> None:
    """Removes the pool of a store that is gone.

    Raises StoreRefused if messages would be lost and, because of `--yes`, the user is not asked.
    """
    from commitlog.opening.stray_pools import stray_pools

    if pool.unflushed and yes:
        raise StoreRefused(
            f"{pool.directory}: {pool.unflushed:,} bytes in it were accepted and never written to disk. If the store was "
            f"moved, start it at its new place. To give the bytes up, run this without --yes"
        )
    if not yes:
        confirm(f"{pool}. Remove it?")
        if pool not in stray_pools():
            raise StoreRefused(f"{pool.directory}: its store was put back or started during the question: it stays")
    pool.remove()
    typer.echo(f"removed {pool.directory}")
