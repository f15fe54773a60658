"""The messages of a served store one by one, as a Reader gives those of a directory."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.columns.arrow_columns import COLUMN_TYPES
from commitlog.columns.read_plan import Isolation, ReadOptions, ReadPlan
from commitlog.disk.consume_queue import is_light
from commitlog.errors import DataLoss, OffsetOutOfRange, OptionError, ReadingWarning
from commitlog.message import Message
from commitlog.planning.address import Address
from commitlog.planning.resolving import beyond_end
from commitlog.planning.row_limit import QueueKey
from commitlog.planning.task_sizes import Work
from commitlog.planning.topic_ranges import offsets_of
from commitlog.reading.known_topics import check_known, waiting_for
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.starting_point import QueueStarts
from commitlog.record.properties import BytesKey, own_properties
from commitlog.remote.remote_index import RemoteIndex
from commitlog.remote.remote_rows import read_remote

WAIT_MS = 500
"""How long the server may wait for more, each time. Ctrl-C has to wait for its answer."""
LOOK_SECONDS = 0.1
"""The time between two looks for more."""
_PIECE_ROWS, _PIECE_BYTES = 2_000, 1 << 20
"""A queue is read in pieces, so that no streams are open while their queues wait for the others."""
_NAMES = ("value", "topic", "partition", "offset", "timestamp", "bornTimestamp", "physicalOffset", "messageId")
_SCHEMA = pa.schema([(name, COLUMN_TYPES[name]) for name in (*_NAMES, "properties")])


class RemoteMessages:
    """An iterator over messages. Lanes are merged by time, as a Reader does it.

    With `follow` it waits for more at the end. `ends`, by lane, are those of its one topic: nothing
    behind them is read. `start` has no `ago` any more. Raises what `read_arrow` raises of a URL.
    """

    def __init__(
        self,
        address: Address,
        topics: Sequence[str],
        start: QueueStarts,
        *,
        lanes: Collection[int] | None = None,
        isolation: Isolation = "flushed",
        follow: bool = False,
        ignore_corrupt: bool = False,
        ends: Mapping[int, int] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._address, self._clock, self._ends = address, clock, ends
        self._options = ReadOptions(isolation, ignore_corrupt=ignore_corrupt, reader="cat")
        self._named, self._follow = sorted(set(topics)), follow
        self._lanes = LaneChoice.of(lanes, None)
        self._index = index = RemoteIndex(address, isolation, tuple(self._named) or None)
        index.refresh()
        if follow and index.one_log:
            raise OptionError(f"{index.path}: a RocketMQ store root can't be followed")
        if not follow:
            check_known(address, index, self._named)
        elif text := waiting_for(address, index, self._named, "the reader"):
            warnings.warn(text, ReadingWarning, stacklevel=2)
        self._store_id = index.store_id
        self._next = offsets_of(index, self._topics(), start, self._lanes)

    def __iter__(self) -> Iterator[Message]:
        while True:
            ranges = self._ranges()
            queues = [self._messages(work) for work in self._index.work(ranges)] if ranges else []
            yield from heapq.merge(*queues, key=self._order)
            self._next |= {key: end for key, (_, end) in ranges.items()}
            if not self._follow:
                return
            while not self._index.refresh(WAIT_MS):
                self._clock.sleep(LOOK_SECONDS)
            self._check_store()

    def _check_store(self) -> None:
        """Raises DataLoss, OffsetOutOfRange if the store at the address is not what was read.

        Of several hosts, one may be a copy that is behind: then the end goes back for a while. It
        does so, too, where a store that was killed is read before it is started again.
        """
        path, index = self._index.path, self._index
        if index.store_id != self._store_id:
            raise DataLoss(
                f"{path} is another store ({index.store_id}) than the one that was read ({self._store_id}): it was deleted "
                "and made again; begin anew"
            )
        if len(self._address.hosts) > 1 or index.warning:
            return
        for (topic, lane), done in self._next.items():
            queue = index.ranges(topic).get(lane)
            if queue is not None and queue.end < done:
                raise OffsetOutOfRange(f"{path}: {beyond_end(topic, lane, done, queue.end, live=index.live)}")

    def _topics(self) -> list[str]:
        return self._named or [topic for topic in self._index.topics() if not is_light(topic)]

    def _ranges(self) -> dict[QueueKey, tuple[int, int]]:
        """What is there and was not read. A queue that appears later is read from its beginning."""
        found = {}
        for topic in self._topics():
            known = self._index.ranges(topic)
            for lane in filter(self._lanes.__contains__, known):
                queue = known[lane]
                begin = self._next.get((topic, lane), queue.first)
                end = queue.end if self._ends is None else min(queue.end, self._ends.get(lane, 0))
                if begin < end:
                    found[topic, lane] = begin, end
        return found

    def _order(self, message: Message) -> tuple[int, int, int]:
        if self._index.one_log:
            return message.physical_offset, 0, 0
        return message.timestamp, message.partition, message.physical_offset

    def _messages(self, work: Work) -> Iterator[Message]:
        """The messages of one queue, which are read a piece at a time."""
        whole, rows = work.slice, max(1, min(_PIECE_ROWS, int(_PIECE_BYTES / max(work.record_bytes, 1))))
        for begin in range(whole.start, whole.end, rows):
            piece = replace(whole, start=begin, end=min(begin + rows, whole.end))
            plan = self._index.plan((piece,), self._options)
            yield from chain.from_iterable(map(_unpacked, self._read(plan)))

    def _read(self, plan: ReadPlan) -> list[pa.RecordBatch]:
        return list(read_remote(plan, _SCHEMA, self._address))


def _unpacked(batch: pa.RecordBatch) -> Iterator[Message]:
    columns = {name: batch.column(name) for name in batch.schema.names}
    for name in ("timestamp", "bornTimestamp"):
        columns[name] = pa.array(columns[name].cast(pa.int64()).to_numpy() // 1000)
    listed = [columns[name].to_pylist() for name in _NAMES]
    for row, pairs in zip(zip(*listed, strict=True), columns["properties"].to_pylist(), strict=True):
        value, topic, partition, offset, timestamp, born, physical_offset, message_id = row
        properties = dict(pairs or ())
        yield Message(
            topic=topic,
            partition=partition,
            offset=offset,
            key=properties.get("KEYS") or BytesKey.among(properties),
            value=value,
            headers=own_properties(properties),
            tags=properties.get("TAGS"),
            timestamp=timestamp,
            born_timestamp=born,
            physical_offset=physical_offset,
            message_id=message_id,
            properties=properties,
        )
