"""Places an entry in a consume queue for every flushed record: RocketMQ's ReputMessageService.

Each entry goes to QUEUEOFFSET × 20 of its topic's queue, so placing it again writes the same bytes.
After a kill a dispatcher may start again at `dispatched`, or anywhere before it. The consume queues
are synced before `dispatch_synced` says so; `positions` records that word.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from commitlog.disk.consume_queue import ENTRY_BYTES, ConsumeQueue
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file import MappedFile, read_ahead
from commitlog.disk.open_queues import open_most
from commitlog.disk.queue_entries import by_topic
from commitlog.disk.store_directory import segment_name
from commitlog.errors import CommitLogError, CorruptRecord
from commitlog.reading.queue_bounds import total_of_ends
from commitlog.record.scan import scan
from commitlog.record.table import RecordTable, Stop
from commitlog.shm.control_region import count_entries, counted_entries, first_kept, forget_entries
from commitlog.shm.layout import Lane, segment_start
from commitlog.shm.memory_order import observe, publish
from commitlog.stages.base_stage import BaseStage
from commitlog.stages.stage_process import main
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock

_SLICE_BYTES = 16 << 20

log = logging.getLogger(__name__)


@dataclass
class LaneDispatch:
    """The dispatcher's state of a lane."""

    entries: int = -1
    """How many entries the queues of the lane have at `dispatched`; −1: unknown.

    See control_region.py.
    """
    count_from: int = 0
    """If `entries` is not known, the log offset from which on they may be counted anew."""
    queues: dict[str, ConsumeQueue] = field(default_factory=dict)
    """The open queues by topic, the least used first."""
    closed: set[str] = field(default_factory=set)
    """Topics whose queue was open and was closed to make room."""
    segment: MappedFile | None = None
    """The mapped segment that the next record is in."""
    is_anew: bool = False
    """Whether all queues were built anew: every record since the log's first one was placed."""
    named: set[Path] = field(default_factory=set)
    """Directories of queues whose names are durable."""


class Dispatcher(BaseStage):
    """The dispatcher stage: RocketMQ's ReputMessageService."""

    name = "dispatcher"
    fault_word = Lane.DISPATCHER_FAULT
    watched = (Lane.FLUSHED,)

    def __init__(self, path: Path, channel: FileChannel | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(path, channel, clock)
        self.on_reload()
        self._queue_bytes = self.config.dispatcher.queue_file_entries * 20
        self._state: dict[int, LaneDispatch] = {}
        self._synced_ns = LONG_AGO_NS
        self._open_most = open_most()
        self._flushed, self._dispatched = self.lanes[:, Lane.FLUSHED], self.lanes[:, Lane.DISPATCHED]

    def on_reload(self) -> None:
        config = self.config.dispatcher
        self.interval_ms, self.linger_ms = config.interval_ms, config.linger_ms
        self._sync_ns = self.config.flusher.positions_interval_ms * 1_000_000

    def on_start(self) -> None:
        """Goes back to the synced position, and places everything above it again.

        A sync may have failed under the previous dispatcher, and the kernel reports that only once.
        """
        for lane in np.flatnonzero(self._flushed).tolist():
            if not self.sound.is_damaged(lane):
                row = self.control.row(lane)
                publish(row, Lane.DISPATCHED, observe(row, Lane.DISPATCH_SYNCED))

    def left(self) -> int:
        return int(np.sum((self._flushed - self._dispatched)[self.sound.mask]))

    def work(self) -> int:
        """Dispatches one slice of every lane that has new records, across segments."""
        moved = 0
        for lane in np.flatnonzero((self._flushed > self._dispatched) & self.sound.mask).tolist():
            before, row = moved, self.control.row(lane)
            while observe(row, Lane.FLUSHED) > observe(row, Lane.DISPATCHED) and (step := self._advance(lane)):
                moved += step
                if moved - before >= _SLICE_BYTES:
                    break
        return moved

    def _advance(self, lane: int) -> int:
        """Dispatches a lane up to the end of its segment or of a slice. Returns how many bytes.

        Returns 0 after a fault.
        """
        if not self.sound.has(lane):
            return 0
        try:
            moved = self._dispatch(lane)
            self.set_fault(lane, 0)
            return moved
        except OSError as error:
            self.set_fault(lane, error.errno or errno.EIO)
        except CommitLogError as error:
            if self.set_fault(lane, errno.EILSEQ):
                log.error("lane %d: %s", lane, error)
        except (ValueError, ArithmeticError):
            if not self.sound.is_damaged(lane):
                raise
        return 0

    def _dispatch(self, lane: int) -> int:
        """See `_advance`. Raises OSError, CorruptRecord, CommitLogError."""
        row = self.control.row(lane)
        # retention may have passed the place from which the queues are built anew
        where, flushed = max(observe(row, Lane.DISPATCHED), first_kept(row)), observe(row, Lane.FLUSHED)
        size = self.facts.segment_bytes
        start = segment_start(where, size)
        state = self._state_of(lane)
        if where != observe(row, Lane.DISPATCHED):
            self._recall_count(row, state, where)
        segment = self._segment(lane, start, size)
        end = min(flushed, start + size, where + _SLICE_BYTES)
        began = self.clock.monotonic_ns()
        read_ahead(segment.view, where - start, end - start)
        table = scan(segment.view, where - start, end - start, start, lane, check_crc=False)
        if table.stop is Stop.CORRUPT or (table.stop is Stop.ZERO and not len(table)):
            reason = table.reason or "zeros where a record should be"
            path = self.directory.lane_directory(lane).segment_path(start)
            raise CorruptRecord(reason, start + table.stop_position, str(path))
        self._place(lane, table)
        done = start + size if table.stop is Stop.BLANK else start + table.stop_position
        if len(table):
            row[Lane.DISPATCHED_TIMESTAMP] = int(table.store_timestamps[-1])
            row[Lane.DISPATCHED_RECORDS] += len(table)
            self.count_action(self.clock.monotonic_ns() - began)
        if state.entries >= 0:
            state.entries += int(table.in_queue.sum())
            count_entries(row, done, state.entries)
        publish(row, Lane.DISPATCHED, done)
        return done - where

    def _state_of(self, lane: int) -> LaneDispatch:
        state = self._state.get(lane)
        if state is None:
            state, row = LaneDispatch(), self.control.row(lane)
            self._recall_count(row, state, observe(row, Lane.DISPATCHED))
            self._state[lane] = state
        return state

    @staticmethod
    def _recall_count(row: memoryview, state: LaneDispatch, where: int) -> None:
        """Takes the count of entries from shared memory: the dispatch goes on elsewhere.

        `where` is not the end of the last step.
        """
        state.entries = counted_entries(row, where)
        state.count_from = observe(row, Lane.FLUSHED)

    def _place(self, lane: int, table: RecordTable) -> None:
        """Places the entries of a table of records: one call for each topic, in log order."""
        for topic, rows in by_topic(table, len(table)):
            self._queue(lane, topic, int(table.queue_offsets[rows[0]])).place(
                table.queue_offsets[rows], table.physical_offsets[rows], table.sizes[rows], table.tags_codes[rows]
            )

    def _queue(self, lane: int, topic: str, first: int) -> ConsumeQueue:
        """Returns a topic's open queue in a lane, which is the last one to be closed from now on.

        Its next entry has the queue offset `first`. Raises FileNotFoundError if somebody has
        removed the queue's files. The queue is built anew then.
        """
        state = self._state[lane]
        queue = state.queues.pop(topic, None)
        if queue is None:
            self.give_sign()  # a slice may have thousands of topics, and each of them may cost a sync
            self._make_room(lane)
            directory = self.directory.lane_directory(lane).queue_path(topic)
            queue = ConsumeQueue(directory, self._queue_bytes, self.channel, state.named)
            try:
                self._check_before(lane, topic, queue, first)
            except BaseException:
                queue.close()
                raise
        state.queues[topic] = queue
        return queue

    def _check_before(self, lane: int, topic: str, queue: ConsumeQueue, first: int) -> None:
        """Makes sure that the queue has the entry before `first`. Only a removed queue lacks it.

        Raises FileNotFoundError if all queues of the lane must be built anew first.
        """
        state = self._state[lane]
        if first == 0 or queue.entries(first - 1, 1)["size"].any():
            return
        if topic in state.closed or not state.is_anew:
            self._start_over(lane, state)
            raise FileNotFoundError(errno.ENOENT, "a consume queue was removed", str(queue.directory))
        self._fill_before(lane, queue, first)

    def _fill_before(self, lane: int, queue: ConsumeQueue, first: int) -> None:
        """Fills the places before entry `first` of a queue that is built anew, as RocketMQ does.

        The log has no earlier message of the topic, so entries there are old or another queue's.
        Empty places would hide all entries behind them, because the ends of a queue are found by
        bisection. The queue's end jumps, so all entries are counted anew. To do this twice is
        harmless.
        """
        row, begin = self.control.row(lane), queue.begin_of_file(first)
        forget_entries(row)  # before the end jumps: a reader that has seen the count would miss entries
        self._recall_count(row, self._state[lane], observe(row, Lane.DISPATCHED))
        for start in queue.starts():
            if start < begin * ENTRY_BYTES:
                self.channel.unlink(queue.directory / segment_name(start))
        queue.fill(begin, first)

    def _make_room(self, lane: int) -> None:
        """Closes queues if the limit of open ones is reached.

        There may be more topics than descriptors. The lane with most open queues closes its least
        used queue first. Each queue is synced before. Raises OSError where that fails for a queue
        of `lane`.
        """
        while sum(len(state.queues) for state in self._state.values()) >= self._open_most:
            fullest = max(self._state, key=lambda number: len(self._state[number].queues))
            state = self._state[fullest]
            topic = next(iter(state.queues))
            queue = state.queues.pop(topic)
            state.closed.add(topic)
            try:
                queue.sync()
            except OSError as error:
                self._go_back(fullest, error)
                if fullest == lane:
                    raise
            finally:
                queue.close()

    def _go_back(self, lane: int, error: OSError) -> None:
        """Makes the dispatcher place everything above `dispatch_synced` again after a failed sync.

        The kernel may have dropped those entries.
        """
        self.set_fault(lane, error.errno or errno.EIO)
        row = self.control.row(lane)
        synced = observe(row, Lane.DISPATCH_SYNCED)
        publish(row, Lane.DISPATCHED, synced)
        self._recall_count(row, self._state[lane], synced)

    def on_wait_end(self) -> None:
        if self.clock.monotonic_ns() - self._synced_ns >= self._sync_ns:
            for lane, state in self._state.items():
                if self.sound.has(lane) and any(queue.is_removed() for queue in state.queues.values()):
                    self._start_over(lane, state)
            self._sync()

    def _start_over(self, lane: int, state: LaneDispatch) -> None:
        """Starts to build all consume queues of a lane anew, because files of them were removed."""
        log.warning("lane %d: consume queue files were removed; they are built anew from the log", lane)
        row = self.control.row(lane)
        first = first_kept(row)
        publish(row, Lane.DISPATCH_SYNCED, first)
        publish(row, Lane.DISPATCHED, first)
        self._recall_count(row, state, first)
        for queue in state.queues.values():
            queue.close()
        state.is_anew = True
        state.queues.clear()
        state.named.clear()
        state.closed.clear()

    def _sync(self) -> None:
        """Syncs the consume queues, and then stores `dispatch_synced`."""
        self._synced_ns = self.clock.monotonic_ns()
        for lane, state in self._state.items():
            if not self.sound.has(lane):
                continue
            row = self.control.row(lane)
            dispatched = observe(row, Lane.DISPATCHED)
            if dispatched == observe(row, Lane.DISPATCH_SYNCED):
                continue
            try:
                for queue in state.queues.values():
                    self.give_sign()
                    queue.sync()
            except OSError as error:
                self._go_back(lane, error)
                continue
            try:
                if state.entries < 0 and dispatched >= state.count_from:
                    self._count_anew(lane, state, dispatched)
            except (OSError, CommitLogError) as error:  # nothing relies on the count: the next sync tries again
                log.warning("lane %d: the entries of its consume queues can't be counted now: %s", lane, error)
            publish(row, Lane.DISPATCH_SYNCED, dispatched)

    def _count_anew(self, lane: int, state: LaneDispatch, dispatched: int) -> None:
        """Counts the entries of all queues of a lane, after they were built anew."""
        row = self.control.row(lane)
        first = first_kept(row)
        state.entries = total_of_ends(self.directory.lane_directory(lane), first, dispatched, self.channel)
        if state.entries >= 0:
            count_entries(row, dispatched, state.entries)

    def on_stop(self) -> None:
        self._sync()
        for state in self._state.values():
            for queue in state.queues.values():
                queue.close()
            if state.segment is not None:
                state.segment.close()
        del self._flushed, self._dispatched

    def _segment(self, lane: int, start: int, size: int) -> MappedFile:
        """The mapped segment that begins at `start`. The lane's next record is in it."""
        state = self._state[lane]
        if state.segment is None or state.segment.start != start:
            if state.segment is not None:  # first: the next one may be refused for want of a descriptor
                state.segment.close()
                state.segment = None
            path = self.directory.lane_directory(lane).segment_path(start)
            state.segment = MappedFile(path, start, size, self.channel)
        return state.segment


if __name__ == "__main__":
    main(Dispatcher)
