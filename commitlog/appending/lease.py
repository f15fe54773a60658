"""The lease of a lane, which is one writer's own commit log.

Locks hold the lease, and the kernel frees them when their holder dies (disk/locks.py). A producer
takes the first free lane that exists, and makes a new one only up to the store's limit. With the
lease come the lane's write buffers in shared memory. A lane without buffers gets them here, and
they are filled from its files.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commitlog.disk.direct_segment import clear_unpublished
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import Lock, try_lane
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory, StoreFacts, store_moved
from commitlog.errors import NotEnoughSharedMemory, RecoveryError, StoreNotRunning, disk_error
from commitlog.reading.indexed_offsets import IndexedOffsets
from commitlog.record.scan import MAX_BYTES, scan
from commitlog.record.table import Stop
from commitlog.shm.control_region import ControlRegion, first_kept, indexed_entries
from commitlog.shm.layout import Header, Lane, segment_start
from commitlog.shm.memory_order import observe, publish
from commitlog.shm.region import RegionFull
from commitlog.shm.row_check import WORDS_DAMAGED
from commitlog.shm.write_buffers import WriteBuffers, free_bytes
from commitlog.system.clock import Clock
from commitlog.text.lines import to_enlarge

ROCKETMQ_LOCK_TEXT = b"lock"

_POLL_SECONDS = 0.002
_DRAIN_LIMIT_NS = 10_000_000_000
FAULT_PATIENCE_NS = 300_000_000
"""How long a fault of a stage may take to heal before it becomes an error of the waiting calls."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The facts about the end of the log that a new lessee needs."""

    queue_offsets: dict[str, int]  # topic → next queue offset, of the topics found above `dispatch_synced`
    store_timestamp: int  # of the last record, ms; 0 where there is none


def is_damaged(row: memoryview) -> bool:
    """Whether a lane is stopped until the next start.

    A failed sync has lost bytes that cannot be written again (LaneDamaged), or somebody has written
    over the lane's words (LaneWordsDamaged).
    """
    return row[Lane.COMMITTER_FAULT] in (errno.EILSEQ, WORDS_DAMAGED)


def has_lost_files(row: memoryview) -> bool:
    """Whether a lane was stopped because somebody removed its segment files (PoolUnlinked)."""
    return row[Lane.FLUSHER_FAULT] == errno.ENOENT


def try_lease(
    directory: StoreDirectory, control: ControlRegion, channel: FileChannel, max_lanes: int, lane_bytes: int
) -> Lease | None:
    """Locks the first free lane that exists, or otherwise a new one.

    `lane_bytes` is the shared memory that a lane without buffers takes. If less is free, lanes
    without buffers are passed over. Returns None if all lanes are leased, stopped or passed over,
    and if the store stops. Raises OSError.
    """
    existing = directory.lane_numbers()
    for number in [*existing, *(n for n in range(max_lanes) if n not in existing)][:max_lanes]:
        lane_directory, row = directory.lane_directory(number), control.row(number)
        if is_damaged(row) or has_lost_files(row):
            continue
        has_buffers = observe(row, Lane.BUFFERS) & 1
        if not has_buffers and free_bytes(control.region.path.parent) < lane_bytes:
            continue
        for part in (lane_directory.commitlog, lane_directory.consumequeue, lane_directory.tmp):
            channel.create_directory(part, below=directory.path)
        lock = try_lane(lane_directory, control.region.path.parent, channel)
        if lock is None:
            continue
        if control.words[Header.CLOSING]:  # its stop may be done with this lane, and nobody would remove `abort`
            lock.close()
            return None
        try:
            # durable before the first append: without it the lane counts as stopped
            if not lane_directory.abort_file.exists():
                channel.replace_file(lane_directory.abort_file, str(os.getpid()).encode())
            if channel.size(lock.fd) == 0:
                with contextlib.suppress(OSError):  # RocketMQ writes it there and never reads it; the disk may be full
                    channel.pwrite(lock.fd, ROCKETMQ_LOCK_TEXT, 0)
            return Lease(lane_directory, control, channel, lock)
        except BaseException:
            lock.close()
            raise
    return None


class Lease:
    """A locked lane, with its buffers.

    Attributes: `lane`, its number; `lane_directory`; `row`, its words; `buffers`. The buffers are
    None before `prepare`, and for a direct lane.
    """

    def __init__(self, lane_directory: LaneDirectory, control: ControlRegion, channel: FileChannel, lock: Lock) -> None:
        self.lane = lane_directory.number
        self.lane_directory = lane_directory
        self._control = control
        self.row = control.row(self.lane)
        self.channel = channel
        self._lock = lock
        self.buffers: WriteBuffers | None = None
        self._store_id = ""

    def prepare(self, pool: Path, facts: StoreFacts, slots: int) -> None:
        """Attaches the lane's buffers, or makes them; with `slots` 0 there are none.

        Raises NotEnoughSharedMemory, OSError.
        """
        row, self._store_id = self.row, facts.id
        if observe(row, Lane.BUFFERS) & 1:
            size, slots = row[Lane.SEGMENT_SIZE], row[Lane.SLOTS]
            if slots:
                self.buffers = WriteBuffers.attach(pool, self.lane, size, slots, writable=True)
        elif slots == 0:
            row[Lane.SEGMENT_SIZE], row[Lane.SLOTS] = facts.segment_bytes, 0
            publish(row, Lane.BUFFERS, observe(row, Lane.BUFFERS) + 1)
        else:
            try:
                self.buffers = WriteBuffers.create(pool, self.lane, facts.segment_bytes, slots)
            except RegionFull as error:
                raise NotEnoughSharedMemory(
                    f"{error}; a lane takes {facts.segment_bytes * slots:,} bytes: free shared memory, or "
                    f"{to_enlarge(pool.parent)}"
                ) from error
            self._fill_from_file(self.buffers, facts.segment_bytes)
            self.clear_unpublished()  # before it stops being direct: an adoption then checks behind `wrote`
            row[Lane.SEGMENT_SIZE], row[Lane.SLOTS] = facts.segment_bytes, slots
            publish(row, Lane.BUFFERS, observe(row, Lane.BUFFERS) + 1)
        row[Lane.LESSEE_PID] = os.getpid()

    def _fill_from_file(self, buffers: WriteBuffers, segment_bytes: int) -> None:
        """Copies the begin of the last segment, up to `wrote`, into its buffer.

        New records follow in this buffer. If a page of the file is written again, its first bytes
        are needed, too.
        """
        wrote = observe(self.row, Lane.WROTE)
        start = segment_start(wrote, segment_bytes)
        if wrote > start:
            with self.channel.opened(self.lane_directory.segment_path(start)) as fd:
                data = self.channel.pread(fd, wrote - start, 0)
            buffers.slot(start // segment_bytes)[: len(data)] = data

    def wait_drained(self, clock: Clock, check: Callable[[memoryview], None]) -> None:
        """Waits until everything that the lane's last lessee wrote is committed.

        Raises StoreNotRunning after ten seconds, and what `check(row)` raises while a stage reports
        a fault of the lane.
        """
        row = self.row
        began = clock.monotonic_ns()
        while observe(row, Lane.COMMITTED) < observe(row, Lane.WROTE):
            waited = clock.monotonic_ns() - began
            if waited > FAULT_PATIENCE_NS:
                check(row)
            if waited > _DRAIN_LIMIT_NS:
                raise StoreNotRunning(
                    f"lane {self.lane}: what its last producer wrote is not committed; see the store's "
                    f"logs/committer.log"
                )
            clock.sleep(_POLL_SECONDS)

    def clear_unpublished(self) -> None:
        """See direct_segment.clear_unpublished."""
        clear_unpublished(self.lane_directory, self.row, self.channel)

    def log_end(self) -> LogEnd:
        """Walks the log in [dispatch_synced, wrote), and returns the facts for the new lessee.

        The consume queues may lack the entries of these records, or lose them. Raises
        RecoveryError, OSError. Raises StoreMoved if the store's path leads to another log now,
        maybe an older copy.
        """
        try:
            return self._find_log_end()
        finally:
            self._check_place()

    def _find_log_end(self) -> LogEnd:
        """Does the walk of `log_end`; begins again if retention deletes a segment meanwhile."""
        row = self.row
        while True:
            first = first_kept(row)
            self._indexed = self._load_indexed()
            try:
                return self._walk_to_end()
            except FileNotFoundError:
                if first_kept(row) == first:
                    raise  # otherwise retention was quicker: the consume queues have the entries of what it deleted

    def _walk_to_end(self) -> LogEnd:
        row = self.row
        timestamp = row[Lane.DISPATCHED_TIMESTAMP]
        size, wrote = row[Lane.SEGMENT_SIZE], observe(row, Lane.WROTE)
        where = self._indexed.synced
        next_offsets: dict[str, int] = {}
        while where < wrote:
            start = segment_start(where, size)
            end = min(wrote, start + size, where + MAX_BYTES)
            with self.channel.opened(self.lane_directory.segment_path(start)) as fd:
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
                    f"{self.lane_directory.segment_path(start)} at offset {where}: {table.reason or table.stop.value}; stop "
                    f"the store and start it again, recovery says more"
                )
        return LogEnd(next_offsets, timestamp)

    def _load_indexed(self) -> IndexedOffsets:
        """Reads the present end of each consume queue."""
        size = self.row[Lane.SEGMENT_SIZE]
        return IndexedOffsets(self.lane_directory, size, *indexed_entries(self.row), self.channel, self._store_id)

    def queue_end(self, topic: str) -> int:
        """The next queue offset of a topic that `log_end` has not met.

        All records of that topic were dispatched. Raises DiskError, DamagedFile. Raises StoreMoved
        if the store's path leads elsewhere now: without a queue there the offset would be 0.
        """
        try:
            end = self._indexed.next_offset(topic, first_kept(self.row))
        except OSError as error:
            raise disk_error(
                error.errno or errno.EIO, f"{self.lane_directory.queue_path(topic)}: looking for its end"
            ) from error
        self._check_place()
        return end

    def _check_place(self) -> None:
        store = self.lane_directory.path.parents[1]
        if not self._control.is_at(store):
            raise store_moved(store, self._control.region.path.parent)

    def is_unlinked(self) -> bool:
        """Whether somebody removed the lane's buffers, or the whole pool.

        Then no other process can find the messages in them.
        """
        buffers = self.buffers
        return buffers is not None and (buffers.region.is_unlinked() or self._control.region.is_unlinked())

    def release(self) -> None:
        """Gives the lane back. The buffers stay until the allocator finds the lane drained."""
        if self._lock.closed:
            return
        self.row[Lane.LESSEE_PID] = 0
        try:
            if self.buffers is not None:
                self.buffers.close()
        except BufferError:  # the traceback of an interrupted call holds a view; the mapping goes with it
            return
        finally:
            self._lock.close()
