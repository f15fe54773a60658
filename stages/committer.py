"""Copies write buffers to segment files: RocketMQ's CommitRealTimeService.

For each lane the committer writes [committed, wrote) from the lane's buffer to its segment file,
with one pwrite for a slice, and then stores `committed`. Only this process writes the bytes of a
buffer to a file. It commits nothing into a segment before the flusher has that file open
(`opened`).

When the flusher asks for it (`rewrite_wanted`), the committer writes bytes again that a failed sync
may have lost. After a failed fdatasync the kernel counts the lost pages as clean, and only a new
write makes them dirty again.
"""

from __future__ import annotations

import errno
import logging
import math
from pathlib import Path

import numpy as np

from commitlog.disk.direct_segment import check_whole, whole_end
from commitlog.disk.file_channel import FileChannel
from commitlog.errors import CorruptRecord
from commitlog.shm.layout import Lane, segment_start
from commitlog.shm.memory_order import observe, publish
from commitlog.shm.region import RegionError
from commitlog.shm.write_buffers import is_direct
from commitlog.stages.base_stage import BaseStage
from commitlog.stages.lane_buffers import LaneBuffers
from commitlog.stages.stage_process import main
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock

PAGE_BYTES = 4096
"""RocketMQ's OS_PAGE_SIZE, the unit of `least_pages`, and where a rewrite begins.

Pages and a disk's blocks may be larger: one byte makes all of its block dirty again.
"""
_COMPARED_BYTES = 1 << 18
_FOLLOW_NS = 200_000_000

log = logging.getLogger(__name__)


class Committer(BaseStage):
    """The committer stage: RocketMQ's CommitRealTimeService."""

    name = "committer"
    fault_word = Lane.COMMITTER_FAULT
    reach = Lane.COMMITTED
    watched = (Lane.WROTE, Lane.BUFFERS, Lane.REWRITE_WANTED, Lane.ALLOCATED, Lane.OPENED, Lane.FLUSH_REQUESTED)

    def __init__(self, path: Path, channel: FileChannel | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(path, channel, clock)
        self.on_reload()
        self._buffers = LaneBuffers(self.control, self.lanes, locks_memory=self.config.store.lock_memory)
        self._followed_ns = LONG_AGO_NS
        self._files: dict[int, tuple[int, int]] = {}  # lane → segment start, descriptor
        self._last_commit: dict[int, int] = {}
        self._trusted_above: dict[int, float] = {}  # lane → see _rewrite_untrusted
        self._wrote, self._committed = self.lanes[:, Lane.WROTE], self.lanes[:, Lane.COMMITTED]
        self._wanted, self._rewritten = self.lanes[:, Lane.REWRITE_WANTED], self.lanes[:, Lane.REWRITTEN]
        self._flusher = self.bell_of("flusher")
        self._allocator = self.bell_of("allocator")

    def on_reload(self) -> None:
        config = self.config.committer
        self.interval_ms, self.linger_ms = config.interval_ms, config.linger_ms
        self._least_bytes = max(config.least_pages * PAGE_BYTES, 1)
        self._thorough_ns = config.thorough_interval_ms * 1_000_000
        self._slice_bytes = config.slice_bytes
        self._retry_ns = self.config.flusher.retry_ms * 1_000_000

    def is_awaited(self, lane: int) -> bool:
        row = self.control.row(lane)
        return observe(row, Lane.FLUSH_REQUESTED) > observe(row, Lane.COMMITTED)

    def left(self) -> int:
        sound = self.sound.mask
        unwritten = np.sum((self._wrote - self._committed)[sound])
        return int(unwritten) + int(np.count_nonzero((self._wanted != self._rewritten) & sound))

    def on_wait_end(self) -> None:
        now = self.clock.monotonic_ns()
        if now - self._followed_ns >= _FOLLOW_NS:
            self._followed_ns = now
            for lane in self.sound.mask.nonzero()[0].tolist():
                self.sound.is_damaged(lane)
            self._buffers.follow()

    def work(self) -> int:
        """Commits one slice of every lane with new bytes, so that no lane starves others."""
        is_dirty = (self._wrote != self._committed) | (self._wanted != self._rewritten)
        dirty = (is_dirty & self.sound.mask).nonzero()[0]
        now = self.clock.monotonic_ns()
        moved = 0
        for lane in dirty.tolist():
            moved += self.advance(lane, now)
        return moved

    def advance(self, lane: int, now: int) -> int:
        if self._not_before.get(lane, 0) > now or not self.sound.has(lane):
            return 0
        row = self.control.row(lane)
        committed = observe(row, Lane.COMMITTED)
        try:
            moved = self._rewrite_and_commit(lane, now)
            self.set_fault(lane, 0)
        except (OSError, CorruptRecord, RegionError) as error:
            log.warning("lane %d: %s", lane, error)
            self.set_fault(lane, _fault_of(error))
            self._not_before[lane] = now + self._retry_ns
            self._close_file(lane)
            return 0
        except (ValueError, ArithmeticError):
            if not self.sound.is_damaged(lane):
                raise
            return 0
        if moved:
            self._flusher.wake()
        return observe(row, Lane.COMMITTED) - committed or int(moved)  # 1: it has rewritten something

    def _rewrite_and_commit(self, lane: int, now: int) -> bool:
        """Does the rewrite that was asked for, then commits one slice. True when it did either."""
        row = self.control.row(lane)
        moved = False
        wanted = observe(row, Lane.REWRITE_WANTED)
        if wanted != observe(row, Lane.REWRITTEN):
            self._rewrite(lane, row)
            publish(row, Lane.REWRITTEN, wanted)
            moved = True
        if self._is_due(lane, row, now):
            moved = self._commit(lane, row) or moved
        return moved

    def _is_due(self, lane: int, row: memoryview, now: int) -> bool:
        """Whether it is time to commit, by RocketMQ's rule, or because a flush is awaited.

        RocketMQ's rule: enough pages are there, a segment is full, or the thorough interval is
        over.
        """
        wrote, committed = observe(row, Lane.WROTE), observe(row, Lane.COMMITTED)
        if wrote - committed >= self._least_bytes or self.stopping:
            return wrote > committed
        size = self.facts.segment_bytes
        return (
            wrote // size > committed // size
            or now - self._last_commit.get(lane, LONG_AGO_NS) >= self._thorough_ns
            or observe(row, Lane.FLUSH_REQUESTED) > observe(row, Lane.FLUSHED)
            or self.is_followed(now)
        )

    def _commit(self, lane: int, row: memoryview) -> bool:
        """Commits one slice of a lane. False if its segment is not made, or not open, yet."""
        wrote, committed = observe(row, Lane.WROTE), observe(row, Lane.COMMITTED)
        size = self.facts.segment_bytes
        start = segment_start(committed, size)
        if observe(row, Lane.ALLOCATED) < start + size:
            self._allocator.wake()
            return False
        if observe(row, Lane.OPENED) <= start:
            self._flusher.wake()
            return False
        direct = is_direct(row, start // size)  # its bytes are in the file before `wrote` says so
        data_end = min(wrote, start + size) if direct else self._data_end(row, start, size, wrote)
        if not committed <= data_end <= start + size:
            self.sound.set_aside(lane, f"the data of segment {start:,} ends at {data_end:,}")
            return False
        stop = data_end if direct else min(data_end, committed + self._slice_bytes)
        began = self.clock.monotonic_ns()
        if direct:
            self._rewrite_untrusted(lane, row, committed, stop)
        elif stop > committed:
            buffer = self._buffers.get(lane).slot(start // size)
            fd = self._file(lane, start)
            self.channel.pwrite(fd, buffer[committed - start : stop - start], committed - start)
        if stop == data_end and wrote >= start + size:
            stop = start + size  # the tail after BLANK is zero in the file and stays so
        publish(row, Lane.COMMITTED, stop)
        row[Lane.COMMITS] += 1
        self._last_commit[lane] = began
        self.count_action(self.clock.monotonic_ns() - began)
        return True

    def _data_end(self, row: memoryview, start: int, size: int, wrote: int) -> int:
        """Where the data of a segment ends: at `wrote`, or behind the BLANK of a full segment."""
        if wrote < start + size:
            return wrote
        return row[Lane.DATA_END + start // size % row[Lane.SLOTS]]

    def _rewrite(self, lane: int, row: memoryview) -> None:
        """Writes [flushed, committed) again from the buffers, into the same files.

        It begins at the first byte of a page. In a direct segment it writes everything that is
        published, because the failed sync may have lost that too. Raises OSError, CorruptRecord.
        """
        flushed, committed, wrote = observe(row, Lane.FLUSHED), observe(row, Lane.COMMITTED), observe(row, Lane.WROTE)
        size = self.facts.segment_bytes
        where = flushed - flushed % PAGE_BYTES
        self._trusted_above[lane] = wrote
        log.info("lane %d: writing [%d, %d) again", lane, where, committed)
        while where < wrote:
            start = segment_start(where, size)
            end = wrote if is_direct(row, start // size) else committed
            self._rewrite_in_segment(lane, row, start, where, end)
            where = start + size

    def _rewrite_untrusted(self, lane: int, row: memoryview, committed: int, stop: int) -> None:
        """Writes bytes of a direct segment again if a sync may have lost them.

        They are not committed yet. A lessee may write bytes before a failed sync and publish them
        after the rewrite. So the first bytes that are published after a rewrite are written again
        too. Later bytes were written after the failed sync, so they need no rewrite. A new
        committer does not know whether there was a rewrite, so it also does this once. Raises
        OSError, CorruptRecord.
        """
        if stop > self._trusted_above.get(lane, 0):
            start = segment_start(committed, self.facts.segment_bytes)
            self._rewrite_in_segment(lane, row, start, committed - committed % PAGE_BYTES, stop)
            self._trusted_above[lane] = math.inf

    def _rewrite_in_segment(self, lane: int, row: memoryview, start: int, where: int, end: int) -> None:
        """Writes [where, end) again, as far as the segment that begins at `start` reaches."""
        if where < end:
            with self.channel.opened(self.directory.lane_directory(lane).segment_path(start), write=True) as fd:
                self.channel.pwrite(fd, self._written_bytes(lane, row, start, where, end, fd), where - start)

    def _written_bytes(
        self, lane: int, row: memoryview, start: int, where: int, committed: int, fd: int
    ) -> bytes | memoryview:
        """The bytes [where, committed) of a segment, from its buffer.

        A direct segment has no buffer, so its bytes are read back from the file, and every CRC must
        be right. Raises CorruptRecord.
        """
        size = self.facts.segment_bytes
        if not is_direct(row, start // size):
            end = max(min(self._data_end(row, start, size, committed), committed), where)
            held = self._buffers.get(lane).slot(start // size)[
                : self._data_end(row, start, size, observe(row, Lane.WROTE)) - start
            ]
            if self._is_same(fd, held[where - start : end - start], where - start):
                return held[where - start : end - start]
            on_disk = self._on_disk(fd, 0, end - start)
            return self._of_both(lane, row, start, held, end - start, on_disk)[where - start :]
        end = min(committed, start + size)
        at = max(observe(row, Lane.DISPATCHED), start) - start  # a record begins there, at or below `flushed`
        data = self.channel.pread(fd, end - start, 0)
        check_whole(self.directory.lane_directory(lane), data, at, start)
        return data[where - start :]

    def _is_same(self, fd: int, held: memoryview, position: int) -> bool:
        """Whether a segment file has these bytes of its buffer at a position."""
        parts = ((at, held[at : at + _COMPARED_BYTES]) for at in range(0, len(held), _COMPARED_BYTES))
        return all((self._on_disk(fd, position + at, len(part)) or b"") == part for at, part in parts)

    def _on_disk(self, fd: int, position: int, count: int) -> bytes | None:
        """Bytes of a segment file, or None if they can't be read. A write may mend that."""
        try:
            return self.channel.pread(fd, count, position)
        except OSError as error:
            log.warning("a segment can't be read before it is written again: %s", error)
            return None

    def _of_both(
        self, lane: int, row: memoryview, start: int, held: memoryview, count: int, on_disk: bytes | None
    ) -> bytes | memoryview:
        """Returns the right first `count` bytes of a segment file that differs from its buffer.

        Either a failed sync has lost bytes of the file, or the memory was damaged. Whole records of
        the file stay, and the buffer gives the bytes behind them. If the buffer's own records are
        not whole, it gives no flushed bytes. No zeros take the place of bytes that could not be
        read from the file. Raises OSError if neither side has the bytes.
        """
        lane_directory = self.directory.lane_directory(lane)
        at = max(observe(row, Lane.DISPATCHED), start) - start  # a record begins there, at or below `flushed`
        whole = whole_end(lane_directory, held, at, start)
        if whole < len(held):
            log.error("lane %d: its write buffer is damaged at offset %d of the log", lane, start + whole)
        if on_disk is None:
            if whole < len(held):
                raise OSError(errno.EIO, f"{lane_directory.segment_path(start)} can't be read to mend it")
            return held[:count]
        filled = on_disk.ljust(count, b"\0")
        kept = min(whole_end(lane_directory, filled, at, start), len(on_disk))
        if whole < len(held):
            kept = max(kept, observe(row, Lane.FLUSHED) - start)
        return filled[:kept] + bytes(held[kept:count])

    def _file(self, lane: int, start: int) -> int:
        """The open file of the segment that a lane is in. One file of each lane is open."""
        known = self._files.get(lane)
        if known and known[0] == start:
            return known[1]
        self._close_file(lane)
        fd = self.channel.open(self.directory.lane_directory(lane).segment_path(start), write=True)
        self._files[lane] = start, fd
        return fd

    def _close_file(self, lane: int) -> None:
        known = self._files.pop(lane, None)
        if known:
            self.channel.close(known[1])

    def on_stop(self) -> None:
        for lane in list(self._files):
            self._close_file(lane)
        self._buffers.close()
        del self._wrote, self._committed, self._wanted, self._rewritten
        self._flusher.close()
        self._allocator.close()


def _fault_of(error: OSError | CorruptRecord | RegionError) -> int:
    """The errno under which an error is published as a fault."""
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    return errno.EILSEQ if isinstance(error, CorruptRecord) else errno.ENOENT  # another file is in its buffers' place


if __name__ == "__main__":
    main(Committer)
