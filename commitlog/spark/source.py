"""The format `commitlog`, which Spark reads as a batch or as a stream.

Both share one planning core (commitlog/planning) and one reader of rows (task_reading.py).

Where things run: Options are checked when the DataFrame is made, in a Python process beside Spark's
driver. A stream's reader lives in one process as long as its query. A batch's reader lives for one
planning. `read` runs in pooled workers. None of these processes has a SparkContext.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from commitlog.columns.read_plan import ReadPlan
from commitlog.errors import CommitLogError, OffsetOutOfRange, OptionError
from commitlog.planning.option_checks import check_batch, check_read, check_rocketmq, check_stream
from commitlog.planning.option_names import (
    QUERY_OPTIONS,
    SINK_SPELLING,
    SPELLING,
    check_direction,
    check_names,
    check_table,
)
from commitlog.planning.options import SourceOptions, parse_options
from commitlog.planning.reader_name import position_of
from commitlog.planning.resolving import Resolver, beyond_end, data_loss, gone
from commitlog.planning.row_limit import QueueKey, next_first
from commitlog.planning.starting_offsets import Bound
from commitlog.planning.store_index import HeldName, StoreIndex
from commitlog.planning.task_sizes import share_out
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.starting_point import LATEST, Offsets
from commitlog.reading.view import is_rocketmq_root
from commitlog.remote.path_or_url import open_index
from commitlog.remote.remote_index import RemoteIndex
from commitlog.spark.checkpoint_offsets import StreamOffset
from commitlog.spark.columns import check_given, check_nulls, check_schema, schema_of, with_nulls
from commitlog.spark.launching.daemon import improve_this_worker
from commitlog.spark.server_wait import ServerWait
from commitlog.spark.sink import BatchWriter, StreamWriter, batch_writer, stream_writer
from commitlog.spark.task_reading import RemoteTask, Task, read_task, with_files_found
from commitlog.spark.typed_topics import check_json_schema, check_typed_schema, typed_schema
from commitlog.system.clock import SYSTEM_CLOCK

improve_this_worker()


class CommitLogDataSource(DataSource):
    """`spark.read` and `spark.readStream` of `.format("commitlog")`. README has the options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_table(options)
        # It is not known yet whether this will read or write: `_check` and the sink look again.
        check_names([name for name in options if name.lower() not in QUERY_OPTIONS], SPELLING | SINK_SPELLING)
        check_direction(options)
        parsed = parse_options(options)
        # Later is too late: Spark tells a stream's own process of no files.
        self.parsed = replace(parsed, address=None if parsed.address is None else with_files_found(parsed.address))

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> StructType:
        check_names(self.options, SPELLING)
        check_read(self.parsed)
        if self.parsed.read.values == "json":
            raise OptionError("option values: json needs the fields: .schema('id BIGINT, name STRING')")
        return schema_of(self.parsed.columns) if self.parsed.read.values == "bytes" else typed_schema(self.parsed)

    def reader(self, schema: StructType) -> BatchReader:
        self._check(schema)
        check_batch(self.parsed)
        return BatchReader(self.parsed, schema)

    def streamReader(self, schema: StructType, *, is_real_time: bool = False) -> StreamReader:
        """The reader of a stream. In Real-Time Mode the JVM reads what it plans."""
        self._check(schema)
        check_stream(self.parsed, is_real_time=is_real_time)
        if self.parsed.address is None and is_rocketmq_root(self.parsed.path):
            raise no_stream(self.parsed.path)
        return StreamReader(self.parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return stream_writer(self.options, schema)

    def _check(self, schema: StructType) -> None:
        check_names(self.options, SPELLING)
        check_read(self.parsed)
        check_given(schema, self.parsed)
        match self.parsed.read.values:
            case "bytes":
                check_schema(schema)
            case "columns":
                check_typed_schema(schema, self.parsed)
            case "json":
                check_json_schema(schema, self.parsed)
                for field in schema.fields:  # the source in Java makes nulls of them
                    check_nulls(field, with_nulls(field).dataType, ())


def index_of(options: SourceOptions) -> StoreIndex:
    """The index of the store that the options name. Raises what `open_index` does."""
    chosen = options.subscription
    topics = None if chosen.pattern is not None else tuple(chosen.chosen([]))
    return open_index(options.place, options.read.isolation, topics)


def tasks(plans: list[ReadPlan], index: StoreIndex, options: SourceOptions) -> list[InputPartition]:
    """The plans as Spark's tasks. Those of a served store are shared out among its processes."""
    if options.address is None or not isinstance(index, RemoteIndex):
        return [Task(plan) for plan in plans]
    ports = index.ports
    return [
        RemoteTask(plan, options.address, ports[number % len(ports)] if ports else None)
        for number, plan in enumerate(plans)
    ]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark compares batches with."""
    return to_arrow_schema(schema, timezone="UTC")


def no_stream(path: str) -> OptionError:
    """The error of a stream over a RocketMQ store root."""
    return OptionError(f"option path: {path} is a RocketMQ store root, which is read as a batch only (spark.read)")


class BatchReader(DataSourceReader):
    """One read of a table. It is planned once, from the store's content at that moment.

    It has no `pushFilters` on purpose. Spark 4.2 and 4.3 keep the partitions that are planned with
    pushed filters for all scans of a loaded frame, and so lose rows of those with other filters or
    none (PythonDataSourceV2.setReadInfo).
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options, self.schema = options, schema

    def partitions(self) -> list[InputPartition]:
        """Plans the tasks.

        Raises UnknownTopic, OffsetOutOfRange, DataLoss, and what opening the store raises.
        """
        index = index_of(self.options)
        try:
            index.refresh()
            if index.one_log:
                check_rocketmq(self.options)
            return tasks(Resolver(index, self.options).batch_plans(), index, self.options)
        finally:
            index.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, arrow_schema(self.schema))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a store for one streaming query. Spark also makes one only to plan, and pickles it.

    So nothing is opened before it is needed.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options, self.schema = options, schema
        self._index: StoreIndex | None = None
        self._held_name: HeldName | None = None
        self._first_queue: QueueKey = ("", -1)
        self.target: dict[QueueKey, int] | None = None
        """With AvailableNow, how far each queue is read."""
        self._last_batch_ns: int | None = None
        self._idle_at: Mapping[str, Any] | None = None
        self._gone: set[QueueKey] = set()
        self._went_back: set[QueueKey] = set()
        self._wait = ServerWait()

    @property
    def index(self) -> StoreIndex | None:
        """The index of the store, once it was needed."""
        return self._index

    def _resolver(self, wait_ms: int = 0) -> tuple[Resolver, bool]:
        """Brings the index up to date. Returns a resolver over it, and whether anything has moved.

        The first call takes the reader's name, and the reader holds it from then on. It warns of
        topics that the query waits for.
        """
        is_first = self._index is None
        if self._index is None:
            self._index = self._open()
        moved = self._index.refresh(wait_ms)
        resolver = Resolver(self._index, self.options)
        if is_first:
            resolver.warn_of_missing()
        return resolver, moved

    def look(self) -> StoreIndex:
        """The index of the store, opened if need be, and brought up to date.

        What has moved is for the next batch, although nothing may move until it is asked for.
        """
        self._idle_at = None
        return self._resolver()[0].index

    def _open(self) -> StoreIndex:
        index, name = index_of(self.options), self.options.reader_name
        if self.options.address is not None and index.one_log:
            raise no_stream(self.options.path)
        if name is not None and self._held_name is None:
            try:
                self._held_name = index.hold_name(name)
            except CommitLogError:
                index.close()
                raise
        return index

    # ---- offsets --------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Returns where the query begins.

        All these offsets are also in `@from`, which the first end offset takes over.
        """
        resolver, _ = self._resolver()
        queues = resolver.queues()
        starting = self.options.starting or Bound("startingOffsets", LATEST)
        resolver.check_named(starting, queues)
        begins: Offsets = {topic: {} for topic in self.options.subscription.chosen([])}
        for (topic, lane), begin in resolver.offsets(starting, queues).items():
            begins.setdefault(topic, {})[lane] = begin
        return StreamOffset(resolver.index.store_id, begins, begins, resolver.index.epoch).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns where the next batch ends: `start` itself if there is not enough to read."""
        end = self._latest(start, limit, self._wait_ms(start))
        self._wait.answered(start, end)
        return end

    def _wait_ms(self, start: dict[str, Any]) -> int:
        """How long a server may wait before it says that there is nothing new."""
        if self.target is not None:
            return 0
        wait_ms, left_ms = self._wait.milliseconds(start), self._delay_left_ms()
        return min(wait_ms, left_ms) if left_ms > 0 else wait_ms

    def _latest(self, start: dict[str, Any], limit: ReadLimit, wait_ms: int) -> dict[str, Any]:
        resolver, moved = self._resolver(wait_ms)
        if not moved and start == self._idle_at:
            self._write_position()
            return start
        offset = self.in_this_epoch(StreamOffset.from_json(start))
        if self._held_name is not None:
            name, chosen = self.options.reader_name or "", self.options.subscription
            self._held_name.move(position_of(name, chosen, offset.store, offset.ends, resolver.index.topics()))
        queues = resolver.queues()
        ends = self._reachable(offset, queues)
        backlog = {key: max(end - self._begin(offset, key, queues[key]), 0) for key, end in ends.items()}
        passed_over = any(end > self._done(offset, key, queues[key]) for key, end in ends.items())
        self._idle_at = None
        if not any(backlog.values()) and not passed_over:
            self._idle_at = start
            self._write_position()
            return start
        if self._waits_for_more(sum(backlog.values())):
            return start
        if isinstance(limit, ReadMaxRows):
            shares = share_out(backlog, limit.max_rows)
            ends = {key: self._begin(offset, key, queues[key]) + shares.get(key, 0) for key in ends}
        if self.options.max_rows is not None:
            ranges = {key: (self._begin(offset, key, queues[key]), end) for key, end in ends.items()}
            self._first_queue = next_first(ranges, self._first_queue)
            ends = resolver.limit_rows(ranges, self.options.max_rows, self._first_queue)
        self._last_batch_ns = SYSTEM_CLOCK.monotonic_ns()
        new: Offsets = {topic: dict(lanes) for topic, lanes in offset.ends.items()}
        earliest: Offsets = {}
        for key, end in ends.items():
            topic, lane = key
            done = self._done(offset, key, queues[key])
            if end > done or topic not in offset.ends or lane in offset.ends[topic]:
                new.setdefault(topic, {})[lane] = max(end, done)
                earliest.setdefault(topic, {})[lane] = done
        return StreamOffset(offset.store, new, epoch=offset.epoch).following(offset, earliest).to_json()

    def in_this_epoch(self, offset: StreamOffset) -> StreamOffset:
        """Returns the offset in the epoch that the store had at the last look.

        If a replica was promoted, or a backup restored, the store has lost the messages behind that
        place. The query may have read some of them, and the store has other messages at their
        offsets now. So the query goes back to read these, if it may go on after a loss. Raises
        DataLoss, StoreSuperseded.
        """
        index = self._index
        assert index is not None
        offset.check_store(index.store_id, index.epoch, self.options.path)
        if offset.epoch == index.epoch:
            return offset
        offset = replace(offset, ends=self._still_read(offset.ends))
        queues = [(topic, lane) for topic, lanes in offset.ends.items() for lane in lanes]
        known = [(topic, lane) for topic, lane in queues if lane in index.ranges(topic)]
        shared = dict.fromkeys(set(queues).difference(known), 0) | index.shared_ends(offset.epoch, known)
        for (topic, lane), end in sorted(shared.items()):
            had = offset.ends[topic][lane]
            if had > end and (topic, lane) not in self._went_back:
                text = f"has read offsets {end} to {had - 1}, which the store does not have any more"
                why = "a replica was promoted, or a backup restored"
                data_loss(self.options, f"topic {topic}, lane {lane}: {why}, and the query {text}")
                self._went_back.add((topic, lane))
        return offset.back_to(shared, index.epoch)

    def _still_read(self, ends: Offsets) -> Offsets:
        """The ends of what the options choose now: anything else begins anew, if it comes back."""
        chosen = self.options.subscription
        return {
            topic: {lane: end for lane, end in ends[topic].items() if chosen.has_lane(topic, lane)}
            for topic in chosen.chosen(list(ends))
            if topic in ends
        }

    def _write_position(self) -> None:
        """Writes the reader's position. This is called when there is nothing to read.

        A query with AvailableNow is about to end then, and nobody calls its `stop`.
        """
        if self._held_name is not None:
            self._held_name.write(now=self.target is not None)

    def _done(self, offset: StreamOffset, key: QueueKey, queue: QueueRange) -> int:
        """Returns how far the query is in a queue.

        In a queue that has appeared since the last batch, nothing is done yet, and messages that
        retention has removed from it count as lost. A newly subscribed topic begins with the first
        message that is kept.
        """
        topic, lane = key
        is_new = topic not in offset.ends and self.options.subscription.pattern is None
        return offset.ends.get(topic, {}).get(lane, queue.first if is_new else 0)

    def _begin(self, offset: StreamOffset, key: QueueKey, queue: QueueRange) -> int:
        """Returns where reading goes on: behind the done rows, or at the first kept message."""
        return max(self._done(offset, key, queue), queue.first)

    def _reachable(self, offset: StreamOffset, queues: dict[QueueKey, QueueRange]) -> dict[QueueKey, int]:
        """How far each queue can be read, and with AvailableNow no further than its target.

        Raises OffsetOutOfRange, DataLoss.
        """
        self._check_for_gone(offset, queues)
        ends = {}
        for key, queue in queues.items():
            known = offset.ends.get(key[0], {}).get(key[1])
            if known is not None and known > queue.end:
                live = self._index is not None and self._index.live
                raise OffsetOutOfRange(beyond_end(*key, known, queue.end, live=live))
            end = queue.end
            if self.target is not None:
                end = min(end, self.target.get(key, 0 if known is None else known))
            ends[key] = max(end, self._begin(offset, key, queue) if known is not None else queue.first)
        return ends

    def _check_for_gone(self, offset: StreamOffset, queues: dict[QueueKey, QueueRange]) -> None:
        """Raises DataLoss if a queue that was read from is not there any more."""
        subscription = self.options.subscription
        for topic in subscription.chosen(list(offset.ends)):
            for lane, done in offset.ends.get(topic, {}).items():
                key = topic, lane
                if done and key not in queues and key not in self._gone and subscription.has_lane(topic, lane):
                    data_loss(self.options, gone(topic, lane, f"offset {done} is next"))
                    self._gone.add(key)

    def _waits_for_more(self, rows: int) -> bool:
        """Whether a batch of this many rows is too small and waits for more (minOffsetsPerTrigger).

        A batch waits for maxTriggerDelay at most. The first batch never waits.
        """
        least = self.options.min_offsets
        if least is None or rows >= least or self.target is not None:
            return False
        return self._delay_left_ms() > 0

    def _delay_left_ms(self) -> int:
        """The time until maxTriggerDelay is over, rounded up; 0 if it is over or does not count."""
        if self.options.min_offsets is None or self._last_batch_ns is None:
            return 0
        passed_ns = SYSTEM_CLOCK.monotonic_ns() - self._last_batch_ns
        return max(-((passed_ns - self.options.max_delay_ms * 1_000_000) // 1_000_000), 0)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        resolver, _ = self._resolver()
        self.target = {key: queue.end for key, queue in resolver.queues().items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the store's end at the look for the last batch. Spark's progress shows it."""
        if self._index is None:
            return None
        ends: Offsets = {}
        for (topic, lane), queue in Resolver(self._index, self.options).queues().items():
            ends.setdefault(topic, {})[lane] = queue.end
        return StreamOffset(self._index.store_id, ends, epoch=self._index.epoch).to_json()

    # ---- a batch --------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Makes the tasks of [start, end). After a restart Spark calls this before anything else.

        Raises DataLoss, OffsetOutOfRange, OptionError (the offsets are not of this source).
        """
        resolver, _ = self._resolver()
        first, planned = StreamOffset.from_json(start), StreamOffset.from_json(end)
        last = self.in_this_epoch(planned)
        ranges: dict[QueueKey, tuple[int, int]] = {}
        for topic, lanes in last.ends.items():
            for lane, stop in lanes.items():
                begin = planned.begin_of(first, topic, lane)
                if begin is not None and stop < planned.ends[topic][lane]:
                    begin = min(begin, stop)  # the rest of the batch is lost
                if begin is None or begin > stop:
                    raise OptionError(
                        f"the checkpoint's offsets go from {begin} to {stop} in topic {topic}, lane {lane}; give the query "
                        "a new checkpoint"
                    )
                ranges[topic, lane] = (begin, stop)
        return tasks(resolver.plans(ranges), resolver.index, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, arrow_schema(self.schema))

    def commit(self, end: dict[str, Any]) -> None:
        """Keeps nothing: the checkpoint has the position.

        The next `latestOffset` is given the same position, and it is kept from there
        (reader_name.py).
        """
        self._wait.committed(end)

    def stop(self) -> None:
        if self._held_name is not None:
            self._held_name.close()
            self._held_name = None
        if self._index is not None:
            self._index.close()
            self._index = None
