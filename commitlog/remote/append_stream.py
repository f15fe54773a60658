"""A stream of rows to a served store: the server appends them to a lane that it leases for it."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pyarrow as pa

from commitlog.errors import CommitLogError, MessageTooLarge, SchemaConflict, ServerError
from commitlog.planning.address import Address
from commitlog.remote import requests
from commitlog.remote.flight_connection import Connection
from commitlog.remote.server_errors import from_bytes, translated
from commitlog.schemas.topic_schemas import TopicSchema

PIECE_BYTES = 8 << 20
"""About how large the batches are that are sent."""


class AppendStream:
    """An open stream. One thread may write, and another one read the answers.

    - `accepted`, `flushed`: how many rows of the stream are
    - `fault`: the error that keeps rows from being flushed, if there is one
    - `ended`: whether the server has ended it; `failure` says why

    If it is to be `patient`, a server that is away is waited for. Making one raises what `Producer`
    raises, ServerUnavailable, AccessDenied, CertificateRefused.
    """

    def __init__(
        self,
        connection: Connection,
        address: Address,
        request: requests.Append,
        schema: pa.Schema,
        *,
        patient: bool = False,
    ) -> None:
        self._address = address
        self._writer, self._reader, answer = connection.append(request, schema, patient=patient)
        try:
            self.opened = requests.Opened(**orjson.loads(answer))
        except (ValueError, TypeError) as error:
            raise self._unreadable(error) from None
        self.accepted = self.flushed = self._written = 0
        self.fault: CommitLogError | None = None
        self.ended = False
        self._failure: CommitLogError | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Sends a batch, in pieces if it is large. Raises what has ended the stream."""
        for piece in _pieces(batch):
            try:
                self._writer.write_batch(piece)
            except (pa.ArrowException, OSError):
                raise self.failure() from None
            self._written += piece.num_rows

    def read(self) -> bool:
        """Waits for an answer, and takes what it says. False: the server has ended the stream."""
        try:
            answer = self._reader.read()
        except (pa.ArrowException, OSError):
            answer = None
        if answer is None:
            self.ended = True
            return False
        try:
            told = requests.Appended(**orjson.loads(memoryview(answer)))
        except (ValueError, TypeError) as error:
            raise self._unreadable(error) from None
        self.accepted, self.flushed = max(told.accepted, self.accepted), max(told.flushed, self.flushed)
        self.fault = from_bytes(told.fault.encode()) if told.fault else None
        return True

    def append(self, batch: pa.RecordBatch) -> None:
        """Sends a batch, and waits until those before it are accepted. For one thread alone."""
        before = self._written
        self.write(batch)
        while self.accepted < before:
            if not self.read():
                raise self.failure()

    def finish(self) -> None:
        """Returns when all rows are flushed. For one thread alone. Raises what prevents that."""
        self.end()
        while self.read():
            pass
        failure = self.failure()
        if self.flushed < self._written:
            raise failure

    def end(self) -> None:
        """Tells the server that no more rows come. It flushes them all, and ends the stream."""
        try:
            self._writer.done_writing()
        except (pa.ArrowException, OSError):
            self.ended = True

    def close(self) -> None:
        """Ends the stream. What was sent stays in the log."""
        self.failure()

    def failure(self) -> CommitLogError:
        """Closes the stream, and returns what has ended it."""
        self.ended = True
        if self._failure is None:
            self._failure = ServerError(f"{self._address}: the server has ended the stream")
            try:
                self._writer.close()
            except (pa.ArrowException, OSError) as error:
                self._failure = translated(error, self._address)
        return self._failure

    def _unreadable(self, error: Exception) -> ServerError:
        return ServerError(f"{self._address}: its server's answer can't be read ({error}); is it of another version?")


def check_append(
    connection: Connection, address: Address, topic: str | None = None, version: int | None = None
) -> TopicSchema | None:
    """The newest schema of a topic, or a version, if it is typed and this client may append to it.

    Raises AccessDenied, StoreNotFound, and what calling a server raises.
    """
    answer = connection.ask("check_append", requests.CheckAppend(address.store, topic, version))
    if answer is None or topic is None:
        return None
    try:
        number, columns = answer
        return TopicSchema(topic, int(number), requests.decode_schema(columns))
    except (TypeError, ValueError, OSError, pa.ArrowException) as error:
        raise ServerError(
            f"{address}: its server's schema can't be read ({error}); is it of another version?"
        ) from None


def check_same(address: Address, used: TopicSchema, found: TopicSchema | None) -> None:
    """Raises SchemaConflict where the store does not have a schema that rows were encoded with.

    Under the number of their version, readers would take them for rows of what was `found`.
    """
    if found is None or not found.columns.equals(used.columns):
        raise SchemaConflict(
            f"{address}: rows of topic {used.topic} were encoded with {used}, and the store has "
            f"{found or 'no such version any more'}: the topic was deleted, or the store restored from an older backup; make "
            f"a new producer"
        )


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts of about PIECE_BYTES. Raises MessageTooLarge for a row far above that."""
    if batch.nbytes <= PIECE_BYTES:
        yield batch
    elif batch.num_rows > 1:
        middle = batch.num_rows // 2
        yield from _pieces(batch.slice(0, middle))
        yield from _pieces(batch.slice(middle))
    elif batch.nbytes <= requests.BATCH_BYTES_MAX:
        yield batch
    else:
        raise MessageTooLarge(f"MESSAGE_SIZE_EXCEEDED: a row of {batch.nbytes:,} bytes: split its value")
