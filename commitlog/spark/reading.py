"""What a Spark task does: the rows of its slices as Arrow batches, from consume queue entries and mapped segments.

Runs in a pooled worker, which may be on another machine and may run the same task again years later: it opens the
store anew, checks that it is the one that was planned for, and gives the same rows or an error.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from commitlog.consume_queue import ConsumeQueue
from commitlog.errors import CorruptRecord, DataLoss, StoreNotFound
from commitlog.log_walk import walk
from commitlog.spark.decoding import Places, Queue, batches
from commitlog.spark.planning import Slice
from commitlog.spark.segments import SEGMENTS, Segment
from commitlog.store_directory import LaneDirectory, StoreDirectory

ENTRIES_MAX = 200_000
"""Consume queue entries looked at in one step."""

_frozen = False


class Task(InputPartition):
    """The slices that one Spark task reads, in their order."""

    def __init__(self, path: str, store_id: str, segment_bytes: int, fail: bool, slices: tuple[Slice, ...]) -> None:
        super().__init__(None)
        self.path, self.store_id, self.segment_bytes = path, store_id, segment_bytes
        self.fail_on_data_loss = fail
        self.slices = slices


def read_task(task: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The task's rows. Raises StoreNotFound, DataLoss, CorruptRecord, DamagedFile, MissingCodec."""
    if not isinstance(task, Task):
        return  # nothing was planned: Spark makes one partition of none
    _freeze_once()
    SEGMENTS.forget_gone()
    store = StoreDirectory(task.path)
    _check_store(store, task)
    for piece in task.slices:
        reader = SliceReader(store.lane(piece.lane), task.segment_bytes, piece)
        try:
            yield from reader.batches(schema)
        except FileNotFoundError as error:
            if task.fail_on_data_loss:
                raise DataLoss(
                    f"topic {piece.topic}, lane {piece.lane}: {error.filename} is gone, which had rows of the offsets "
                    f"[{reader.next}, {piece.end}); retention was faster than this query. "
                    "Option failOnDataLoss=false goes on without them"
                ) from None


def _freeze_once() -> None:
    """What a worker has imported is never garbage: without it each task's collections walk all of it."""
    global _frozen
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True


def _check_store(store: StoreDirectory, task: Task) -> None:
    try:
        facts = store.load()
    except StoreNotFound:
        raise StoreNotFound(
            f"this executor does not see the store {task.path}: mount it at the same path on every executor's machine"
        ) from None
    if facts.id != task.store_id:
        raise DataLoss(f"{task.path} was deleted and made again since this read was planned; load it anew")


class SliceReader:
    """Reads one slice. `next` is the queue offset of the next row."""

    def __init__(self, lane: LaneDirectory, segment_bytes: int, piece: Slice) -> None:
        self.lane, self.segment_bytes, self.slice = lane, segment_bytes, piece
        self.queue = Queue(piece.topic.encode(), piece.lane)
        self.next = piece.start

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows of the slice, in order."""
        yield from self._indexed(schema)
        if self.next < self.slice.end and self.slice.walk_from >= 0:
            yield from self._walked(schema)
        if self.next < self.slice.end:
            raise CorruptRecord(
                f"topic {self.slice.topic}, lane {self.slice.lane}: nothing leads to the rows from offset {self.next} on, "
                f"up to {self.slice.end}; `commitlog check` tells what is wrong with the lane",
                file=str(self.lane.queue(self.slice.topic)),
            )

    def segment(self, base: int) -> Segment:
        return SEGMENTS.get(Path(self.lane.segment(base)), base, self.segment_bytes)

    def _indexed(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows that have a consume queue entry, up to the first that has none."""
        queue = ConsumeQueue(self.lane.queue(self.slice.topic))
        try:
            while self.next < self.slice.end:
                count = min(self.slice.end - self.next, ENTRIES_MAX)
                entries = queue.entries(self.next, count)
                where = entries["physical_offset"].astype(np.int64)
                sizes = entries["size"].astype(np.int64)
                empty = np.flatnonzero(sizes <= 0)
                if len(empty):
                    where, sizes = where[: empty[0]], sizes[: empty[0]]
                if not len(where):
                    return
                yield from self._by_segment(where, sizes, schema)
        finally:
            queue.close()

    def _by_segment(self, where: np.ndarray, sizes: np.ndarray, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        bases = where - where % self.segment_bytes
        cuts = np.flatnonzero(np.diff(bases)) + 1
        for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(where)], strict=True):
            base = int(bases[start])
            places = Places(where[start:end] - base, sizes[start:end], self.next)
            segment = self.segment(base)
            for batch in batches(segment, self.queue, places, schema):
                self.next += batch.num_rows
                yield batch

    def _walked(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows that have no entry yet, found by walking the log."""
        piece = self.slice
        steps = walk(lambda base: self.segment(base).map, piece.lane, self.segment_bytes, piece.walk_from, piece.limit)
        for step in steps:
            table = step.table
            if piece.topic not in table.topics:
                continue
            wanted = (table.topic_index == table.topics.index(piece.topic)) & table.in_queue
            wanted &= (table.queue_offsets >= self.next) & (table.queue_offsets < piece.end)
            rows = np.flatnonzero(wanted)
            if len(rows):
                places = Places(table.positions[rows], table.sizes[rows], self.next)
                for batch in batches(self.segment(table.base_offset), self.queue, places, schema):
                    self.next += batch.num_rows
                    yield batch
            if self.next >= piece.end:
                return
