"""Makes committed bytes durable: RocketMQ's FlushRealTimeService, and its GroupCommitService.

`flushed` advances only over bytes that were committed before a successful fdatasync began, on a
descriptor that was open before they were written. After a failed sync, and at the flusher's own
start, the range (flushed, committed] counts as lost by the kernel. The flusher asks the committer
to write it again from the buffers, and only a sync that begins after that counts.

If somebody removes a segment while it is open, its lane stops, and an error says so. Nobody will
find bytes that are written to this file, so none of them count. The bytes are still in the buffers,
and stay there until the next start.

One sync answers every waiter at or below its position: a request is a position in shared memory
(`flush_requested`), not a message, so thousands of requests cost nothing.
"""

from __future__ import annotations

import errno
import logging
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commitlog.appending.wakeups import NoticePublisher
from commitlog.disk.checkpoint import Positions, PositionsFile, StoreCheckpoint
from commitlog.disk.file_channel import FileChannel
from commitlog.shm.control_region import counted_entries, first_kept, indexed_entries
from commitlog.shm.layout import HA_SERVICE, Lane, Stage, segment_start
from commitlog.shm.memory_order import observe, publish
from commitlog.stages.base_stage import BaseStage
from commitlog.stages.stage_process import main
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock

PAGE_BYTES = 4096
"""RocketMQ's OS_PAGE_SIZE, the unit of `least_pages`, whatever the machine's pages are."""
_OVERLAPPING_SYNCS = 4
_PROGRESS_EVERY, _PROGRESS_NS_MIN = 10, 10_000_000_000
"""Progress is logged every tenth thorough interval, but not more often than every ten seconds."""

_COMMITS_NS = 500_000
"""How long two rounds of the committer take without their rests."""
_NAME_CHECK_NS = 1_000_000_000
"""How often the flusher checks that open segments still have their names."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SyncOrder:
    """One fdatasync: the lane's positions when it was ordered, and the file that it syncs.

    The segment begins at `start`. The sync makes all bytes below `target` durable.
    """

    lane: int
    flushed: int
    committed: int
    start: int
    target: int
    fd: int


class Flusher(BaseStage):
    """The flusher stage: RocketMQ's FlushRealTimeService."""

    name = "flusher"
    fault_word = Lane.FLUSHER_FAULT
    reach = Lane.FLUSHED
    watched = (Lane.COMMITTED, Lane.REWRITTEN, Lane.ALLOCATED, Lane.FLUSH_REQUESTED, Lane.DISPATCH_SYNCED)

    def __init__(self, path: Path, channel: FileChannel | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(path, channel, clock)
        self.on_reload()
        # when progress was logged, and the sum of `flushed` of all lanes then
        self._progress = self.clock.monotonic_ns(), int(np.sum(self.lanes[:, Lane.FLUSHED]))
        self._files: dict[int, dict[int, int]] = {}  # lane → segment start → descriptor
        self._unopened: set[int] = set()  # lanes with a segment that could not be opened
        self._removed: set[int] = set()  # lanes with a segment that was removed while it was open
        self._names_checked_ns = self.clock.monotonic_ns()
        self._positions: dict[int, PositionsFile] = {}
        self._recorded: dict[int, tuple[int, int, int]] = {}
        self._recorded_ns = LONG_AGO_NS
        self._wrote, self._committed = self.lanes[:, Lane.WROTE], self.lanes[:, Lane.COMMITTED]
        self._flushed = self.lanes[:, Lane.FLUSHED]
        self._opened, self._allocated = self.lanes[:, Lane.OPENED], self.lanes[:, Lane.ALLOCATED]
        self._committer, self._dispatcher = self.bell_of("committer"), self.bell_of("dispatcher")
        self._ha_service = self.bell_of(HA_SERVICE) if self.config.replication.enabled else None
        self._committer_row = self.control.stage_row("committer")
        self._committer_beat = 0
        self._notices = NoticePublisher(self.context, self.pool)
        self._syncs = ThreadPoolExecutor(_OVERLAPPING_SYNCS, thread_name_prefix="fdatasync")

    def on_reload(self) -> None:
        config = self.config.flusher
        self.interval_ms, self.linger_ms = config.interval_ms, config.linger_ms
        self._least_bytes = max(config.least_pages * PAGE_BYTES, 1)
        self._thorough_ns = config.thorough_interval_ms * 1_000_000
        self._timed = config.timed
        self._progress_ns = max(_PROGRESS_EVERY * self._thorough_ns, _PROGRESS_NS_MIN)
        self._positions_ns = config.positions_interval_ms * 1_000_000
        self._retry_ns = config.retry_ms * 1_000_000
        self._committer_linger_ns = self.config.committer.linger_ms * 1_000_000

    def on_start(self) -> None:
        """Asks for everything above `flushed` to be written again.

        A sync may have failed under the previous flusher, and the kernel reports that only once.
        """
        for lane in range(len(self.lanes)):
            row = self.control.row(lane)
            publish(row, Lane.OPENED, 0)
            if not self.sound.has(lane):
                continue
            self._open_segments(lane)
            if observe(row, Lane.FLUSHED) != observe(row, Lane.COMMITTED):
                publish(row, Lane.REWRITE_WANTED, observe(row, Lane.REWRITE_WANTED) + 1)
        self._committer.wake()

    def rest_ms(self, now: int) -> int:
        """Returns how long the flusher rests after work, in ms.

        The first rest since a sleep takes `linger_ms`. Each further rest ends just after the
        committer's second commit from now on. So the flusher does half the rounds, and the median
        message comes to the disk as quickly as if each stage rested without regard to the other.
        """
        if not self.rests:
            return self.linger_ms
        second = self._committer_beat + 2 * self._committer_linger_ns + _COMMITS_NS
        return min(max((second - now) // 1_000_000 + 1, self.linger_ms), 2 * self.linger_ms)

    def is_awaited(self, lane: int) -> bool:
        row = self.control.row(lane)
        return observe(row, Lane.COMMITTED) >= observe(row, Lane.FLUSH_REQUESTED) > observe(row, Lane.FLUSHED)

    def advance(self, lane: int, now: int) -> int:
        if not self._is_due(lane, now):
            return 0
        order = self._order(lane)
        moved = self._finish(order, self._sync(order))
        if moved:
            self._wake_the_next()
        return moved

    def _wake_the_next(self) -> None:
        """Wakes the stages that work on flushed records. Somebody may wait for a replica."""
        if self._ha_service is not None:
            self._ha_service.hurry()
        self._dispatcher.wake()

    def left(self) -> int:
        return int(np.sum((self._wrote - self._flushed)[self.sound.mask]))

    def on_wait_end(self) -> None:
        if self.clock.monotonic_ns() - self._recorded_ns >= self._positions_ns:
            self.record_positions()
        if self.clock.monotonic_ns() - self._names_checked_ns >= _NAME_CHECK_NS:
            self._stop_lanes_of_removed_segments()
        self._log_progress()

    def _stop_lanes_of_removed_segments(self) -> None:
        """Checks the names of all open segments.

        A sync checks its own segment. This checks the segments that no sync reaches now: those of
        idle lanes, and those made ahead.
        """
        self._names_checked_ns = self.clock.monotonic_ns()
        for lane, files in self._files.items():
            for start, fd in files.items():
                if lane not in self._removed and self.channel.is_unlinked(fd):
                    self._stop_lane(lane, start)

    def _stop_lane(self, lane: int, start: int) -> None:
        """Stops a lane until the next start, because its segment at `start` was removed.

        A file that gets the same name later does not have the bytes of the removed one.
        """
        self._removed.add(lane)
        publish(self.control.row(lane), Lane.OPENED, 0)  # the committer stops here
        log.error(
            "lane %d: %s was removed under the running store: the lane stops; stop the store, put the file back if you can, "
            "and start it again: what was accepted stays in the pool until then",
            lane,
            self.directory.lane_directory(lane).segment_path(start),
        )
        self.set_fault(lane, errno.ENOENT)

    def _log_progress(self) -> None:
        """Logs now and then, while anything moves, how far the disk is behind memory.

        RocketMQ's printFlushProgress.
        """
        logged_at, flushed_then = self._progress
        now = self.clock.monotonic_ns()
        if now - logged_at < self._progress_ns:
            return
        flushed = int(np.sum(self._flushed))
        self._progress = now, flushed
        behind = (self._wrote - self._flushed)[self.sound.mask]
        if flushed != flushed_then:
            log.info(
                "flush progress: %d bytes flushed in %d s; the disk is behind memory by %d bytes in all, %d a lane at most",
                flushed - flushed_then,
                (now - logged_at) // 1_000_000_000,
                int(np.sum(behind)),
                int(np.max(behind)),
            )

    def work(self) -> int:
        """Opens the segments that the allocator has made, then syncs every lane that is due.

        Syncs of several lanes overlap.
        """
        self._committer_beat = self._committer_row[Stage.HEARTBEAT]
        opened = False
        for lane in ((self._allocated != self._opened) & self.sound.mask).nonzero()[0].tolist():
            opened = (lane not in self._removed and self.sound.has(lane) and self._open_segments(lane)) or opened
        if opened:
            self._committer.wake()
        now = self.clock.monotonic_ns()
        behind = (self._committed > self._flushed) & self.sound.mask
        due = [lane for lane in behind.nonzero()[0].tolist() if self._is_due(lane, now)]
        if not due:
            return 0
        if len(due) == 1:
            order = self._order(due[0])
            moved = self._finish(order, self._sync(order))
        else:
            moved = self._sync_together(list(map(self._order, due)))
        if moved:
            self._wake_the_next()
        return moved

    def _sync_together(self, orders: list[SyncOrder]) -> int:
        """Syncs several lanes at the same time; one after the other if no thread can be started."""
        pending: dict[Future[tuple[int, int]], SyncOrder] = {}
        moved = 0
        try:
            for order in orders:
                pending[self._syncs.submit(self._sync, order)] = order
        except RuntimeError as error:
            log.info("a thread can't be had: %s", error)
        for future in as_completed(pending):
            moved += self._finish(pending[future], future.result())
        for order in orders[len(pending) :]:
            moved += self._finish(order, self._sync(order))
        return moved

    def _is_due(self, lane: int, now: int) -> bool:
        """Whether a lane is to be synced now.

        A sync must be possible, and either enough bytes are there or somebody waits.
        """
        row = self.control.row(lane)
        if self._not_before.get(lane, 0) > now or lane in self._removed or not self.sound.has(lane):
            return False
        if observe(row, Lane.REWRITTEN) != observe(row, Lane.REWRITE_WANTED):
            self._committer.wake()
            return False
        committed, flushed = observe(row, Lane.COMMITTED), observe(row, Lane.FLUSHED)
        size = self.facts.segment_bytes
        if segment_start(flushed, size) not in self._files.get(lane, {}):
            return False  # it could not be opened, and is tried again later
        if observe(row, Lane.FLUSH_REQUESTED) > flushed or committed // size > flushed // size or self.stopping:
            return True
        if self.is_followed(now):
            return committed > flushed
        since = now - (row[Lane.FLUSHED_NS] or LONG_AGO_NS)
        if self._timed and since < self.interval_ms * 1_000_000:
            return False
        return committed - flushed >= self._least_bytes or since >= self._thorough_ns

    def _order(self, lane: int) -> SyncOrder:
        """The order for the next fdatasync: the segment that `flushed` is in, up to `committed`."""
        row = self.control.row(lane)
        flushed, committed = observe(row, Lane.FLUSHED), observe(row, Lane.COMMITTED)
        size = self.facts.segment_bytes
        start = segment_start(flushed, size)
        return SyncOrder(lane, flushed, committed, start, min(committed, start + size), self._files[lane][start])

    def _sync(self, order: SyncOrder) -> tuple[int, int]:
        """Syncs the file. Returns (errno or 0, nanoseconds).

        The errno is ENOENT where the file has no name any more. It runs in a thread of its own when
        several lanes are due, so it uses nothing but the file.
        """
        began = self.clock.monotonic_ns()
        try:
            self.channel.fdatasync(order.fd)
            if self.channel.is_unlinked(order.fd):
                return errno.ENOENT, self.clock.monotonic_ns() - began
        except OSError as error:
            return error.errno or errno.EIO, self.clock.monotonic_ns() - began
        return 0, self.clock.monotonic_ns() - began

    def _finish(self, order: SyncOrder, result: tuple[int, int]) -> int:
        """Publishes the result of a sync. Returns by how many bytes `flushed` moved.

        Returns 0 for a lane whose words turn out to be damaged.
        """
        try:
            return self._take(order, result)
        except (ValueError, ArithmeticError):
            if not self.sound.is_damaged(order.lane):
                raise
            return 0

    def _take(self, order: SyncOrder, result: tuple[int, int]) -> int:
        """Publishes what a sync has made durable, or asks the committer to write it again.

        Returns by how many bytes `flushed` moved.
        """
        lane, row = order.lane, self.control.row(order.lane)
        code, nanoseconds = result
        if code == errno.ENOENT:
            self._stop_lane(lane, order.start)
            return 0
        self.set_fault(lane, code)
        if code:
            publish(row, Lane.REWRITE_WANTED, observe(row, Lane.REWRITE_WANTED) + 1)
            self._not_before[lane] = self.clock.monotonic_ns() + self._retry_ns
            self._committer.wake()
            return 0
        publish(row, Lane.FLUSHED, order.target)
        row[Lane.SYNCS] += 1
        row[Lane.FLUSHED_NS] = self.clock.monotonic_ns()
        self.count_action(nanoseconds)
        self._notices.tell_readers()
        if row[Lane.LISTENING]:
            self._notices.publish(lane, order.committed, order.target)
        is_segments_end = order.target % self.facts.segment_bytes == 0
        if is_segments_end:
            self.channel.close(self._files[lane].pop(order.start))
        if is_segments_end or lane not in self._recorded:
            # positions are written in this round: without them a stopped store would read as empty
            # after its first flush
            self._recorded_ns = LONG_AGO_NS
        return order.target - order.flushed

    def _open_segments(self, lane: int) -> bool:
        """Opens every segment of a lane that exists and is not flushed.

        False if one can't be opened. The committer writes nothing to a segment before the flusher
        has it open.
        """
        row = self.control.row(lane)
        allocated, flushed = observe(row, Lane.ALLOCATED), observe(row, Lane.FLUSHED)
        size = self.facts.segment_bytes
        files = self._files.setdefault(lane, {})
        lane_directory = self.directory.lane_directory(lane)
        try:
            for start in range(segment_start(flushed, size), allocated, size):
                if start not in files:
                    files[start] = self.channel.open(lane_directory.segment_path(start))
        except OSError as error:
            self._unopened.add(lane)
            self.set_fault(lane, error.errno or errno.EIO)
            return False
        if lane in self._unopened:
            self._unopened.remove(lane)
            self.set_fault(lane, 0)
        publish(row, Lane.OPENED, allocated)
        return True

    def record_positions(self) -> None:
        """Writes `positions` (ours) and `checkpoint` (RocketMQ's) of every lane that moved.

        Data and consume queues are durable up to the positions in these files.
        """
        self._recorded_ns = self.clock.monotonic_ns()
        for lane in np.flatnonzero(self._flushed).tolist():
            if self.sound.is_damaged(lane):
                continue
            row = self.control.row(lane)
            first = first_kept(row)  # loaded before the other two: it may grow up to them
            # nothing below the first offset needs an entry, and queues that are being built anew
            # may not have come so far yet; a start relies on it, and a place without a count may be
            # garbage
            indexed, counted = indexed_entries(row)
            dispatched, flushed = max(indexed if counted >= 0 else 0, first), observe(row, Lane.FLUSHED)
            if self._recorded.get(lane) == (flushed, dispatched, first):
                continue
            lane_directory = self.directory.lane_directory(lane)
            timestamp = row[Lane.DISPATCHED_TIMESTAMP]
            try:
                if lane not in self._positions:
                    self._positions[lane] = PositionsFile(lane_directory, self.facts.id, self.channel)
                self._positions[lane].store(
                    Positions(
                        generation=self.control.generation,
                        flushed_where=flushed,
                        dispatched_where=dispatched,
                        first_where=first,
                        last_store_timestamp=timestamp,
                        drained=False,
                        entries=counted_entries(row, dispatched),
                    )
                )
                publish(row, Lane.FIRST_RECORDED, first)
                StoreCheckpoint(timestamp, timestamp, 0).save(lane_directory.checkpoint_file, self.channel)
            except OSError as error:
                log.warning("lane %d: positions not written: %s; a restart after a reboot scans more", lane, error)
                continue
            self._recorded[lane] = flushed, dispatched, first

    def on_stop(self) -> None:
        self.record_positions()
        self._syncs.shutdown()
        for files in self._files.values():
            for fd in files.values():
                self.channel.close(fd)
        del self._wrote, self._committed, self._flushed, self._opened, self._allocated
        self._committer.close()
        self._dispatcher.close()
        if self._ha_service is not None:
            self._ha_service.close()
        self._notices.close()


if __name__ == "__main__":
    main(Flusher)
