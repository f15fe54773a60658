"""Opens a local store by its path, or a served one by its URL.

Every reader calls this module, and gets the same kind of index, schemas and rows in both cases.
What asks servers is imported where a URL is given: its requests take 10 ms of a core to load.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa

from commitlog.columns.arrays import aligned
from commitlog.columns.mapped_segments import SegmentCache
from commitlog.columns.read_plan import Isolation, ReadPlan
from commitlog.columns.slice_reader import read_slices
from commitlog.disk.store_directory import StoreDirectory
from commitlog.planning.address import Address
from commitlog.planning.store_index import LocalIndex, StoreIndex
from commitlog.schemas.topic_schemas import TopicSchema, TopicSchemas

Place = str | os.PathLike[str] | Address
"""A store's directory, or the address of a served one."""

_SEGMENTS_KEPT = 2
"""How many segments stay mapped while a stream is read: its rows lie one behind the other."""


def open_index(place: Place, isolation: Isolation, topics: tuple[str, ...] | None = None) -> StoreIndex:
    """What may be read of the store. A served one is only asked for these `topics`; None: all.

    Raises what LocalIndex and RemoteIndex do.
    """
    if isinstance(place, Address):
        from commitlog.remote.remote_index import RemoteIndex

        return RemoteIndex(place, isolation, topics)
    return LocalIndex(place, isolation)


def newest_schemas(place: Place, topics: tuple[str, ...] | None = None) -> dict[str, TopicSchema]:
    """The newest schema of each typed topic: of all, or of those of these `topics` that are typed.

    Raises what TopicSchemas does, and what asking a server does.
    """
    if isinstance(place, Address):
        from commitlog.remote.remote_index import typed_topics

        return typed_topics(place, topics)
    schemas = TopicSchemas(StoreDirectory(place))
    wanted = schemas.topics() if topics is None else topics
    return {topic: newest for topic in wanted if (newest := schemas.latest(topic)) is not None}


def read_batches(place: Place, plan: ReadPlan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All rows of the plan, as batches of the schema. Raises what reading a plan does."""
    if not isinstance(place, Address):
        return read_slices(plan, schema, SegmentCache(limit=_SEGMENTS_KEPT))
    from commitlog.remote.remote_rows import read_remote

    return map(aligned, read_remote(plan, schema, place)) if plan.slices else iter(())
