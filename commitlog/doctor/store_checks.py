"""Checks of a store, and of the file system that it is on or would be made on."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from commitlog.disk.store_directory import BACKUP_STARTS, STORE_FILE, StoreDirectory, StoreFacts, boot_id
from commitlog.doctor.finding import Code, Finding, Surroundings, good, note, problem
from commitlog.doctor.mounts import existing, mount_of
from commitlog.doctor.store_settings import settings_of
from commitlog.errors import CommitLogError, StoreNotFound, StoreRefused, StoreTooNew
from commitlog.shm.region import RegionError, private_directory
from commitlog.text.lines import for_shell

_NETWORK = ("9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3")
_VOLATILE = ("ramfs", "tmpfs")
_PROBE_BYTES = 4_096
_INODES_FEW = 10_000
_LATE_MS = 2_000
"""Times further apart than this are not those of one clock."""


def file_system(here: Surroundings) -> Iterator[Finding]:
    """Whether the file system keeps what it says that it has kept, and has room."""
    if here.store is None:
        return
    place = existing(here.store)
    mount = mount_of(place, here)
    kind = mount.kind if mount else "an unknown file system"
    text, remedy = f"{place} is on {kind}", "put the store on a local disk: ext4, xfs, btrfs, zfs"
    if kind in _VOLATILE:
        yield problem(Code.FILE_SYSTEM, f"{text}: it ends with the machine, also what is flushed", remedy)
    elif kind in _NETWORK or kind.startswith("fuse"):
        text += ": a sync may take long or mean little, and only this machine may have the store open"
        yield note(Code.FILE_SYSTEM, text, remedy)
    elif kind == "overlay":
        yield note(
            Code.FILE_SYSTEM, f"{text}, a layer of a container: it ends with the container", "put the store on a volume"
        )
    else:
        yield good(Code.FILE_SYSTEM, text)
    yield from _room(here, place)
    yield from _calls(here, place)


def _room(here: Surroundings, place: Path) -> Iterator[Finding]:
    facts, limits = os.statvfs(place), settings_of(here).retention
    used, free = here.channel.space(place)
    percent = 100 * used / max(used + free, 1)
    text = f"the disk is {percent:.0f} % full, {free:,} bytes are free"
    if facts.f_files and facts.f_favail < _INODES_FEW:
        left = f"{facts.f_favail:,} files can still be made on the disk of {place}"
        yield problem(Code.DISK_SPACE, left, "remove files there, or make a file system with more inodes")
    if free >= limits.disk_enough_bytes or percent <= limits.disk_clean_forcibly_percent:
        yield good(Code.DISK_SPACE, text)
    elif percent <= limits.disk_refuse_percent:
        yield note(Code.DISK_SPACE, f"{text}: the oldest segments are deleted before their time", "free some space")
    else:
        text += ": no segment is made (retention.disk_refuse_percent), and producers get DiskFull"
        yield problem(Code.DISK_SPACE, text, "free some space; `commitlog trim` deletes the oldest segments")


def _calls(here: Surroundings, place: Path) -> Iterator[Finding]:
    """Tries in a file of its own what a store does, and looks at the time that the file gets."""
    channel = here.channel
    probe = place / f".{STORE_FILE}.{os.getpid()}.doctor"  # a start takes it for a draft if this is killed
    doing = "make a file"
    try:
        with channel.opened(probe, write=True, create=True) as fd:
            doing = "reserve space (posix_fallocate)"
            channel.allocate(fd, _PROBE_BYTES)
            doing = "write and sync"
            channel.pwrite(fd, bytes(_PROBE_BYTES), 0)
            channel.fdatasync(fd)
            doing = "lock (OFD locks)"
            locked = channel.try_lock(fd) and channel.is_locked(probe)
            late_ms = os.fstat(fd).st_mtime_ns // 1_000_000 - here.clock.wall_ms()
        channel.sync_directory(place)
    except PermissionError:
        text = f"this user may not write to {place}, so no store starts there"
        yield problem(Code.FILE_CALLS, text, "run as its owner, give it to this user (chown), or choose another path")
        return
    except OSError as error:
        remedy = "put the store on a local disk: ext4, xfs, btrfs, zfs"
        if error.errno == errno.EROFS:
            remedy = "mount it for writing; `dmesg` says whether an error of the disk made it so"
        text = f"the file system of {place} can't {doing}: {error.strerror}"
        yield problem(Code.FILE_CALLS, text, remedy)
        return
    finally:
        with contextlib.suppress(OSError):
            channel.unlink(probe)
    if locked:
        yield good(Code.FILE_CALLS, "its file system reserves space, syncs, and locks")
    else:
        text = f"a lock on {place} does not keep others out, so two supervisors could run one store"
        yield problem(Code.FILE_CALLS, text, "put the store on a local disk: ext4, xfs, btrfs, zfs")
    if abs(late_ms) > _LATE_MS:
        text = f"a new file on {place} gets a time that is {late_ms / 1000:+,.0f} s from this machine's"
        yield note(Code.FILE_TIME, text, "keep both clocks right (chrony); nothing is decided by these times")


# ---- the store ---------------------------------------------------------------------------------


def store(here: Surroundings) -> Iterator[Finding]:
    """Whether there is a store that can be used, and how it is."""
    if here.store is None:
        return
    directory = StoreDirectory(here.store, here.channel)
    try:
        facts = directory.load()
    except StoreNotFound as error:
        remedy = f"check the path; `commitlog run {for_shell(directory.path)}` makes a store"
        yield problem(Code.STORE, str(error).partition(";")[0], remedy)
        return
    except CommitLogError as error:
        said, remedy = str(error), "docs/recover.md: Errors of a start"
        if isinstance(error, StoreTooNew):
            remedy = "install the version of the package that wrote it, or a newer one"
        yield problem(Code.STORE, said, remedy)
        return
    lanes = len(directory.lane_numbers())
    yield good(Code.STORE, f"{directory.path}: segments of {facts.segment_bytes >> 10:,} KiB, lanes: {lanes}")
    yield from _owner(directory)
    yield from _pool(facts)
    yield from _times(here, directory)
    yield from _health(directory)


def _owner(directory: StoreDirectory) -> Iterator[Finding]:
    try:
        directory.check_owner()
    except StoreRefused as error:
        said, _, remedy = str(error).rpartition(": ")
        yield problem(Code.STORE_OWNER, said, remedy)
    else:
        yield good(Code.STORE_OWNER, "the store is this user's, and nobody else may write to it")


def _pool(facts: StoreFacts) -> Iterator[Finding]:
    """The store's shared memory, where it has one of this boot."""
    if facts.pool is None or facts.pool.boot_id != boot_id():
        return
    pool = Path(facts.pool.directory)
    try:
        private_directory(pool, create=False)
    except FileNotFoundError:
        text = f"the store's shared memory {pool} is gone, with what was not on the disk yet"
        yield problem(Code.STORE_POOL, text, "`commitlog run` goes on from the files; what removed it (a cleaner)?")
    except (OSError, RegionError) as error:
        yield problem(Code.STORE_POOL, str(error), f"`chmod 700 {pool}` as its owner")
    else:
        yield good(Code.STORE_POOL, f"its shared memory is {pool}, of this user alone")


def _times(here: Surroundings, directory: StoreDirectory) -> Iterator[Finding]:
    """Whether something was written later than now: then the clock has gone back since."""
    files = [directory.file]
    for number in directory.lane_numbers():
        lane = directory.lane_directory(number)
        files += [lane.positions_file, *(lane.commitlog / name for name in here.channel.list(lane.commitlog)[-1:])]
    latest = 0
    for file in files:
        with contextlib.suppress(OSError):  # it has none, or retention has just deleted it
            latest = max(latest, file.lstat().st_mtime_ns // 1_000_000)
    late_ms = latest - here.clock.wall_ms()
    if late_ms > _LATE_MS:
        yield note(
            Code.STORE_TIME,
            f"the store was written to {late_ms / 1000:,.0f} s later than it is now: the clock has gone back since",
            "set the clock (chrony); until then reads from a time on, and retention by age, go by wrong times",
        )
    else:
        yield good(Code.STORE_TIME, "the store has no time that is still to come")


def _health(directory: StoreDirectory) -> Iterator[Finding]:
    from commitlog.watching.health import health
    from commitlog.watching.snapshot import StoreWatch

    with StoreWatch(directory.path, only_health=True) as watch:
        snapshot = watch.snapshot()
    state = snapshot.statistics.state
    if snapshot.statistics.backup and state == "stopped":
        yield good(Code.STORE_HEALTH, f"the store is a backup, and was never started: {BACKUP_STARTS}")
    elif state == "killed":
        text = "the store was killed and does not run; what was accepted is there"
        yield note(Code.STORE_HEALTH, text, f"`commitlog run {for_shell(directory.path)}` goes on where it was")
    elif state == "stopped":
        yield good(Code.STORE_HEALTH, "the store was stopped properly")
    else:
        found = health(snapshot)
        for reason in found.reasons:
            how_bad = note if reason.code in ("starting", "closing") else problem
            yield how_bad(Code.STORE_HEALTH, f"{reason.code}: {reason.text}", f"{reason.way_out}: {reason.command}")
        if not found.reasons:
            yield good(Code.STORE_HEALTH, f"the store is {state}, and in good health")
