"""Rows as a topic takes them, without a store."""

from __future__ import annotations

from typing import Any

from commitlog.schemas.declaring import declared_schema
from commitlog.schemas.row_batches import as_table
from commitlog.schemas.topic_schemas import TopicSchema


def topic(declared: Any) -> TopicSchema:
    return TopicSchema("orders", 1, declared_schema(declared))


def rows_of(rows: Any, declared: Any) -> list[dict[str, Any]]:
    """The rows as they come back from the table that is stored, which is a valid one."""
    table = as_table(rows, topic(declared))
    table.validate(full=True)
    assert table.schema.equals(declared_schema(declared))
    found: list[dict[str, Any]] = table.to_pylist()
    return found
