"""Makes segment files ahead of need, returns memory of idle lanes, and has old segments deleted.

This is RocketMQ's AllocateMappedFileService. RocketMQ's CleanCommitLogService
(allocating/retention.py) runs here too.

A segment is announced (`allocated`) when it is there, whole and durable (disk/new_segment.py). So a
full disk is an error here, and never in the middle of a commit. A segment that a producer waits for
comes first, then the next segments of the other lanes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from pathlib import Path

import numpy as np

from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import is_leased, lane_locked
from commitlog.disk.new_segment import NewSegment
from commitlog.errors import CommitLogError
from commitlog.shm.layout import Header, Lane
from commitlog.shm.memory_order import observe, publish
from commitlog.shm.write_buffers import remove_buffers
from commitlog.stages.allocating.pool_watch import PoolWatch
from commitlog.stages.allocating.retention import Retention
from commitlog.stages.base_stage import BaseStage
from commitlog.stages.stage_process import main
from commitlog.system.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)


class Allocator(BaseStage):
    """The allocator stage: RocketMQ's AllocateMappedFileService."""

    name = "allocator"
    fault_word = Lane.ALLOCATOR_FAULT
    watched = (Lane.BUFFERS, Lane.WROTE, Lane.LESSEE_PID)
    linger_ms = 0

    def __init__(self, path: Path, channel: FileChannel | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(path, channel, clock)
        self._idle_since: dict[int, int] = {}
        self._named: set[int] = set()  # lanes whose directories are durable
        self._unchecked: set[int] = set()  # lanes whose lock could not be looked at
        self._turns: dict[int, int] = {}  # lane → when it was served last: equal lanes take turns
        self._retention = Retention(
            self.directory, self.facts, self.config.retention, self.control, self.sound.is_damaged, clock
        )
        self._watch = PoolWatch(self.lanes, self.facts.segment_bytes, self.config.allocator.low_water_ms)
        self.on_reload()
        self._committer, self._flusher = self.bell_of("committer"), self.bell_of("flusher")

    def on_reload(self) -> None:
        config = self.config.allocator
        self.interval_ms = config.interval_ms
        self._ahead = config.segments_ahead
        self._idle_ns = config.lane_idle_ms * 1_000_000
        self._watch.low_water_ms = config.low_water_ms
        self._retention.config = self.config.retention
        self._retention_ns = self.config.retention.interval_ms * 1_000_000
        self._retention_at = 0  # monotonic ns, when segments are retired next: a reload is seen at once

    def news(self) -> int:
        """Returns a number that changes only with the segments and leases of lanes.

        Appends within a segment do not change it.
        """
        lanes = self.lanes
        segments = lanes[:, Lane.WROTE] // np.uint64(self.facts.segment_bytes)
        return int(segments.sum() + lanes[:, Lane.BUFFERS].sum())

    def left(self) -> int:
        return sum(1 for lane in self._leased() if self._has_data_without_file(lane))

    def on_start(self) -> None:
        """Removes files that a killed allocator had begun: they are no part of a log."""
        for number in self.directory.lane_numbers():
            tmp = self.directory.lane_directory(number).tmp
            try:
                for name in filter(str.isdecimal, self.channel.list(tmp)):
                    self.channel.unlink(tmp / name)
            except OSError as error:  # they take space only; the next start tries again
                log.warning("lane %d: what a killed allocator had begun can't be removed: %s", number, error)

    def work(self) -> bool:
        """Makes one segment, the most urgent one. True when it has made one.

        Where the segment of one lane can't be made, the next lane gets its own.
        """
        return any(self._make_next(lane) for lane in sorted(self._short(), key=self._urgency))

    def _leased(self) -> list[int]:
        """The lanes with buffers: somebody writes into them, or has left bytes to commit."""
        leased = np.flatnonzero(self.lanes[:, Lane.BUFFERS] & np.uint64(1)).tolist()
        return [lane for lane in leased if self.sound.has(lane)]

    def _short(self) -> list[int]:
        """The lanes that lack segments.

        While the store stops, these are only the lanes that have data without a file.
        """
        is_short = self._has_data_without_file if self._closes() else self._missing
        return [lane for lane in self._leased() if is_short(lane) > 0]

    def _closes(self) -> bool:
        """Whether the store stops. Then only accepted data gets files."""
        return self.stopping or bool(self.words[Header.CLOSING])

    def _has_data_without_file(self, lane: int) -> bool:
        row = self.control.row(lane)
        return observe(row, Lane.WROTE) > observe(row, Lane.ALLOCATED)

    def _missing(self, lane: int) -> int:
        """How many segments a lane lacks.

        It needs the segment that is being written, and the configured number ahead of it.
        """
        row = self.control.row(lane)
        size = self.facts.segment_bytes
        until = (observe(row, Lane.WROTE) // size + 1 + self._ahead) * size
        return (until - observe(row, Lane.ALLOCATED)) // size

    def _urgency(self, lane: int) -> tuple[int, int, int]:
        """Sorts lanes: the most urgent comes first.

        First come lanes that can't go on, and among them those whose producer waits. A lane can't
        go on without the segment that its committer, or its producer in direct mode, has reached.
        Then comes the lane with the fewest segments ahead. Among equals the lane comes first that
        was served longest ago.
        """
        row = self.control.row(lane)
        size = self.facts.segment_bytes
        wrote, committed, allocated = (
            observe(row, Lane.WROTE),
            observe(row, Lane.COMMITTED),
            observe(row, Lane.ALLOCATED) // size,
        )
        stuck = wrote > committed and allocated <= committed // size
        waits = row[Lane.BLOCKED] > 0 and allocated <= wrote // size
        return -2 * waits - stuck, allocated - wrote // size, self._turns.get(lane, 0)

    def _make_next(self, lane: int) -> bool:
        """Makes the next segment of a lane.

        Returns False if that is refused or fails. A fault of the lane says why.
        """
        row = self.control.row(lane)
        size, start = self.facts.segment_bytes, observe(row, Lane.ALLOCATED)
        began = self._turns[lane] = self.clock.monotonic_ns()
        try:
            if self._retention.refuses() and not self._closes():
                self.set_fault(lane, errno.ENOSPC)
                return False
            self._make(lane, start, size)
        except OSError as error:
            self.set_fault(lane, error.errno or errno.EIO)
            return False
        self.set_fault(lane, 0)
        publish(row, Lane.ALLOCATED, start + size)
        self.count_action(self.clock.monotonic_ns() - began)
        self._flusher.wake()
        return True

    def _make(self, lane: int, start: int, size: int) -> None:
        """Makes the segment of a lane that begins at `start`, durably. Raises OSError."""
        lane_directory = self.directory.lane_directory(lane)
        if lane not in self._named:  # a killed producer may have made the directories and synced no name
            for parent in (self.directory.path, self.directory.lanes_directory, lane_directory.path):
                self.channel.sync_directory(parent)
            self._named.add(lane)
        target = lane_directory.segment_path(start)
        if target.exists():  # made by an allocator that was killed before it announced the segment
            with self.channel.opened(target) as fd:
                if self.channel.size(fd) == size:
                    self.channel.sync_directory(lane_directory.commitlog)
                    return
        with NewSegment(lane_directory, start, size, self.channel) as segment:
            segment.publish()

    # ---- house-keeping --------------------------------------------------------------------------

    def on_wait_end(self) -> None:
        """Gives the buffers of idle lanes back, checks the others, and deletes old segments."""
        now = self.clock.monotonic_ns()
        for lane in self._leased():
            try:
                self._give_back_if_idle(lane, now)
                self._unchecked.discard(lane)
            except OSError as error:
                if lane not in self._unchecked:
                    log.warning("lane %d: whether somebody has it can't be told now: %s", lane, error)
                self._unchecked.add(lane)
        self._look_again()
        self._watch.update(self._leased(), now)
        self._delete_old(now)

    def _look_again(self) -> None:
        """Looks whether the faults that it has published are still true.

        If a lane lacks segments, the next attempt shows it. If no lane lacks any, only this look
        clears a fault, without a message that somebody would have to send.
        """
        with contextlib.suppress(OSError):  # the next round looks again
            self._retention.look_again()
        for lane in np.flatnonzero(self.lanes[:, Lane.ALLOCATOR_FAULT]).tolist():
            if not observe(self.control.row(lane), Lane.BUFFERS) & 1 or self._missing(lane) <= 0:
                self.set_fault(lane, 0)

    def _give_back_if_idle(self, lane: int, now: int) -> None:
        """Gives a lane's buffers back when it has been idle for `lane_idle_ms`. Raises OSError."""
        if not self._is_idle(lane):
            self._idle_since.pop(lane, None)
        elif now - self._idle_since.setdefault(lane, now) >= self._idle_ns:
            self._give_back(lane)

    def _delete_old(self, now: int) -> None:
        """Deletes a batch of old segments at a time, because a producer may wait for a new one."""
        if now >= self._retention_at or self._retention.is_asked():
            is_more = False
            try:
                is_more = self._retention.retire()
            except (OSError, CommitLogError) as error:
                log.warning("old segments can't be looked for: %s", error)
            self._retention_at = now if is_more else now + self._retention_ns
        self._unlink_retired()

    def _unlink_retired(self) -> None:
        try:
            self._retention.unlink_retired()
        except OSError as error:
            log.warning("old segments can't be deleted now: %s", error)

    def _is_idle(self, lane: int) -> bool:
        """Whether nobody leases a lane and nothing is left to do for it. Raises OSError."""
        row = self.control.row(lane)
        is_done = self._is_drained(lane) and observe(row, Lane.REWRITE_WANTED) == observe(row, Lane.REWRITTEN)
        return is_done and not is_leased(self.directory.lane_directory(lane), self.pool, self.channel)

    def _give_back(self, lane: int) -> None:
        """Removes a lane's buffers, under its lock, so that no producer leases it meanwhile."""
        with lane_locked(self.directory.lane_directory(lane), self.pool, self.channel) as is_ours:
            if is_ours and self._is_drained(lane):
                publish(self.control.row(lane), Lane.BUFFERS, observe(self.control.row(lane), Lane.BUFFERS) + 1)
                remove_buffers(self.pool, lane)
                self._idle_since.pop(lane, None)

    def _is_drained(self, lane: int) -> bool:
        row = self.control.row(lane)
        return observe(row, Lane.WROTE) == observe(row, Lane.FLUSHED)

    def on_stop(self) -> None:
        self._unlink_retired()  # the flusher has left, so `positions` says which segments are retired
        self._watch.close()
        self._committer.close()
        self._flusher.close()


if __name__ == "__main__":
    main(Allocator)
