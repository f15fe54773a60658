"""`commitlog destroy STORE`: removes the files of a stopped store, and its pool."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from commitlog.errors import StoreRunning


def destroy(
    store: Annotated[Path, typer.Argument(help="Directory of the store.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove STORE with all its messages, and its shared memory."""
    from commitlog.file_channel import DISK
    from commitlog.store_directory import StoreDirectory
    from commitlog.view import attach_control

    directory = StoreDirectory(store)
    facts = directory.load()
    if not yes:
        typer.confirm(f"Remove {directory.path} and every message in it?", abort=True)
    with DISK.opened(directory.lock_file, write=True, create=True) as fd:
        if not DISK.try_lock(fd):
            raise StoreRunning(
                f"{directory.path} is running: stop it first (Ctrl-C in `commitlog run`, or Store.close())"
            )
        for number in directory.lane_numbers():
            if DISK.is_locked(directory.lane(number).lock_file):
                raise StoreRunning(f"{directory.path}: a producer still holds lane {number}; close it first")
        control = attach_control(directory, facts)
        if control is not None:
            pool = control.region.path.parent
            control.close()
            for name in os.listdir(pool):
                os.unlink(pool / name)
            os.rmdir(pool)
        DISK.unlink(directory.file)  # first: what is left of an interrupted removal is no store any more
        shutil.rmtree(directory.path)
    typer.echo(f"removed {directory.path}")
