"""Appends what clients send: a stream of theirs leases one lane, as a task of Spark's sink does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pyarrow as pa

from commitlog.appending.message_rows import MessageRows
from commitlog.client.producer import Producer
from commitlog.client.stream_producer import StreamProducer
from commitlog.disk.store_directory import StoreDirectory
from commitlog.disk.writable_topic import WritableTopic, check_writable_name
from commitlog.errors import (
    AccessDenied,
    CommitLogError,
    DiskError,
    IllegalArgument,
    ReplicaNotAvailable,
    ServerBusy,
    ServerError,
    StoreNotRunning,
)
from commitlog.receipt import Level, Receipt
from commitlog.remote import requests
from commitlog.remote.server_errors import to_bytes
from commitlog.schemas.row_batches import as_table
from commitlog.schemas.topic_schemas import TopicSchemas, no_schema
from commitlog.serving.access import Access
from commitlog.serving.flight_errors import client_error
from commitlog.serving.served_store import ServedStore

Tell = Callable[[object], None]
"""Sends the client an answer."""

METADATA_BYTES_MAX = 1 << 20
"""Metadata of a stream's columns, or of a batch."""
_REPLICAS_LOOK_SECONDS = 0.2

_COLUMNS = ("value", "key", "topic", "headers", "tags")


def check_append(store: ServedStore, access: Access, request: requests.CheckAppend) -> tuple[int, str] | None:
    """Raises AccessDenied, TopicNotWritable, StoreNotFound. Returns a typed topic's schema."""
    directory = StoreDirectory(store.path)
    directory.load()
    _check_topic(store, access, request.topic)
    if request.topic is None:
        return None
    schemas, version = TopicSchemas(directory), request.version
    found = schemas.latest(request.topic) if version is None else schemas.undeleted(request.topic, version)
    return None if found is None else (found.version, requests.encode_schema(found.columns))


def append_stream(
    store: ServedStore,
    access: Access,
    request: requests.Append,
    reader: Any,
    writer: Any,
    count: Callable[..., None],
    check_access: Callable[[], None],
) -> None:
    """Appends the batches of a stream, and flushes them all before it returns.

    Only one batch is in memory. The stream has its lane until it ends, or breaks off. `count` gets
    fields of ClientTraffic. `check_access` raises AccessDenied if the client may not go on. Raises
    that and what `Producer.send` does, and its error says in `rows_sent` how
    many rows are accepted; IllegalArgument for columns and batches that are none.
    """
    _check_topic(store, access, request.topic)
    _check_metadata(sum(len(name) + len(value) for name, value in (reader.schema.metadata or {}).items()))
    if request.rows:
        _check_typed(store, access, request, reader.schema)
    else:
        _check_columns(reader.schema, request.topic)
    answers = _Answers(writer)
    count(streams=1)
    try:
        with _leased(store) as producer:
            answers.tell(requests.Opened(producer.lane, producer.message_bytes_max))
            rows = (
                _TypedRows(producer, request.topic or "") if request.rows else _message_rows(producer, request, access)
            )
            with _Flushing(store, producer.level, answers.tell) as flushing:
                for batch in _batches(reader):
                    check_access()
                    before = rows.sent
                    try:
                        rows.append(batch)
                    finally:
                        count(rows_written=rows.sent - before, bytes_written=batch.nbytes if rows.sent > before else 0)
                    flushing.accepted(rows.sent, rows.receipt)
                producer.finish()
            answers.tell(requests.Appended(rows.sent, rows.sent))
    finally:
        count(streams=-1)


def _check_topic(store: ServedStore, access: Access, topic: str | None) -> None:
    """Raises AccessDenied, TopicNotWritable."""
    if topic is None:
        access.check_writes(())
        return
    check_writable_name(topic)
    access.check_writes((topic,))
    WritableTopic.of(StoreDirectory(store.path), topic)


def _message_rows(producer: Producer, request: requests.Append, access: Access) -> MessageRows:
    return MessageRows(producer, request.topic, tags=True, check=access.check_writes)


def _leased(store: ServedStore) -> StreamProducer:
    try:
        return StreamProducer(store.path)
    except StoreNotRunning as error:
        raise StoreNotRunning(
            f"{error}. The server appends through shared memory, so the stages must run on its machine"
        ) from None


def _check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Raises IllegalArgument for columns that are none of messages."""
    names = schema.names
    for field in schema:
        if field.name not in _COLUMNS or names.count(field.name) > 1:
            raise IllegalArgument(f"column {field.name!r}: messages have {', '.join(_COLUMNS)}, each once")
        if field.name == "headers" and not _is_headers(field.type):
            raise IllegalArgument(
                f"column headers is {field.type}; it must be list<struct<key: string, value: binary>>"
            )
        if field.name != "headers" and not _is_bytes(field.type):
            raise IllegalArgument(f"column {field.name} is {field.type}; it must be string or binary")
    missing = [name for name in ("value", "topic") if name not in names and (name == "value" or topic is None)]
    if missing:
        raise IllegalArgument(f"column {missing[0]} is missing; there are {', '.join(names) or 'no columns'}")


def _is_bytes(kind: pa.DataType) -> bool:
    is_one = pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary
    return any(check(kind) for check in is_one)


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    pair = kind.value_type
    return [field.name for field in pair] == ["key", "value"] and all(_is_bytes(field.type) for field in pair)


def _check_typed(store: ServedStore, access: Access, request: requests.Append, schema: pa.Schema) -> None:
    """Raises IllegalRow, NoSchema, IllegalArgument before a lane is leased."""
    if request.topic is None:
        raise IllegalArgument("rows are those of one topic: name it")
    schemas = TopicSchemas(StoreDirectory(store.path))
    latest = schemas.latest(request.topic)
    if latest is None:
        visible = [topic for topic in schemas.topics() if access.covers(topic)]
        raise no_schema(store.path, request.topic, "send messages", visible)
    if len(schema) > len(latest.columns):
        raise IllegalArgument(f"{len(schema):,} columns; topic {request.topic} has {len(latest.columns):,}")
    for field in schema:
        if _has_dictionary(field.type):  # a stream may add to it for ever, and Arrow keeps it all
            raise IllegalArgument(f"column {field.name} is {field.type}: send the values themselves")
    as_table(schema.empty_table(), latest)


def _check_metadata(size: int) -> None:
    """Raises IllegalArgument for metadata that takes much memory. The server has no use for any."""
    if size > METADATA_BYTES_MAX:
        raise IllegalArgument(f"metadata of {size:,} bytes; allowed are {METADATA_BYTES_MAX:,}: leave it out")


def _has_dictionary(kind: pa.DataType) -> bool:
    fields = (kind.field(number) for number in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(_has_dictionary(field.type) for field in fields)


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    """Gives the client's batches, each checked: a wrong offset in a batch could crash the server.

    If the client goes away, the batches end.
    """
    while True:
        try:
            chunk = reader.read_chunk()
            batch = chunk.data
            _check_metadata(0 if chunk.app_metadata is None else chunk.app_metadata.size)
            if batch is None:
                continue
            if batch.nbytes > requests.BATCH_BYTES_MAX:
                raise IllegalArgument(
                    f"a batch of {batch.nbytes:,} bytes; send smaller ones, of at most {requests.BATCH_BYTES_MAX:,}"
                )
            batch.validate(full=True)
        except StopIteration:
            return
        except MemoryError:
            raise ServerBusy(
                f"the server has no memory for a batch: send batches of at most {requests.BATCH_BYTES_MAX:,} bytes, or "
                "try again"
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise IllegalArgument(f"a batch of the stream can't be read: {str(error).splitlines()[0]}") from None
        yield batch


class _TypedRows:
    """Appends the rows of batches to a typed topic, with the attributes of MessageRows."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self.sent = 0
        self.receipt: Receipt | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        try:
            self.receipt = self._producer.send_rows(self._topic, batch) or self.receipt
        except CommitLogError as error:
            self.sent += error.rows_sent
            error.rows_sent = self.sent
            raise
        self.sent += batch.num_rows


class _Answers:
    """Writes answers to a client. Threads may share it."""

    def __init__(self, writer: Any) -> None:
        self._writer, self._lock = writer, threading.Lock()

    def tell(self, answer: object) -> None:
        """Raises ServerError if the client is gone."""
        with self._lock:
            try:
                self._writer.write(orjson.dumps(answer))
            except (pa.ArrowException, OSError) as error:
                raise ServerError(f"the client is gone: {error}") from None


class _Flushing:
    """Tells the client how far its stream is accepted, and flushed, as soon as it is.

    A thread of its own waits for the flusher: for all that is accepted then, and so again. So each
    stream asks for one flush at a time. In a store with SYNC_MASTER, what is not replicated does
    not count as flushed here.
    """

    def __init__(self, store: ServedStore, level: Level, tell: Tell) -> None:
        self._store, self._level, self._tell = store, level, tell
        self._changed = threading.Condition()
        self._accepted, self._flushed, self._ended = 0, 0, False
        self._receipt: Receipt | None = None
        self._thread = threading.Thread(target=self._run, name=f"flushes {store.name}", daemon=True)

    def accepted(self, rows: int, receipt: Receipt | None) -> None:
        """Says that so many rows of the stream are accepted; the receipt is that of the last."""
        with self._changed:
            self._accepted, self._receipt = rows, receipt
            self._changed.notify()
        self._tell(requests.Appended(rows, self._flushed))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._accepted > self._flushed)
                rows, receipt = self._accepted, self._receipt
                if self._ended or receipt is None:
                    return
            fault: CommitLogError | None = None
            try:
                receipt.wait(self._level)
                self._flushed = rows
            except CommitLogError as error:
                fault = client_error(error, [self._store])
            text = "" if fault is None else to_bytes(fault).decode()
            try:
                self._tell(requests.Appended(self._accepted, self._flushed, text))
            except ServerError:
                return  # the stream's own thread finds that out, too
            if isinstance(fault, ReplicaNotAvailable):
                with self._changed:
                    self._changed.wait_for(lambda: self._ended, _REPLICAS_LOOK_SECONDS)
            elif fault is not None and not isinstance(fault, DiskError):
                return  # the store has stopped

    def __enter__(self) -> _Flushing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()


def refuse_writing(store: ServedStore) -> AccessDenied:
    """The error of a server that only lets clients read."""
    return AccessDenied(f"{store.name} is served for reading; whoever runs the server can start it with --writable")
