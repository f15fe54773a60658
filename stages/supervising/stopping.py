"""The last steps of a proper stop: final positions, RocketMQ's files, unused segments, the pool."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass, replace

from commitlog.disk.checkpoint import Positions, PositionsFile, StoreCheckpoint
from commitlog.disk.direct_segment import clear_unpublished
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import lane_locked
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory, StoreFacts, is_segment_name
from commitlog.errors import CommitLogError
from commitlog.opening.stray_pools import remove_pool
from commitlog.reading.queue_bounds import total_of_ends
from commitlog.shm.layout import Lane
from commitlog.shm.pool import remove_buffers
from commitlog.shm.positions import ControlRegion, counted_entries


@dataclass(frozen=True)
class StopReport:
    """How a stop ended: `kept` says, a line each, why a lane's pool file stays (nothing in it is
    lost).
    """

    drained: bool
    kept: list[str]


def close_store(
    directory: StoreDirectory, facts: StoreFacts, control: ControlRegion, channel: FileChannel
) -> StopReport:
    """Closes every lane that nobody holds and that is drained; the pool goes when all of them are."""
    kept = []
    for number in directory.lane_numbers():
        try:
            reason = _close_lane(directory.lane(number), facts, control, channel)
        except OSError as error:
            reason = (
                f"lane {number}: all of it is flushed, and its files can't be closed: {error}; the next start does it"
            )
        if reason:
            kept.append(reason)
    if not kept:
        try:
            directory.save(replace(facts, pool=None))
        except OSError as error:
            kept.append(f"store.json can't be written: {error}")
    if not kept:
        remove_pool(control.region.path.parent)
    return StopReport(drained=not kept, kept=kept)


def give_up_pool(directory: StoreDirectory, facts: StoreFacts, control: ControlRegion, channel: FileChannel) -> None:
    """Removes the pool that a failed start has made. As a stop does where `store.json` names it
    already, because a producer may have found it there; what can't be said of that is kept."""
    try:
        is_named = directory.load().pool == facts.pool
    except CommitLogError:
        is_named = True
    if is_named:
        close_store(directory, facts, control, channel)
    else:
        remove_pool(control.region.path.parent)


def _close_lane(lane: LaneDirectory, facts: StoreFacts, control: ControlRegion, channel: FileChannel) -> str | None:
    """Why the lane's buffers must stay, or None."""
    words, base = control.words, control.lane_base(lane.number)
    with lane_locked(lane, control.region.path.parent, channel) as is_ours:
        if not is_ours:
            return f"lane {lane.number}: producer {words[base + Lane.LESSEE_PID]} still holds it"
        wrote, flushed = words[base + Lane.WROTE], words[base + Lane.FLUSHED]
        if words[base + Lane.FLUSHER_FAULT] == errno.ENOENT:
            return (
                f"lane {lane.number}: segment files were removed under the running store; its buffers stay, with the bytes "
                f"of the last ones: put the files back if you can, then start again"
            )
        if wrote != flushed and words[base + Lane.COMMITTER_FAULT] == errno.EILSEQ:
            return (
                f"lane {lane.number}: of {wrote - flushed} bytes that were accepted a failed sync lost some, and the file no "
                f"longer holds them; the next start keeps what is whole and says what is not"
            )
        if wrote != flushed:
            return f"lane {lane.number}: {wrote - flushed} bytes are in the pool, not flushed yet; the next start drains them"
        _remove_unused_segments(lane, words, base, channel)
        if clear_unpublished(lane, control.row(lane.number), channel):
            _sync_segment(lane, wrote - wrote % words[base + Lane.SEGMENT_SIZE], channel)
        timestamp = words[base + Lane.DISPATCHED_TIMESTAMP]
        first = words[base + Lane.FIRST]
        dispatched = max(words[base + Lane.DISPATCH_SYNCED], first)  # what lies below needs no entries
        entries = counted_entries(control.row(lane.number), dispatched)
        PositionsFile(lane, facts.id, channel).store(
            Positions(
                generation=control.generation,
                flushed_where=flushed,
                dispatched_where=dispatched,
                first_where=first,
                last_store_timestamp=timestamp,
                drained=True,
                entries=total_of_ends(lane, first, dispatched, channel) if entries < 0 else entries,
            )
        )
        StoreCheckpoint(timestamp, timestamp, 0).save(lane.checkpoint_file, channel)
        with contextlib.suppress(FileNotFoundError):
            channel.unlink(lane.abort_file)
        channel.sync_directory(lane.path)
        if words[base + Lane.BUFFERS] & 1:
            words[base + Lane.BUFFERS] += 1
            remove_buffers(control.region.path.parent, lane.number)
    return None


def _sync_segment(lane: LaneDirectory, start: int, channel: FileChannel) -> None:
    with channel.opened(lane.segment(start), write=True) as fd:
        channel.fdatasync(fd)


def _remove_unused_segments(lane: LaneDirectory, words: memoryview, base: int, channel: FileChannel) -> None:
    """Segments that were made ahead and never written to: RocketMQ would take them for the log's
    end.

    The pool may outlive this stop for another lane's sake, so it is told first.
    """
    unused = [
        name for name in channel.list(lane.commitlog) if is_segment_name(name) and int(name) >= words[base + Lane.WROTE]
    ]
    if unused:
        words[base + Lane.ALLOCATED] = int(unused[0])
        for name in unused:
            channel.unlink(lane.commitlog / name)
        channel.sync_directory(lane.commitlog)
