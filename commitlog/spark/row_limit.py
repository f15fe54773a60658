"""Option `maxRowsPerTrigger`: how many messages of a typed topic have so many rows.

A message says its number of rows in a property. So only the heads and properties of the next
messages are read, and no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from commitlog.columns import arrays
from commitlog.columns.arrow_columns import Decoder
from commitlog.columns.segments import SegmentCache
from commitlog.columns.slice_reader import SliceReader
from commitlog.columns.typed_rows import row_counts
from commitlog.spark.resolving import QueueKey, Resolver


def ends_within(resolver: Resolver, ranges: Mapping[QueueKey, tuple[int, int]], most: int) -> dict[QueueKey, int]:
    """How far to read each of the queue ranges, so that all have at most `most` rows together.

    The rows are shared out in proportion to the queues' messages; what is left over goes to queues
    that have more. At least one message is read. Raises what SliceReader raises.
    """
    waiting = {key: end - begin for key, (begin, end) in ranges.items() if begin < end}
    total, left = sum(waiting.values()), most
    counts = {key: _counts(resolver, key, *ranges[key]) for key in waiting}
    ends = {key: begin for key, (begin, _) in ranges.items()}
    following: dict[QueueKey, int | None] = {}
    for shares in ({key: most * messages // total for key, messages in waiting.items()}, dict.fromkeys(waiting, most)):
        for key, share in shares.items():
            if key not in following:
                following[key] = next(counts[key], None)
            while (rows := following[key]) is not None and rows <= min(share, left):
                share, left = share - rows, left - rows
                ends[key] += 1
                following[key] = next(counts[key], None)
    if waiting and left == most and not any(ends[key] > ranges[key][0] for key in waiting):
        ends[max(waiting, key=waiting.__getitem__)] += 1  # a message that has more rows than the limit
    return ends


def _counts(resolver: Resolver, key: QueueKey, begin: int, end: int) -> Iterator[int]:
    """How many rows each message of a range has."""
    plan = resolver.read_plan(tuple(work.slice for work in resolver.work(*key, begin, end)))
    segments = SegmentCache(limit=1)
    for piece in plan.slices:
        for batch in SliceReader(plan, piece, segments).batches(_count_rows):
            yield from batch.column(0).to_numpy().tolist()


def _count_rows(decoder: Decoder) -> list[pa.RecordBatch]:
    counts = arrays.fixed(np.array(row_counts(decoder), np.int64), pa.int64())
    return [pa.RecordBatch.from_arrays([counts], names=["rows"])]
