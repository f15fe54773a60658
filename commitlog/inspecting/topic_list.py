"""The topics of a store, with their schemas: what `commitlog topics --json` prints."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from commitlog.clock import SYSTEM_CLOCK
from commitlog.disk.store_directory import StoreDirectory
from commitlog.reading.topic_facts import topic_facts
from commitlog.reading.topic_index import current_index
from commitlog.reading.view import open_view


def _every(_topic: str) -> bool:
    return True


def topic_list(store: str | os.PathLike[str], is_wanted: Callable[[str], bool] = _every) -> list[dict[str, Any]]:
    """The topics that are wanted, sorted; those that have a schema and no message, too.

    Raises what opening a store raises, DamagedFile.
    """
    with current_index(open_view(store)) as index:
        now_ms = SYSTEM_CLOCK.wall_ms()
        schemas = {} if index.view.one_log else newest_schemas(StoreDirectory(store), is_wanted)
        return [
            {**asdict(topic_facts(index, topic, now_ms)), "schema": schemas.get(topic)}
            for topic in sorted({*filter(is_wanted, index.topics()), *schemas})
        ]


def newest_schemas(directory: StoreDirectory, is_wanted: Callable[[str], bool] = _every) -> dict[str, dict[str, Any]]:
    """The newest schemas of typed topics that are wanted. PyArrow is needed only for these."""
    if not directory.channel.list(directory.topics_directory):
        return {}
    from commitlog.schemas.ddl import ddl_type
    from commitlog.schemas.topic_schemas import TopicSchemas

    schemas = TopicSchemas(directory)
    latest = {topic: schemas.latest(topic) for topic in filter(is_wanted, schemas.topics())}
    return {
        topic: {
            "version": schema.version,
            "columns": [
                {"name": field.name, "type": ddl_type(field.type), "nullable": field.nullable}
                for field in schema.columns
            ],
        }
        for topic, schema in latest.items()
        if schema is not None
    }
