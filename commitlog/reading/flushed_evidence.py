"""Other evidence than `positions` of how far a log was flushed: files that follow a sync.

`positions` is up to a second old after a kill, and it may be lost. A start may cut the log at a bad
record only if nothing says that the log was flushed further. Otherwise the records behind the bad
one would be cut off like a torn tail, although their senders were told that they are durable.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from commitlog.disk.checkpoint import StoreCheckpoint
from commitlog.disk.consume_queue import ConsumeQueue, first_where, is_light
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import CorruptRecord, DamagedFile
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.reading.log_walk import RecentSegments
from commitlog.reading.queue_bounds import NamedQueue, record_of_entry
from commitlog.record.record_layout import RECORD_BYTES_MIN
from commitlog.shm.layout import MAX_SLOTS

_LOOKS = 256
"""How many entries at a queue's end are looked at one by one.

Earlier entries are looked at in steps that double.
"""
_LOST_MOST = 1 << 20
"""How many entries of lost records are looked at."""


@dataclass
class FlushedEvidence:
    """How far a lane's log was flushed, by all that is left to tell of it.

    The checkpoint counts only if `positions` is lost.
    """

    lane_directory: LaneDirectory
    log: LogScan
    channel: FileChannel
    has_positions: bool
    flushed: int
    """A log offset: a bad record below it is damage and no torn tail."""
    whole: int
    """A record's end: no record below it goes on behind `flushed`."""
    _has_looked: bool = field(init=False, default=False)

    def look(self) -> None:
        """Looks at other files than `positions`. Only the first call does it."""
        if not self._has_looked:
            self._has_looked = True
            self._raise_to(flushed_by_queues(self.lane_directory, self.log, self.channel))
            if not self.has_positions:
                self._raise_to(flushed_by_checkpoint(self.lane_directory, self.log, self.channel))

    def look_at(self, gap: Gap) -> None:
        """Looks whether a consume queue has an entry of the bad record with which a gap begins.

        No other record of its topic may be left to prove that entry.
        """
        self.look()
        if gap.start >= self.whole:
            self._raise_to(_flushed_by_entry(gap.start, self.lane_directory, self.log, self.channel))

    def is_damage(self, gap: Gap) -> bool:
        """Whether the bad record with which a gap begins was flushed, all of it."""
        return gap.start < self.flushed and (gap.start < self.whole or not gap.is_unfinished(self.flushed))

    def _raise_to(self, end: int) -> None:
        self.flushed, self.whole = max(self.flushed, end), max(self.whole, end)


def flushed_by_age(log: LogScan) -> int:
    """Returns a log offset below which all was flushed, as the last segment with a record shows.

    A buffer is reused only when its segment is flushed, and a lane has at most MAX_SLOTS buffers.
    """
    for start in reversed(log.segments.starts):
        if log.holds_record(start):
            return max(start - MAX_SLOTS * log.segments.size, 0)
    return 0


def flushed_by_queues(lane_directory: LaneDirectory, log: LogScan, channel: FileChannel) -> int:
    """Returns a log offset below which all was flushed, by the consume queues; 0 if they show none.

    The dispatcher places an entry only when its record is flushed. An index may be damaged, so an
    entry counts only if the log has its record. The entries behind such an entry count as well, as
    far as they are plausible: if the end of the log is lost, nothing else tells of it.
    """
    segments, found = RecentSegments(lane_directory, log.segments.size, channel, keep=4), 0
    for topic in _topics(lane_directory, channel):
        if not is_light(topic):
            named = NamedQueue(topic, lane_directory.number)
            with (
                contextlib.suppress(DamagedFile, OSError),
                ConsumeQueue(lane_directory.queue_path(topic), channel=channel) as queue,
            ):
                found = max(found, _end_of_last(queue, named, segments, found))
    return found


def _topics(lane_directory: LaneDirectory, channel: FileChannel) -> list[str]:
    """The topics that have a consume queue. A file in the place of their directory has none."""
    return channel.list(lane_directory.consumequeue) if lane_directory.consumequeue.is_dir() else []


def _flushed_by_entry(where: int, lane_directory: LaneDirectory, log: LogScan, channel: FileChannel) -> int:
    """Returns a log offset below which all was flushed, if an entry names the place `where`; or 0.

    The log's records end there. No damaged entry names that very place by chance. An entry without
    the one before it does not count: a power cut may have torn it.
    """
    for topic in _topics(lane_directory, channel):
        with (
            contextlib.suppress(DamagedFile, OSError, OverflowError),
            ConsumeQueue(lane_directory.queue_path(topic), channel=channel) as queue,
        ):
            offset = first_where(partial(_is_from, queue, where), queue.first(), queue.end())
            if is_light(topic) or (offset > queue.first() and not queue.entries(offset - 1, 1)["size"].any()):
                continue
            for place, size, _ in queue.entries(offset, 1).tolist():
                if place == where and RECORD_BYTES_MIN <= size <= log.segments.size - where % log.segments.size:
                    return _end_of_lost(queue, offset, log.segments.size)
    return 0


def _is_from(queue: ConsumeQueue, where: int, offset: int) -> bool:
    """Whether an entry names a place at or behind a log offset."""
    return bool((queue.entries(offset, 1)["physical_offset"] >= where).all())


def _end_of_last(queue: ConsumeQueue, named: NamedQueue, segments: RecentSegments, known: int) -> int:
    """Returns the end of the last record that the queue knows, or `known` if that is larger."""
    for offset in _from_end(queue.first(), queue.end()):
        ((where, size, _),) = queue.entries(offset, 1).tolist() or [(0, 0, 0)]
        if 0 < where + size <= known:
            break
        with contextlib.suppress(CorruptRecord, DamagedFile, OverflowError, ValueError):
            record_of_entry(segments, named, offset, where, size)
            return _end_of_lost(queue, offset, segments.segment_bytes)
    return known


def _end_of_lost(queue: ConsumeQueue, offset: int, segment_bytes: int) -> int:
    """Returns the end of the last record at entry `offset` or behind it, by the entries alone.

    An entry is plausible if its record lies in one segment, begins behind the record before it, and
    ends within one segment's size per entry. Any other entry may be damaged, and ends the search.
    """
    entries = queue.entries(offset, min(queue.end() - offset, _LOST_MOST))
    where, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
    ends = where + sizes
    limits = ends[0] + np.arange(len(ends)) * segment_bytes
    good = (sizes >= RECORD_BYTES_MIN) & (where % segment_bytes + sizes <= segment_bytes) & (ends <= limits)
    good[1:] &= where[1:] >= ends[:-1]
    return int(ends[len(good) - 1 if good.all() else int(good.argmin()) - 1])


def _from_end(first: int, end: int) -> Iterator[int]:
    back = itertools.chain(range(1, _LOOKS), (_LOOKS << shift for shift in itertools.count()))
    return itertools.takewhile(lambda offset: offset >= first, (end - distance for distance in back))


def flushed_by_checkpoint(lane_directory: LaneDirectory, log: LogScan, channel: FileChannel) -> int:
    """Returns a log offset below which all was flushed, by the time in RocketMQ's checkpoint.

    Records from before that time were flushed. But clocks jump, and the file has no CRC. So it
    counts only if `positions` is lost.
    """
    checkpoint = StoreCheckpoint.load(lane_directory.checkpoint_file, channel)
    if checkpoint is None:
        return 0
    for start in reversed(log.segments.starts):
        end = 0
        for piece in log.pieces(start):
            if piece.end >= start + log.segments.size if isinstance(piece, Gap) else piece.buffer_start != start:
                break
            if not isinstance(piece, Gap):
                old = np.flatnonzero(piece.store_timestamps < checkpoint.physic_msg_timestamp)
                end = int(piece.physical_offsets[old[-1]] + piece.sizes[old[-1]]) if len(old) else end
        if end:
            return end
    return 0
