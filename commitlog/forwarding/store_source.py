"""Reads the messages of a store in the form that Kafka takes: values, keys, times and headers.

They are read as Arrow columns, many at once: a `Reader`, message by message, takes ten times as
long as all the rest of the way.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from commitlog.columns.arrow_columns import TIMESTAMP
from commitlog.columns.mapped_segments import SegmentCache
from commitlog.columns.read_plan import ReadOptions
from commitlog.columns.slice_reader import read_slices
from commitlog.disk.epochs import Epoch
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, DataLoss, ForwardError, OffsetOutOfRange
from commitlog.planning.row_limit import QueueKey
from commitlog.planning.store_index import LocalIndex
from commitlog.reading.known_topics import check_known, waiting_for
from commitlog.reading.queue_range import QueueRange
from commitlog.record.properties import BYTES_KEY_NAME

log = logging.getLogger(__name__)

_SEGMENTS_MAPPED = 16
_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("timestamp", TIMESTAMP),
        ("properties", pa.map_(pa.binary(), pa.binary())),
    ]
)
_KEY_NAMES = {b"KEYS", BYTES_KEY_NAME.encode()}
"""Properties that have the key, which Kafka has a field for."""

Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some messages of one queue, in order."""

    offsets: Any
    """Their queue offsets, as a numpy array."""
    values: list[bytes]
    keys: Iterable[bytes | None]
    times: list[int]
    """When they were stored, in ms since 1970."""
    headers: Iterable[Headers | None]
    bytes: int
    """How many bytes the values have."""

    @property
    def next(self) -> int:
        """The queue offset behind the last one."""
        return int(self.offsets[-1]) + 1


class Source:
    """The queues of a store, or of a RocketMQ store root, as far as they are flushed.

    Raises what opening a store raises.
    """

    def __init__(self, path: str, *, accept_loss: bool) -> None:
        self._index = LocalIndex(path)
        self._path, self._accept_loss = path, accept_loss
        self._options = ReadOptions(fail_on_data_loss=not accept_loss, ignore_corrupt=accept_loss, reader="forward")
        self._segments = SegmentCache(limit=_SEGMENTS_MAPPED)
        self._index.refresh()
        self.one_log, self.store_id = self._index.one_log, self._index.store_id
        self._identity = self._index.identity

    def refresh(self, *, deleted: bool = False) -> dict[QueueKey, QueueRange]:
        """What may be read now, by topic and lane; with `deleted`, of topics that were deleted too.

        Raises ForwardError: it is another store now.
        """
        self._index.refresh()
        if self._index.identity != self._identity:
            raise ForwardError(
                f"{self._path}: another store, or a restored copy of it, is there now: start the forwarder again"
            )
        return {
            (topic, lane): queue
            for topic in self._index.topics(deleted=deleted)
            for lane, queue in self._index.ranges(topic).items()
        }

    def check_topics(self, wanted: Collection[str], *, waits: bool) -> None:
        """Checks topics that the user has named. Warns, in the log, of those that it waits for.

        Raises IllegalTopic, UnknownTopic.
        """
        if not waits:
            check_known(self._path, self._index, wanted)
        elif text := waiting_for(self._path, self._index, wanted, "the forwarder"):
            log.warning("%s", text)

    @property
    def live(self) -> bool:
        """Whether the store has a pool, so that its ends are right without a recovery."""
        return self._index.live

    def lanes(self, topic: str) -> Collection[int]:
        """The lanes that have the topic."""
        return self._index.ranges(topic)

    def lanes_max(self) -> int:
        """How many lanes the store may have; 0 for a RocketMQ root, whose topics differ."""
        if self.one_log:
            return 0
        return int(StoreDirectory(self._path).load().config.get("store", {}).get("max_lanes", 0))

    def epoch(self) -> int:
        """The epoch of the store now. A RocketMQ root has none, and is never promoted."""
        self._index.refresh()  # `store.json` is read only where it has changed
        return self._index.epoch

    def epochs(self) -> tuple[Epoch, ...]:
        """All epochs of the store, as `epoch` has seen them last."""
        return self._index.epochs

    def shared_end(self, key: QueueKey, epoch: int, history: tuple[Epoch, ...]) -> int | None:
        """The queue offset up to which this store has the messages of an earlier epoch; None: all.

        `history` has the epochs of the store that was forwarded. Raises DamagedFile, DataLoss.
        """
        return self._index.shared_ends(epoch, [key], history).get(key)

    def begin(self, key: QueueKey, queue: QueueRange, position: int, *, at_start: bool) -> int:
        """Returns the offset at which to go on in a queue. Raises DataLoss, OffsetOutOfRange."""
        where = f"topic {key[0]}, lane {key[1]}"
        if position > queue.end and (self.live or at_start):
            raise OffsetOutOfRange(
                f"{where}: forwarded up to {position:,}, and the store ends at {queue.end:,}. If the store was killed, "
                "start it once (`commitlog run`), and it recovers. If older files were put back, forward under "
                "another --name"
            )
        if position < queue.first and not self._accept_loss:
            raise DataLoss(
                f"{where}: {queue.first - position:,} messages from {position:,} on were deleted before they were forwarded; "
                "go on without them: --accept-loss"
            )
        return max(position, queue.first)

    def rows(self, key: QueueKey, begin: int, end: int) -> Iterator[Rows]:
        """The messages [begin, end) of a queue. Raises DataLoss, CorruptRecord, DamagedFile."""
        plan = self._index.plan(tuple(self._index.slices({key: (begin, end)})), self._options)
        for batch in read_slices(plan, _SCHEMA, self._segments):
            if batch.num_rows:
                yield _rows_of(batch)

    def give_back(self) -> None:
        """Unmaps all segments: they count as memory, and keep the disk space of deleted ones.

        The next read maps again what it needs.
        """
        self._segments.clear()
        self._index.unmap()
        pa.default_memory_pool().release_unused()

    def behind(self, ranges: Mapping[QueueKey, tuple[int, int]]) -> tuple[int, int, int | None]:
        """Counts waiting messages: their number, bytes (estimated), and the oldest store time.

        The time is None where no message has an entry in its consume queue yet.
        """
        messages = sum(end - begin for begin, end in ranges.values())
        size = sum(int(work.record_bytes * work.slice.rows) for work in self._index.work(ranges))
        times = [time for key, (begin, _) in ranges.items() if (time := self._stored_ms(key, begin)) is not None]
        return messages, size, min(times, default=None)

    def _stored_ms(self, key: QueueKey, offset: int) -> int | None:
        """When a message was stored; None where the consume queue does not tell.

        What the index has only walked may have an entry since: it counts if it names the message.
        """
        topic, number = key
        lane = self._index.index.lanes[number]
        try:
            return lane.consume_queues.record(topic, offset).store_timestamp
        except (CommitLogError, OSError):
            if offset < lane.queues[topic].indexed:
                raise
            return None

    def close(self) -> None:
        """Lets go of the store."""
        self._segments.clear()
        self._index.close()


def _rows_of(batch: pa.RecordBatch) -> Rows:
    offsets, values, keys, times, properties = batch.columns
    ms = np.maximum(np.asarray(times.view(pa.int64())) // 1000, 1)  # librdkafka takes 0 for the present
    return Rows(
        np.asarray(offsets),
        values.to_pylist(),
        repeat(None) if keys.null_count == len(keys) else keys.to_pylist(),
        ms.tolist(),
        map(_headers, properties.to_pylist()) if len(properties.items) else repeat(None),
        values.total_values_length,
    )


def _headers(pairs: list[tuple[bytes, bytes]]) -> Headers | None:
    """A message's properties, the system's too, by RocketMQ's names.

    librdkafka's names end at a zero byte, so that is written out.
    """
    return [
        (name.decode(errors="replace").replace("\0", r"\x00"), value) for name, value in pairs if name not in _KEY_NAMES
    ] or None
