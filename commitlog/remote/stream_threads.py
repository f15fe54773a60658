"""The threads of a RemoteProducer: one writes the stream, and another one reads its answers."""

from __future__ import annotations

import logging
import threading
from itertools import chain, repeat

import pyarrow as pa

from commitlog.errors import (
    AccessDenied,
    CertificateRefused,
    CommitLogError,
    DiskError,
    LaneDamaged,
    PoolUnlinked,
    ProducerError,
    ReplicaNotAvailable,
    ReplicationTimeout,
    ServerError,
    StoreNotRunning,
    StoreStopped,
)
from commitlog.planning.address import Address
from commitlog.remote import requests
from commitlog.remote.append_stream import AppendStream, check_append, check_same
from commitlog.remote.flight_connection import Connection
from commitlog.remote.outbox import SCHEMA, Outbox
from commitlog.schemas.topic_schemas import TopicSchema
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.system.threads import Background

RESEND_SECONDS = 60.0
"""How long messages of a broken stream may take until a new stream has made one more flushed."""
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)

Schemas = dict[tuple[str, int], TopicSchema]
"""Topic and version → the schema."""

log = logging.getLogger(__name__)


class Sending:
    """Sends what an outbox has. It opens a stream at once, and a new one after each that breaks.

    - `message_bytes_max`: bytes of the largest record

    `schemas` has the schemas that rows were encoded with. Each new stream checks them: while there
    was none, the topic may have been deleted, or the store restored from an older backup.

    Making one raises what AppendStream does.
    """

    def __init__(self, connection: Connection, address: Address, outbox: Outbox, schemas: Schemas) -> None:
        self._connection, self._address, self._outbox, self._schemas = connection, address, outbox, schemas
        pa.array([], SCHEMA.types[0])  # imports what Arrow needs: when the interpreter ends, that is too late
        stream = self._opened()
        self.message_bytes_max = stream.opened.message_bytes_max
        self._thread = Background(lambda: self._run(stream), "commitlog-sends")

    def wait(self, seconds: float) -> bool:
        """Waits for the end, which comes when the outbox is closed and empty, or has failed."""
        return self._thread.join(seconds)

    def _opened(self) -> AppendStream:
        stream = AppendStream(self._connection, self._address, requests.Append(self._address.store), SCHEMA)
        try:
            for used in list(self._schemas.values()):  # the stream has its lane: no topic is deleted from here on
                check_same(self._address, used, check_append(self._connection, self._address, used.topic, used.version))
        except BaseException:
            stream.close()
            raise
        return stream

    def _run(self, first: AppendStream) -> None:
        try:
            self._outbox.own_threads.add(threading.get_ident())
            self._send_all(first)
        except Exception:  # nobody may wait for a thread that is gone
            self._outbox.fail(ServerError(f"{self._address}: the thread that sends has failed; the log says how"))
            log.exception("%s: the thread that sends has failed", self._address)

    def _send_all(self, first: AppendStream) -> None:
        stream: AppendStream | None = first
        flushed, broken_ns = -1, 0
        while stream is not None:
            error = self._send(stream)
            if error is None:
                return
            log.info("%s: %s", self._address, error)
            if self._outbox.flushed > flushed:
                flushed, broken_ns = self._outbox.flushed, SYSTEM_CLOCK.monotonic_ns()
            stream = self._open_again(error, broken_ns + int(RESEND_SECONDS * 1e9))

    def _send(self, stream: AppendStream) -> CommitLogError | None:
        """Sends until the outbox is closed and empty, or until the stream breaks: returns why."""
        outbox, is_broken = self._outbox, threading.Event()
        base = outbox.send_again()
        listener = Background(lambda: self._listen(stream, base, is_broken), "commitlog-hears")
        while (batch := outbox.next_batch(is_broken)) is not None:
            try:
                stream.write(batch.to_arrow())
            except CommitLogError:
                break
        else:
            if not is_broken.is_set():
                stream.end()
        listener.join()
        error = stream.failure()
        return None if outbox.flushed >= outbox.last else error

    def _listen(self, stream: AppendStream, base: int, is_broken: threading.Event) -> None:
        outbox = self._outbox
        try:
            outbox.own_threads.add(threading.get_ident())
            while stream.read():
                fault = stream.fault
                is_over = fault is not None and not _may_heal(fault)
                outbox.told(base + stream.accepted, base + stream.flushed, None if is_over else fault)
                if is_over:
                    break
        except CommitLogError as error:
            log.warning("%s", error)
        except MemoryError:
            log.warning("%s: no memory for an answer of the server", self._address)
        finally:  # without its answers a stream is of no use: another one sends again
            outbox.own_threads.discard(threading.get_ident())  # another thread may get this number
            is_broken.set()
            outbox.wake()

    def _open_again(self, error: CommitLogError, deadline: int) -> AppendStream | None:
        """A new stream, or None if that is impossible: then the outbox has failed."""
        if isinstance(error, ReplicaNotAvailable | ReplicationTimeout):
            self._outbox.fail(error)  # the messages stay in the log, so they are not sent again
            return None
        for pause in chain(_PAUSES, repeat(_PAUSES[-1])):
            if not _may_pass(error) or SYSTEM_CLOCK.monotonic_ns() >= deadline:
                left = self._outbox.last - self._outbox.flushed
                error.args = (
                    f"{error}. {left:,} messages are not known to be flushed: send them again, some may double",
                )
                self._outbox.fail(error)
                return None
            SYSTEM_CLOCK.sleep(pause)
            try:
                return self._opened()
            except CommitLogError as found:
                error = found
        return None


def _may_heal(fault: CommitLogError) -> bool:
    """Whether the stream's rows may still become flushed where they are."""
    return isinstance(fault, DiskError | ReplicaNotAvailable) and not isinstance(fault, LaneDamaged | PoolUnlinked)


def _may_pass(error: CommitLogError) -> bool:
    """Whether a new stream may succeed after a while."""
    if isinstance(error, AccessDenied | CertificateRefused):
        return False
    return isinstance(error, ServerError | StoreNotRunning | StoreStopped | ProducerError | DiskError)
