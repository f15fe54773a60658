"""The part of a producer that sends rows to typed topics. PyArrow is imported when it is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from commitlog.appending.attachment import Attachment
from commitlog.appending.row_options import RowOptions
from commitlog.appending.row_writer import Messages, RowWriter
from commitlog.errors import named_while_loading
from commitlog.receipt import Level, Receipt

if TYPE_CHECKING:
    from commitlog.appending.row_sending import RowSending
    from commitlog.schemas.single_rows import Taken


class RowProducer:
    """The methods of a producer for typed topics."""

    __slots__ = ()

    if TYPE_CHECKING:
        message_bytes_max: int
        _attachment: Attachment
        _row_sending: RowSending | None

        def send(
            self,
            topic: str,
            value: bytes,
            key: str | None = None,
            headers: Mapping[str, str] | None = None,
            tags: str | None = None,
            wait: bool = True,
        ) -> Receipt: ...

        def flush(self, level: Level = "flushed", timeout: float | None = None) -> None: ...

        def _is_inside(self) -> bool: ...

    def send_rows(
        self,
        topic: str,
        rows: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: str | None = None,
        wait: bool = True,
        max_rows: int = 10_000,
        max_bytes: int = 1 << 20,
        compression: str | None = None,
    ) -> Receipt | None:
        """Appends rows to a typed topic, as messages of one Arrow record batch each.

        `rows` is an Arrow table or batch, a frame of pandas or Polars (anything with Arrow's
        PyCapsule interface), or a list of dictionaries, dataclasses, NamedTuples or pydantic
        models. A message has at most `max_rows` rows and about `max_bytes` bytes. `compression` is
        Arrow's: None, "lz4" or "zstd". The other arguments are those of `send`, for each message.

        Returns the receipt of the last message, which is flushed after all others; None if there
        are no rows. The messages are accepted one after the other. If one of them raises,
        `error.rows_sent` says how many rows are in the log; a MemoryError has this attribute, too.

        Raises what `send` does, MessageTooLarge for a single row that no message holds, and before
        anything is appended:
        - IllegalRow: a row does not fit the topic's schema; it names row and column
        - NoSchema: the topic has values, and no rows
        - IllegalArgument
        """
        how = RowOptions(key, headers, tags, wait, max_rows, max_bytes, compression)
        receipt: Receipt | None = None
        before = after = 0
        try:
            for count, value, own, is_last in self._sending().messages(topic, rows, how, self.message_bytes_max):
                after = before + count
                # the last one is flushed after all others
                receipt = self.send(topic, value, key=key, headers=own, tags=tags, wait=wait and is_last)
                before = after  # from the call on nothing takes memory, so no failure makes the count wrong
        except Exception as error:
            is_in_log = getattr(error, "receipt", None) is not None  # only its flush came too late
            error.rows_sent = after if is_in_log else before  # type: ignore[attr-defined]
            raise
        return receipt

    def rows(
        self, topic: str, *, linger_ms: float = 20, max_rows: int = 1000, compression: str | None = None
    ) -> RowWriter:
        """Collects single rows for a typed topic, and sends them in messages of at most `max_rows`.

            with producer.rows("orders") as rows:
                rows.append(id=1, price=9.5)

        A collected row is not accepted yet: see RowWriter. Raises NoSchema, TopicNotWritable,
        IllegalArgument.
        """
        how, sending = RowOptions(max_rows=max_rows, wait=False, compression=compression), self._sending()
        taking = sending.taking(topic, self.message_bytes_max)

        def messages_of(rows: Sequence[Taken]) -> Messages:
            for count, value, headers, _ in sending.messages_of_taken(topic, rows, how, self.message_bytes_max):
                yield count, partial(self.send, topic, value, headers=headers, wait=False)

        return RowWriter(
            taking, messages_of, lambda timeout: self.flush(timeout=timeout), linger_ms, max_rows, self._is_inside
        )

    def _sending(self) -> RowSending:
        found = self._row_sending
        if found is None:
            with named_while_loading("what sends rows"):
                from commitlog.appending.row_sending import RowSending
                from commitlog.schemas.topic_schemas import TopicSchemas

            found = RowSending(TopicSchemas(self._attachment.directory).required)
            self._row_sending = found  # type: ignore[misc]  # in the slots of Producer
        return found
