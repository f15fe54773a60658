"""The last steps of a proper stop: final positions, RocketMQ's files, unused segments, the pool.

RunningStore.stop_in_order has the order of the whole stop.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from commitlog.disk.checkpoint import Positions, PositionsFile, StoreCheckpoint
from commitlog.disk.direct_segment import clear_unpublished
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import lane_locked
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory, StoreFacts, is_segment_name
from commitlog.disk.topic_ends import TopicEnds, save_ends
from commitlog.errors import CommitLogError
from commitlog.opening.stray_pools import remove_pool
from commitlog.reading.log_begin import damage_of_index_word
from commitlog.reading.queue_bounds import ends_of_queues
from commitlog.shm.control_region import ControlRegion, counted_entries, first_kept
from commitlog.shm.layout import Lane, segment_start
from commitlog.shm.memory_order import observe, publish
from commitlog.shm.row_check import WORDS_DAMAGED, check_row
from commitlog.shm.write_buffers import remove_buffers
from commitlog.status import StopReport

log = logging.getLogger(__name__)


def close_store(
    directory: StoreDirectory, facts: StoreFacts, control: ControlRegion, channel: FileChannel
) -> StopReport:
    """Closes every lane that nobody holds and that is drained.

    The pool is removed when all lanes are closed. Otherwise the report has a line for each lane
    that needs the pool, with the reason; nothing in the pool is lost.
    """
    try:
        numbers = directory.lane_numbers()
    except (OSError, CommitLogError) as error:
        return StopReport(drained=False, kept=(f"the lanes can't be listed: {error}; the next start goes on",))
    kept = [
        f"lane {lane}: its directory was removed under the running store; its buffers stay, with the bytes that no file "
        f"has: put the directory back if you can, then start again"
        for lane in _unflushed(control)
        if lane not in numbers and not check_row(control.row(lane), facts.segment_bytes)
    ]
    for number in numbers:
        try:
            reason = _close_lane(directory.lane_directory(number), facts, control, channel)
        except OSError as error:
            reason = _why_open(number, facts, control, error)
        if reason:
            kept.append(reason)
    if not kept:
        try:
            directory.save(replace(facts, pool=None, lanes=control.positions(Lane.FLUSHED)))
        except OSError as error:
            kept.append(f"store.json can't be written: {error}")
    if not kept:
        try:
            remove_pool(control.region.path.parent)
        except OSError as error:  # nothing is in it that the disk lacks
            log.warning("the pool is not removed: %s", error)
    return StopReport(drained=not kept, kept=tuple(kept))


def _why_open(lane: int, facts: StoreFacts, control: ControlRegion, error: OSError) -> str:
    """Says what is left of a lane whose files can't be closed."""
    row = control.row(lane)
    left = observe(row, Lane.WROTE) - observe(row, Lane.FLUSHED)
    if check_row(row, facts.segment_bytes):
        state = "its words in shared memory are damaged"
    elif left:
        state = f"{left} bytes are in the pool, not flushed yet"
    else:
        state = "all of it is flushed"
    return f"lane {lane}: {state}, and its files can't be closed: {error}; the next start goes on with it"


def give_up_pool(directory: StoreDirectory, facts: StoreFacts, control: ControlRegion, channel: FileChannel) -> None:
    """Removes the pool that a failed start has made. Raises OSError.

    If `store.json` names the pool already, a producer may have found the pool. Then the store is
    closed as in a stop. The same is done if `store.json` can't be read.
    """
    try:
        is_named = directory.load().pool == facts.pool
    except CommitLogError:
        is_named = True
    if is_named:
        close_store(directory, facts, control, channel)
    else:
        remove_pool(control.region.path.parent)


def is_undrained(control: ControlRegion, segment_bytes: int) -> bool:
    """Whether a stage can still do something.

    It could flush accepted messages, or index flushed ones.
    """
    lanes = _sound_lanes(control, segment_bytes)
    left = (lanes[:, Lane.WROTE] != lanes[:, Lane.FLUSHED]) | (lanes[:, Lane.FLUSHED] != lanes[:, Lane.DISPATCHED])
    return bool(left.any())


def _unflushed(control: ControlRegion) -> list[int]:
    """The lanes with accepted messages that are not flushed."""
    lanes = control.lane_table()
    return list(map(int, np.flatnonzero(lanes[:, Lane.WROTE] != lanes[:, Lane.FLUSHED])))


def rewrites_are_left(control: ControlRegion, segment_bytes: int) -> bool:
    """Whether a flusher has asked for a rewrite that no committer has carried out."""
    lanes = _sound_lanes(control, segment_bytes)
    return bool((lanes[:, Lane.REWRITE_WANTED] != lanes[:, Lane.REWRITTEN]).any())


def _sound_lanes(control: ControlRegion, segment_bytes: int) -> npt.NDArray[np.uint64]:
    """A copy of the rows of all lanes except damaged ones (LaneDamaged, LaneWordsDamaged).

    No stage can do anything for a damaged lane.
    """
    lanes = control.lane_table()
    is_sound = ~np.isin(lanes[:, Lane.COMMITTER_FAULT], (errno.EILSEQ, WORDS_DAMAGED))
    is_sound &= [not check_row(control.row(lane), segment_bytes) for lane in range(len(lanes))]
    sound: npt.NDArray[np.uint64] = lanes[is_sound]
    return sound


def _close_lane(
    lane_directory: LaneDirectory, facts: StoreFacts, control: ControlRegion, channel: FileChannel
) -> str | None:
    """Writes a lane's last positions and RocketMQ's files, and removes its buffers.

    Returns why the buffers must stay, or None.
    """
    lane, row = lane_directory.number, control.row(lane_directory.number)
    with lane_locked(lane_directory, control.region.path.parent, channel) as is_ours:
        if not is_ours:
            return f"lane {lane}: producer {row[Lane.LESSEE_PID]} still holds it"
        size = facts.segment_bytes
        if wrong := check_row(row, size) or damage_of_index_word(lane_directory, row, size, channel):
            return (
                f"lane {lane}: its words in {control.region.path} are damaged ({wrong}): it was set aside; the next start "
                f"recovers it from its files and its buffers"
            )
        wrote, flushed = observe(row, Lane.WROTE), observe(row, Lane.FLUSHED)
        if row[Lane.FLUSHER_FAULT] == errno.ENOENT:
            return (
                f"lane {lane}: segment files were removed under the running store; its buffers stay, with the bytes "
                f"of the last ones: put the files back if you can, then start again"
            )
        if wrote != flushed and row[Lane.COMMITTER_FAULT] == errno.EILSEQ:
            return (
                f"lane {lane}: of {wrote - flushed} bytes that were accepted a failed sync lost some, and the file no "
                f"longer holds them; the next start keeps what is whole and says what is not"
            )
        if wrote != flushed:
            return f"lane {lane}: {wrote - flushed} bytes are in the pool, not flushed yet; the next start drains them"
        _remove_unused_segments(lane_directory, row, channel)
        if clear_unpublished(lane_directory, row, channel):
            _sync_segment(lane_directory, segment_start(wrote, facts.segment_bytes), channel)
        timestamp = row[Lane.DISPATCHED_TIMESTAMP]
        first = first_kept(row)
        dispatched = max(observe(row, Lane.DISPATCH_SYNCED), first)  # records below `first` need no entries
        entries = _note_ends(lane_directory, facts.id, first, dispatched, counted_entries(row, dispatched), channel)
        PositionsFile(lane_directory, facts.id, channel).store(
            Positions(
                generation=control.generation,
                flushed_where=flushed,
                dispatched_where=dispatched,
                first_where=first,
                last_store_timestamp=timestamp,
                drained=True,
                entries=entries,
            )
        )
        StoreCheckpoint(timestamp, timestamp, 0).save(lane_directory.checkpoint_file, channel)
        with contextlib.suppress(FileNotFoundError):
            channel.unlink(lane_directory.abort_file)
        channel.sync_directory(lane_directory.path)
        if observe(row, Lane.BUFFERS) & 1:
            publish(row, Lane.BUFFERS, observe(row, Lane.BUFFERS) + 1)
            remove_buffers(control.region.path.parent, lane)
    return None


def _note_ends(
    lane_directory: LaneDirectory, store_id: str, first: int, dispatched: int, counted: int, channel: FileChannel
) -> int:
    """Writes where the lane's topics end. Returns `counted`, or the sum of the ends if that is −1.

    Returns −1 if neither is known. If the ends do not add up to `counted`, queues are damaged, and
    the file of an earlier stop stays.
    """
    ends = ends_of_queues(lane_directory, first, dispatched, channel)
    if ends is None:
        return counted
    total = sum(ends.values())
    if total and counted in (-1, total):
        try:
            save_ends(lane_directory, store_id, TopicEnds(dispatched, ends), channel)
        except OSError as error:  # nothing is lost by that: the consume queues have the ends as well
            log.warning("lane %d: the ends of its topics are not noted: %s", lane_directory.number, error.strerror)
    return total if counted < 0 else counted


def _sync_segment(lane_directory: LaneDirectory, start: int, channel: FileChannel) -> None:
    with channel.opened(lane_directory.segment_path(start), write=True) as fd:
        channel.fdatasync(fd)


def _remove_unused_segments(lane_directory: LaneDirectory, row: memoryview, channel: FileChannel) -> None:
    """Removes segments that were made ahead and never written to.

    RocketMQ would take them for the log's end. The pool may outlive this stop because of another
    lane, so the pool's words are changed first.
    """
    unused = [
        name
        for name in channel.list(lane_directory.commitlog)
        if is_segment_name(name) and int(name) >= observe(row, Lane.WROTE)
    ]
    if unused:
        publish(row, Lane.ALLOCATED, int(unused[0]))
        for name in unused:
            channel.unlink(lane_directory.commitlog / name)
        channel.sync_directory(lane_directory.commitlog)
