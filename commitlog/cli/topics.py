"""`commitlog topics STORE`: what topics there are, and the schemas of those that have one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from commitlog.cli.arguments import JsonOption, StoreArgument, print_json


def topics(
    store: StoreArgument,
    schema: Annotated[bool, typer.Option("--schema", help="Show the columns of typed topics.")] = False,
    json: JsonOption = False,
) -> None:
    """List the topics of STORE: messages, lanes, and the version of the schema of typed ones."""
    found = _topics(store)
    if json:
        print_json({"topics": found})
        return
    for line in _lines(found, columns=schema):
        typer.echo(line)


def _topics(store: Path) -> list[dict[str, Any]]:
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.reading.topic_index import TopicIndex
    from commitlog.reading.view import open_view

    view = open_view(store)
    try:
        index = TopicIndex(view)
        index.refresh()
        ranges = {topic: index.ranges(topic) for topic in index.topics()}
        schemas = {} if view.one_log else _schemas(StoreDirectory(store))
    finally:
        view.close()
    return [
        {
            "topic": topic,
            "messages": sum(queue.end - queue.first for queue in ranges.get(topic, {}).values()),
            "lanes": sorted(ranges.get(topic, {})),
            "schema": schemas.get(topic),
        }
        for topic in sorted({*ranges, *schemas})
    ]


def _schemas(directory: Any) -> dict[str, dict[str, Any]]:
    """The newest schema of each typed topic. PyArrow is needed only where there is one."""
    if not directory.channel.list(directory.topics_directory):
        return {}
    from commitlog.schemas.ddl import ddl_type
    from commitlog.schemas.topic_schemas import TopicSchemas

    schemas = TopicSchemas(directory)
    latest = {topic: schemas.latest(topic) for topic in schemas.topics()}
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


def _lines(found: list[dict[str, Any]], *, columns: bool) -> Iterator[str]:
    if not found:
        yield "no topics; a producer's first message makes one"
    for one in found:
        lanes = ", ".join(map(str, one["lanes"])) or "none"
        version = f", schema version {one['schema']['version']}" if one["schema"] else ""
        yield f"{one['topic']}: {one['messages']:,} messages, lanes {lanes}{version}"
        for column in one["schema"]["columns"] if columns and one["schema"] else ():
            yield f"    {column['name']} {column['type']}{'' if column['nullable'] else ' NOT NULL'}"
