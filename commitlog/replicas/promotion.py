"""Makes a replica the store (`commitlog promote`).

First it is checked whether the copy is whole. Then its lanes are recovered, as after a kill. Then
the epoch is raised, with a note of where each lane ended: records of the old primary behind these
ends never were in this store. From then on the copy is a store, and the mark of the replica does
not count and is removed. A promotion that was killed before may be repeated.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from commitlog.disk.checkpoint import Positions, PositionsFile, StoreCheckpoint
from commitlog.disk.epochs import epochs_from_json, epochs_to_json, next_epoch
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.replica_mark import ReplicaMark, load_mark, save_mark
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory, StoreFacts
from commitlog.errors import ReplicaRefused, refusal
from commitlog.opening import Report
from commitlog.opening.new_pool import queue_file_bytes
from commitlog.opening.parallel_recovery import recover_lanes
from commitlog.opening.recovery import LaneEnd
from commitlog.replicas.copy_place import take_lock
from commitlog.replicas.lost_segments import look_at_lanes
from commitlog.replicas.witnessing import hear_at_promotion


@dataclass(frozen=True)
class Promotion:
    """What a promotion has made: the store's epoch, and where each lane ended."""

    path: str
    epoch: int
    ends: dict[int, int]
    lacks: dict[int, int]
    """Lane → how many bytes of it are lost here that this copy had once acknowledged."""


def promote(
    path: str | os.PathLike[str],
    report: Report = lambda line: None,
    channel: FileChannel = DISK,
    *,
    verify_all: bool = False,
) -> Promotion:
    """Makes a replica's directory a store that can be opened.

    A copy that has lost something is promoted, too: nobody else may have more. `lacks` says how
    much that is, also of an older copy that was put back, where its witness knows. Each segment has
    to be there, to begin with a record, and to have the checksum that was noted for it.
    `verify_all` checks each record, too.

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
            return _promote(directory, report, verify_all)
        finally:
            channel.close(lock)
    except OSError as error:
        raise refusal(error, directory.path, "promoting it") from error


def _check(directory: StoreDirectory) -> ReplicaMark:
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
    return mark


def _promote(directory: StoreDirectory, report: Report, verify_all: bool) -> Promotion:
    mark, facts = _check(directory), directory.load()
    hear_at_promotion(directory, facts, mark, report)
    chains = look_at_lanes(directory, facts, mark.acknowledged, verify_all=verify_all, by_sums=True)
    # a lane without positions may be gone as a whole: what it had is damage then
    gone = {chain.lane: chain.end for chain in chains if chain.positions is None}
    for lane in gone:
        directory.channel.create_directory(directory.lane_directory(lane).path, below=directory.path)
    found = recover_all(directory, facts, report, gone)
    for lane, end in found.items():
        _record(directory.lane_directory(lane), facts, end, directory.channel)
    ends = {lane: end.end for lane, end in found.items()}
    history = epochs_from_json(facts.epochs)
    begun = next_epoch(history, ends)
    promoted = replace(
        facts, epoch=begun.epoch, epochs=epochs_to_json((*history, begun)), lanes=_flushed(ends), pool=None
    )
    short = {lane: max(end - ends.get(lane, 0), 0) for lane, end in mark.acknowledged.items()}
    lacks = {chain.lane: lost for chain in chains if (lost := chain.lost_bytes + short.get(chain.lane, 0))}
    for lane, lost in lacks.items():  # before it is a store: a promotion that is killed says it again
        report(
            f"lane {lane} lacks {lost:,} bytes that this copy had acknowledged: it has lost them; keep the directory of the "
            f"old primary, it may have them"
        )
    save_mark(directory, replace(mark, promoting=facts.epoch))
    directory.save(promoted)  # from here on it is a store
    for lane in ends:  # from now on a store writes to the segments
        directory.channel.remove_file(directory.lane_directory(lane).sums_file)
    directory.channel.unlink(directory.replica_file)
    directory.channel.sync_directory(directory.path)
    return Promotion(str(directory.path), begun.epoch, ends, lacks)


def _flushed(ends: dict[int, int]) -> dict[int, int]:
    return {lane: end for lane, end in ends.items() if end}


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


def recover_all(
    directory: StoreDirectory, facts: StoreFacts, report: Report, known_ends: Mapping[int, int] = MappingProxyType({})
) -> dict[int, LaneEnd]:
    """Recovers all lanes of a store that nobody runs. Raises RecoveryError, DiskError."""
    lanes = [directory.lane_directory(number) for number in directory.lane_numbers()]
    return recover_lanes(
        lanes, facts.segment_bytes, directory.channel, report,
        queue_file_bytes=queue_file_bytes(facts), known_ends=known_ends, store_id=facts.id,
    )  # fmt: skip
