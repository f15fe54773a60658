"""Which queue offsets of topics lie between two starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from commitlog.planning.row_limit import QueueKey
from commitlog.planning.store_index import StoreIndex
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.starting_point import QueueStarts, resolve


def ranges_between(
    index: StoreIndex, topics: Iterable[str], start: QueueStarts, end: QueueStarts
) -> dict[QueueKey, tuple[int, int]]:
    """The offsets [begin, end) of each queue that has any, in the order of topic and lane.

    The bounds have no `ago` any more. Raises OffsetOutOfRange.
    """
    queues = {(topic, lane): queue for topic in topics for lane, queue in sorted(index.ranges(topic).items())}
    begins, ends = _offsets(index, queues, start), _offsets(index, queues, end)
    return {key: (begins[key], ends[key]) for key in queues if begins[key] < ends[key]}


def _offsets(index: StoreIndex, queues: dict[QueueKey, QueueRange], bound: QueueStarts) -> dict[QueueKey, int]:
    starts = {key: bound.of(*key) for key in queues}
    times = {key: start.value for key, start in starts.items() if start.kind == "time"}
    found = index.find_by_times(times) if times else {}
    return {
        key: resolve(
            starts[key], queue.first, queue.end, partial(_known, found, key), where=f"topic {key[0]}, lane {key[1]}"
        )
        for key, queue in queues.items()
    }


def _known(found: Mapping[QueueKey, int | None], key: QueueKey, _ms: int) -> int | None:
    return found[key]
