"""Appends messages to a lane at memory speed: no lock, no system call, no round trip.

A producer leases a lane and is the only writer of its log, so it knows queue offset, physical offset and message id at
append. It encodes a record in its final bytes, copies it into the lane's write buffer, and publishes it by storing
`wrote`. RocketMQ's DefaultAppendMessageCallback, with the lane in place of the put-message lock.

**Interrupts.** KeyboardInterrupt can hit between any two steps of `send`. `_busy` is set first and cleared last; a call
that finds it set re-reads `wrote` and learns what was published from the buffer itself (`_rebuild`).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from commitlog.attachment import Attachment
from commitlog.batch import batch_size, encode_batch
from commitlog.bodies import Bodies
from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.errors import (
    ConcurrentUse,
    ForkedProducer,
    MessageTooLarge,
    NoBufferAvailable,
    ProducerClosed,
    WaitTimeout,
)
from commitlog.lane import Lease
from commitlog.properties import check_topic, encode_properties
from commitlog.receipt import BatchReceipt, Level, Receipt
from commitlog.record import BLANK_BYTES, MAGIC_BLANK, Host, RecordEncoder, decode, encode_blank
from commitlog.status import PutMessageStatus
from shm.layout import Lane
from shm.pool import slot_is_free

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
STORE_ADDRESS = "127.0.0.1"
STORE_PORT = 10911

_SPIN_NS = 200_000
_NOTICE_WAIT_MS = 5
_FAULT_PATIENCE_NS = 300_000_000


class _Topic:
    """What a producer keeps of a topic it has sent to."""

    __slots__ = ("encoded", "name", "next_offset")

    def __init__(self, name: str, encoded: bytes, next_offset: int) -> None:
        self.name, self.encoded, self.next_offset = name, encoded, next_offset


class _Guard:
    """Stands in for the lock of a producer that can't be used any more: raises the error it was made with."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def acquire(self, blocking: bool = True) -> bool:
        raise self._error

    def release(self) -> None:
        """Never reached: acquire raises."""


class Producer:
    """Leases a lane of a running store and appends to it. For one thread at a time.

    Attributes: `lane`, its number; `store_host`, the host in its message ids; `message_bytes_max`, the largest record.
    Raises StoreNotFound, StoreNotRunning, NoFreeLane, NotEnoughSharedMemory.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._attachment = attachment = Attachment(path, clock)
        try:
            self._lease: Lease = attachment.lease()
        except BaseException:
            attachment.close()
            raise
        lease, config = self._lease, attachment.config
        assert lease.buffers is not None
        self.lane = lease.lane
        self.store_host = Host.of(STORE_ADDRESS, STORE_PORT + lease.lane)
        self._config = config
        self._clock = clock
        self._words, self._base = lease.words, lease.base
        self._buffers = lease.buffers
        self._segment_bytes = lease.buffers.segment_size
        self.message_bytes_max = min(MESSAGE_BYTES_MAX, self._segment_bytes // 4)
        self._encode = RecordEncoder(lease.lane, Host.of(STORE_ADDRESS, 0), self.store_host, config.store.record_crc)
        end = lease.log_end()
        self._timestamp = end.store_timestamp
        self._topics: dict[str, _Topic] = {}
        self._known_offsets = end.queue_offsets
        self._wrote_at = self._base + Lane.WROTE
        self._messages_at = self._base + Lane.MESSAGES
        self._sleep_at = attachment.sleep_at
        self._seen = 0
        self._wrote = self._words[self._wrote_at]
        self._segment = -1
        self._slot = self._buffers.slot(0)
        self._segment_start = self._limit = 0  # nothing may be written before a slot is known to be free
        self._sync = config.store.flush_disk_type == "SYNC_FLUSH"
        self._guard: Any = threading.RLock()
        self._busy = False
        _PRODUCERS.add(self)

    # ---- append --------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        key: str | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        wait: bool = True,
        flag: int = 0,
        born_timestamp: int | None = None,
    ) -> Receipt:
        """Appends one message and returns when it is *accepted*: it survives the kill of any process.

        `key` and `tags` become RocketMQ's KEYS and TAGS, `properties` are the user's own; `wait=False` keeps a store
        with SYNC_FLUSH from waiting for this message; `flag` and `born_timestamp` (ms) go into the record as they are.
        Raises IllegalTopic, IllegalProperty, MessageTooLarge, PropertiesTooLarge, NoBufferAvailable (back-pressure),
        StoreStopped, ProducerClosed, ForkedProducer, ConcurrentUse: nothing was appended then.
        """
        if not self._guard.acquire(False):
            raise ConcurrentUse(f"lane {self.lane}: another thread is inside this producer; give each thread its own")
        try:
            if self._busy:
                self._rebuild()
            self._busy = True
            state = self._topics.get(topic) or self._open_topic(topic)
            if type(body) is not bytes:
                body = _as_bytes(body)
            if key is None and tags is None and properties is None and wait:
                encoded = b""
            else:
                encoded = encode_properties(key, tags, properties, wait)
            where = self._wrote
            encode = self._encode
            size = encode.size(state.encoded, body, encoded)
            if size > self.message_bytes_max:
                raise self._too_large(size)
            end = where + size
            if end > self._limit:
                where = self._make_room(size)
                end = where + size
            now = time.time_ns() // 1_000_000
            if now < self._timestamp:
                now = self._timestamp
            offset = state.next_offset
            start = self._segment_start
            self._slot[where - start : end - start] = encode.encode(
                state.encoded,
                body,
                encoded,
                offset,
                where,
                now if born_timestamp is None else born_timestamp,
                now,
                flag,
            )
            words = self._words
            words[self._wrote_at] = end  # publishes the record: accepted
            state.next_offset = offset + 1
            self._wrote = end
            self._timestamp = now
            words[self._messages_at] += 1
            self._busy = False
        finally:
            self._guard.release()
        if words[self._sleep_at] != self._seen:
            self._attend()
        receipt = Receipt(self, topic, offset, where, end)
        if self._sync and wait:
            self.wait_for("flushed", end, None)
        return receipt

    def send_batch(
        self,
        topic: str,
        bodies: Bodies | Sequence[bytes] | Any,
        key: str | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        wait: bool = True,
    ) -> BatchReceipt:
        """Appends a message for each body, all or none: consecutive queue offsets, one store timestamp, one segment.

        `bodies`: bytes objects, a 2-D numpy array of uint8 (a body a row), or a pyarrow binary array. Key, tags and
        properties are those of every message. Raises what `send` does; MessageTooLarge also for a batch that
        no segment holds.
        """
        if not self._guard.acquire(False):
            raise ConcurrentUse(f"lane {self.lane}: another thread is inside this producer; give each thread its own")
        try:
            if self._busy:
                self._rebuild()
            self._busy = True
            made = Bodies.of(bodies)
            state = self._topics.get(topic) or self._open_topic(topic)
            encoded = encode_properties(key, tags, properties, wait)
            size = batch_size(self._encode, state.encoded, made, encoded)
            largest = self._encode.size(state.encoded, b"", encoded) + (made.largest if made.count else 0)
            if largest > self.message_bytes_max:
                raise self._too_large(largest)
            if size > self._segment_bytes - BLANK_BYTES:
                raise MessageTooLarge(
                    f"MESSAGE_SIZE_EXCEEDED: a batch of {size:,} bytes, a segment of this store has {self._segment_bytes:,}: "
                    f"send smaller batches"
                )
            where = self._wrote if self._wrote + size <= self._limit else self._make_room(size)
            now = max(time.time_ns() // 1_000_000, self._timestamp)
            offset, start = state.next_offset, self._segment_start
            out = self._slot[where - start : where - start + size]
            places = encode_batch(self._encode, state.encoded, made, encoded, offset, where, now, now, out)
            end = where + size
            self._words[self._wrote_at] = end  # publishes them all
            state.next_offset = offset + made.count
            self._wrote, self._timestamp = end, now
            self._words[self._messages_at] += made.count
            self._busy = False
        finally:
            self._guard.release()
        if self._words[self._sleep_at] != self._seen:
            self._attend()
        receipt = BatchReceipt(self, topic, offset, where, end, places)
        if self._sync and wait:
            self.wait_for("flushed", end, None)
        return receipt

    def _too_large(self, size: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"MESSAGE_SIZE_EXCEEDED: a record of {size:,} bytes, this store takes {self.message_bytes_max:,}: split the body"
            f", or make a store with a larger store.segment_bytes"
        )

    def _open_topic(self, topic: str) -> _Topic:
        encoded = check_topic(topic)
        next_offset = self._known_offsets.pop(topic, None)
        if next_offset is None:
            next_offset = self._lease.queue_end(topic, self._config.dispatcher.queue_file_entries)
        state = self._topics[topic] = _Topic(topic, encoded, next_offset)
        return state

    def _make_room(self, size: int) -> int:
        """Rolls into the next segment where the record does not fit, and waits for its buffer. Returns where to."""
        words, segment_bytes = self._words, self._segment_bytes
        while True:
            where = self._wrote
            segment = where // segment_bytes
            if segment != self._segment:
                self._await_buffer(segment)
                self._slot = self._buffers.slot(segment)
                self._segment_start = segment * segment_bytes
                self._segment, self._limit = segment, self._segment_start + segment_bytes - BLANK_BYTES
                self._attachment.wake("allocator")
            segment_end = self._segment_start + segment_bytes
            if where + size <= self._limit:
                return where
            position = where - self._segment_start
            self._slot[position : position + BLANK_BYTES] = encode_blank(segment_end - where)
            words[self._base + Lane.DATA_END + segment % self._buffers.slots] = where + BLANK_BYTES
            words[self._wrote_at] = segment_end
            self._wrote = segment_end

    def _await_buffer(self, segment: int) -> None:
        """Back-pressure: waits until the slot of a segment is flushed. Raises NoBufferAvailable, DiskFull, …"""
        words, base, clock = self._words, self._base, self._clock
        self._attachment.check_open()
        if slot_is_free(segment, words[base + Lane.FLUSHED], self._segment_bytes, self._buffers.slots):
            return
        began = clock.monotonic_ns()
        limit_ms = self._config.producer.buffer_wait_ms
        words[base + Lane.BUFFER_WAITS] += 1
        words[base + Lane.BLOCKED] = began
        try:
            while not slot_is_free(segment, words[base + Lane.FLUSHED], self._segment_bytes, self._buffers.slots):
                waited = clock.monotonic_ns() - began
                if waited > _FAULT_PATIENCE_NS:
                    self._attachment.raise_fault(base)
                if waited >= limit_ms * 1_000_000:
                    words[base + Lane.BUFFER_TIMEOUTS] += 1
                    self._attachment.check_open()
                    raise NoBufferAvailable(
                        f"lane {self.lane}: no write buffer came free in {limit_ms} ms, the disk does not keep up; the "
                        f"message was not accepted: send it again later, or raise producer.buffer_wait_ms"
                    )
                self._attachment.wake("committer")
                self._attachment.await_notice(_NOTICE_WAIT_MS)
        finally:
            words[base + Lane.BLOCKED] = 0
            words[base + Lane.BUFFER_WAIT_NS] += clock.monotonic_ns() - began

    def _rebuild(self) -> None:
        """After an interrupted or failed call: what was published is in the log, and nothing else is."""
        words, published = self._words, self._words[self._wrote_at]
        where = self._wrote
        while where < published:
            start = where - where % self._segment_bytes
            slot = self._buffers.slot(start // self._segment_bytes)
            position = where - start
            if int.from_bytes(slot[position + 4 : position + 8], "big") == MAGIC_BLANK:
                where = start + self._segment_bytes
                continue
            record = decode(slot, position)
            state = self._topics.get(record.topic) or self._open_topic(record.topic)
            state.next_offset = record.queue_offset + 1
            self._timestamp = max(self._timestamp, record.store_timestamp)
            where += record.total_size
        self._wrote = published
        if words[self._base + Lane.BLOCKED]:
            words[self._base + Lane.BLOCKED] = 0
        self._busy = False

    # ---- acknowledgements ----------------------------------------------------------------------------------------

    def reached(self, level: Level, where: int) -> bool:
        """Whether everything below `where` (bytes of the lane's log) has reached the level."""
        return self._words[self._base + _WORD_OF[level]] >= where

    def status_of(self, where: int) -> PutMessageStatus:
        """PUT_OK when `where` has reached the store's own level, else FLUSH_DISK_TIMEOUT."""
        level: Level = "flushed" if self._sync else "accepted"
        return PutMessageStatus.PUT_OK if self.reached(level, where) else PutMessageStatus.FLUSH_DISK_TIMEOUT

    def wait_for(self, level: Level, where: int, timeout: float | None) -> PutMessageStatus:
        """See Receipt.wait. Any thread may wait."""
        words, at = self._words, self._base + _WORD_OF[level]
        if words[at] >= where:
            return PutMessageStatus.PUT_OK
        clock, attachment = self._clock, self._attachment
        limit = self._config.producer.sync_flush_timeout_ms / 1000 if timeout is None else timeout
        began = clock.monotonic_ns()
        deadline = began + int(limit * 1e9)
        requested_at = self._base + Lane.FLUSH_REQUESTED
        if words[requested_at] < where:
            words[requested_at] = where
            attachment.ring("committer")
            attachment.ring("flusher")
        while words[at] < where:
            now = clock.monotonic_ns()
            if now - began < _SPIN_NS:
                continue
            if now >= deadline:
                return PutMessageStatus.FLUSH_DISK_TIMEOUT
            if now - began > _FAULT_PATIENCE_NS:
                attachment.raise_fault(self._base)
                attachment.check_stages()
            attachment.await_notice(_NOTICE_WAIT_MS)
        return PutMessageStatus.PUT_OK

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything sent so far is flushed. Raises WaitTimeout after `timeout` seconds (default: none),
        and what `Receipt.wait` raises; whatever it raises, the messages stay in the log."""
        where = self._words[self._wrote_at]
        limit = 86_400.0 * 365 if timeout is None else timeout
        if self.wait_for("flushed", where, limit) is not PutMessageStatus.PUT_OK:
            left = where - self._words[self._base + Lane.FLUSHED]
            raise WaitTimeout(f"lane {self.lane}: {left} bytes are not flushed after {timeout} s; they stay in the log")

    def _attend(self) -> None:
        """The committer went to sleep, or the store is closing: rings, or makes the next send find out."""
        self._seen = self._words[self._sleep_at]
        self._attachment.wake("committer")
        if self._attachment.closing:
            self._limit, self._segment = 0, -1

    # ---- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Gives the lane back. What was sent is drained by the stages; `flush` before waits for it."""
        if self not in _PRODUCERS:
            return
        _PRODUCERS.discard(self)
        self._guard = _Guard(ProducerClosed(f"lane {self.lane}: this producer was closed"))
        self._lease.release()
        self._attachment.close_sockets()

    def _die_after_fork(self) -> None:
        self._guard = _Guard(
            ForkedProducer(f"lane {self.lane}: this producer belongs to the parent process; make one in the child")
        )
        self._lease.abandon_after_fork()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Producer({str(self._attachment.directory.path)!r}, lane={self.lane})"


_WORD_OF: dict[Level, int] = {"accepted": Lane.WROTE, "committed": Lane.COMMITTED, "flushed": Lane.FLUSHED}
_PRODUCERS: weakref.WeakSet[Producer] = weakref.WeakSet()


def _forget_in_child() -> None:
    for producer in list(_PRODUCERS):
        producer._die_after_fork()
    _PRODUCERS.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _as_bytes(body: Any) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    hint = (
        "body.encode()" if isinstance(body, str) else "orjson.dumps(body)" if isinstance(body, dict | list) else "bytes"
    )
    raise TypeError(f"a body is bytes, not {type(body).__name__}: send {hint}")
