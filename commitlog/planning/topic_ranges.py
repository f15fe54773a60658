"""Finds the queue offsets that a start means in the queues of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from commitlog.planning.row_limit import QueueKey
from commitlog.planning.store_index import StoreIndex
from commitlog.reading.lane_choice import ALL_LANES, LaneChoice
from commitlog.reading.reader_position import check_named
from commitlog.reading.starting_point import QueueStarts, resolve


def offsets_of(
    index: StoreIndex, topics: Iterable[str], bound: QueueStarts, lanes: LaneChoice = ALL_LANES
) -> dict[QueueKey, int]:
    """Returns the queue offset that a bound means in each queue of the chosen lanes.

    A bound with `ago` must have become a time before. Raises OffsetOutOfRange, DamagedFile.
    """
    ranges = {topic: index.ranges(topic) for topic in topics}
    check_named(bound, {(topic, lane) for topic, known in ranges.items() for lane in known})
    queues = {(topic, lane): known[lane] for topic, known in ranges.items() for lane in sorted(known) if lane in lanes}
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
