"""Messages of records that a server has sent, merged by time, a piece at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from commitlog.errors import ServerError
from commitlog.record.byte_ranges import Ints, gather
from commitlog.record.record_layout import PHYSICAL_OFFSET_AT, Buffer
from commitlog.record.table import RecordGatherer, RecordTable

QueueKey = tuple[str, int]
"""Topic and lane."""


@dataclass(frozen=True)
class Records:
    """Some records of one queue as columns, and the bytes that they are in.

    `order` sorts the records of several queues: it never goes down within a queue. `places` are
    their physical offsets. `light_offset` is the queue offset of the first one, in a light queue of
    RocketMQ, whose records name another queue; else −1.
    """

    key: QueueKey
    table: RecordTable
    buffer: Buffer
    order: Ints
    places: Ints
    light_offset: int = -1

    def __len__(self) -> int:
        return len(self.table)

    @property
    def bytes(self) -> int:
        return int(self.table.sizes.sum())

    def cut(self, begin: int, end: int) -> Records:
        offset = self.light_offset + begin if self.light_offset >= 0 else -1
        return Records(
            self.key, self.table.rows(begin, end), self.buffer, self.order[begin:end], self.places[begin:end], offset
        )


def table_of(column: pa.Array, where: str) -> tuple[RecordTable, Buffer]:
    """The records of a column, and their bytes. Raises ServerError for what is no record."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    buffer = memoryview(data).cast("B")
    gatherer = RecordGatherer(buffer, None, None, check_crc=False, require_crc=False)
    table = gatherer.tabulate(bounds[:-1].copy(), np.diff(bounds))
    if len(table) < len(column):
        raise ServerError(f"{where}: the server has sent what is no record: {table.reason}")
    return table, buffer


def records_of(
    key: QueueKey, table: RecordTable, buffer: Buffer, *, by_place: bool, least: int, light_offset: int
) -> Records:
    """The records of a queue, by time, or `by_place` in the log; none comes before `least`."""
    places = gather(np.frombuffer(buffer, np.uint8), ">i8", table.positions + PHYSICAL_OFFSET_AT).astype(np.int64)
    order = np.maximum.accumulate(np.maximum(places if by_place else table.store_timestamps, least))
    return Records(key, table, buffer, order, places, light_offset)


@dataclass(frozen=True)
class Merged:
    """Records of several queues, and in which order they are given out."""

    parts: tuple[Records, ...]
    order: Ints | None
    """Numbers of the records of all parts, one part after the other. None: as they are."""

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class Waiting:
    """The records of one queue that were read, and wait for those of other queues."""

    def __init__(self) -> None:
        self.records: deque[Records] = deque()
        self.bytes = 0
        self.last = np.iinfo(np.int64).min
        """The order of the last record that came."""

    def add(self, records: Records) -> None:
        self.records.append(records)
        self.bytes += records.bytes
        self.last = int(records.order[-1])

    def mark(self) -> tuple[int, int, int]:
        """Where the last record is among those of other queues."""
        newest = self.records[-1]
        return int(newest.order[-1]), newest.key[1], int(newest.places[-1])

    def take(self, limit: tuple[int, int, int] | None) -> Iterator[Records]:
        """Takes the records up to a mark, and with it; None: all."""
        while self.records:
            first = self.records[0]
            count = len(first) if limit is None else _count_up_to(first, limit)
            if not count:
                return
            self.records.popleft()
            self.bytes -= first.bytes
            if count < len(first):
                rest = first.cut(count, len(first))
                self.records.appendleft(rest)
                self.bytes += rest.bytes
                yield first.cut(0, count)
                return
            yield first


def _count_up_to(records: Records, limit: tuple[int, int, int]) -> int:
    order, lane, place = limit
    count = int(np.searchsorted(records.order, order, side="left"))
    ties = int(np.searchsorted(records.order, order, side="right"))
    if records.key[1] < lane:
        return ties
    if records.key[1] == lane:
        return count + int((records.places[count:ties] <= place).sum())
    return count


def merged(queues: Iterable[Waiting], unfinished: Sequence[Waiting]) -> Merged | None:
    """Takes all records of which it is sure that none of another queue comes before them.

    More may come of the `unfinished` queues, which have at least one record each. None: there are
    no records.
    """
    limit = min((queue.mark() for queue in unfinished), default=None)
    parts = tuple(part for queue in queues for part in queue.take(limit))
    if len(parts) <= 1:
        return Merged(parts, None) if parts else None
    order = np.concatenate([part.order for part in parts])
    lanes = np.repeat([part.key[1] for part in parts], [len(part) for part in parts])
    places = np.concatenate([part.places for part in parts])
    found = np.lexsort((places, lanes, order))
    return Merged(parts, None if (np.diff(found) == 1).all() else found)
