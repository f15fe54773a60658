"""Sends rows to a typed topic: each message has one Arrow record batch of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from commitlog.appending.row_options import RowOptions
from commitlog.disk.writable_topic import check_writable_name
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

if TYPE_CHECKING:
    import pyarrow as pa

OVERHEAD_BYTES = 4096
"""How many bytes a record takes besides its value, about."""
R = TypeVar("R")


def _may_round(schema: TopicSchema) -> bool:
    """Whether a column of the schema, or a column within it, may be a FLOAT."""
    return "float" in str([str(field.type) for field in schema.columns])


class RowTaking:
    """Takes the single rows of a topic, by the newest schema that one of them has needed.

    `take(row)` checks and copies a row, and raises IllegalRow.
    """

    def __init__(self, schema: TopicSchema, look: Callable[[], TopicSchema], bytes_max: int) -> None:
        self._look, self._bytes_max = look, bytes_max
        self.take: Callable[[Any], Taken]
        self._take_by(schema)

    def _take_by(self, schema: TopicSchema) -> None:
        self.take = SingleRows(schema, self._bytes_max, self._refused).take

    def _refused(self, row: Any, schema: TopicSchema, error: IllegalRow) -> Taken:
        latest = self._look()  # somebody may have added a column meanwhile
        if latest.version == schema.version:
            raise IllegalRow(str(error).removeprefix("row 0, ").removeprefix("row 0: "), 0) from None
        self._take_by(latest)
        return self.take(row)


class RowSending:
    """Makes messages of rows, and knows the schemas of the topics that a producer sends rows to.

    It gets a schema by `required`, which is TopicSchemas.required or does the same.
    """

    def __init__(self, required: Callable[[str, str], TopicSchema]) -> None:
        self._required = required
        self._latest: dict[str, TopicSchema] = {}

    def schema(self, topic: str) -> TopicSchema:
        """The topic's schema as it was at the first call. Raises NoSchema, TopicNotWritable."""
        check_writable_name(topic)
        return self._latest.get(topic) or self._look(topic)

    def taking(self, topic: str, message_bytes_max: int) -> RowTaking:
        """Returns what takes single rows for the topic.

        It also imports the modules that Arrow needs for rows, because at the interpreter's end no
        module can be imported. Raises what `schema` raises.
        """
        self._table(topic, [], fit)
        return RowTaking(self.schema(topic), partial(self._look, topic), message_bytes_max - OVERHEAD_BYTES)

    def _look(self, topic: str) -> TopicSchema:
        latest = self._latest[topic] = self._required(topic, "send values by `send`")
        return latest

    def _table(self, topic: str, rows: R, made: Callable[[R, TopicSchema], pa.Table]) -> tuple[pa.Table, TopicSchema]:
        """Calls `made` with the known schema and, if a row does not fit, with the newest one.

        With a FLOAT column the newest schema is used at once, because rounding is no error.
        """
        schema = self.schema(topic)
        if _may_round(schema):
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
        """Makes messages of rows: number of rows, value, headers, and whether it is the last.

        Raises IllegalRow and NoSchema before the first message.
        """
        self.schema(topic)  # first: some of what has rows can be read only once
        return _messages(*self._table(topic, read_rows(rows), fit), how, message_bytes_max)

    def messages_of_taken(
        self, topic: str, rows: Sequence[Taken], how: RowOptions, message_bytes_max: int
    ) -> Iterator[tuple[int, bytes, dict[str, str], bool]]:
        """Makes messages, as `messages` does, of rows that `taking` has taken."""
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
