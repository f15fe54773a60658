"""Makes a replica the store (`commitlog promote`).

Its lanes are recovered, as after a kill. Then the epoch is raised, with a note of where each lane
ended: what the old primary has behind these ends never was in this store. At last the mark of the
replica goes, so that the directory may be opened. A promotion that was killed may be repeated.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace

from commitlog.disk.checkpoint import Positions, PositionsFile, StoreCheckpoint
from commitlog.disk.epochs import epochs_from_json, epochs_to_json, next_epoch
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.replica_mark import load_mark
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory, StoreFacts
from commitlog.errors import ReplicaRefused, refusal
from commitlog.opening import Report
from commitlog.opening.new_pool import queue_file_bytes
from commitlog.opening.parallel_recovery import recover_lanes
from commitlog.opening.recovery import LaneEnd
from commitlog.replicas.replica import take_lock


@dataclass(frozen=True)
class Promotion:
    """What a promotion has made: the store's epoch, and where each lane ended."""

    path: str
    epoch: int
    ends: dict[int, int]


def promote(path: str | os.PathLike[str], report: Report = lambda line: None, channel: FileChannel = DISK) -> Promotion:
    """Makes a replica's directory a store that can be opened.

    Raises:
    - ReplicaRefused: the directory is no replica, or one that never had all of its store
    - StoreRunning: `commitlog replica` runs there
    - StoreRefused, StoreDamaged, RecoveryError, DiskError
    """
    directory = StoreDirectory(path, channel)
    try:
        directory.check_path()
        _check(directory)
        lock = take_lock(directory)
        try:
            return _promote(directory, report)
        finally:
            channel.close(lock)
    except OSError as error:
        raise refusal(error, directory.path) from error


def _check(directory: StoreDirectory) -> None:
    mark = load_mark(directory)
    if mark is None:
        raise ReplicaRefused(
            f"{directory.path} is no replica: only the directory of a `commitlog replica` is promoted, and a store runs "
            f"with `commitlog run`"
        )
    if not mark.complete or not directory.file.exists():
        raise ReplicaRefused(
            f"{directory.path}: this replica never had all of {mark.source} and is not promoted: let `commitlog replica` "
            f"go on with it"
        )


def _promote(directory: StoreDirectory, report: Report) -> Promotion:
    _check(directory)
    facts = directory.load()
    found = recover_all(directory, facts, report)
    for lane, end in found.items():
        _record(directory.lane_directory(lane), facts, end, directory.channel)
    ends = {lane: end.end for lane, end in found.items()}
    history = epochs_from_json(facts.epochs)
    begun = next_epoch(history, ends)
    directory.save(replace(facts, epoch=begun.epoch, epochs=epochs_to_json((*history, begun)), pool=None))
    directory.channel.unlink(directory.replica_file)
    directory.channel.sync_directory(directory.path)
    return Promotion(str(directory.path), begun.epoch, ends)


def _record(lane: LaneDirectory, facts: StoreFacts, end: LaneEnd, channel: FileChannel) -> None:
    """Makes a recovered lane one that was stopped properly: it can be read before it is opened."""
    timestamp = end.last_store_timestamp
    PositionsFile(lane, facts.id, channel).store(
        Positions(facts.generation, end.end, end.dispatched, end.first, timestamp, True, end.entries)
    )
    StoreCheckpoint(timestamp, timestamp, 0).save(lane.checkpoint_file, channel)
    with contextlib.suppress(FileNotFoundError):  # an earlier promotion was killed
        channel.unlink(lane.abort_file)
    channel.sync_directory(lane.path)


def recover_all(directory: StoreDirectory, facts: StoreFacts, report: Report) -> dict[int, LaneEnd]:
    """Recovers all lanes of a store that nobody runs. Raises RecoveryError, DiskError."""
    lanes = [directory.lane_directory(number) for number in directory.lane_numbers()]
    return recover_lanes(
        lanes, facts.segment_bytes, directory.channel, report,
        queue_file_bytes=queue_file_bytes(facts), store_id=facts.id,
    )  # fmt: skip
