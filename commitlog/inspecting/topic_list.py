"""The topics of a store, with their schemas: what `commitlog topics` and `Store.topics` give."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from commitlog.disk.store_directory import StoreDirectory
from commitlog.reading.topic_facts import topic_facts
from commitlog.reading.topic_index import current_index
from commitlog.reading.view import open_view
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.text.lines import aligned, printable
from commitlog.text.notebook import html_table
from commitlog.text.quantities import shown_time


class TopicList(list[dict[str, Any]]):
    """Topics, each with the fields of `commitlog topics --json`. It shows itself as a table."""

    def _shown(self) -> list[tuple[str, ...]]:
        return [
            (
                printable(one["topic"]),
                f"{one['messages']:,}",
                f"{one['bytes']:,}",
                f"{one['messages_per_second']:,.1f}",
                *("" if time is None else shown_time(time) for time in (one["first_timestamp"], one["last_timestamp"])),
                ", ".join(map(str, one["lanes"])),
                ", ".join(column["name"] for column in one["schema"]["columns"]) if one["schema"] else "",
            )
            for one in self
        ]

    def __repr__(self) -> str:
        return "\n".join(aligned(_HEADS[:-1], [row[:-1] for row in self._shown()]))

    def _repr_html_(self) -> str:
        return html_table("Topics", self._shown(), _HEADS)


_HEADS = ("topic", "messages", "bytes", "messages/s", "oldest", "newest", "lanes", "columns")


def _every(_topic: str) -> bool:
    return True


def topic_list(store: str | os.PathLike[str], is_wanted: Callable[[str], bool] = _every) -> TopicList:
    """The topics that are wanted, sorted; those that have a schema and no message, too.

    Raises what opening a store raises, DamagedFile.
    """
    with current_index(open_view(store)) as index:
        now_ms = SYSTEM_CLOCK.wall_ms()
        schemas = {} if index.view.one_log else newest_schemas(StoreDirectory(store), is_wanted)
        return TopicList(
            {**asdict(topic_facts(index, topic, now_ms)), "schema": schemas.get(topic)}
            for topic in sorted({*filter(is_wanted, index.topics()), *schemas})
        )


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
