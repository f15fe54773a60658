"""Finds stray pools: they are still in shared memory although their store is gone.

Somebody removed the store with `rm -rf`, or moved it away. A pool has the path of its store in the
file `store`. It is a stray if the store at that path does not name it any more, and no process of
the pool lives.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.locks import is_pool_held
from commitlog.disk.processes import stat_fields
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import CommitLogError, StoreRunning
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import ALL_STAGES, LANE_ROWS, Header, Lane, Stage
from commitlog.shm.memory_order import observe
from commitlog.shm.region import RegionError, base_directory, private_directory
from commitlog.shm.row_check import check_row
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.text.lines import for_shell

STORE_NAME = "store"
_PATH_BYTES_MAX = 4096
_SILENT_NS = 5_000_000_000


@dataclass(frozen=True)
class StrayPool:
    """A pool whose store is gone.

    It has the pool's directory, the path of its store, its size in bytes, and how many of its bytes
    never reached the disk. `is_replaced` says that there is a store at that path, but with another
    pool.
    """

    directory: Path
    store: Path
    size: int
    unflushed: int
    is_replaced: bool

    def __str__(self) -> str:
        lost = f", {self.unflushed:,} bytes in it were accepted and never written to disk" if self.unflushed else ""
        if self.is_replaced:
            return (
                f"{self.directory} takes {self.size:,} bytes of shared memory, and its store at {self.store} was "
                f"replaced by another one{lost}: if it was moved, start it at its new place; else "
                f"`rm -r {self.directory}` removes the memory"
            )
        return (
            f"{self.directory} takes {self.size:,} bytes of shared memory, and its store {self.store} is gone{lost}: if it "
            f"was moved, start it at its new place; else `commitlog destroy {for_shell(self.store)}` removes the memory"
        )

    def remove(self) -> None:
        """Removes the pool, which frees its memory."""
        remove_pool(self.directory)


def said_of_strays(pools: Sequence[StrayPool]) -> list[str]:
    """One line for all pools: what they take and hold, and the way to each of them."""
    if len(pools) < 2:
        return [str(pool) for pool in pools]
    unflushed = sum(pool.unflushed for pool in pools)
    lost = f", {unflushed:,} bytes in them were accepted and never written to disk" if unflushed else ""
    text = f"{len(pools)} pools take {sum(pool.size for pool in pools):,} bytes of shared memory, and their stores are gone"
    return [f"{text}{lost}: `commitlog doctor` names each, and the way out"]


def name_store(pool: Path, store: Path, channel: FileChannel = DISK) -> None:
    """Writes the path of its store into a pool. A start does this again after the store was moved.

    Raises OSError.
    """
    data = os.fsencode(store)
    with channel.opened(pool / STORE_NAME, write=True, create=True) as fd:
        if channel.pread(fd, _PATH_BYTES_MAX, 0) != data:
            channel.pwrite(fd, data, 0)  # first: full shared memory leaves a name that is too long, never none
            channel.truncate(fd, len(data))


def remove_pool(directory: Path) -> None:
    """Removes a pool's files and the pool. The caller knows that nobody uses it."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(directory):
            os.unlink(directory / name)
        os.rmdir(directory)


def stray_pools(clock: Clock = SYSTEM_CLOCK) -> list[StrayPool]:
    """All stray pools of this user.

    A pool that can't be read, or is not of this version, is passed over.
    """
    found = []
    for directory, store in _pools():
        with contextlib.suppress(OSError, RegionError):
            stray = _stray_at(directory, store, clock)
            if stray:
                found.append(stray)
    return found


def is_in_use(store: Path, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Whether a pool whose store is gone may still have a process. Then it is not a stray yet."""
    for directory, owner in _pools():
        with contextlib.suppress(OSError, RegionError):
            if owner == store and not _names(store, directory):
                with contextlib.closing(ControlRegion.attach(directory)) as control:
                    if _lives(control, clock):
                        return True
    return False


@dataclass(frozen=True)
class UnknownPool:
    """A pool that its store does not know, and lane → how far its words say that it was flushed."""

    pool: StrayPool
    flushed: dict[int, int]


def unknown_pool(store: Path, facts: StoreFacts) -> UnknownPool | None:
    """A pool of this very directory that its `store.json` does not know.

    Somebody has put an older file back. Or it was lost, and a start has made a new one, which has
    another id. A pool with bytes that no file has comes first.
    """
    found: list[UnknownPool] = []
    for directory in _directories():
        with contextlib.suppress(OSError, RegionError), contextlib.closing(ControlRegion.attach(directory)) as control:
            is_known = facts.generation > 0
            if control.belongs_to(facts.id, store, control.generation):
                is_known = control.generation <= facts.generation
            if control.is_at(store) and not is_known:
                pool = StrayPool(directory, store, control.region.size, _unflushed(control), is_replaced=True)
                found.append(UnknownPool(pool, _flushed(control, facts.segment_bytes)))
    return max(found, key=lambda one: one.pool.unflushed, default=None)


def refuse_second_store(store: Path) -> None:
    """Raises StoreRunning if a supervisor runs in this very directory, whose files were taken away.

    Only its pool tells of it.
    """
    for directory in _directories():
        with contextlib.suppress(OSError, RegionError), contextlib.closing(ControlRegion.attach(directory)) as control:
            if control.is_at(store) and is_pool_held(directory, DISK):
                pid = control.words[Header.SUPERVISOR_PID]
                raise StoreRunning(
                    f"{store}: a store whose files were here runs on with the pool {directory}: put its files back, or "
                    f"end its supervisor, pid {pid}"
                )


def unreadable_pools(store: Path) -> Iterator[str]:
    """Gives a line for each pool that has the path of a store, and that nobody can read."""
    for directory, owner in _pools():
        if owner == store:
            try:
                ControlRegion.attach(directory).close()
            except (OSError, RegionError) as error:
                yield (
                    f"the pool {directory} can't be read, and may hold messages of this store that no file has: {error}. "
                    f"Put the file back, and {store / 'store.json'} as it was. Or remove the pool to give them up"
                )


def _unflushed(control: ControlRegion) -> int:
    rows = map(control.row, range(LANE_ROWS))
    return sum(max(observe(row, Lane.WROTE) - observe(row, Lane.FLUSHED), 0) for row in rows)  # less than 0 is damage


def _flushed(control: ControlRegion, segment_bytes: int) -> dict[int, int]:
    """Lane → how far it was flushed, for lanes with messages whose words can be true."""
    rows = enumerate(map(control.row, range(LANE_ROWS)))
    return {
        lane: observe(row, Lane.FLUSHED)
        for lane, row in rows
        if observe(row, Lane.FLUSHED) and not check_row(row, segment_bytes)
    }


def _directories() -> Iterator[Path]:
    """The directories of this user's pools."""
    for directory in sorted(base_directory().glob(f"commitlog-{os.geteuid()}-*")):
        with contextlib.suppress(OSError, RegionError):
            private_directory(directory, create=False)
            yield directory


def _pools() -> Iterator[tuple[Path, Path]]:
    """This user's pools, each with the path of its store."""
    for directory in _directories():
        with contextlib.suppress(OSError):
            yield directory, Path(os.fsdecode(DISK.read_file(directory / STORE_NAME, _PATH_BYTES_MAX)))


def _stray_at(directory: Path, store: Path, clock: Clock) -> StrayPool | None:
    if _names(store, directory):
        return None
    control = ControlRegion.attach(directory)
    try:
        if _lives(control, clock):
            return None
        unflushed = _unflushed(control)
    finally:
        control.close()
    size = sum(os.lstat(directory / name).st_size for name in os.listdir(directory))
    return StrayPool(directory, store, size, unflushed, os.path.lexists(store / "store.json"))


def _names(store: Path, pool: Path) -> bool:
    """Whether the store names the pool as its own. True for a store that can't be read."""
    if not os.path.lexists(store / "store.json"):
        return False
    try:
        facts = StoreDirectory(store).load()
    except CommitLogError:
        return True
    return facts.pool is not None and Path(facts.pool.directory) == pool


def _lives(control: ControlRegion, clock: Clock) -> bool:
    """Whether a supervisor, a stage or a producer of the pool may still be there."""
    pids = [control.words[Header.SUPERVISOR_PID]]
    pids += [control.stage_row(stage)[Stage.PID] for stage in ALL_STAGES]
    pids += [control.row(lane)[Lane.LESSEE_PID] for lane in range(LANE_ROWS)]
    silent_ns = clock.monotonic_ns() - control.words[Header.SUPERVISOR_HEARTBEAT]
    return silent_ns < _SILENT_NS or any(pid and _is_alive(pid) for pid in pids)


def _is_alive(pid: int) -> bool:
    """Whether a process lives.

    A zombie counts as dead. In a container it stays for ever if the first process never waits for
    its children.
    """
    try:
        state = stat_fields(pid)[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:  # it can't be told, so its memory stays
        return True
    return state not in (b"Z", b"X")
