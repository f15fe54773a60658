"""Copies write buffers to segment files: RocketMQ's CommitRealTimeService.

For each lane, [committed, wrote) goes from the lane's buffer to its segment file by one pwrite a
slice, then `committed` is stored. Only this process writes segment bytes. Nothing is committed into
a segment before the flusher holds a descriptor of it (`opened`), and what a failed sync may have
lost is written again when the flusher asks (`rewrite_wanted`): after a failed fdatasync the kernel
counts the lost pages as clean, and only a new write makes them dirty again.
"""

from __future__ import annotations

import errno
import logging
import math
from pathlib import Path

import numpy as np

from commitlog.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock
from commitlog.disk.direct_segment import check_whole
from commitlog.disk.file_channel import FileChannel
from commitlog.errors import CorruptRecord
from commitlog.shm.layout import Lane
from commitlog.shm.pool import is_direct
from commitlog.stages.lane_buffers import LaneBuffers
from commitlog.stages.service_thread import ServiceThread, main

PAGE_BYTES = 4096
_FOLLOW_NS = 200_000_000

log = logging.getLogger(__name__)


class CommitRealTimeService(ServiceThread):
    """The committer stage."""

    name = "committer"
    fault_word = Lane.COMMITTER_FAULT
    reach = Lane.COMMITTED
    watched = (Lane.WROTE, Lane.BUFFERS, Lane.REWRITE_WANTED, Lane.ALLOCATED, Lane.OPENED, Lane.FLUSH_REQUESTED)

    def __init__(self, path: Path, channel: FileChannel | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(path, channel, clock)
        config = self.config.committer
        self.interval_ms, self.linger_ms = config.interval_ms, config.linger_ms
        self._least_bytes = max(config.least_pages * PAGE_BYTES, 1)
        self._thorough_ns = config.thorough_interval_ms * 1_000_000
        self._slice_bytes = config.slice_bytes
        self._retry_ns = self.config.flusher.retry_ms * 1_000_000
        self._buffers = LaneBuffers(self.pool, self.lanes)
        self._followed_ns = LONG_AGO_NS
        self._files: dict[int, tuple[int, int]] = {}  # lane → segment start, descriptor
        self._last_commit: dict[int, int] = {}
        self._trusted_above: dict[int, float] = {}  # lane → see _trust_direct
        self._wrote, self._committed = self.lanes[:, Lane.WROTE], self.lanes[:, Lane.COMMITTED]
        self._wanted, self._rewritten = self.lanes[:, Lane.REWRITE_WANTED], self.lanes[:, Lane.REWRITTEN]
        self._flusher = self.bell_of("flusher")
        self._allocator = self.bell_of("allocator")

    def is_awaited(self, lane: int) -> bool:
        words, base = self.words, self.control.lane_base(lane)
        return bool(words[base + Lane.FLUSH_REQUESTED] > words[base + Lane.COMMITTED])

    def left(self) -> int:
        return int(np.sum(self._wrote - self._committed)) + int(np.count_nonzero(self._wanted != self._rewritten))

    def on_wait_end(self) -> None:
        now = self.clock.monotonic_ns()
        if now - self._followed_ns >= _FOLLOW_NS:
            self._followed_ns = now
            self._buffers.follow()

    def work(self) -> int:
        """One slice of every lane that has something: lanes take turns, so that none starves the
        others.
        """
        dirty = np.flatnonzero((self._wrote != self._committed) | (self._wanted != self._rewritten))
        now = self.clock.monotonic_ns()
        moved = 0
        for lane in dirty.tolist():
            moved += self.attend(lane, now)
        return moved

    def attend(self, lane: int, now: int) -> int:
        if self._not_before.get(lane, 0) > now:
            return 0
        committed = int(self._committed[lane])
        try:
            moved = self._serve(lane, now)
            self.set_fault(lane, 0)
        except (OSError, CorruptRecord) as error:
            log.warning("lane %d: %s", lane, error)
            self.set_fault(lane, errno.EILSEQ if isinstance(error, CorruptRecord) else error.errno or errno.EIO)
            self._not_before[lane] = now + self._retry_ns
            self._close_file(lane)
            return 0
        if moved:
            self._flusher.wake()
        return int(self._committed[lane]) - committed or int(moved)  # 1: it has rewritten something

    def _serve(self, lane: int, now: int) -> bool:
        """Rewrites what was asked for, then commits one slice. True when either moved something."""
        base = self.control.lane_base(lane)
        moved = False
        wanted = self.words[base + Lane.REWRITE_WANTED]
        if wanted != self.words[base + Lane.REWRITTEN]:
            self._rewrite(lane, base)
            self.words[base + Lane.REWRITTEN] = wanted
            moved = True
        if self._is_due(lane, base, now):
            moved = self._commit(lane, base) or moved
        return moved

    def _is_due(self, lane: int, base: int, now: int) -> bool:
        """RocketMQ's rule: enough pages, a full segment, or the thorough interval; and whenever
        somebody waits.
        """
        wrote, committed = self.words[base + Lane.WROTE], self.words[base + Lane.COMMITTED]
        if wrote - committed >= self._least_bytes or self.stopping:
            return wrote > committed
        size = self.words[base + Lane.SEGMENT_SIZE]
        return (
            wrote // size > committed // size
            or now - self._last_commit.get(lane, LONG_AGO_NS) >= self._thorough_ns
            or self.words[base + Lane.FLUSH_REQUESTED] > self.words[base + Lane.FLUSHED]
        )

    def _commit(self, lane: int, base: int) -> bool:
        words = self.words
        wrote, committed = words[base + Lane.WROTE], words[base + Lane.COMMITTED]
        size = words[base + Lane.SEGMENT_SIZE]
        start = committed - committed % size
        if words[base + Lane.ALLOCATED] < start + size:
            self._allocator.wake()
            return False
        if words[base + Lane.OPENED] <= start:
            self._flusher.wake()
            return False
        direct = is_direct(self.control.row(lane), start // size)  # its bytes are in the file before `wrote` says so
        data_end = min(wrote, start + size) if direct else self._data_end(base, start, size, wrote)
        stop = data_end if direct else min(data_end, committed + self._slice_bytes)
        began = self.clock.monotonic_ns()
        if direct:
            self._trust_direct(lane, base, committed, stop)
        elif stop > committed:
            buffer = self._buffers.get(lane).slot(start // size)
            fd = self._file(lane, start)
            self.channel.pwrite(fd, buffer[committed - start : stop - start], committed - start)
        if stop == data_end and wrote >= start + size:
            stop = start + size  # the tail after BLANK is zero in the file and stays so
        words[base + Lane.COMMITTED] = stop
        words[base + Lane.COMMITS] += 1
        self._last_commit[lane] = began
        self.acted(self.clock.monotonic_ns() - began)
        return True

    def _data_end(self, base: int, start: int, size: int, wrote: int) -> int:
        """Where the data of a segment ends: `wrote`, or behind its BLANK once the lessee has rolled
        over.
        """
        if wrote < start + size:
            return wrote
        slots = self.words[base + Lane.SLOTS]
        return self.words[base + Lane.DATA_END + start // size % slots]

    def _rewrite(self, lane: int, base: int) -> None:
        """Writes [flushed rounded down to a page, committed) again from the buffers, into the same
        files; of a direct segment everything that is published, for the failed sync may have lost
        that too."""
        words = self.words
        flushed, committed, wrote = words[base + Lane.FLUSHED], words[base + Lane.COMMITTED], words[base + Lane.WROTE]
        size = words[base + Lane.SEGMENT_SIZE]
        where = flushed - flushed % PAGE_BYTES
        self._trusted_above[lane] = wrote
        log.warning("lane %d: writing [%d, %d) again", lane, where, committed)
        while where < wrote:
            start = where - where % size
            direct = is_direct(self.control.row(lane), start // size)
            self._write_again(lane, base, start, where, wrote if direct else committed)
            where = start + size

    def _trust_direct(self, lane: int, base: int, committed: int, stop: int) -> None:
        """Bytes that a lessee wrote before a failed sync may be published after their rewrite: what
        is published next is written again as well. Later ones were written after it. A committer
        that starts knows of no rewrite: the same."""
        if stop > self._trusted_above.get(lane, 0):
            start = committed - committed % self.words[base + Lane.SEGMENT_SIZE]
            self._write_again(lane, base, start, committed - committed % PAGE_BYTES, stop)
            self._trusted_above[lane] = math.inf

    def _write_again(self, lane: int, base: int, start: int, where: int, end: int) -> None:
        """Writes [where, end) of the segment that begins at `start` again, as far as the segment
        reaches.
        """
        if where < end:
            with self.channel.opened(self.directory.lane(lane).segment(start), write=True) as fd:
                self.channel.pwrite(fd, self._again(lane, base, start, where, end, fd), where - start)

    def _again(self, lane: int, base: int, start: int, where: int, committed: int, fd: int) -> bytes | memoryview:
        """What was written to a segment from `where` on. Of a direct one there is no buffer: it is
        read back, and must be right by every CRC. Raises CorruptRecord."""
        words = self.words
        size = words[base + Lane.SEGMENT_SIZE]
        if not is_direct(self.control.row(lane), start // size):
            end = min(self._data_end(base, start, size, committed), committed)
            return self._buffers.get(lane).slot(start // size)[where - start : max(end, where) - start]
        end = min(committed, start + size)
        at = max(words[base + Lane.DISPATCHED], start) - start  # a record's start at or below `flushed`
        data = self.channel.pread(fd, end - start, 0)
        check_whole(self.directory.lane(lane), data, at, start)
        return data[where - start :]

    def _file(self, lane: int, start: int) -> int:
        known = self._files.get(lane)
        if known and known[0] == start:
            return known[1]
        self._close_file(lane)
        fd = self.channel.open(self.directory.lane(lane).segment(start), write=True)
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


if __name__ == "__main__":
    main(CommitRealTimeService)
