"""Turns the words of options (earliest, a time, JSON) into queue offsets, and these into tasks."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping

from commitlog.columns.read_plan import ReadOptions, ReadPlan, Slice
from commitlog.errors import DataLoss, OffsetOutOfRange, OptionError, UnknownTopic
from commitlog.planning.options import SourceOptions
from commitlog.planning.row_limit import QueueKey
from commitlog.planning.starting_offsets import Bound
from commitlog.planning.store_index import StoreIndex
from commitlog.planning.task_sizes import plan
from commitlog.reading.known_topics import check_known, no_lane, waiting_for
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.starting_point import EARLIEST, EARLIEST_OFFSET, LATEST, LATEST_OFFSET, Start, resolve
from commitlog.system.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)


class Resolver:
    """Looks up queue offsets in an index.

    `ago` counts from the moment at which the resolver is made, for all queues. `tasks_max` is how
    many tasks the options may ask for. Errors list the topics that are visible.
    """

    def __init__(
        self,
        index: StoreIndex,
        options: SourceOptions,
        clock: Clock = SYSTEM_CLOCK,
        *,
        tasks_max: float = math.inf,
        is_visible: Callable[[str], bool] = lambda _topic: True,
    ) -> None:
        self.index, self.options, self._tasks_max, self._is_visible = index, options, tasks_max, is_visible
        self._now_ms = clock.wall_ms()

    def queues(self) -> dict[QueueKey, QueueRange]:
        """The subscribed queues that the store has, in the order of topic and lane."""
        subscription = self.options.subscription
        found: dict[QueueKey, QueueRange] = {}
        for topic in subscription.chosen(self.index.topics(deleted=True)):  # a stream may have read it to its end
            ranges = self.index.ranges(topic)
            for lane in sorted(ranges):
                if subscription.has_lane(topic, lane):
                    found[topic, lane] = ranges[lane]
        return found

    def check_topics(self) -> None:
        """Checks the subscribed topics and assigned lanes. Raises IllegalTopic, UnknownTopic."""
        check_known(self.options.path, self.index, self.options.subscription.chosen([]), self._is_visible)
        for topic, lanes in (self.options.subscription.assigned or {}).items():
            known = self.index.ranges(topic)
            for lane in lanes:
                if known and lane not in known:  # a declared topic may have no lane yet
                    raise UnknownTopic(f"{self.options.path}: {no_lane(topic, lane, known)}")

    def warn_of_missing(self) -> None:
        """Logs a warning for subscribed topics that do not exist: a stream waits for them."""
        if text := waiting_for(self.options.path, self.index, self.options.subscription.chosen([]), "the query"):
            log.warning("%s", text)

    def offsets(self, bound: Bound, queues: Mapping[QueueKey, QueueRange]) -> dict[QueueKey, int]:
        """Returns the queue offset that a bound means in each queue, maybe below the queue's first.

        Raises OffsetOutOfRange if a number is beyond a queue's end, or if the bound is strict and
        no queue has a message as late as its time.
        """
        times = {
            key: start.value
            for key in queues
            if self._number_of(bound, key) is None and (start := self._start(bound, key)).kind == "time"
        }
        by_time = self.index.find_by_times(times) if times else {}
        found = {key: self._offset(bound, key, queue, by_time.get(key)) for key, queue in queues.items()}
        if bound.strict and times and all(found[key] == queues[key].end for key in times):
            raise OffsetOutOfRange(
                f"option {bound.option}: no lane has a message at or after {min(times.values())}; set "
                "startingOffsetsByTimestampStrategy to latest to begin at the end"
            )
        return found

    def _start(self, bound: Bound, key: QueueKey) -> Start:
        topic, lane = key
        time = (bound.times or {}).get(topic, {}).get(lane)
        return bound.start.at(self._now_ms) if time is None else Start("time", time)

    @staticmethod
    def _number_of(bound: Bound, key: QueueKey) -> int | None:
        return (bound.offsets or {}).get(key[0], {}).get(key[1])

    def _offset(self, bound: Bound, key: QueueKey, queue: QueueRange, by_time: int | None) -> int:
        number = self._number_of(bound, key)
        if number is not None:
            return self._number(bound, key, queue, number)
        return resolve(self._start(bound, key), queue.first, queue.end, lambda _: by_time)

    @staticmethod
    def _number(bound: Bound, key: QueueKey, queue: QueueRange, number: int) -> int:
        if number == LATEST_OFFSET:
            return queue.end
        if number == EARLIEST_OFFSET:
            return queue.first
        if number > queue.end:
            raise OffsetOutOfRange(
                f"option {bound.option}: offset {number} of topic {key[0]}, lane {key[1]} is beyond its end, {queue.end}"
            )
        return number

    def check_named(self, bound: Bound | None, queues: Iterable[QueueKey]) -> None:
        """Raises OffsetOutOfRange for an offset above 0 of a queue that does not exist."""
        present = set(queues)
        for topic, lanes in ((bound.offsets if bound else None) or {}).items():
            for lane, number in lanes.items():
                if bound and number > 0 and (topic, lane) not in present:
                    raise OffsetOutOfRange(
                        f"option {bound.option}: offset {number} of topic {topic}, lane {lane}, which has no messages yet"
                    )

    def check_complete(self, bound: Bound, queues: Iterable[QueueKey]) -> None:
        """Raises OptionError for JSON that does not name all queues of a batch, as Kafka's does.

        In a stream, a queue that is not named counts as one that appears later.
        """
        named = bound.times if bound.offsets is None else bound.offsets
        for topic, lane in queues if named is not None else ():
            if lane not in (named or {}).get(topic, {}):
                ends = "" if bound.offsets is None else " (−1 latest, −2 earliest)"
                raise OptionError(
                    f"option {bound.option}: it does not name topic {topic}, lane {lane}; name every lane that is there{ends}"
                )

    # ---- tasks ----------------------------------------------------------------------------------

    def batch_plans(self) -> list[ReadPlan]:
        """Plans a batch. Raises UnknownTopic, OptionError, OffsetOutOfRange, DataLoss."""
        self.check_topics()
        queues = self.queues()
        present = {*self.index.topics()}
        starting = self.options.starting or Bound("startingOffsets", EARLIEST)
        ending = self.options.ending or Bound("endingOffsets", LATEST)
        for bound in (starting, ending):
            self.check_named(bound, queues)
            self.check_complete(bound, [(topic, lane) for topic, lane in queues if topic in present])
        begins, ends = self.offsets(starting, queues), self.offsets(ending, queues)
        ranges = {}
        for key in queues:
            begin, end = begins[key], ends[key]
            if begin > end and (starting.offsets or ending.offsets):
                raise OffsetOutOfRange(
                    f"topic {key[0]}, lane {key[1]}: {starting.option} begins at {begin} and {ending.option} ends at {end}"
                )
            ranges[key] = (begin, max(begin, end))
        return self.plans(ranges)

    def plans(self, ranges: dict[QueueKey, tuple[int, int]]) -> list[ReadPlan]:
        """Plans the reading of queue offsets [begin, end). Raises DataLoss, OffsetOutOfRange."""
        present = kept_ranges(self.index, ranges, self.options.read)
        work = self.index.work(present) if present else []
        cores = len(os.sched_getaffinity(0))  # right for a local session; the cores of a cluster are not known here
        self._check_tasks(sum(item.slice.rows for item in work))
        planned = plan(work, self.options.min_partitions, self.options.max_records, cores)
        return [self.read_plan(slices) for slices in planned]

    def _check_tasks(self, rows: int) -> None:
        """Raises OptionError where the options ask for too many tasks."""
        least, most_rows = self.options.min_partitions or 1, self.options.max_records or rows
        tasks = max(min(least, rows), -(-rows // max(most_rows, 1)))
        if tasks > self._tasks_max:
            raise OptionError(
                f"options minPartitions, maxRecordsPerPartition: {tasks:,} parts; allowed are {self._tasks_max:,}: ask for "
                "fewer, and larger ones"
            )

    def read_plan(self, slices: tuple[Slice, ...]) -> ReadPlan:
        return self.index.plan(slices, self.options.read)

    def limit_rows(self, ranges: dict[QueueKey, tuple[int, int]], most: int, first: QueueKey) -> dict[QueueKey, int]:
        """Returns how far to read each range, for at most `most` rows in all.

        Raises DataLoss, OffsetOutOfRange.
        """
        present = kept_ranges(self.index, ranges, self.options.read)
        ends = self.index.limit_rows(present, most, first, self.options.read) if present else {}
        return {key: ends.get(key, end) for key, (_, end) in ranges.items()}


def kept_ranges(
    index: StoreIndex, ranges: Mapping[QueueKey, tuple[int, int]], options: ReadOptions
) -> dict[QueueKey, tuple[int, int]]:
    """The parts of the ranges that the store still has. Raises DataLoss, OffsetOutOfRange."""
    wanted = {key: bounds for key, bounds in ranges.items() if bounds[0] < bounds[1]}
    queues = {topic: index.ranges(topic) for topic in {topic for topic, _ in wanted}}
    parts = ((key, _part(index, options, key, *bounds, queues[key[0]].get(key[1]))) for key, bounds in wanted.items())
    return {key: part for key, part in parts if part}


def _part(
    index: StoreIndex, options: ReadOptions, key: QueueKey, begin: int, end: int, queue: QueueRange | None
) -> tuple[int, int] | None:
    """The part of a range that a queue still has. Raises DataLoss, OffsetOutOfRange."""
    topic, lane = key
    if queue is None:
        refuse_loss(index.path, options, gone(topic, lane, f"the offsets [{begin}, {end}) were to be read"))
        return None
    if end > queue.end:
        raise OffsetOutOfRange(beyond_end(topic, lane, end, queue.end, live=index.live))
    if begin < queue.first:
        refuse_loss(index.path, options, lost(topic, lane, begin, min(queue.first, end), queue.first))
        begin = min(queue.first, end)
    return (begin, end) if begin < end else None


def beyond_end(topic: str, lane: int, wanted: int, end: int, *, live: bool) -> str:
    """Makes the text of the error for a checkpoint or a plan that is ahead of the store."""
    text = f"topic {topic}, lane {lane}: offset {wanted} is beyond the store's end, {end}"
    if live:
        return f"{text}; the checkpoint or the offsets belong to another state of this store"
    return f"{text}; if the store was not stopped properly, start it once (`commitlog run`) so that it recovers"


def lost(topic: str, lane: int, wanted: int, found: int, first: int) -> str:
    """Makes the text of a loss: retention, or a trim, was faster than the reader."""
    return (
        f"topic {topic}, lane {lane}: offset {wanted} was to be read and the first one kept is {first}; {found - wanted} "
        "messages were deleted by retention, or trimmed, before they were read"
    )


def gone(topic: str, lane: int, wanted: str) -> str:
    """Makes the text of a loss: somebody removed a lane or its consume queue."""
    return f"topic {topic}, lane {lane}: not in the store any more, and {wanted}; was its directory removed?"


def data_loss(options: SourceOptions, text: str) -> None:
    """Raises DataLoss, or logs a warning if failOnDataLoss=false lets the query go on."""
    refuse_loss(options.path, options.read, text)


def refuse_loss(path: str, options: ReadOptions, text: str) -> None:
    """Raises DataLoss, or logs a warning if the options accept a loss."""
    wording = options.wording
    if options.fail_on_data_loss:
        raise DataLoss(f"{text}. {wording.option} {wording.accept_loss} goes on without them")
    log.warning("%s: %s; %s, so reading goes on without them", path, text, wording.accept_loss)
