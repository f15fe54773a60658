"""One topic as an Arrow stream: of a store here, or of a served one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import get_args

import pyarrow as pa

from commitlog.columns.read_plan import Isolation, ReadOptions, Values
from commitlog.errors import IllegalArgument
from commitlog.planning.store_index import StoreIndex
from commitlog.planning.topic_columns import columns_of
from commitlog.planning.topic_ranges import ranges_between
from commitlog.reading.known_topics import check_known
from commitlog.reading.starting_point import QueueStarts
from commitlog.record.topic_names import check_topic
from commitlog.remote.path_or_url import Place, newest_schemas, open_index, read_batches
from commitlog.schemas.topic_schemas import TopicSchema, no_schema


def open_topic(
    place: Place,
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
    index = open_index(place, isolation, (topic,))
    try:
        schema = _schema(place, index, topic, values)
        wanted = columns_of(topic, None if schema is None else schema.columns, columns, metadata=metadata)
        index.refresh()
        if schema is None:
            check_known(index.path, index, [topic])
        chosen = replace(options, values="bytes" if schema is None else "columns")
        plan = index.plan(tuple(index.slices(ranges_between(index, [topic], start, end))), chosen)
    finally:
        index.close()
    batches = read_batches(place, plan, wanted)
    return pa.RecordBatchReader.from_batches(wanted, _one_at_least(batches, wanted))


def _schema(place: Place, index: StoreIndex, topic: str, values: Values | None) -> TopicSchema | None:
    """The newest schema of the topic, or None if it is read as bytes. Raises NoSchema."""
    if values == "bytes" or (values is None and index.one_log):
        return None
    found = newest_schemas(place, (topic,)).get(topic)
    if found is None and values == "columns":
        raise no_schema(index.path, topic, "leave the argument values out", list(newest_schemas(place)))
    return found


def _one_at_least(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches, or an empty one: Polars refuses a stream of none."""
    first = next(batches, None)
    if first is None:  # it is not made of Python's rows: PyArrow would load pandas for these
        first = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
    yield first
    yield from batches
