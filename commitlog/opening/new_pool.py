"""Makes a new pool for a store. Its words are the positions that recovery finds in the files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.config import Config
from commitlog.disk.consume_queue import ENTRY_BYTES
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import PoolPlace, StoreDirectory, StoreFacts, boot_id
from commitlog.errors import NotEnoughSharedMemory, RecoveryError, UnsafePath, is_refusal, refusal
from commitlog.opening import Report
from commitlog.opening.stray_pools import name_store
from commitlog.shm.control_region import ControlRegion, count_entries, forget_entries, set_first
from commitlog.shm.layout import Lane
from commitlog.shm.memory_order import observe, publish
from commitlog.shm.region import RegionError, RegionFull, base_directory, private_directory

if TYPE_CHECKING:
    from commitlog.opening.recovery import LaneEnd


def make_pool(directory: StoreDirectory, facts: StoreFacts) -> tuple[ControlRegion, PoolPlace]:
    """Makes an empty pool. Raises NotEnoughSharedMemory, DiskError, StoreRefused, UnsafePath."""
    pool = base_directory() / f"commitlog-{os.geteuid()}-{os.urandom(6).hex()}"
    try:
        private_directory(pool, create=True)
        with contextlib.ExitStack() as undo:  # nobody finds a pool that does not name its store
            undo.callback(_remove, pool)
            control = ControlRegion.create(pool, facts.id, directory.path)
            undo.callback(control.close)
            name_store(pool, directory.path)
            undo.pop_all()
    except RegionFull as error:
        raise NotEnoughSharedMemory(f"{error}; free or enlarge shared memory") from error
    except (RegionError, OSError) as error:
        if isinstance(error, OSError) and is_refusal(error):
            raise refusal(error, pool, "making the store's pool") from error
        raise UnsafePath(
            f"{pool}: the pool can't be made: {error}; set COMMITLOG_SHM_DIR to a directory where this user may make one"
        ) from error
    return control, PoolPlace(str(pool), os.stat(pool).st_dev, boot_id(), os.geteuid())


def _remove(pool: Path) -> None:
    import shutil  # loads four libraries that compress, and most starts go well

    shutil.rmtree(pool, ignore_errors=True)


def recover_all_into(
    control: ControlRegion, directory: StoreDirectory, facts: StoreFacts, channel: FileChannel, report: Report
) -> None:
    """Recovers all lanes from their files, and sets their words.

    Raises RecoveryError, DiskError.
    """
    numbers = directory.lane_numbers()
    for lane in sorted(facts.lanes.keys() - set(numbers)):
        path = directory.lane_directory(lane).path
        raise RecoveryError(
            f"{path} is missing, and {facts.lanes[lane]:,} bytes were flushed there: put it back, or make an empty "
            f"directory of that name to give its messages up"
        )
    lane_directories = [directory.lane_directory(number) for number in numbers]
    if not lane_directories:
        return
    from commitlog.opening.parallel_recovery import recover_lanes  # a new store starts without it

    ends = recover_lanes(
        lane_directories, facts.segment_bytes, channel, report,
        queue_file_bytes=queue_file_bytes(facts), known_ends=facts.lanes, store_id=facts.id,
    )  # fmt: skip
    for lane, end in ends.items():
        _set_words(control.row(lane), end)


def recover_into(
    control: ControlRegion,
    lane: int,
    directory: StoreDirectory,
    facts: StoreFacts,
    channel: FileChannel,
    report: Report,
    *,
    known_end: int = 0,
) -> None:
    """Recovers one lane from its files, and sets its words.

    For `known_end`, see `recover_lane`. Raises RecoveryError, DiskError.
    """
    from commitlog.opening.recovery import recover_lane

    end = recover_lane(
        directory.lane_directory(lane), facts.segment_bytes, channel, report,
        queue_file_bytes=queue_file_bytes(facts), known_end=max(known_end, facts.lanes.get(lane, 0)), store_id=facts.id,
    )  # fmt: skip
    _set_words(control.row(lane), end)


def queue_file_bytes(facts: StoreFacts) -> int:
    """The configured size of a consume queue's file."""
    return Config.from_json(facts.config).dispatcher.queue_file_entries * ENTRY_BYTES


def _set_words(row: memoryview, end: LaneEnd) -> None:
    """Sets the words of a lane.

    Everything that recovery kept is durable, so all positions are the log's end. Only the
    dispatcher may have to begin earlier.
    """
    for position in (Lane.WROTE, Lane.COMMITTED, Lane.FLUSHED):
        publish(row, position, end.end)
    publish(row, Lane.DISPATCHED, end.dispatched)
    publish(row, Lane.DISPATCH_SYNCED, end.dispatched)
    forget_entries(row)
    if end.entries >= 0:
        count_entries(row, end.dispatched, end.entries)
    row[Lane.DISPATCHED_TIMESTAMP] = end.last_store_timestamp
    set_first(row, end.first)
    publish(row, Lane.ALLOCATED, end.allocated)
    publish(row, Lane.REWRITTEN, observe(row, Lane.REWRITE_WANTED))
