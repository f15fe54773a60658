"""The consume queues of one lane of a replica, and what is recorded of the lane.

Records get their entries when they are durable. What is recorded is durable before that, so
recovery knows what to do after a kill.
"""

from __future__ import annotations

from commitlog.disk.checkpoint import Positions, PositionsFile, StoreCheckpoint
from commitlog.disk.consume_queue import queue_directories, unlink_below
from commitlog.disk.mapped_file import MappedFile, read_ahead
from commitlog.disk.mapped_file_queue import unlink_segments_below
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import DamagedFile
from commitlog.opening import Report
from commitlog.opening.new_pool import queue_file_bytes
from commitlog.opening.queue_files import QueueFiles
from commitlog.opening.queue_repair import QueueRepair
from commitlog.opening.recovery import LaneEnd
from commitlog.reading.log_scan import Gap
from commitlog.reading.queue_bounds import total_of_ends
from commitlog.record.scan import scan
from commitlog.record.table import Stop
from commitlog.replicas.segment_sums import SegmentSums
from commitlog.shm.layout import segment_start

_INDEX_BYTES = 16 << 20
"""How much of a lane is indexed before the next one has its turn."""


def is_noted(gaps: list[Gap], where: int) -> bool:
    """Whether a log offset is in a range that is damaged in the store, too."""
    return any(gap.start <= where < gap.end for gap in gaps)


class CopyIndexing:
    """Indexes one lane. The caller holds one lock for all calls. Raises OSError.

    `indexed` is the offset of the log up to which records have entries. `sums` are the checksums of
    whole segments.
    """

    def __init__(self, directory: StoreDirectory, facts: StoreFacts, number: int) -> None:
        self._store, self._facts = directory, facts
        self._channel, self._size = directory.channel, facts.segment_bytes
        self._lane = directory.lane_directory(number)
        self._number = number
        self.indexed = 0
        self.sums = SegmentSums(self._lane, facts.id, self._size, self._channel)
        self._positions = PositionsFile(self._lane, facts.id, self._channel)
        self._recorded: Positions | None = None
        self._timestamp, self._entries = 0, -1
        self._gaps: list[Gap] = []
        self._queues: QueueFiles | None = None
        self._repair: QueueRepair | None = None
        self._mapped: MappedFile | None = None

    def go_on(self, found: LaneEnd, report: Report) -> None:
        """Goes on with what recovery has found."""
        self.indexed, self._timestamp, self._entries = found.dispatched, found.last_store_timestamp, found.entries
        if why := self.sums.load(found.first, found.end):
            report(f"{why}: each record is checked instead, and the file written anew")

    def take_gaps(self, gaps: list[Gap]) -> None:
        """Takes the ranges of the log that are damaged in the store, too."""
        self._gaps = gaps
        if self._repair is not None:
            self._repair.gaps = gaps

    def close(self) -> None:
        """Closes what it has open; nothing is written."""
        self.sums.close()
        if self._queues is not None:
            self._queues.close()
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None

    def fill_queues(self, begins: dict[str, int]) -> None:
        """Makes topics go on at these queue offsets.

        Retention has deleted the messages before them.
        """
        queues = self._open_queues()
        for topic, begin in begins.items():
            queue = queues.queue(topic)
            if begin:
                queue.fill(queue.begin_of_file(begin), begin)
        queues.sync()
        self._entries = -1

    def index(self, first: int, limit: int) -> bool:
        """Places the entries of some records in [first, limit). Returns whether it did anything."""
        if self.indexed < first:  # retention was quicker
            self.indexed, self._entries = first, -1
        begun = self.indexed
        self._open_queues()
        assert self._repair is not None
        while self.indexed < limit and self.indexed - begun < _INDEX_BYTES:
            gap = next((gap for gap in self._gaps if gap.start <= self.indexed < gap.end), None)
            if gap is not None:
                self.indexed, self._entries = min(gap.end, limit), -1
                continue
            self._index_some(self._repair, limit)
        return self.indexed > begun

    def _index_some(self, repair: QueueRepair, limit: int) -> None:
        start = segment_start(self.indexed, self._size)
        segment = self._segment(start)
        read_ahead(segment.view, self.indexed - start, limit - start)
        table = scan(
            segment.view, self.indexed - start, min(limit - start, self._size), start, self._number,
            check_crc=False, segment_end=self._size,
        )  # fmt: skip
        if len(table):
            repair.place(table)
            self._timestamp = int(table.store_timestamps[-1])
            if self._entries >= 0:
                self._entries += int(table.in_queue.sum())
        where = start + table.stop_position
        if table.stop is Stop.BLANK:
            where = start + self._size
        elif where == self.indexed and not is_noted(self._gaps, where):
            raise DamagedFile(
                f"{self._lane.segment_path(start)} at offset {where}: {table.reason or 'no record'}: the copy is damaged; "
                f"rename {self._store.path}, and begin anew with `commitlog replica`"
            )
        self.sums.note(self.indexed, segment.view[self.indexed - start : where - start])
        self.indexed = where

    def _segment(self, start: int) -> MappedFile:
        if self._mapped is None or self._mapped.start != start:
            if self._mapped is not None:
                self._mapped.close()
            self._mapped = MappedFile(self._lane.segment_path(start), start, self._size, self._channel)
        return self._mapped

    def _open_queues(self) -> QueueFiles:
        if self._queues is None:
            self._queues = QueueFiles(self._lane, self._channel, queue_file_bytes(self._facts))
            self._repair = QueueRepair(self._queues)
            self._repair.gaps = self._gaps
        return self._queues

    def record(self, first: int, durable: int) -> None:
        """Records how far the lane is, and removes what the store's retention has deleted.

        Data and consume queues are durable up to the positions in the file.
        """
        indexed = max(self.indexed, first)
        if self._queues is not None:
            self._queues.sync()
        if self._entries < 0:
            self._entries = total_of_ends(self._lane, first, indexed, self._channel)
        self.sums.save(first)
        now = Positions(self._facts.generation, durable, indexed, first, self._timestamp, False, self._entries)
        if now == self._recorded:
            return
        retired = self._recorded is None or first > self._recorded.first_where
        self._positions.store(now)
        StoreCheckpoint(self._timestamp, self._timestamp, 0).save(self._lane.checkpoint_file, self._channel)
        self._recorded = now
        if retired:
            self.unlink_below(first)

    def unlink_below(self, first: int) -> None:
        """Removes what is before `first`. The positions on the disk must say so already."""
        unlink_segments_below(self._lane, first, self._size, self._channel)
        for queue in queue_directories(self._lane.consumequeue, self._channel):
            unlink_below(queue, first, self._channel)
