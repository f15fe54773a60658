"""One topic as an Arrow stream."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import partial

import pyarrow as pa

from commitlog.columns.arrow_columns import COLUMN_TYPES, KAFKA_COLUMNS
from commitlog.columns.segments import SegmentCache
from commitlog.columns.slice_reader import OF_READ_ARROW, ReadPlan, Slice, Values, read_slices, slices_of
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import IllegalArgument, UnknownTopic
from commitlog.reading.starting_point import QueueStarts, resolve
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import open_view
from commitlog.record.properties import check_topic
from commitlog.schemas.topic_schemas import TopicSchemas
from commitlog.schemas.types import METADATA_COLUMNS

_SEGMENTS_KEPT = 2
"""How many segments stay mapped while a stream is read: its rows lie one behind the other."""


def open_topic(
    path: str | os.PathLike[str],
    topic: str,
    start: QueueStarts,
    end: QueueStarts,
    *,
    columns: Collection[str] | None,
    metadata: bool,
    values: Values | None,
    isolation: str,
    fail_on_data_loss: bool,
    ignore_corrupt: bool,
) -> pa.RecordBatchReader:
    """What `commitlog.read_arrow` does. `start` and `end` have no `ago` any more."""
    if values not in (None, "bytes", "columns"):
        json = "; only Spark reads the fields of JSON" if values == "json" else ""
        raise IllegalArgument(f"values={values!r}: leave it out, or give bytes or columns{json}")
    check_topic(topic)
    view = open_view(path)
    try:
        schemas, schema = TopicSchemas(StoreDirectory(view.path)), None
        if values == "columns":
            schema = schemas.required(topic, "leave the argument values out")
        elif values is None and not view.one_log:
            schema = schemas.latest(topic)
        wanted = _wanted(topic, None if schema is None else schema.columns, columns, metadata=metadata)
        index = TopicIndex(view, isolation)
        index.refresh()
        if schema is None and topic not in index.topics():
            present = ", ".join(index.topics()) or "none"
            raise UnknownTopic(f"{view.path}: there is no topic {topic!r}; topics there are: {present}")
        slices: list[Slice] = []
        for lane, queue in sorted(index.ranges(topic).items()):
            find, where = partial(index.find_by_time, topic, lane), f"topic {topic}, lane {lane}"
            begin, stop = (
                resolve(bound.of(topic, lane), queue.first, queue.end, find, where=where) for bound in (start, end)
            )
            slices += slices_of(index.lanes[lane], topic, begin, stop)
        plan = ReadPlan(
            str(view.path),
            view.store_id,
            view.segment_bytes,
            tuple(slices),
            fail_on_data_loss=fail_on_data_loss,
            ignore_corrupt=ignore_corrupt,
            values="bytes" if schema is None else "columns",
            wording=OF_READ_ARROW,
        )
    finally:
        view.close()
    segments = SegmentCache(limit=_SEGMENTS_KEPT)
    return pa.RecordBatchReader.from_batches(wanted, read_slices(plan, wanted, segments))


def _wanted(topic: str, typed: pa.Schema | None, columns: Collection[str] | None, *, metadata: bool) -> pa.Schema:
    """The schema of the stream. Raises IllegalArgument for a column that is not there."""
    if typed is None:
        if metadata:
            raise IllegalArgument(
                f"metadata=True: topic {topic} has no schema, its columns say already where a row is from"
            )
        available = pa.schema(list(COLUMN_TYPES.items()))
        every = KAFKA_COLUMNS
    else:
        available = pa.schema([*typed, *(pa.field(name, kind) for name, kind in METADATA_COLUMNS.items())])
        every = (*typed.names, *(METADATA_COLUMNS if metadata else ()))
    names: tuple[str, ...] = ()
    if columns is None:
        names = every
    elif isinstance(columns, Collection) and not isinstance(columns, str):
        names = tuple(columns)
    if not names or any(names.count(name) > 1 or name not in available.names for name in names):
        raise IllegalArgument(f"columns={columns!r}: give a list of some of {', '.join(available.names)}, each once")
    return pa.schema([available.field(name) for name in names])
