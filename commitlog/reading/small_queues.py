"""The bounds of many small consume queues at once, for lanes that have thousands of topics.

One read gets all entries of such a queue, and numpy looks at those of many queues together. What is
found here is what QueueBounds finds, one queue after the other, at several times the cost. A queue
that is large, or has anything odd, is left to it. So no rule about damage is here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commitlog.disk.consume_queue import ENTRY, ENTRY_BYTES, PRE_FILL_SIZE, Entries
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file import read_ahead
from commitlog.disk.store_directory import LaneDirectory, is_segment_name
from commitlog.errors import DamagedFile
from commitlog.reading.log_walk import RecentSegments
from commitlog.record.byte_ranges import Ints, Mask
from commitlog.record.record_layout import RECORD_BYTES_MIN, Buffer
from commitlog.record.table import RecordGatherer, RecordTable

SMALL_ENTRIES = 512
"""A queue with fewer entries is small."""
_HEAD_BYTES = SMALL_ENTRIES * ENTRY_BYTES
_QUEUES_AT_ONCE = 128
"""How many queues numpy looks at together: their entries stay in a processor's cache."""
_NEAR_BYTES = 1 << 16
"""Records this far apart are read ahead with what is between them."""


@dataclass(frozen=True, slots=True)
class SmallQueues:
    """Queues of one lane whose entries are few, and as they have to be. All columns are as long.

    The columns `firsts` and `ends` are what QueueBounds finds. `record_bytes` is the mean size of
    the records that the entries between them name; 0 for an empty queue. `first_places` and
    `last_places` are where the first and the last of these records are, and how large: two
    columns, which say nothing of an empty queue.
    """

    topics: list[str]
    firsts: Ints
    ends: Ints
    record_bytes: npt.NDArray[np.float64]
    first_places: Ints
    last_places: Ints


def small_queues(
    lane_directory: LaneDirectory, topics: Sequence[str], first_where: int, end_where: int, channel: FileChannel
) -> SmallQueues:
    """Finds the bounds of the entries whose records lie in [first_where, end_where).

    Topics whose queue is not small, odd or can't be read are left out. An error of the disk is one
    for who asks QueueBounds.
    """
    above, lane = (
        str(lane_directory.consumequeue),
        lane_directory.number,
    )  # a Path for each takes as long as its reading
    parts = [_bounds([], [], [], first_where, end_where)]
    for start in range(0, len(topics), _QUEUES_AT_ONCE):
        some, begins, heads = list[str](), list[int](), list[bytes]()
        for topic in topics[start : start + _QUEUES_AT_ONCE]:
            found = _head(f"{above}/{topic}/{lane}", channel)
            if found is not None and (found[0] == 0 or first_where > 0):
                some.append(topic)
                begins.append(found[0])
                heads.append(found[1])
        parts.append(_bounds(some, begins, heads, first_where, end_where))
    return SmallQueues(
        [topic for part in parts for topic in part.topics],
        *(np.concatenate([getattr(part, name) for part in parts]) for name in SmallQueues.__slots__[1:]),
    )


def _head(directory: str, channel: FileChannel) -> tuple[int, bytes] | None:
    """The first queue offset of a queue, and its first entries.

    None if the queue has not one file of a size that it may have.
    """
    try:
        names = channel.list(directory)
        if len(names) != 1 or not is_segment_name(names[0]):
            return None
        with channel.opened(f"{directory}/{names[0]}") as fd:
            size = channel.size(fd)
            head = channel.pread(fd, _HEAD_BYTES, 0)
    except OSError:
        return None
    start = int(names[0])
    if not size or size % ENTRY_BYTES or start % size or len(head) != min(size, _HEAD_BYTES):
        return None
    return start // ENTRY_BYTES, head


def _bounds(topics: list[str], begins: list[int], heads: list[bytes], first_where: int, end_where: int) -> SmallQueues:
    """The bounds of those queues whose entries QueueBounds takes, whichever it looks at."""
    whole = b"".join(head.ljust(_HEAD_BYTES, b"\0") for head in heads)
    entries: Entries = np.frombuffer(whole, ENTRY).reshape(len(heads), SMALL_ENTRIES)
    used = np.flatnonzero(entries["size"].any(axis=0))
    width = min(int(used[-1]) + 2, SMALL_ENTRIES) if len(used) else 1
    where, size = (entries[name][:, :width].astype(np.int64) for name in ("physical_offset", "size"))
    is_fill = (where == 0) & (size == PRE_FILL_SIZE)
    is_below = where <= end_where - size
    is_in = (where >= 0) & (size >= RECORD_BYTES_MIN) & (is_below | is_fill)
    is_old = is_in & ((where < first_where) | is_fill)
    counts, olds = is_in.sum(axis=1), is_old.sum(axis=1)
    columns = np.arange(width)
    is_before_end = columns < counts[:, None]
    good: Mask = (counts < SMALL_ENTRIES) & (is_in == is_before_end).all(axis=1)
    good &= (is_old == (columns < olds[:, None])).all(axis=1)
    good &= ((where[:, 1:] >= where[:, :-1]) | ~is_before_end[:, 1:]).all(axis=1)
    good &= (is_in | (size == 0) | ~is_below).all(axis=1)  # behind the end are no entries, or later ones
    rows = np.flatnonzero(good)
    first, count = olds[rows], counts[rows]
    begin = np.array(begins, np.int64)[rows]
    bytes_in = (size * (is_in & ~is_old)).sum(axis=1)[rows]
    last = np.maximum(count, 1) - 1
    first = np.minimum(first, last)
    return SmallQueues(
        [topics[row] for row in rows.tolist()],
        begin + olds[rows],
        begin + count,
        bytes_in / np.maximum(count - olds[rows], 1),
        np.stack([where[rows, first], size[rows, first]], axis=1),
        np.stack([where[rows, last], size[rows, last]], axis=1),
    )


def have_records(segments: RecentSegments, lane: int, queues: SmallQueues) -> Mask:
    """Whether first and last entry of each queue name records of its topic, lane and offset.

    An empty queue has no such entry, and nothing to prove. CRCs are not looked at.
    """
    rows = np.flatnonzero(queues.firsts < queues.ends)
    places = np.concatenate([queues.first_places[rows], queues.last_places[rows]])
    offsets = np.concatenate([queues.firsts[rows], queues.ends[rows] - 1])
    named_topics = [queues.topics[row] for row in rows.tolist()] * 2
    is_named = np.zeros(len(places), np.bool_)
    for some, table in _records(segments, lane, places):
        topics = [table.topics[number] for number in table.topic_index.tolist()]
        are_equal = np.array([topics[row] == named_topics[at] for row, at in enumerate(some.tolist())], np.bool_)
        is_named[some] = (table.queue_offsets == offsets[some]) & are_equal
    proven = np.ones(len(queues.topics), np.bool_)
    proven[rows] = is_named[: len(rows)] & is_named[len(rows) :]
    return proven


def _records(segments: RecentSegments, lane: int, places: Ints) -> Iterator[tuple[Ints, RecordTable]]:
    """The good records among these places, segment by segment, with their numbers in `places`.

    What is no record of its place is passed over, and a segment that can't be read.
    """
    order = np.argsort(places[:, 0], kind="stable")
    numbers = places[order, 0] // segments.segment_bytes
    for some in np.split(order, np.flatnonzero(np.diff(numbers)) + 1):
        start = int(places[some[0], 0]) // segments.segment_bytes * segments.segment_bytes if len(some) else 0
        at, sizes = places[some, 0] - start, places[some, 1]
        is_inside = at + sizes <= segments.segment_bytes
        some, at, sizes = some[is_inside], at[is_inside], sizes[is_inside]
        try:
            segment = segments.open(start)
            _read_ahead(segment, at, at + sizes)
        except (OSError, DamagedFile):
            continue
        gatherer = RecordGatherer(segment, start, lane, check_crc=False, require_crc=False)
        while len(some):
            table = gatherer.tabulate(at, sizes)
            count = len(table)
            yield some[:count], table
            some, at, sizes = some[count + 1 :], at[count + 1 :], sizes[count + 1 :]


def _read_ahead(segment: Buffer, begins: Ints, ends: Ints) -> None:
    """Has the kernel read these ranges, whose begins ascend. Raises OSError: see `read_ahead`."""
    reached = np.maximum.accumulate(ends)
    cuts = np.flatnonzero(begins[1:] - reached[:-1] > _NEAR_BYTES) + 1
    for first, behind in itertools.pairwise([0, *cuts.tolist(), len(begins)]):
        if first < behind:
            read_ahead(segment, int(begins[first]), int(reached[behind - 1]))
