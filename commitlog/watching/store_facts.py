"""All that `commitlog stat` shows of a store, and the JSON that it prints."""

from __future__ import annotations

import errno
import os
from dataclasses import asdict
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from commitlog.client.statistics import StoreStatistics, store_statistics
from commitlog.errors import CommitLogError, DamagedFile, disk_error
from commitlog.native import description
from commitlog.reading.reader_states import ReaderState, reader_states
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView

Topics = dict[int, dict[str, tuple[int, int]]]
"""Lane → topic → its first and its next queue offset."""


Facts = tuple[StoreStatistics, Topics, list[ReaderState], CommitLogError | None]
"""The store's statistics, the topics of each lane, the named readers.

The error says why there are no topics and readers: what tells of them is damaged.
"""


def collect(store: str | os.PathLike[str]) -> Facts:
    """Looks at a store. Raises what opening one raises."""
    view = StoreView(store)
    topics: Topics = {}
    readers: list[ReaderState] = []
    damage = None
    try:
        index = TopicIndex(view)
        try:
            index.refresh()
            topics = {
                lane: {
                    topic: (known.first, known.end)
                    for topic, known in sorted(index.lanes[lane].queues.items())
                    if not index.lanes[lane].is_deleted(topic)
                }
                for lane in index.lanes
            }
            readers = reader_states(index)
        except (DamagedFile, OSError) as error:
            damage = index_error(error)
        return store_statistics(view), topics, readers, damage
    finally:
        view.close()


def as_json(
    facts: StoreStatistics, topics: Topics, readers: list[ReaderState], damage: CommitLogError | None
) -> dict[str, Any]:
    """What `stat --json` prints: statistics, topics of each lane, named readers, the core here."""
    values = {**asdict(facts), "core": description, "index_damage": str(damage or "")}
    for lane in values["lanes"]:
        lane["topics"] = topics.get(lane["lane"], {})
    values["readers"] = [reader_as_json(reader) for reader in readers]
    return values


def reader_as_json(state: ReaderState) -> dict[str, Any]:
    """What `--json` prints of a reader."""
    return asdict(state) | {"behind": state.behind}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """What checks values of this kind. To make it takes many times as long as to check them."""
    return TypeAdapter(kind)


def from_json(values: dict[str, Any]) -> Facts:
    """What `as_json` was made of. Raises ValueError."""
    topics = {lane["lane"]: lane["topics"] for lane in values["lanes"]}
    damage = values["index_damage"]
    return (
        _adapter(StoreStatistics).validate_python(values),
        _adapter(Topics).validate_python(topics),
        _adapter(list[ReaderState]).validate_python(values["readers"]),
        DamagedFile(damage) if damage else None,
    )


def index_error(error: DamagedFile | OSError) -> CommitLogError:
    """Makes the error for a look-up of topics in an index that is damaged or can't be read."""
    if isinstance(error, DamagedFile):
        return error
    place = error.filename or "the index"
    return disk_error(error.errno or errno.EIO, f"{place}: {error.strerror}, while topics were looked for")
