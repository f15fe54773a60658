"""Appends messages to a served store, from any machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from commitlog.appending.message_arguments import Values, as_bytes, check_keys
from commitlog.appending.program_end import close_at_end
from commitlog.appending.row_options import RowOptions
from commitlog.appending.row_sending import RowSending
from commitlog.appending.row_writer import Messages, RowWriter
from commitlog.disk.writable_topic import WritableTopic
from commitlog.errors import CommitLogError, IllegalArgument, MessageTooLarge, WaitTimeout, refuse_copy
from commitlog.planning.address import OF_PRODUCER, Address, Credentials, address_of
from commitlog.record.bodies import Bodies
from commitlog.record.properties import BytesKey, encode_properties
from commitlog.remote.append_stream import check_append, check_same
from commitlog.remote.flight_connection import Connection
from commitlog.remote.outbox import Outbox, Outgoing, RemoteLevel
from commitlog.remote.stream_threads import RESEND_SECONDS, Schemas, Sending
from commitlog.schemas.single_rows import Taken
from commitlog.schemas.topic_schemas import TopicSchema, no_schema
from commitlog.status import PutMessageStatus
from commitlog.system.forks import settle

_RECORD_BYTES = 128
"""What a record takes besides topic, value and properties, at most."""
_CLOSE_SECONDS = 2 * RESEND_SECONDS


class RemoteReceipt:
    """A message on its way to a served store, and how far it has come. `topic` is its topic.

    It differs from the Receipt of a local producer: when `send` returns, the message is not
    accepted yet, and the client does not know its partition and offset. The receipt stays valid
    after its producer is closed.
    """

    __slots__ = ("_number", "_outbox", "topic")

    def __init__(self, outbox: Outbox, topic: str, number: int) -> None:
        self._outbox, self.topic, self._number = outbox, topic, number

    def done(self, level: RemoteLevel = "flushed") -> bool:
        """Whether the server has said that the message has reached the level.

        Raises IllegalArgument.
        """
        return self._outbox.reached(level, self._number)

    def wait(self, level: RemoteLevel = "flushed", timeout: float | None = None) -> PutMessageStatus:
        """Waits until the message has reached the level, and returns PUT_OK.

        It waits at most `timeout` seconds; None waits as long as it takes.

        Raises:
        - WaitTimeout: the time is over. The message is still on its way.
        - DiskError (DiskFull, …): the server's disk refuses; the message stays in its log.
        - ReplicaNotAvailable: in a store with SYNC_MASTER a message counts as flushed when it is
          replicated, too, and too few replicas are there. The message stays in the store's log.
        - what has ended the sending: ServerUnavailable, StoreNotRunning, AccessDenied, … Then
          nobody knows whether the message is in the log.
        - IllegalArgument: there is no such level, or the timeout is not a time.
        """
        return self._outbox.wait(level, self._number, timeout)

    def add_callback(
        self,
        callback: Callable[[PutMessageStatus], object],
        level: RemoteLevel = "flushed",
        timeout: float | None = None,
    ) -> None:
        """Calls `callback(status)` when the message has reached the level.

        It is called once, from another thread. The status is PUT_OK, or FLUSH_DISK_TIMEOUT after
        `timeout` seconds (None: never), or that of the error that has ended the sending, mostly
        SERVICE_NOT_AVAILABLE. While the server's disk refuses, it goes on waiting. Thousands of
        callbacks may be outstanding; each costs a place in a queue.

        Raises IllegalArgument, NotEnoughThreads, and ForkedProducer in a forked child.
        """
        self._outbox.call_back(level, self._number, callback, timeout)

    def __await__(self) -> Generator[Any, None, PutMessageStatus]:
        """Returns and raises what `wait()` does, for asyncio; `asyncio.timeout` limits it."""
        return self.wait_async().__await__()

    def wait_async(self, level: RemoteLevel = "flushed") -> Coroutine[Any, Any, PutMessageStatus]:
        """Returns and raises what `wait(level)` does, for asyncio."""
        return self._outbox.wait_async(level, self._number)

    def __repr__(self) -> str:
        is_accepted, is_flushed = self._outbox.reached("accepted", self._number), self.done()
        return f"RemoteReceipt(topic={self.topic!r}, {is_accepted=}, {is_flushed=})"

    __reduce_ex__ = refuse_copy


class RemoteProducer:
    """Appends messages to a store of another machine, which `commitlog serve --writable` serves.

        url = "commitlog+tls://host:4433/orders-store"
        with commitlog.RemoteProducer(url, token_file="token") as producer:
            producer.send("orders", b"...", key="42").wait()

    `send` collects messages, and a thread sends them to the server, which appends them to one lane
    in the order in which they came. **A message is accepted when the server says so, not when
    `send` returns**: until then it is in this process's memory, and a kill of the process loses it.
    `close`, the end of a with-block, and the end of the program flush everything.

    **At least once.** If the connection breaks, or server or store are started again, what is not
    known to be flushed is sent again: nothing is lost, and messages may be doubled. If that does
    not succeed within 60 s, receipts, `flush` and the next `send` raise the reason, and the
    producer can't be used any more.

    Threads may share a producer. A forked child makes its own, and can do so only if it was started
    by multiprocessing's method spawn or forkserver: gRPC does not survive a fork.

    `token` is a token of `commitlog token add`, `token_file` a file that has one. `ca_file` has the
    authorities that the server's certificate is checked with; `cert_file` and `key_file` are the
    client's own certificate. All are PEM.

    Raises:
    - IllegalArgument, OptionError: it is no URL of a store, or arguments contradict each other
    - ServerUnavailable, AccessDenied, CertificateRefused, ServerError
    - StoreNotFound, StoreNotRunning, NoFreeLane, and what `Producer` raises on the server's machine
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
    ) -> None:
        credentials = Credentials.of(token, token_file, ca_file, cert_file, key_file)
        address = address_of(url, credentials, OF_PRODUCER)
        if address is None:
            raise IllegalArgument(f"{url}: a remote producer takes the URL of a served store; see commitlog.Producer")
        self._open(address)

    @classmethod
    def at(cls, address: Address) -> Self:
        """One for an address that is known already. Private. Raises what making one raises."""
        made = cls.__new__(cls)
        made._open(address)  # noqa: SLF001
        return made

    def _open(self, address: Address) -> None:
        self._address, self._closed = address, True  # until it is made
        self._connection = Connection(address)
        try:
            check_append(self._connection, address)
            self._outbox = Outbox()
            self._schemas: Schemas = {}
            self._sending = Sending(self._connection, address, self._outbox, self._schemas)
        except BaseException:
            self._connection.close()
            raise
        self._topics: dict[str, WritableTopic] = {}
        self._rows = RowSending(self._required)
        self._ending = threading.RLock()  # lets in a signal handler
        self._closed = False
        close_at_end(self, RemoteProducer._leave_to_parent)

    @property
    def message_bytes_max(self) -> int:
        """Bytes of the largest record that the store takes."""
        return self._sending.message_bytes_max

    def send(
        self,
        topic: str,
        value: bytes,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: str | None = None,
    ) -> RemoteReceipt:
        """Collects one message. It waits while 32 MiB are on their way.

        The first message of a topic asks the server whether it may be sent there. In a store with
        SYNC_FLUSH, too, this does not wait for the flush.

        Raises, and the message is not sent:
        - IllegalMessage, IllegalProperty, MessageTooLarge, PropertiesTooLarge
        - TopicNotWritable: IllegalTopic, or ValuesRefused where the topic has a schema, and no
          headers say that the value has its rows
        - AccessDenied: the token is not for this topic; ServerUnavailable
        - NoBufferAvailable: nothing became flushed for a minute
        - what has ended the sending, ProducerClosed, ForkedProducer
        - ConcurrentUse: in a signal handler or finalizer inside a call of this producer
        """
        return self._collect(topic, [as_bytes(value)], [key], headers, tags)

    def send_batch(
        self,
        topic: str,
        values: Values,
        *,
        key: str | None = None,
        keys: Sequence[str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        tags: str | None = None,
    ) -> RemoteReceipt:
        """Collects a message for each value, and returns the receipt of the last one.

        The arguments are those of `Producer.send_batch`. The messages keep their order. Other than
        there, the server may accept some of them and not the others. Raises what `send` does; where
        it waits for room, the messages before may be on their way.
        """
        bodies = Bodies.of(values)
        if keys is not None:
            check_keys(keys, key, bodies.count)
        own = [key] * bodies.count if keys is None else keys
        return self._collect(topic, bodies.items(0, bodies.count), own, headers, tags)

    def send_rows(
        self,
        topic: str,
        rows: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: str | None = None,
        max_rows: int = 10_000,
        max_bytes: int = 1 << 20,
        compression: str | None = None,
    ) -> RemoteReceipt | None:
        """Collects rows of a typed topic; the arguments are those of `Producer.send_rows`.

        Returns the receipt of the last message, which is flushed after all others; None for no
        rows. Raises what `send` does, with the number of rows that were collected before as
        `error.rows_sent`; and before anything is sent IllegalRow, NoSchema.
        """
        how = RowOptions(key, headers, tags, max_rows=max_rows, max_bytes=max_bytes, compression=compression)
        receipt: RemoteReceipt | None = None
        collected = 0
        try:
            for count, value, own, _ in self._rows.messages(topic, rows, how, self.message_bytes_max):
                receipt = self._collect(topic, [value], [key], own, tags)
                collected += count
        except CommitLogError as error:
            error.rows_sent = collected
            raise
        return receipt

    def rows(
        self, topic: str, *, linger_ms: float = 20, max_rows: int = 1000, compression: str | None = None
    ) -> RowWriter:
        """Collects single rows for a typed topic: see `Producer.rows`, and RowWriter.

        Raises NoSchema, TopicNotWritable, IllegalArgument, AccessDenied, ServerUnavailable.
        """
        how = RowOptions(max_rows=max_rows, compression=compression)
        taking = self._rows.taking(topic, self.message_bytes_max)

        def messages_of(rows: Sequence[Taken]) -> Messages:
            for count, value, headers, _ in self._rows.messages_of_taken(topic, rows, how, self.message_bytes_max):
                yield count, partial(self.send, topic, value, headers=headers)

        return RowWriter(taking, messages_of, self.flush, linger_ms, max_rows, self._outbox.is_inside)

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything sent so far is flushed. Raises what `RemoteReceipt.wait` does."""
        self._outbox.wait("flushed", self._outbox.last, timeout)

    def close(self) -> None:
        """Flushes everything and gives the lane back.

        Raises what makes that impossible, and WaitTimeout if it takes two minutes. What is not
        flushed is lost then, or is in the log. Raises ConcurrentUse inside a call of this producer;
        then nothing is done.
        """
        settle()
        if self._closed:
            return
        self._outbox.refuse_inside()
        with self._ending:
            self._outbox.close()
            has_ended = self._sending.wait(_CLOSE_SECONDS)
            self._closed = True
        if not has_ended:
            raise WaitTimeout(f"{self._address}: the server has not answered for {_CLOSE_SECONDS:g} s")
        self._connection.close()
        error = self._outbox.error
        if error is not None:
            raise error

    def _schema(self, topic: str) -> TopicSchema | None:
        """Asks whether a topic may be sent to, and for its newest schema if it is typed."""
        return check_append(self._connection, self._address, topic)

    def _versions(self, topic: str) -> range:
        """Asks for the versions of a topic's schema. The server knows which of them are deleted."""
        found = self._schema(topic)
        return range(1, 1 if found is None else found.version + 1)

    def _required(self, topic: str, instead: str) -> TopicSchema:
        found = self._schema(topic)
        if found is None:
            raise no_schema(str(self._address), topic, instead)
        check_same(self._address, self._schemas.setdefault((topic, found.version), found), found)
        return found

    def _collect(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[str | None],
        headers: Mapping[str, str] | None,
        tags: str | None,
    ) -> RemoteReceipt:
        """Checks all messages, and then collects them."""
        self._outbox.check()
        writable = self._topics.get(topic) if isinstance(topic, str) else None
        if writable is None:
            writable = self._topics[topic] = WritableTopic(topic, self._versions)
        writable.check(headers)
        headers = _checked_headers(headers)
        overhead = len(topic) + _RECORD_BYTES
        plain = len(encode_properties(None, tags, headers))
        messages, most = [], self.message_bytes_max
        for value, key in zip(values, keys, strict=True):
            own = plain if key is None else len(encode_properties(key, tags, headers))
            size = len(value) + own + overhead
            if size > most:
                raise MessageTooLarge(
                    f"MESSAGE_SIZE_EXCEEDED: a record of {size:,} bytes, this store takes {most:,}: split the value"
                )
            own_key = key.data if isinstance(key, BytesKey) else key
            messages.append((Outgoing(topic, value, own_key, tags, headers), size))
        return RemoteReceipt(self._outbox, topic, self._outbox.add(messages))

    __reduce_ex__ = refuse_copy

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _leave_to_parent(self) -> None:
        self._closed = True
        self._outbox.leave_to_parent()
        _OF_PARENT.append(self)

    def __repr__(self) -> str:
        return f"RemoteProducer({str(self._address)!r})"


def _checked_headers(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """A copy of the headers. Raises IllegalProperty."""
    if not headers:
        return None
    encode_properties(None, None, headers)
    return dict(headers)


_OF_PARENT: list[RemoteProducer] = []
"""Producers of the parent process: gRPC's objects must not be destroyed in a child."""
