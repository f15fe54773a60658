"""The next queue offsets of a lane's topics, for a new lessee of the lane.

They come from the consume queues if these are proven, otherwise from a walk of the log. So no queue
offset is ever given out twice. A queue's end is proven if its last entry names a record of its
topic, lane and offset. No queue is missing if the sum of all ends is the number that the dispatcher
has counted.

If the log has no message of a topic, its consume queue may be lost too. Then the topic's trim mark
and the ends of the last stop tell where its queue offsets go on. Readers see no message below the
trim mark.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.store_directory import LaneDirectory
from commitlog.disk.topic_ends import load_ends
from commitlog.disk.trim_marks import TrimMarks
from commitlog.errors import CorruptRecord, DamagedFile
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.reading.log_walk import RecentSegments
from commitlog.reading.queue_bounds import NamedQueue, QueueBounds, check_entry, total_of_ends


@dataclass
class IndexedOffsets:
    """Finds the next queue offset of a topic, after the records below log offset `synced`.

    Up to `synced` the consume queues are durable. The sum of their ends there is `counted` (−1 if
    it is not known).
    """

    lane_directory: LaneDirectory
    segment_bytes: int
    synced: int
    counted: int
    channel: FileChannel
    store_id: str
    _are_complete: bool | None = None
    _seen: frozenset[str] = field(default=frozenset(), repr=False)
    """The topics whose queues were there at the first look."""
    _walked: dict[str, int] | None = field(default=None, repr=False)

    def next_offset(self, topic: str, first: int) -> int:
        """Returns the queue offset behind a topic's last one; 0 for a topic without messages.

        The log begins at offset `first`. Raises OSError. Raises DamagedFile if only the trim marks
        could tell the offset, and they can't be read.
        """
        bounds = self._proven_bounds(topic, first)
        begin, end = bounds or (0, 0)
        if bounds is not None and self._all_are_there(first, topic if end == 0 else ""):
            if begin < end:
                return end
        elif found := self.walked(first).get(topic, 0):
            return max(end, found)
        if bounds is None:
            end = self._last_resort(topic)
        return max(end, self._trimmed_before(topic), self._ended_at(topic))

    def _trimmed_before(self, topic: str) -> int:
        marks = TrimMarks(self.lane_directory, self.channel)
        marks.refresh(self.store_id)
        return marks.marks[topic].before if topic in marks.marks else 0

    def _ended_at(self, topic: str) -> int:
        """The topic's end at the last stop; 0 if the file of ends does not tell it."""
        try:
            ends = load_ends(self.lane_directory, self.store_id, self.channel)
        except DamagedFile:
            return 0
        return ends.topics.get(topic, 0) if ends.end <= self.synced else 0

    def _proven_bounds(self, topic: str, first: int) -> tuple[int, int] | None:
        """The topic's first queue offset, and the one behind its last; 0 and 0 without a queue.

        None if the queue's last entry does not name its record.
        """
        with ConsumeQueue(self.lane_directory.queue_path(topic), channel=self.channel) as queue:
            try:
                begin, end = QueueBounds(queue, first, self.synced).find()
                if begin < end:
                    segments = RecentSegments(self.lane_directory, self.segment_bytes, self.channel)
                    check_entry(queue, NamedQueue(topic, self.lane_directory.number), end - 1, segments)
                return begin, end
            except (DamagedFile, CorruptRecord, OSError, OverflowError, ValueError):
                return None

    def _all_are_there(self, first: int, empty: str) -> bool:
        """Whether no queue is missing. `empty` is a topic whose queue has no entry, or "".

        With thousands of topics it takes long to add up all ends. So this is done once. It is done
        again only if a queue was there at the first look and is now empty: somebody has removed it.
        """
        if self._are_complete is None:
            self._seen = frozenset(self.channel.list(self.lane_directory.consumequeue))
        elif not (self._are_complete and empty in self._seen):
            return self._are_complete
        total = total_of_ends(self.lane_directory, first, self.synced, self.channel) if self.counted >= 0 else -1
        self._are_complete = 0 <= total == self.counted
        return self._are_complete

    def walked(self, first: int) -> dict[str, int]:
        """Walks all records in [first, synced), past damage.

        Returns each topic's next queue offset.
        """
        if self._walked is None:
            self._walked = {}
            segments = MappedFileQueue(self.lane_directory.commitlog, self.segment_bytes, self.channel)
            log = LogScan(segments, self.lane_directory.number, check_crc=False)
            for piece in log.pieces(first) if first < self.synced else ():
                if isinstance(piece, Gap):
                    where = piece.end
                else:
                    where = piece.buffer_start + piece.stop_position
                    in_queue = piece.in_queue
                    topics, offsets = piece.topic_index[in_queue].tolist(), piece.queue_offsets[in_queue].tolist()
                    for topic, offset in zip(topics, offsets, strict=True):
                        self._walked[piece.topics[topic]] = offset + 1
                if where >= self.synced:
                    break
        return self._walked

    def _last_resort(self, topic: str) -> int:
        """The end of the consume queue, damaged or not, if the log has no record of the topic."""
        with ConsumeQueue(self.lane_directory.queue_path(topic), channel=self.channel) as queue:
            try:
                return queue.end()
            except (DamagedFile, OSError):
                return 0
