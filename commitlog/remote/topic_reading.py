"""One topic as an Arrow stream: of a store here, or of a served one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import get_args

import pyarrow as pa

from commitlog.columns.arrays import aligned
from commitlog.columns.read_plan import Isolation, ReadOptions, ReadPlan, Values
from commitlog.columns.segments import SegmentCache
from commitlog.columns.slice_reader import read_slices
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import IllegalArgument, UnknownTopic
from commitlog.planning.address import Address
from commitlog.planning.store_index import LocalIndex, StoreIndex
from commitlog.planning.topic_columns import columns_of
from commitlog.planning.topic_ranges import ranges_between
from commitlog.reading.starting_point import QueueStarts
from commitlog.record.properties import check_topic
from commitlog.remote.reading import read_remote
from commitlog.remote.store_index import RemoteIndex, typed_topics
from commitlog.schemas.topic_schemas import TopicSchema, TopicSchemas, no_schema

_SEGMENTS_KEPT = 2
"""How many segments stay mapped while a stream is read: its rows lie one behind the other."""


def open_topic(
    place: str | os.PathLike[str] | Address,
    topic: str,
    start: QueueStarts,
    end: QueueStarts,
    *,
    columns: Collection[str] | None,
    metadata: bool,
    values: Values | None,
    options: ReadOptions,
) -> pa.RecordBatchReader:
    """What `commitlog.read_arrow` does. `start` and `end` have no `ago` any more."""
    if values not in (None, "bytes", "columns"):
        json = "; only Spark reads the fields of JSON" if values == "json" else ""
        raise IllegalArgument(f"values={values!r}: leave it out, or give bytes or columns{json}")
    isolation = options.isolation
    if isolation not in get_args(Isolation):
        raise IllegalArgument(f"isolation={isolation!r}: give {' or '.join(get_args(Isolation))}")
    check_topic(topic)
    index: StoreIndex
    index = RemoteIndex(place, isolation, (topic,)) if isinstance(place, Address) else LocalIndex(place, isolation)
    try:
        schema = _schema(place, index, topic, values)
        wanted = columns_of(topic, None if schema is None else schema.columns, columns, metadata=metadata)
        index.refresh()
        if schema is None and topic not in index.topics():
            present = ", ".join(index.topics()) or "none"
            raise UnknownTopic(f"{index.path}: there is no topic {topic!r}; topics there are: {present}")
        chosen = replace(options, values="bytes" if schema is None else "columns")
        plan = index.plan(tuple(index.slices(ranges_between(index, [topic], start, end))), chosen)
    finally:
        index.close()
    batches = _batches(place, plan, wanted)
    return pa.RecordBatchReader.from_batches(wanted, _one_at_least(batches, wanted))


def _schema(
    place: str | os.PathLike[str] | Address, index: StoreIndex, topic: str, values: Values | None
) -> TopicSchema | None:
    """The newest schema of the topic, or None if it is read as bytes. Raises NoSchema."""
    if values == "bytes" or (values is None and index.one_log):
        return None
    instead = "leave the argument values out"
    if isinstance(place, Address):
        found = typed_topics(place, (topic,)).get(topic)
        if found is None and values == "columns":
            raise no_schema(index.path, topic, instead, list(typed_topics(place)))
        return found
    schemas = TopicSchemas(StoreDirectory(index.path))
    return schemas.required(topic, instead) if values == "columns" else schemas.latest(topic)


def _batches(place: str | os.PathLike[str] | Address, plan: ReadPlan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if not isinstance(place, Address):
        return read_slices(plan, schema, SegmentCache(limit=_SEGMENTS_KEPT))
    return map(aligned, read_remote(plan, schema, place)) if plan.slices else iter(())


def _one_at_least(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches, or an empty one: Polars refuses a stream of none."""
    yield next(batches, pa.RecordBatch.from_pylist([], schema))
    yield from batches
