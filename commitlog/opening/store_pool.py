"""The pool of a start: the last start's pool if it is this store's own, otherwise a new one.

Only the supervisor calls this; it holds the store's lock and all stage locks meanwhile. A pool that
does not belong to the store is left alone, and is named.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import StoreDirectory, StoreFacts, boot_id
from commitlog.errors import PoolNotAdopted, UnsafePath
from commitlog.opening import Report
from commitlog.opening.new_pool import make_pool, recover_all_into
from commitlog.opening.stray_pools import name_store, refuse_second_store, remove_pool, unknown_pool, unreadable_pools
from commitlog.reading.view import attach_control
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Header, Lane
from commitlog.shm.region import RegionError, private_directory


def open_pool(
    directory: StoreDirectory, facts: StoreFacts, channel: FileChannel, report: Report
) -> tuple[ControlRegion, StoreFacts]:
    """Opens the control region of a start, sets its positions, and returns the facts to save.

    The generation is raised in these facts; the caller saves them before the first append. Raises
    StoreRunning, PoolNotAdopted, NotEnoughSharedMemory, RecoveryError, DiskError, UnsafePath.
    """
    _refuse_unsafe_pool(facts)
    control = attach_control(directory, facts, writable=True)
    if control is not None:
        from commitlog.opening.adoption import Adoption  # other starts do without it

        Adoption(control, directory, facts, channel, report).run()
        with contextlib.suppress(OSError):  # for people only; the store may be at another path than before
            name_store(control.region.path.parent, directory.path, channel)
    else:
        refuse_second_store(directory.path)
        _explain_missing_pool(directory, facts, report)
        facts = _with_unknown_pool(directory, facts, report)
        control, place = make_pool(directory, facts)
        facts = replace(facts, pool=place)
        try:
            recover_all_into(control, directory, facts, channel, report)
        except BaseException:  # nobody would know of this pool: each failed start would take more shared memory
            control.close()
            remove_pool(Path(place.directory))
            raise
        facts = replace(facts, lanes=control.positions(Lane.FLUSHED))
    control.words[Header.CLOSING] = 0
    return control, _raise_generation(control, facts)


def _raise_generation(control: ControlRegion, facts: StoreFacts) -> StoreFacts:
    """Gives the pool the generation of this start. Returns the facts with it, to be saved.

    It is the saved one plus one, whatever the pool has: an earlier start may have raised the pool's
    generation and ended before it saved its own.
    """
    raised = replace(facts, generation=facts.generation + 1)
    control.words[Header.GENERATION] = raised.generation
    return raised


def _refuse_unsafe_pool(facts: StoreFacts) -> None:
    """Raises UnsafePath where the directory of the last pool is not this user's own.

    A directory of another user at that path is neither used nor ignored.
    """
    pool = facts.pool
    if pool is None or pool.boot_id != boot_id():
        return
    try:
        private_directory(Path(pool.directory), create=False)
        ControlRegion.check_file(Path(pool.directory))
    except FileNotFoundError:
        return
    except RegionError as error:
        raise UnsafePath(f"the pool of this store is not safe: {error}") from error


def _with_unknown_pool(directory: StoreDirectory, facts: StoreFacts, report: Report) -> StoreFacts:
    """Returns the facts, with what a pool tells that `store.json` does not know.

    What its words call flushed was flushed: files that lack it are damaged. A directory without any
    lane was emptied by somebody who begins anew, or it has the inode of one that was removed: its
    pool is only named. Raises PoolNotAdopted if the pool has messages that no file has.
    """
    for finding in unreadable_pools(directory.path):
        report(finding)
    unknown = unknown_pool(directory.path, facts)
    if unknown is None:
        return facts
    pool = unknown.pool
    if not facts.generation and not directory.lane_numbers():
        report(str(pool))
        return facts
    if pool.unflushed:
        kind, wanted = ("older than", "newer") if facts.generation else ("new, and not that of", "former")
        raise PoolNotAdopted(
            f"{directory.file} is {kind} the pool {pool.directory}, where {pool.unflushed:,} bytes are that were accepted "
            f"and never flushed: put the {wanted} {directory.file.name} back. Or keep a copy of the pool, then remove it "
            f"to go on with what the store's files say: these bytes are given up then"
        )
    lanes = {lane: max(end, facts.lanes.get(lane, 0)) for lane, end in unknown.flushed.items()}
    return replace(facts, lanes={**facts.lanes, **lanes})


def _explain_missing_pool(directory: StoreDirectory, facts: StoreFacts, report: Report) -> None:
    """Says why the last pool is not adopted, where there was one.

    Raises PoolNotAdopted, StoreDamaged, OSError.
    """
    pool = facts.pool
    if pool is None:
        if not facts.is_backup and (killed := _killed_lanes(directory)):
            report(
                f"the store was killed, as the file abort of lane {killed[0]} says, and {directory.file} is older or new, "
                f"because it names no pool: what was accepted and not committed is gone if that pool is"
            )
        return
    if pool.boot_id != boot_id():
        report("the machine was started again: what was accepted and not committed before is gone with its memory")
    elif not os.path.isdir(pool.directory):
        report(
            f"the pool {pool.directory} is gone (a cleaner, systemd's RemoveIPC at logout, or the container's end): what "
            f"was accepted and not committed is gone with it"
        )
    else:
        _refuse_damaged_pool(Path(pool.directory))
        report(f"the pool {pool.directory} does not belong to this copy of the store: it is left alone")


def _killed_lanes(directory: StoreDirectory) -> list[int]:
    """The lanes that were not stopped properly."""
    return [lane for lane in directory.lane_numbers() if directory.lane_directory(lane).abort_file.exists()]


def _refuse_damaged_pool(pool: Path) -> None:
    """Raises PoolNotAdopted if nobody can tell whose pool this is: it may hold our messages."""
    try:
        ControlRegion.attach(pool).close()
    except (FileNotFoundError, RegionError) as error:
        raise PoolNotAdopted(
            f"the store's pool can't be read: {error}. Put the file back, or start the version of commitlog that made it. Or "
            f"keep a copy of {pool}, then remove it to go on with what the store's files say: messages that are in it only "
            f"are given up then"
        ) from error
