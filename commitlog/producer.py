"""Appends messages to a lane at memory speed: no lock, no system call, no round trip.

A producer leases a lane and is the only writer of its log, so it knows queue offset, physical offset and message id at
append. It encodes a record in its final bytes, copies it into the lane's write buffer, and publishes it by storing
`wrote`. RocketMQ's DefaultAppendMessageCallback, with the lane in place of the put-message lock.

**Interrupts.** KeyboardInterrupt can hit between any two steps of `send`. `_busy` is set first and cleared last; a call
that finds it set re-reads `wrote` and learns what was published from the buffer itself (`_rebuild`).

**Threads.** A call that finds another thread inside raises ConcurrentUse before it has stored anything.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from types import TracebackType
from typing import Any

from commitlog.attachment import Attachment
from commitlog.batch import batch_size, encode_batch
from commitlog.bodies import Bodies
from commitlog.bound_encoder import BoundEncoder, bind
from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.direct_segment import DirectSegment
from commitlog.errors import (
    AllocateTimeout,
    ConcurrentUse,
    ForkedProducer,
    MessageTooLarge,
    NoBufferAvailable,
    ProducerClosed,
)
from commitlog.lane import FAULT_PATIENCE_NS, Lease
from commitlog.progress import NOTICE_WAIT_MS, LaneProgress
from commitlog.properties import check_topic, encode_properties
from commitlog.receipt import BatchReceipt, Receipt
from commitlog.record import BLANK_BYTES, MAGIC_BLANK, Host, RecordEncoder, decode, encode_blank
from commitlog.statistics import LaneStatistics, lane_statistics
from shm.layout import DIRECT_WINDOW, Lane
from shm.pool import is_direct, slot_is_free

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
STORE_ADDRESS = "127.0.0.1"
STORE_PORT = 10911


class _Topic:
    """What a producer keeps of a topic it has sent to. `encode` and `overhead` are for messages without properties."""

    __slots__ = ("encode", "encoded", "next_offset", "overhead")

    def __init__(self, encoded: bytes, next_offset: int, encode: BoundEncoder, overhead: int) -> None:
        self.encoded, self.next_offset, self.encode, self.overhead = encoded, next_offset, encode, overhead


class _Gone:
    """Stands in for the lock of a producer that can't be used any more: raises the error it was made with."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def acquire(self, blocking: bool = True) -> bool:
        raise self._error

    def release(self) -> None:
        """Never reached: `acquire` raises."""


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
        try:
            end = self._lease.log_end()
        except BaseException:
            self._lease.release()
            attachment.close()
            raise
        lease, config = self._lease, attachment.config
        self.lane = lease.lane
        self.store_host = Host.of(STORE_ADDRESS, STORE_PORT + lease.lane)
        self._config, self._clock = config, clock
        self._words, self._base = lease.words, lease.base
        self._progress = LaneProgress(attachment, lease.lane, lease.base, self.store_host, clock)
        self._buffers = lease.buffers
        self._segment_bytes = lease.words[lease.base + Lane.SEGMENT_SIZE]
        self.message_bytes_max = min(MESSAGE_BYTES_MAX, self._segment_bytes // 4)
        self._encoder = RecordEncoder(lease.lane, Host.of(STORE_ADDRESS, 0), self.store_host, config.store.record_crc)
        self._timestamp = end.store_timestamp
        self._topics: dict[str, _Topic] = {}
        self._known_offsets = end.queue_offsets
        self._wrote_at, self._messages_at = self._base + Lane.WROTE, self._base + Lane.MESSAGES
        self._sleep_at, self._seen = attachment.sleep_at, 0
        self._wrote = self._words[self._wrote_at]
        self._segment = -1
        self._slot: memoryview | DirectSegment = memoryview(b"")
        self._segment_start = self._limit = 0  # nothing may be written before a slot is known to be free
        self._sync = self._progress.sync
        self._messages = self._words[self._messages_at]
        self._busy = self._closed = False
        self._guard: threading.RLock | _Gone = threading.RLock()
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
        guard = self._guard
        if not guard.acquire(False):
            raise self._concurrent_use()
        try:
            if self._busy:
                self._rebuild()
            self._busy = True
            state = self._topics.get(topic) or self._open_topic(topic)
            if type(body) is not bytes:
                body = _as_bytes(body)
            if key is None and tags is None and properties is None and wait and not flag:
                encode, size = state.encode, state.overhead + len(body)
            else:
                encoded = encode_properties(key, tags, properties, wait, append_crc=self._encoder.append_crc)
                encode, size = self._bind(state, body, encoded, flag)
            if size > self.message_bytes_max:
                raise self._too_large(size)
            where = self._wrote
            end = where + size
            if end > self._limit:
                where = self._make_room(size)
                end = where + size
            now = time_ns() // 1_000_000
            if now < self._timestamp:
                now = self._timestamp
            offset, start, words = state.next_offset, self._segment_start, self._words
            self._slot[where - start : end - start] = encode(
                body, offset, where, now if born_timestamp is None else born_timestamp, now
            )
            words[self._wrote_at] = end  # publishes the record: accepted
            state.next_offset = offset + 1
            self._wrote = end
            self._timestamp = now
            self._messages += 1
            words[self._messages_at] = self._messages
            self._busy = False
        finally:
            guard.release()
        if words[self._sleep_at] != self._seen:
            self._attend()
        receipt = Receipt(self._progress, topic, offset, where, end)
        if self._sync and wait:
            self._progress.wait_put(end)
        return receipt

    def _bind(self, state: _Topic, body: bytes, properties: bytes, flag: int) -> tuple[BoundEncoder, int]:
        """The encoder of a message with properties, and its record's size."""
        encoder, topic = self._encoder, state.encoded

        def encode(body: bytes, queue_offset: int, physical_offset: int, born: int, stored: int) -> bytes:
            return encoder.encode(topic, body, properties, queue_offset, physical_offset, born, stored, flag)

        return encode, encoder.size(topic, body, properties)

    def _concurrent_use(self) -> ConcurrentUse:
        return ConcurrentUse(f"lane {self.lane}: another thread is inside this producer; give each thread its own")

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
            raise self._concurrent_use()
        try:
            if self._busy:
                self._rebuild()
            self._busy = True
            made = Bodies.of(bodies)
            state = self._topics.get(topic) or self._open_topic(topic)
            encoded = encode_properties(key, tags, properties, wait, append_crc=self._encoder.append_crc)
            size = self._batch_size(state.encoded, made, encoded)
            where = self._wrote if self._wrote + size <= self._limit else self._make_room(size)
            now = max(time_ns() // 1_000_000, self._timestamp)
            offset, start = state.next_offset, self._segment_start
            slot, place = self._slot, slice(where - start, where - start + size)
            out = slot[place] if isinstance(slot, memoryview) else memoryview(bytearray(size))
            places = encode_batch(self._encoder, state.encoded, made, encoded, offset, where, now, now, out)
            if isinstance(slot, DirectSegment):
                slot[place] = out
            end = where + size
            self._words[self._wrote_at] = end  # publishes them all
            state.next_offset = offset + made.count
            self._wrote, self._timestamp = end, now
            self._messages += made.count
            self._words[self._messages_at] = self._messages
            self._busy = False
        finally:
            self._guard.release()
        if self._words[self._sleep_at] != self._seen:
            self._attend()
        receipt = BatchReceipt(self._progress, topic, offset, where, end, places)
        if self._sync and wait:
            self._progress.wait_put(end)
        return receipt

    def _batch_size(self, topic: bytes, bodies: Bodies, properties: bytes) -> int:
        """Bytes of a batch. Raises MessageTooLarge for one that no segment holds, or a message over the limit."""
        size = batch_size(self._encoder, topic, bodies, properties)
        largest = self._encoder.size(topic, b"", properties) + (bodies.largest if bodies.count else 0)
        if largest > self.message_bytes_max:
            raise self._too_large(largest)
        if size > self._segment_bytes - BLANK_BYTES:
            raise MessageTooLarge(
                f"MESSAGE_SIZE_EXCEEDED: a batch of {size:,} bytes, a segment of this store has {self._segment_bytes:,}: "
                f"send smaller batches"
            )
        return size

    def _too_large(self, size: int) -> MessageTooLarge:
        more = "" if self.message_bytes_max == MESSAGE_BYTES_MAX else ", or make a store with larger segments"
        return MessageTooLarge(
            f"MESSAGE_SIZE_EXCEEDED: a record of {size:,} bytes, this store takes {self.message_bytes_max:,}: split the "
            f"body{more}"
        )

    def _open_topic(self, topic: str) -> _Topic:
        encoded = check_topic(topic)
        next_offset = self._known_offsets.get(topic)
        if next_offset is None:
            next_offset = self._lease.queue_end(topic, self._config.dispatcher.queue_file_entries)
        encode, overhead = bind(self._encoder, encoded, b"")
        state = self._topics[topic] = _Topic(encoded, next_offset, encode, overhead)
        return state

    def _make_room(self, size: int) -> int:
        """Rolls into the next segment where the record does not fit, and waits for its buffer. Returns where to."""
        words, segment_bytes = self._words, self._segment_bytes
        while True:
            where = self._wrote
            segment = where // segment_bytes
            if segment != self._segment:
                slot = self._open_slot(segment)
                before, self._slot = self._slot, slot
                self._segment_start = segment * segment_bytes
                self._segment, self._limit = segment, self._segment_start + segment_bytes - BLANK_BYTES
                if isinstance(before, DirectSegment):
                    before.close()
                self._attachment.wake("allocator")
            segment_end = self._segment_start + segment_bytes
            if where + size <= self._limit:
                return where
            position = where - self._segment_start
            self._slot[position : position + BLANK_BYTES] = encode_blank(segment_end - where)
            if isinstance(self._slot, memoryview):
                words[self._base + Lane.DATA_END + segment % words[self._base + Lane.SLOTS]] = where + BLANK_BYTES
            words[self._wrote_at] = segment_end
            self._wrote = segment_end

    def _open_slot(self, segment: int) -> memoryview | DirectSegment:
        """Where a segment number is written: its write buffer when that is free, or its file. Raises NoBufferAvailable, …"""
        self._attachment.check_open()
        words, base, buffers = self._words, self._base, self._buffers
        if buffers is None or is_direct(words, base, segment):
            return self._open_file(segment)
        flushed_at, size, slots = base + Lane.FLUSHED, self._segment_bytes, buffers.slots
        if not slot_is_free(segment, words[flushed_at], size, slots):
            may_write = slot_is_free(segment, words[flushed_at], size, DIRECT_WINDOW)
            if self._config.producer.when_no_buffer == "write_direct" and may_write:
                file = self._open_file(segment)
                words[base + Lane.DIRECT + segment % DIRECT_WINDOW] = segment + 1
                words[base + Lane.DIRECT_SEGMENTS] += 1
                return file
            self._wait_until(
                lambda: slot_is_free(segment, words[flushed_at], size, slots),
                self._config.producer.buffer_wait_ms,
                self._no_buffer,
            )
        return buffers.slot(segment)

    def _open_file(self, segment: int) -> DirectSegment:
        """The segment's file, once it is made and the flusher has it open. Raises AllocateTimeout, DiskFull, …"""
        words, base, start = self._words, self._base, segment * self._segment_bytes

        def is_ready() -> bool:
            return words[base + Lane.ALLOCATED] > start and words[base + Lane.OPENED] > start

        if not is_ready():
            self._wait_until(is_ready, self._config.producer.segment_wait_ms, self._no_segment)
        return DirectSegment(self._lease.directory.segment(start), self._lease.channel)

    def _wait_until(self, condition: Callable[[], bool], limit_ms: int, late: Callable[[int], Exception]) -> None:
        """Back-pressure: waits for the stages, and raises what keeps them, or `late(limit)` at the limit. Counted."""
        words, base, clock = self._words, self._base, self._clock
        began = clock.monotonic_ns()
        words[base + Lane.BUFFER_WAITS] += 1
        words[base + Lane.BLOCKED] = began
        try:
            while not condition():
                waited = clock.monotonic_ns() - began
                if waited > FAULT_PATIENCE_NS:
                    self._attachment.raise_fault(base)
                if waited >= limit_ms * 1_000_000:
                    words[base + Lane.BUFFER_TIMEOUTS] += 1
                    self._attachment.check_open()
                    self._attachment.check_stages()
                    raise late(limit_ms)
                for stage in ("committer", "allocator"):
                    self._attachment.wake(stage)
                self._attachment.await_notice(NOTICE_WAIT_MS)
        finally:
            words[base + Lane.BLOCKED] = 0
            self._progress.waited_for_buffer(clock.monotonic_ns() - began)

    def _no_buffer(self, limit_ms: int) -> NoBufferAvailable:
        return NoBufferAvailable(
            f"lane {self.lane}: no write buffer came free in {limit_ms} ms, the disk does not keep up; the message was not "
            f"accepted: send it again later, or raise producer.buffer_wait_ms"
        )

    def _no_segment(self, limit_ms: int) -> AllocateTimeout:
        return AllocateTimeout(
            f"CREATE_MAPPED_FILE_FAILED: lane {self.lane}: the next segment was not made in {limit_ms} ms; the message was "
            f"not accepted: see the store's logs/allocator.log, or raise producer.segment_wait_ms"
        )

    def _rebuild(self) -> None:
        """After an interrupted or failed call: what was published is in the log, and nothing else is."""
        words, published = self._words, self._words[self._wrote_at]
        where = self._wrote
        while where < published:
            segment = where // self._segment_bytes
            start, position = segment * self._segment_bytes, where % self._segment_bytes
            slot = self._slot if segment == self._segment else self._open_slot(segment)
            data = bytes(slot[position : min(published - start, self._segment_bytes)])
            if isinstance(slot, DirectSegment) and slot is not self._slot:
                slot.close()
            if int.from_bytes(data[4:8], "big") == MAGIC_BLANK:
                where = start + self._segment_bytes
                continue
            record = decode(data)
            state = self._topics.get(record.topic) or self._open_topic(record.topic)
            state.next_offset = record.queue_offset + 1
            self._timestamp = max(self._timestamp, record.store_timestamp)
            where += record.total_size
        self._wrote = published
        if words[self._base + Lane.BLOCKED]:
            words[self._base + Lane.BLOCKED] = 0
        self._busy = False

    # ---- acknowledgements ----------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything sent so far is flushed. Raises WaitTimeout after `timeout` seconds (default: none),
        and what `Receipt.wait` raises; whatever it raises, the messages stay in the log."""
        self._progress.flush(timeout)

    def statistics(self) -> LaneStatistics:
        """What happened in its lane since the store was started, earlier producers' messages included."""
        return lane_statistics(self._attachment.control, self.lane)

    def _attend(self) -> None:
        """The committer went to sleep, or the store is closing: rings, or makes the next send find out."""
        self._seen = self._words[self._sleep_at]
        self._attachment.wake("committer")
        if self._attachment.closing:
            self._limit, self._segment = 0, -1

    # ---- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Gives the lane back. What was sent is drained by the stages; `flush` before waits for it."""
        if self._closed:
            return
        if not self._guard.acquire(False):
            raise self._concurrent_use()
        self._closed = True
        self._guard = _Gone(ProducerClosed(f"lane {self.lane}: this producer was closed"))
        if isinstance(self._slot, DirectSegment):
            self._slot.close()
        self._lease.release()
        self._attachment.close_sockets()

    def _die_after_fork(self) -> None:
        self._closed = True
        self._guard = _Gone(
            ForkedProducer(f"lane {self.lane}: this producer belongs to the parent process; make one in the child")
        )
        self._lease.abandon_after_fork()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):  # not there when __init__ raised
            self.close()

    def __repr__(self) -> str:
        return f"Producer({str(self._attachment.directory.path)!r}, lane={self.lane})"


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
