"""Sends rows to a typed topic: each message has one Arrow record batch of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from commitlog.appending.row_options import RowOptions
from commitlog.errors import IllegalRow
from commitlog.record.row_headers import (
    COMPRESSION_HEADER,
    CONTENT_TYPE,
    CONTENT_TYPE_HEADER,
    ROWS_HEADER,
    SCHEMA_HEADER,
)
from commitlog.schemas.row_batches import fit, messages, read_rows
from commitlog.schemas.single_rows import SingleRows, Taken, table_of
from commitlog.schemas.topic_schemas import TopicSchema

OVERHEAD_BYTES = 4096
"""What a record is expected to take besides its value."""
R = TypeVar("R")
TakeRow = Callable[[Any], Taken]
"""Checks and copies a row. Raises IllegalRow."""


def _may_round(schema: TopicSchema) -> bool:
    """Whether a column may be a FLOAT, also within others."""
    return any("float" in str(field.type) for field in schema.columns)


class RowSending:
    """Knows the schemas of the topics that a producer has sent rows to.

    It gets them by calling `required`, which is TopicSchemas.required or does the same.
    """

    def __init__(self, required: Callable[[str, str], TopicSchema]) -> None:
        self._required = required
        self._latest: dict[str, TopicSchema] = {}

    def schema(self, topic: str) -> TopicSchema:
        """The topic's schema as it was when it was first asked for. Raises NoSchema."""
        return self._latest.get(topic) or self._look(topic)

    def taking(self, topic: str, message_bytes_max: int) -> TakeRow:
        """What takes single rows for the topic.

        It also imports what Arrow needs for rows: when the interpreter ends, that is too late.
        Raises what `schema` raises.
        """
        self._table(topic, [], fit)
        bytes_max = message_bytes_max - OVERHEAD_BYTES
        rows = SingleRows(self.schema(topic), bytes_max)

        def take(row: Any) -> Taken:
            nonlocal rows
            try:
                return rows.take(row)
            except IllegalRow as error:
                latest = self._look(topic)  # somebody may have added a column meanwhile
                if latest.version == rows.schema.version:
                    raise IllegalRow(str(error).removeprefix("row 0, ").removeprefix("row 0: "), 0) from None
            rows = SingleRows(latest, bytes_max)
            return take(row)

        return take

    def _look(self, topic: str) -> TopicSchema:
        latest = self._latest[topic] = self._required(topic, "send values by `send`")
        return latest

    def _table(self, topic: str, rows: R, made: Callable[[R, TopicSchema], pa.Table]) -> tuple[pa.Table, TopicSchema]:
        """What is made of the rows, and of the topic's schema as it is known, or as it is now."""
        schema = self.schema(topic)
        if _may_round(schema):  # a newer schema may have wider columns, and rounding is no error
            schema = self._look(topic)
        try:
            return made(rows, schema), schema
        except IllegalRow:
            latest = self._look(topic)  # somebody may have added a column meanwhile
            if latest.version == schema.version:
                raise
            return made(rows, latest), latest

    def messages(
        self, topic: str, rows: Any, how: RowOptions, message_bytes_max: int
    ) -> Iterator[tuple[int, bytes, dict[str, str], bool]]:
        """The rows as messages: number of rows, value, headers, and whether it is the last.

        Raises IllegalRow and NoSchema before the first one.
        """
        self.schema(topic)  # first: some of what has rows can be read only once
        return _messages(*self._table(topic, read_rows(rows), fit), how, message_bytes_max)

    def messages_of_taken(
        self, topic: str, rows: Sequence[Taken], how: RowOptions, message_bytes_max: int
    ) -> Iterator[tuple[int, bytes, dict[str, str], bool]]:
        """What `messages` gives, of rows that `taking` has taken."""
        return _messages(*self._table(topic, rows, table_of), how, message_bytes_max)


def _messages(
    table: pa.Table, schema: TopicSchema, how: RowOptions, message_bytes_max: int
) -> Iterator[tuple[int, bytes, dict[str, str], bool]]:
    own = {CONTENT_TYPE_HEADER: CONTENT_TYPE, SCHEMA_HEADER: str(schema.version)}
    if how.compression is not None:
        own[COMPRESSION_HEADER] = how.compression
    limit = max(min(how.max_bytes, message_bytes_max - OVERHEAD_BYTES), 1)
    left = table.num_rows
    for count, value in messages(table, how.max_rows, limit, how.compression):
        left -= count
        yield count, value, {**(how.headers or {}), **own, ROWS_HEADER: str(count)}, not left
