"""What a reader may believe of a consume queue: its start, its end, and the record of an entry.

A bisection over damaged entries may end anywhere, and then messages are missing silently. So each
probe also checks the entries beside it: entries within the bounds come first, their physical
offsets never go back, and no place among them is empty. `record_of_entry` tells whether an entry's
record really exists. Readers check the first and the last entry with it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from commitlog.disk.consume_queue import ENTRY_BYTES, PRE_FILL_SIZE, ConsumeQueue
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file import read_ahead
from commitlog.disk.quarantine import is_noted
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import CorruptRecord, DamagedFile
from commitlog.reading.log_walk import RecentSegments
from commitlog.reading.small_queues import small_queues
from commitlog.record.record import Record, decode
from commitlog.record.record_layout import RECORD_BYTES_MIN
from commitlog.shm.layout import segment_start

_BESIDE = 2
"""How many entries a probe looks at on each of its sides."""
_LOOKS_MOST = 100

Place = tuple[int, int]
"""Physical offset and size of an entry."""


@dataclass(frozen=True, slots=True)
class NamedQueue:
    """The topic and lane that all records of one consume queue have in common."""

    topic: str
    lane: int
    offset_is_stored: bool = True
    """False for queues that name records of other topics: RocketMQ's light ones."""


def record_of_entry(
    segments: RecentSegments, queue: NamedQueue, offset: int, where: int, size: int, *, check_crc: bool = True
) -> Record:
    """The record that entry `offset` of a queue names: `size` bytes at log offset `where`.

    Raises CorruptRecord if there is no record, or one of another place. Raises DamagedFile if its
    segment is missing.
    """
    start = segment_start(where, segments.segment_bytes)
    at, file = where - start, str(segments.lane_directory.segment_path(start))
    try:
        segment = segments.open(start)
        read_ahead(segment, at, at + size)
        found = decode(segment, at, limit=at + size, physical_offset=where, check_crc=check_crc)
    except CorruptRecord as error:
        raise CorruptRecord(error.reason, where, file) from None
    except FileNotFoundError:
        raise DamagedFile(
            f"{file}: missing, and entry {offset} of {queue.topic}, queue {queue.lane} is in it"
        ) from None
    stored = queue.topic, queue.lane, offset
    if found.total_size != size or (
        queue.offset_is_stored and stored != (found.topic, found.queue_id, found.queue_offset)
    ):
        reason = (
            f"the record of topic {found.topic}, queue {found.queue_id}, offset {found.queue_offset}, not of {stored}"
        )
        raise CorruptRecord(reason, where, file)
    return found


def check_entry(queue: ConsumeQueue, named: NamedQueue, offset: int, segments: RecentSegments) -> None:
    """Checks that an entry names its record, or a place that recovery noted as damaged.

    Raises CorruptRecord, DamagedFile.
    """
    entry = queue.entries(offset, 1)
    if not len(entry) or not entry["size"][0]:
        raise DamagedFile(f"{queue.directory}: there is no entry {offset}")
    where, size = int(entry["physical_offset"][0]), int(entry["size"][0])
    try:
        record_of_entry(segments, named, offset, where, size)
    except (CorruptRecord, DamagedFile):
        if not is_noted(segments.lane_directory, where):
            raise


class QueueBounds:
    """Bounds of one queue: the entries whose records lie in [first_where, end_where)."""

    def __init__(self, queue: ConsumeQueue, first_where: int, end_where: int) -> None:
        self.queue, self.first_where, self.end_where = queue, first_where, end_where
        self._begin = self._top = 0
        self._knows_end = False
        """Whether all entries of [begin, top) must lie within the bounds."""

    def find(self) -> tuple[int, int]:
        """The first queue offset, and one past the last. Both are 0 if there is no file.

        Raises DamagedFile, OSError.
        """
        starts = self.queue.starts()
        for _ in range(_LOOKS_MOST):
            damage = None
            try:
                found = self._find(starts)
            except DamagedFile as error:
                damage = error
            before, starts = starts, self.queue.starts()
            if before == starts:
                break  # otherwise retention or the dispatcher changed the files meanwhile
        if damage is not None:
            raise damage
        return found

    def goes_on(self, end: int) -> bool:
        """Whether the queue has anything behind the end: an entry beyond `end_where`, or junk."""
        return any(entry[:2] != (0, 0) for entry in self.queue.entries(end, 1).tolist())

    def _find(self, starts: list[int]) -> tuple[int, int]:
        if not starts:
            return 0, 0
        file_bytes = self.queue.file_bytes
        if starts[0] > 0 and self.first_where <= 0:
            raise DamagedFile(f"{self.queue.directory}: the files of [0, {starts[0]}) are missing")
        for before, after in itertools.pairwise(starts):
            if after - before != file_bytes:
                raise DamagedFile(f"{self.queue.directory}: the files of [{before + file_bytes}, {after}) are missing")
        self._begin, self._top = starts[0] // ENTRY_BYTES, (starts[-1] + file_bytes) // ENTRY_BYTES
        self._knows_end = False
        self._top = self._bisect(self._begin, self._top, self._is_in)
        self._knows_end = True
        return self._bisect(self._begin, self._top, self._is_old), self._top

    def _bisect(self, low: int, high: int, holds: Callable[[Place], bool]) -> int:
        """The first queue offset in [low, high) for which `holds` is false; before it is true."""
        if low < high and not self._probe(low, holds):
            return low
        return low + bisect_left(range(low, high), True, key=lambda offset: not self._probe(offset, holds))

    def _probe(self, offset: int, holds: Callable[[Place], bool]) -> bool:
        start, stop = max(offset - _BESIDE, self._begin), min(offset + _BESIDE + 1, self._top)
        places: list[Place] = [entry[:2] for entry in self.queue.entries(start, stop - start).tolist()]
        places += [(0, 0)] * (stop - start - len(places))
        answers = [holds(place) for place in places]
        count = answers.index(False) if False in answers else len(answers)
        if any(answers[count:]):
            raise self._damaged(start + count)
        before = -1
        for number, (where, size) in enumerate(places):
            if not self._is_in((where, size)) and not self._knows_end:
                break
            if not self._is_in((where, size)) or size < RECORD_BYTES_MIN or where < before:
                raise self._damaged(start + number)
            before = where if size != PRE_FILL_SIZE else before
        return answers[offset - start]

    def _is_in(self, place: Place) -> bool:
        where, size = place
        return where >= 0 and size > 0 and (where + size <= self.end_where or place == (0, PRE_FILL_SIZE))

    def _is_old(self, place: Place) -> bool:
        return place[0] < self.first_where or place == (0, PRE_FILL_SIZE)

    def _damaged(self, offset: int) -> DamagedFile:
        return DamagedFile(f"{self.queue.directory}: entry {offset} does not fit those beside it")


def total_of_ends(lane_directory: LaneDirectory, first_where: int, end_where: int, channel: FileChannel) -> int:
    """The sum of the ends of all queues of a lane, or −1 if one of them can't be read.

    A queue ends behind its last entry below `end_where`.
    """
    ends = ends_of_queues(lane_directory, first_where, end_where, channel)
    return -1 if ends is None else sum(ends.values())


def ends_of_queues(
    lane_directory: LaneDirectory, first_where: int, end_where: int, channel: FileChannel
) -> dict[str, int] | None:
    """Topic → the end of its queue in a lane, or None if one of them can't be read."""
    topics = channel.list(lane_directory.consumequeue)
    small = small_queues(lane_directory, topics, first_where, end_where, channel)
    ends = dict(zip(small.topics, small.ends.tolist(), strict=True))
    for topic in topics:
        if topic not in ends:
            with ConsumeQueue(lane_directory.queue_path(topic), channel=channel) as queue:
                try:
                    ends[topic] = QueueBounds(queue, first_where, end_where).find()[1]
                except (DamagedFile, OSError):
                    return None
    return ends
