"""A range of one topic as rows: of a store here, or of a served one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import get_args

import pyarrow as pa

from commitlog.columns.read_plan import Isolation, ReadOptions, ReadPlan, Values
from commitlog.errors import DataLoss, IllegalArgument
from commitlog.planning.resolving import kept_ranges
from commitlog.planning.row_limit import QueueKey
from commitlog.planning.store_index import StoreIndex
from commitlog.planning.topic_columns import columns_of
from commitlog.planning.topic_ranges import offsets_of
from commitlog.reading.earlier_epochs import refuse_lost
from commitlog.reading.known_topics import check_known
from commitlog.reading.lane_choice import ALL_LANES, LaneChoice
from commitlog.reading.starting_point import QueueStarts
from commitlog.record.topic_names import check_topic
from commitlog.remote.path_or_url import Place, newest_schemas, open_index, read_batches
from commitlog.schemas.topic_schemas import TopicSchema, no_schema


@dataclass(frozen=True)
class WantedRange:
    """What a user asks for of one topic. `start` and `end` have no `ago` any more.

    Raises IllegalArgument, IllegalTopic.
    """

    topic: str
    start: QueueStarts
    end: QueueStarts
    options: ReadOptions
    columns: Collection[str] | None = None
    metadata: bool = False
    values: Values | None = None
    lanes: LaneChoice = ALL_LANES

    def __post_init__(self) -> None:
        if self.values not in (None, "bytes", "columns"):
            json = "; only Spark reads the fields of JSON" if self.values == "json" else ""
            raise IllegalArgument(f"values={self.values!r}: leave it out, or give bytes or columns{json}")
        if self.options.isolation not in get_args(Isolation):
            raise IllegalArgument(f"isolation={self.options.isolation!r}: give {' or '.join(get_args(Isolation))}")
        check_topic(self.topic)


@dataclass(frozen=True)
class TopicRange:
    """The messages of one topic from fixed offsets up to fixed ends, and the columns of their rows.

    It may be read any number of times, and gives the same rows each time, or an error. It holds
    nothing open.
    """

    place: Place
    topic: str
    bounds: Mapping[QueueKey, tuple[int, int]]
    """Queue offsets [begin, end) of each queue, also where there is nothing between."""
    schema: pa.Schema
    """The columns of the rows, in their order."""
    typed: pa.Schema | None
    """The columns of the topic's schema at that time; None for rows with Kafka's columns."""
    options: ReadOptions
    one_log: bool
    identity: tuple[object, ...]
    epoch: int

    @contextmanager
    def look(self) -> Iterator[tuple[StoreIndex, dict[QueueKey, tuple[int, int]]]]:
        """Looks at the store again, and gives the offsets that it still has.

        Raises DataLoss, OffsetOutOfRange, and what opening the store raises.
        """
        with _opened(self.place, self.topic, self.options) as index:
            index.refresh()
            self._check_store(index)
            yield index, kept_ranges(index, self.bounds, self.options)

    def _check_store(self, index: StoreIndex) -> None:
        """Raises DataLoss if the offsets may be those of other messages now."""
        if index.identity != self.identity:
            raise DataLoss(
                f"{index.path} is another store than the one that was read, or a restored copy of it. "
                f"{self.options.wording.read_anew}"
            )
        if index.epoch == self.epoch:
            return
        ends = {key: end for key, (_, end) in self.bounds.items()}
        self._refuse_lost(index.shared_ends(self.epoch, self.bounds), ends)

    def check_read(self, epoch: int, places: Mapping[QueueKey, int]) -> None:
        """Raises DataLoss if messages before these places, read in an earlier epoch, are lost."""
        with _opened(self.place, self.topic, self.options) as index:
            ends = index.shared_ends(epoch, list(places))
        self._refuse_lost(ends, places)

    def _refuse_lost(self, shared: Mapping[QueueKey, int], ends: Mapping[QueueKey, int]) -> None:
        refuse_lost(str(self.place), shared, ends, self.options.wording.read_anew)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows, with these columns. It looks at the store when the first batch is asked for."""
        with self.look() as (index, kept):
            plan = _planned(index, kept, self.options)
        yield from read_batches(self.place, plan, schema)


def fix_range(place: Place, wanted: WantedRange) -> TopicRange:
    """Looks at the store, and fixes offsets and columns. Raises what `commitlog.read` does."""
    with _opened(place, wanted.topic, wanted.options) as index:
        return _fixed(place, index, wanted)


def open_topic(place: Place, wanted: WantedRange) -> pa.RecordBatchReader:
    """What `commitlog.read_arrow` does: one look at the store for a range that is read once."""
    with _opened(place, wanted.topic, wanted.options) as index:
        found = _fixed(place, index, wanted)
        plan = _planned(index, kept_ranges(index, found.bounds, found.options), found.options)
    return as_reader(read_batches(place, plan, found.schema), found.schema)


def as_reader(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatchReader:
    """The batches as one stream, of at least one batch: Polars refuses a stream of none."""
    return pa.RecordBatchReader.from_batches(schema, _one_at_least(batches, schema))


def _fixed(place: Place, index: StoreIndex, wanted: WantedRange) -> TopicRange:
    topic, options = wanted.topic, wanted.options
    schema = _schema(place, index, topic, wanted.values)
    typed = None if schema is None else schema.columns
    columns = columns_of(topic, typed, wanted.columns, metadata=wanted.metadata)
    index.refresh()
    if schema is None:
        check_known(index.path, index, [topic])
    begins, ends = (offsets_of(index, [topic], bound, wanted.lanes) for bound in (wanted.start, wanted.end))
    bounds = {key: (begin, max(begin, ends[key])) for key, begin in begins.items()}
    options = replace(options, values="bytes" if typed is None else "columns")
    return TopicRange(place, topic, bounds, columns, typed, options, index.one_log, index.identity, index.epoch)


def _planned(index: StoreIndex, bounds: Mapping[QueueKey, tuple[int, int]], options: ReadOptions) -> ReadPlan:
    return index.plan(tuple(index.slices(bounds)), options)


@contextmanager
def _opened(place: Place, topic: str, options: ReadOptions) -> Iterator[StoreIndex]:
    index = open_index(place, options.isolation, (topic,))
    try:
        yield index
    finally:
        index.close()


def _schema(place: Place, index: StoreIndex, topic: str, values: Values | None) -> TopicSchema | None:
    """The newest schema of the topic, or None if it is read as bytes. Raises NoSchema."""
    if values == "bytes" or (values is None and index.one_log):
        return None
    found = newest_schemas(place, (topic,)).get(topic)
    if found is None and values == "columns":
        raise no_schema(index.path, topic, "leave the argument values out", list(newest_schemas(place)))
    return found


def _one_at_least(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    first = next(batches, None)
    if first is None:  # it is not made of Python's rows: PyArrow would load pandas for these
        first = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
    yield first
    yield from batches
