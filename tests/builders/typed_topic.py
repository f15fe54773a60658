"""Typed topics in stores that are written by hand."""

from __future__ import annotations

from typing import Any

from commitlog.record.record import Record
from commitlog.record.row_headers import CONTENT_TYPE
from commitlog.schemas.declaring import declared_schema
from commitlog.schemas.row_batches import as_table, messages
from commitlog.schemas.topic_schemas import TopicSchema, TopicSchemas
from tests.builders.hand_made import HandMadeLane, HandMadeStore


def declare(store: HandMadeStore, topic: str, schema: object, *, evolve: bool = False) -> TopicSchema:
    """What `Store.create_topic` does."""
    return TopicSchemas(store.directory).declare(topic, declared_schema(schema), evolve=evolve)


NUMBERED = "numbered"


def append_rows(
    lane: HandMadeLane, schema: TopicSchema, rows: Any, compression: str | None = None, key: str | None = NUMBERED
) -> Record:
    """Appends one message that has these rows. Its key is `key`, or k and its number."""
    ((count, value),) = messages(as_table(rows, schema), 1 << 20, 1 << 20, compression)
    properties = {"content-type": CONTENT_TYPE, "schema-version": str(schema.version), "row-count": str(count)}
    if compression is not None:
        properties["content-encoding"] = compression
    key = f"k{len(lane.records)}" if key == NUMBERED else key
    return lane.append(schema.topic, value, key=key, properties=properties)
