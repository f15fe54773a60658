"""Leasing a lane: one writer's own commit log, held by locks that the kernel frees when their
holder dies (locks.py).

A producer takes the first free lane that exists and makes a new one only up to the store's limit.
The lease comes with the lane's write buffers in shared memory, made and filled here when nobody
made them before.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commitlog.clock import Clock
from commitlog.disk.direct_segment import clear_unpublished
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import Lock, try_lane
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory, StoreFacts
from commitlog.errors import NotEnoughSharedMemory, RecoveryError, StoreNotRunning, disk_error, store_moved
from commitlog.reading.indexed_offsets import IndexedOffsets
from commitlog.record.scan import MAX_BYTES, scan
from commitlog.record.table import Stop
from commitlog.shm.layout import Lane
from commitlog.shm.pool import WriteBuffers, free_bytes
from commitlog.shm.positions import ControlRegion, counted_entries
from commitlog.shm.region import RegionFull

ROCKETMQ_LOCK_TEXT = b"lock"

_POLL_SECONDS = 0.002
_DRAIN_LIMIT_NS = 10_000_000_000
FAULT_PATIENCE_NS = 300_000_000
"""How long whoever waits for the stages gives a fault of theirs to heal before it becomes an error."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What a new lessee has to know about the records before it."""

    queue_offsets: dict[str, int]  # topic → next queue offset, of the topics found above `dispatch_synced`
    store_timestamp: int  # of the last record, ms; 0 where there is none


def is_damaged(words: memoryview, base: int) -> bool:
    """Whether a failed sync has lost what nobody can write again: LaneDamaged."""
    return words[base + Lane.COMMITTER_FAULT] == errno.EILSEQ


def has_lost_files(words: memoryview, base: int) -> bool:
    """Whether the lane stands because segments of it were removed: PoolUnlinked."""
    return words[base + Lane.FLUSHER_FAULT] == errno.ENOENT


def try_lease(
    directory: StoreDirectory, control: ControlRegion, channel: FileChannel, max_lanes: int, lane_bytes: int
) -> Lease | None:
    """Locks the first free lane: those that exist first, then a new one. None when all are leased,
    or stopped.

    `lane_bytes`: the shared memory that a lane without buffers takes; where there is less, such a
    lane is passed over.
    """
    existing = directory.lane_numbers()
    for number in [*existing, *(n for n in range(max_lanes) if n not in existing)][:max_lanes]:
        lane, base = directory.lane(number), control.lane_base(number)
        if is_damaged(control.words, base) or has_lost_files(control.words, base):
            continue
        has_buffers = control.words[base + Lane.BUFFERS] & 1
        if not has_buffers and free_bytes(control.region.path.parent) < lane_bytes:
            continue
        for part in (lane.commitlog, lane.consumequeue, lane.tmp):
            channel.create_directory(part, below=directory.path)
        lock = try_lane(lane, control.region.path.parent, channel)
        if lock is None:
            continue
        try:
            if not lane.abort_file.exists():  # durable before the first append: without it the lane counts as stopped
                channel.replace_file(lane.abort_file, str(os.getpid()).encode())
            if channel.size(lock.fd) == 0:
                channel.pwrite(lock.fd, ROCKETMQ_LOCK_TEXT, 0)
            return Lease(lane, control, channel, lock)
        except BaseException:
            lock.close()
            raise
    return None


class Lease:
    """A locked lane with its buffers. `words[base + Lane.X]` are the lane's words.

    Attributes: `lane` (number), `directory` (LaneDirectory), `buffers` (WriteBuffers once prepared,
    None for a direct lane), `words`, `base`.
    """

    def __init__(self, directory: LaneDirectory, control: ControlRegion, channel: FileChannel, lock: Lock) -> None:
        self.lane = directory.number
        self.directory = directory
        self._control = control
        self.words = control.words
        self.base = control.lane_base(self.lane)
        self.row = control.row(self.lane)
        self.channel = channel
        self._lock = lock
        self.buffers: WriteBuffers | None = None  # None: direct

    def prepare(self, pool: Path, facts: StoreFacts, slots: int) -> None:
        """Attaches the lane's buffers, or makes them; with `slots` 0 there are none. Raises
        NotEnoughSharedMemory.
        """
        words, base = self.words, self.base
        if words[base + Lane.BUFFERS] & 1:
            size, slots = words[base + Lane.SEGMENT_SIZE], words[base + Lane.SLOTS]
            if slots:
                self.buffers = WriteBuffers.attach(pool, self.lane, size, slots, writable=True)
        elif slots == 0:
            words[base + Lane.SEGMENT_SIZE], words[base + Lane.SLOTS] = facts.segment_bytes, 0
            words[base + Lane.BUFFERS] += 1
        else:
            try:
                self.buffers = WriteBuffers.create(pool, self.lane, facts.segment_bytes, slots)
            except RegionFull as error:
                raise NotEnoughSharedMemory(
                    f"{error}; a lane takes {facts.segment_bytes * slots:,} bytes: free shared memory, or enlarge it "
                    f"(mount -o remount,size=… /dev/shm, docker run --shm-size=…)"
                ) from error
            self._fill_from_file(self.buffers, facts.segment_bytes)
            self.clear_unpublished()  # before it is no direct lane any more: an adoption asks what is behind `wrote`
            words[base + Lane.SEGMENT_SIZE], words[base + Lane.SLOTS] = facts.segment_bytes, slots
            words[base + Lane.BUFFERS] += 1
        words[base + Lane.LESSEE_PID] = os.getpid()

    def _fill_from_file(self, buffers: WriteBuffers, segment_bytes: int) -> None:
        """A half-filled segment that goes on needs its old bytes too: a rewrite starts at a page's
        first byte.
        """
        wrote = self.words[self.base + Lane.WROTE]
        start = wrote - wrote % segment_bytes
        if wrote > start:
            with self.channel.opened(self.directory.segment(start)) as fd:
                data = self.channel.pread(fd, wrote - start, 0)
            buffers.slot(start // segment_bytes)[: len(data)] = data

    def wait_drained(self, clock: Clock, check: Callable[[int], None]) -> None:
        """Waits until all that the lane's last lessee wrote is committed. Raises StoreNotRunning
        after ten seconds, and what `check(base)` raises while a stage complains about the lane."""
        words, base = self.words, self.base
        began = clock.monotonic_ns()
        while words[base + Lane.COMMITTED] < words[base + Lane.WROTE]:
            waited = clock.monotonic_ns() - began
            if waited > FAULT_PATIENCE_NS:
                check(base)
            if waited > _DRAIN_LIMIT_NS:
                raise StoreNotRunning(
                    f"lane {self.lane}: what its last producer wrote is not committed; see the store's "
                    f"logs/committer.log"
                )
            clock.sleep(_POLL_SECONDS)

    def clear_unpublished(self) -> None:
        """See direct_segment.clear_unpublished."""
        clear_unpublished(self.directory, self.row, self.channel)

    def log_end(self) -> LogEnd:
        """Walks [dispatch_synced, wrote), which the consume queues may not have, or lose. Raises
        RecoveryError, OSError, StoreMoved: what the store's path leads to then is another log,
        maybe an older copy of this one."""
        try:
            return self._look_for_end()
        finally:
            self._check_place()

    def _look_for_end(self) -> LogEnd:
        words, base = self.words, self.base
        while True:
            first = words[base + Lane.FIRST]
            self._indexed = self._look_at_index()
            try:
                return self._walk_to_end()
            except FileNotFoundError:
                if words[base + Lane.FIRST] == first:
                    raise  # else retention was quicker, and what it deleted is in the consume queues

    def _walk_to_end(self) -> LogEnd:
        words, base = self.words, self.base
        timestamp = words[base + Lane.DISPATCHED_TIMESTAMP]
        size, wrote = words[base + Lane.SEGMENT_SIZE], words[base + Lane.WROTE]
        where = self._indexed.synced
        next_offsets: dict[str, int] = {}
        while where < wrote:
            start = where - where % size
            end = min(wrote, start + size, where + MAX_BYTES)
            with self.channel.opened(self.directory.segment(start)) as fd:
                data = self.channel.pread(fd, end - where, where - start)
            table = scan(data, 0, len(data), where, self.lane, check_crc=False)
            in_queue = table.in_queue
            topics, offsets = table.topic_index[in_queue].tolist(), table.queue_offsets[in_queue].tolist()
            for topic, offset in zip(topics, offsets, strict=True):
                next_offsets[table.topics[topic]] = offset + 1
            if len(table):
                timestamp = max(timestamp, int(table.store_timestamps[-1]))
            if table.stop is Stop.BLANK:
                where = start + size
            elif table.stop_position:
                where += table.stop_position
            else:
                raise RecoveryError(
                    f"{self.directory.segment(start)} at offset {where}: {table.reason or table.stop.value}; stop the "
                    f"store and start it again, recovery says more"
                )
        return LogEnd(next_offsets, timestamp)

    def _look_at_index(self) -> IndexedOffsets:
        """What is dispatched now."""
        words, base = self.words, self.base
        while True:
            synced = words[base + Lane.DISPATCH_SYNCED]
            counted = counted_entries(self.row, synced)
            if counted >= 0 or words[base + Lane.DISPATCH_SYNCED] == synced:  # else the dispatcher went on meanwhile
                size = words[base + Lane.SEGMENT_SIZE]
                return IndexedOffsets(self.directory, size, synced, counted, self.channel)

    def queue_end(self, topic: str) -> int:
        """The next queue offset of a topic that `log_end` has not met: all its records were
        dispatched then. Raises StoreMoved: where the store's path leads elsewhere there is no
        queue, and the offset would be 0. DiskError."""
        try:
            end = self._indexed.next_offset(topic, self.words[self.base + Lane.FIRST])
        except OSError as error:
            raise disk_error(error.errno or errno.EIO, f"{self.directory.queue(topic)}: looking for its end") from error
        self._check_place()
        return end

    def _check_place(self) -> None:
        store = self.directory.path.parents[1]
        if not self._control.is_at(store):
            raise store_moved(store, self._control.region.path.parent)

    def is_unlinked(self) -> bool:
        """Whether the lane's buffers, or all of the pool, were removed: no other process will find
        what is in them.
        """
        buffers = self.buffers
        return buffers is not None and (buffers.region.is_unlinked() or self._control.region.is_unlinked())

    def release(self) -> None:
        """Gives the lane back. The buffers stay until the allocator finds the lane drained."""
        if self._lock.closed:
            return
        self.words[self.base + Lane.LESSEE_PID] = 0
        try:
            if self.buffers is not None:
                self.buffers.close()
        except BufferError:  # the traceback of an interrupted call holds a view; the mapping goes with it
            return
        finally:
            self._lock.close()
